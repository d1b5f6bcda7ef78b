"""Recorded reverse mode: derivatives as ordinary nodes, and `Adjoints`, which names them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from topos.errors import ShapeError, SymbolError
from topos.graph.columns import Columns
from topos.graph.symbol import Symbol, SymbolLike, symbol_of
from topos.graph.trace import reverse_scan
from topos.graph.value import Value

if TYPE_CHECKING:
    from topos.graph.tape import Tape


class Adjoints:
    """The gradients of one target: a symbol per ``wrt`` entry, in its order.

    Attributes:
        target: what was differentiated.
        pairs: (wrt, gradient) in wrt order.
        wrt: what was differentiated by.
        gradients: the gradients, in wrt order.

    >>> tape = Tape()
    >>> w = tape.parameter(3.0)
    >>> adjoints = tape.differentiate(w * w, [w])
    >>> adjoints.target, adjoints.wrt
    (n#1, (n#0,))
    """

    __slots__ = ("gradients", "pairs", "target", "wrt")

    def __init__(self, target: Symbol, pairs: Sequence[tuple[Symbol, Symbol]]) -> None:
        self.target, self.pairs = target, tuple(pairs)
        self.wrt = tuple(wrt for wrt, _ in self.pairs)
        self.gradients = tuple(gradient for _, gradient in self.pairs)

    @property
    def roots(self) -> list[Symbol]:
        """The target, then the gradients: the roots of a training entry."""
        return [self.target, *self.gradients]

    def of(self, wrt: SymbolLike) -> Symbol:
        """Return the gradient by one entry.

        Raises:
            SymbolError: it is no entry of ``wrt``.
        """
        symbol = symbol_of(wrt)
        for entry, gradient in self.pairs:
            if entry == symbol:
                return gradient
        raise SymbolError(f"Adjoints.of: {symbol!r} was not differentiated by; entries are {list(self.wrt)}")

    def map_gradients(self, function: Callable[[Symbol], SymbolLike]) -> Adjoints:
        """Return these adjoints with every gradient symbol replaced."""
        return Adjoints(self.target, [(wrt, symbol_of(function(g))) for wrt, g in self.pairs])

    def detach(self) -> Adjoints:
        """Return itself: it holds symbols already."""
        return self

    def __repr__(self) -> str:
        body = ", ".join(f"{wrt!r}: {gradient!r}" for wrt, gradient in self.pairs)
        return f"Adjoints({self.target!r} by {{{body}}})"


def leading(columns: Columns, target: int, wrt: Iterable[int], stop: Iterable[int]) -> set[int]:
    """Return the nodes up to `target` that a change of `wrt` reaches with a slope; none beyond `stop`."""
    barred = set(stop)
    reached = set(wrt)
    for node in range(min(reached, default=target), target + 1):
        operands = columns.operands[node]
        if node in barred or reached.isdisjoint(operands):
            continue
        data = columns.opcodes[node].data
        if not data or any(o in reached for i, o in enumerate(operands) if i not in data):
            reached.add(node)
    return reached


def record_vjp(tape: Tape, target: SymbolLike, seed: Value, wrt: list[SymbolLike], stop: list[SymbolLike]) -> Adjoints:
    """Record the reverse scan of `target` from a planted cotangent: only what leads from it to `wrt`.

    First contributions are taken as they are, later ones are added in the order of the scan.
    """
    columns = tape.columns
    position = columns.index(target, "vjp")
    entries = [columns.index(symbol, "vjp") for symbol in wrt]
    halted = [columns.index(symbol, "vjp") for symbol in stop]
    if seed.shape != columns.shapes[position]:
        raise ShapeError(f"vjp: the seed has shape {seed.shape}, the target {columns.shapes[position]}")
    wanted = leading(columns, position, entries, halted)
    spoken = recorded_scan(tape, position, seed, wanted, set(halted))
    gradients = [spoken[entry] if entry in spoken else Value(tape, entry).zero_like() for entry in entries]
    pairs = [(Symbol(columns.family, entry), value.symbol) for entry, value in zip(entries, gradients, strict=True)]
    adjoints = Adjoints(Symbol(columns.family, position), pairs)
    columns.adjoints.append(adjoints)
    return adjoints


def recorded_scan(
    tape: Tape, target: int, seed: Value, wanted: Collection[int] | None = None, stop: Collection[int] = ()
) -> dict[int, Value]:
    """Record the reverse scan of a target from a seed, and return the cotangents that were spoken, by node."""
    before = tape.location
    with tape.transaction() as columns:

        def visit(node: int) -> None:
            tape.location = columns.locations[node]  # what a rule records belongs to the line of its node

        try:
            return reverse_scan(columns, target, seed, lambda n: Value(tape, n), wanted, visit, stop)
        finally:
            tape.location = before


def listed(given: Any) -> list[Any]:
    """Return one symbol or value, or an iterable of them, as a list."""
    return [given] if isinstance(given, (Symbol, Value)) else list(given)
