"""`Network`: the sealed spec, immutable and without weights. `topos.engine` gives it its runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from topos.errors import SealedError, SymbolError
from topos.graph.columns import Columns, Recorded
from topos.graph.parameters import Parameters, Slots
from topos.graph.symbol import Symbol, detach
from topos.graph.tape import Tape
from topos.payload import Element


class Network(Recorded):
    """A sealed recording. It cannot be copied: one origin has one history.

    Attributes:
        slots: where each parameter lies in a table.

    >>> network, y = Tape.record(lambda tape: tape.parameter([1.0, 2.0], name="w").sum())
    >>> print(network.describe())
       0  Parameter                         [2]  w
       1  Sum            0                  []
    network: 2 nodes, 1 parameter, 0 inputs
    """

    __slots__ = ("__weakref__", "_columns", "cache", "lock", "slots")
    _over = "this network has been reopened: use the network that its tape becomes"

    forward: Callable[..., Any]
    entry: Callable[..., Any]
    compile: Callable[..., Any]
    save: Callable[..., None]
    load: Callable[..., Network]

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.slots = Slots(columns)
        self.cache: dict[Any, Any] = {}
        self.lock = threading.Lock()

    @property
    def element(self) -> Element:
        """What every value holds."""
        return self.columns.element

    def into_tape(self) -> Tape:
        """Reopen the recording, to extend it. The network cannot be used afterwards; symbols can."""
        with self.lock:
            columns, self._columns = self.columns, None
        self.cache = {}
        return Tape.of_columns(columns.fork())  # runs of this network keep the spec that they ran

    def extend(self, build: Callable[[Tape], Any]) -> tuple[Network, Any]:
        """Reopen, let `build` record more, and seal: (network, what `build` returned, detached).

        This network cannot be used afterwards, unless `build` raises: then it is as it was.
        """
        columns = self.columns
        tape = self.into_tape()
        try:
            names = detach(build(tape))
            return tape.into_network(), names
        except BaseException:
            self._columns, tape._columns = columns, None
            raise

    def parameters(self) -> Parameters:
        """Return a fresh table of the initial payloads."""
        return Parameters.of_tensors(self.slots, [self.columns.payloads[node] for node in self.slots.nodes])

    def symbol(self, name: str) -> Symbol:
        """Return the symbol of a named value.

        Raises:
            SymbolError: no value has the name.
        """
        names = self.columns.names
        if name not in names:
            known = ", ".join(map(repr, sorted(names))) or "none"
            raise SymbolError(f"no value is named {name!r}; names here: {known}")
        return Symbol(self.columns.family, names[name])

    def __copy__(self, *_: Any) -> NoReturn:
        raise SealedError("a Network cannot be copied: share it, it never changes")

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self.columns,)

    def __repr__(self) -> str:
        return "Network(reopened)" if self._columns is None else f"Network({len(self._columns)} nodes)"
