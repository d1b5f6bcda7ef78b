"""`Entry`, a declared reading, and `BoundEntry`, the same bound to a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from topos.backend.backend import Backend
from topos.backend.numerics import Numerics
from topos.errors import SymbolError, UsageError
from topos.graph import Network, Parameters, Symbol, SymbolLike, symbol_of
from topos.graph.adjoints import listed

if TYPE_CHECKING:
    from topos.engine.feeds import Feeds
    from topos.engine.plan import Plan
    from topos.engine.run import Run


def _symbols(given: Any) -> tuple[Symbol, ...]:
    return tuple(symbol_of(member) for member in listed(given))


@dataclass(frozen=True)
class Entry:
    """What a reading computes and keeps: plain data that survives a reopen.

    Arguments:
        roots: the results, one or several symbols.
        observe: further values that stay readable.
        backward: keep what `Run.backward` reads.
        numerics: the posture.

    >>> network, y = Tape.record(lambda tape: tape.input(1.0) + 1.0)
    >>> print(network.compile(Entry([y])).forward(network.parameters()).of(y))
    2.0
    """

    roots: tuple[Symbol, ...]
    observe: tuple[Symbol, ...] = ()
    backward: bool = False
    numerics: Numerics = Numerics.EXACT

    def __post_init__(self) -> None:
        object.__setattr__(self, "roots", _symbols(self.roots))
        object.__setattr__(self, "observe", _symbols(self.observe))
        if not isinstance(self.numerics, Numerics):
            raise UsageError(f"numerics={self.numerics!r}: a posture is Numerics.EXACT or Numerics.FAST")
        if not self.roots and not self.observe:
            raise SymbolError("an entry needs at least one root or observed value")

    @property
    def results(self) -> tuple[Symbol, ...]:
        """Roots, then observed values, each once."""
        return tuple(dict.fromkeys((*self.roots, *self.observe)))


class BoundEntry:
    """An `Entry` with the network that executes it. The fluent methods return new ones.

    >>> network, (x, y) = Tape.record(lambda tape: (lambda x: (x, x + 1.0))(tape.input(1.0)))
    >>> network.entry(y).observe(x).entry().results
    (n#2, n#0)
    """

    __slots__ = ("_entry", "_network")

    def __init__(self, network: Network, entry: Entry) -> None:
        for symbol in entry.results:
            network.columns.index(symbol, "entry")
        self._network, self._entry = network, entry

    def observe(self, symbols: SymbolLike | Iterable[SymbolLike]) -> BoundEntry:
        """Return this with further readable values."""
        return BoundEntry(self._network, replace(self._entry, observe=self._entry.observe + _symbols(symbols)))

    def backward(self) -> BoundEntry:
        """Return this in the posture that answers `Run.backward`."""
        return BoundEntry(self._network, replace(self._entry, backward=True))

    def numerics(self, numerics: Numerics) -> BoundEntry:
        """Return this under another posture."""
        return BoundEntry(self._network, replace(self._entry, numerics=numerics))

    def entry(self) -> Entry:
        """Return the detached entry."""
        return self._entry

    into_entry = entry

    def interpret(self, parameters: Parameters, feeds: Feeds = None) -> Run:
        """Evaluate exactly the ancestors of the results; every one of them is readable.

        Raises:
            ParametersError, FeedError, DataError: as `Network.forward`.
        """
        from topos.engine.run import interpret

        return interpret(self._network, self._entry, parameters, feeds)

    def lower(self, backend: Backend = Backend.SIMD) -> Plan:
        """Compile the entry: what is not declared is not computed, kept or materialised.

        Raises:
            BackendUnavailable: the backend, `Backend.CUDA`, cannot run here; the message says what is missing.
            UsageError: the backend runs no plans.
        """
        if backend is Backend.CUDA:
            from topos.engine.device import DevicePlan

            return DevicePlan(self._network, self._entry)
        if backend is not Backend.SIMD:
            raise UsageError(f"lower(backend={backend}): plans run on Backend.SIMD, a CPU, or Backend.CUDA")
        from topos.engine.plan import Plan

        return Plan(self._network, self._entry)

    def __repr__(self) -> str:
        return f"BoundEntry({self._entry!r})"


def entry(
    network: Network, roots: Any, observe: Any = (), backward: bool = False, numerics: Numerics = Numerics.EXACT
) -> BoundEntry:
    """Declare a reading of a network.

    Raises:
        SymbolError: a symbol is foreign or newer.
    """
    return BoundEntry(network, Entry(roots, observe, backward, numerics))


def compile_entry(network: Network, entry: Entry) -> Plan:
    """Lower a detached entry on a network.

    Raises:
        SymbolError: a symbol of it is foreign or newer.
    """
    return BoundEntry(network, entry).lower()


Network.entry = entry
Network.compile = compile_entry
