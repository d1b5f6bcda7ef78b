"""`Columns`: the spec itself, one append-only list per fact about a node. `Node` is one row of it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from topos.errors import SealedError
from topos.graph.symbol import Counted, Family, Symbol, SymbolLike, position
from topos.ops import Input, Opcode, Parameter
from topos.ops.opcode import text_of
from topos.payload import Element, Shape, Tensor

_PACKAGE = str(Path(__file__).parents[1])

# A file and a line of it.
Location = tuple[str, int] | None


def is_name(given: Any) -> bool:
    """Return whether a value may have this name: printable text, which tables and emitted comments show on a line."""
    return isinstance(given, str) and given != "" and given.isprintable()


def caller() -> Location:
    """Return the nearest line outside this package: the one that records."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@dataclass(eq=False, repr=False)
class Columns:
    """What a tape records and a network keeps.

    `payloads` holds the tensors of sources, `checks` the values that must not be 0 in a run, `adjoints` the
    derivatives that were recorded. Lists only grow, except that `rollback` takes back a recording that failed.
    """

    element: Element
    family: Family = field(default_factory=Family)
    opcodes: list[Opcode] = field(default_factory=list)
    operands: list[tuple[int, ...]] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    payloads: dict[int, Tensor] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    parameters: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    checks: list[int] = field(default_factory=list)
    adjoints: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.opcodes)

    def append(self, opcode: Opcode, operands: tuple[int, ...], shape: Shape, location: Location) -> int:
        """Add a node and return its index."""
        self.opcodes.append(opcode)
        self.operands.append(operands)
        self.shapes.append(shape)
        self.locations.append(location)
        return len(self.opcodes) - 1

    def add_source(self, opcode: Opcode, payload: Tensor, location: Location) -> int:
        """Add a source with its payload and return its index."""
        index = self.append(opcode, (), payload.shape, location)
        self.payloads[index] = payload
        if isinstance(opcode, Parameter):
            self.parameters.append(index)
        elif isinstance(opcode, Input):
            self.inputs.append(index)
        return index

    def lengths(self) -> list[int]:
        """Return how much there is of everything that a recording adds to."""
        return [*map(len, _grown(self))]

    def rollback(self, lengths: list[int]) -> None:
        """Forget what was added since these were the lengths: nodes, and names, checks and derivatives of any node."""
        for column, length in zip(_grown(self), lengths, strict=True):
            while len(column) > length:
                _ = column.popitem() if isinstance(column, dict) else column.pop()

    def fork(self) -> Columns:
        """Return a copy that can grow on its own; nodes so far are shared."""
        return replace(self, **{name: column.copy() for name, column in zip(_GROWING, _grown(self), strict=True)})

    def index(self, symbol: SymbolLike, what: str) -> int:
        """Return the position of a symbol.

        Raises:
            SymbolError: it belongs to another family, or is newer than these columns.
        """
        return position(symbol, self.family, len(self.opcodes), what, "recording")

    def where(self, index: int) -> str:
        """Return ``file.py:12``, the line that recorded a node."""
        location = self.locations[index]
        return "unknown line" if location is None else f"{location[0]}:{location[1]}"

    def label(self, index: int) -> str:
        """Return how messages call a node: ``n#7 Gather (named 'x', recorded at file.py:12)``."""
        name = next((name for name, i in self.names.items() if i == index), None)
        named = f"named {name!r}, " if name else ""
        return f"n#{index} {self.opcodes[index].name} ({named}recorded at {self.where(index)})"


# The lists and dictionaries of `Columns`.
_GROWING = [column.name for column in fields(Columns)[2:]]
_grown = operator.attrgetter(*_GROWING)


class Node(NamedTuple):
    """One recorded node: a snapshot of the columns that outlives the tape."""

    symbol: Symbol
    opcode: Opcode
    operands: tuple[Symbol, ...]
    shape: Shape
    source: str

    @property
    def name(self) -> str:
        """The kind's name."""
        return self.opcode.name

    @property
    def is_source(self) -> bool:
        """Whether the node has no operands."""
        return self.opcode.is_source

    def __str__(self) -> str:
        return _line(self.symbol.index, self.opcode, [operand.index for operand in self.operands], self.shape)


def _line(index: int, opcode: Opcode, operands: Iterable[int], shape: Shape, name: str | None = None) -> str:
    """Return a node's line of ``describe``: index, opcode, operands and parameters, shape, name."""
    detail = ", ".join(map(str, operands))
    parameters = " ".join(f"{key}={text_of(value)}" for key, value in opcode.parameters.items())
    if parameters:
        detail = f"{detail}  {parameters}"
    line = f"{index:4}  {opcode.name:<14} {detail:<18} {shape}"
    return f"{line}  {name}" if name else line


def node_of(columns: Columns, index: int) -> Node:
    """Return the snapshot of one node."""
    symbol, *operands = (Symbol(columns.family, i) for i in (index, *columns.operands[index]))
    opcode, shape = columns.opcodes[index], columns.shapes[index]
    return Node(symbol, opcode, tuple(operands), shape, columns.where(index))


def spec_lines(columns: Columns, nodes: Iterable[int]) -> list[str]:
    """Return nodes' lines of ``describe``."""
    named = {index: name for name, index in columns.names.items()}
    return [_line(i, columns.opcodes[i], columns.operands[i], columns.shapes[i], named.get(i)) for i in nodes]


class Recorded(Counted):
    """What a tape and a network answer about their columns, until they are sealed or reopened."""

    __slots__ = ()

    _columns: Columns | None
    _over: ClassVar[str]

    @property
    def columns(self) -> Columns:
        """The record.

        Raises:
            SealedError: the tape has become a network, or the network has been reopened.
        """
        if self._columns is None:
            raise SealedError(self._over)
        return self._columns

    def node(self, symbol: SymbolLike) -> Node:
        """Return a snapshot of one node.

        Raises:
            SymbolError: the symbol belongs to another recording or is newer than this one.
        """
        return node_of(self.columns, self.columns.index(symbol, "node"))

    def nodes(self) -> list[Node]:
        """Return all nodes in recording order."""
        return [node_of(self.columns, i) for i in range(len(self.columns))]

    def payload(self, symbol: SymbolLike) -> Tensor | None:
        """Return the recorded payload of a source; None for a computed value."""
        return self.columns.payloads.get(self.columns.index(symbol, "payload"))

    def describe(self) -> str:
        """Return the record as text: a line per node and a summary."""
        columns, kind = self.columns, type(self).__name__.lower()
        counts = [(len(columns), "node"), (len(columns.parameters), "parameter"), (len(columns.inputs), "input")]
        summary = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
        return "\n".join([*spec_lines(columns, range(len(columns))), f"{kind}: {summary}"])

    def __len__(self) -> int:
        return len(self.columns)
