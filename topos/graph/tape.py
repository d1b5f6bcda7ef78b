"""`Tape`: the phase in which a graph is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from topos.errors import ShapeError, SymbolError, TapeError, UsageError
from topos.graph.adjoints import Adjoints, listed, record_vjp
from topos.graph.columns import Columns, Location, Recorded, caller, is_name
from topos.graph.symbol import Symbol, SymbolLike, detach
from topos.graph.value import Literal, Value
from topos.ops import Broadcast, Input, Leaf, Opcode, Parameter
from topos.payload import ElementLike, Tensor, element_of

if TYPE_CHECKING:
    from topos.graph.network import Network

_LEAF, _PARAMETER, _INPUT = Leaf(), Parameter(), Input()


class Tape(Recorded):
    """An append-only record of one graph; several threads may record on it.

    Arguments:
        element: what every value of the graph holds (default F32).

    A recording that fails leaves the tape as it was.

    >>> tape = Tape()
    >>> w = tape.parameter(3.0, name="w")
    >>> (w * w).shape
    []
    >>> len(tape)
    2
    """

    __slots__ = ("__weakref__", "_columns", "_lock", "element", "location")
    _over = "this tape has been sealed: record before into_network(), or reopen with into_tape()"

    def __init__(self, element: ElementLike = "f32") -> None:
        self.element = element_of(element)
        self._columns = Columns(self.element)
        self._lock = threading.RLock()
        self.location: Location = None

    @classmethod
    def record(cls, build: Callable[[Tape], Any], element: ElementLike = "f32") -> tuple[Network, Any]:
        """Run `build` on a fresh tape, seal it, and return (network, what `build` returned, detached)."""
        tape = cls(element)
        names = detach(build(tape))
        return tape.into_network(), names

    @classmethod
    def of_columns(cls, columns: Columns) -> Tape:
        """Return a tape that continues `columns`."""
        tape = cls(columns.element)
        tape._columns = columns
        return tape

    def into_network(self) -> Network:
        """Seal the recording. The tape and its values cannot be used afterwards; symbols can."""
        from topos.graph.network import Network

        with self._lock:
            columns, self._columns = self.columns, None
        return Network(columns)

    # ---- sources
    def leaf(self, data: Any, name: str | None = None) -> Value:
        """Record a constant."""
        return self._source(_LEAF, data, name)

    def parameter(self, data: Any, name: str | None = None) -> Value:
        """Record a value that training changes; `data` is its initial payload."""
        return self._source(_PARAMETER, data, name)

    def input(self, data: Any, name: str | None = None) -> Value:
        """Record a value that runs may feed; `data` is its payload where they do not."""
        return self._source(_INPUT, data, name)

    def _source(self, opcode: Opcode, data: Any, name: str | None) -> Value:
        payload = self.payload_of(data)
        with self.transaction() as columns:
            value = Value(self, columns.add_source(opcode, payload, self.location or caller()))
            if name is not None:
                self.name(value, name)
        return value

    def payload_of(self, data: Any) -> Tensor:
        """Return data as a tensor of this tape's element; a tensor of another element is refused."""
        return Tensor.given(data, self.element, "on a tape of")

    # ---- nodes
    def record_node(self, opcode: Opcode, operands: tuple[Any, ...]) -> Value:
        """Record one node over values and literals; the shape rule is checked first."""
        with self._lock:
            columns = self.columns
            shapes = columns.shapes
            shape = opcode.infer(*[shapes[o.index] if type(o) is Value else o.shape for o in operands])
            location = self.location or caller()
            indices = tuple([o.index if type(o) is Value else self._literal(columns, o, location) for o in operands])
            return Value(self, columns.append(opcode, indices, shape, location))

    def _literal(self, columns: Columns, literal: Literal, location: Any) -> int:
        payload = literal.payload
        index = columns.add_source(_LEAF, payload, location)
        if payload.shape == literal.shape:
            return index
        return columns.append(Broadcast(literal.shape), (index,), literal.shape, location)

    @contextmanager
    def transaction(self) -> Iterator[Columns]:
        """Hold the lock, and take back what was recorded if the body raises."""
        with self._lock:
            columns = self.columns
            lengths = columns.lengths()
            try:
                yield columns
            except BaseException:
                columns.rollback(lengths)
                raise

    def name(self, value: Value, name: str) -> None:
        """Give a value a name.

        Raises:
            SymbolError: another value has it.
            UsageError: it is no printable text.
        """
        if not is_name(name):
            raise UsageError(f"the name {name!r} of n#{value.index}: a name is printable text")
        with self._lock:
            known = self.columns.names.setdefault(name, value.index)
            if known != value.index:
                raise SymbolError(f"the name {name!r} is taken by n#{known}: names are unique on a tape")

    def require_nonzero(self, value: Value) -> None:
        """Let runs report a `DataError` where this value is 0."""
        with self._lock:
            self.columns.checks.append(value.index)

    # ---- derivatives
    def differentiate(self, loss: SymbolLike, wrt: Any, stop: Any = ()) -> Adjoints:
        """Record the gradients of a rank-0 loss by each of `wrt`, as ordinary nodes.

        Arguments:
            loss: a value or symbol of this tape.
            wrt: one or several values or symbols.
            stop: values through which no gradient flows.

        Raises:
            ShapeError: the loss is not rank 0.
            SymbolError: a symbol is foreign or newer.
        """
        with self.transaction() as columns:
            target = columns.index(loss, "differentiate")
            if columns.shapes[target].rank != 0:
                what = f"differentiate {columns.label(target)} with shape {columns.shapes[target]}"
                remedy = "reduce it, e.g. with sum(), or use vjp(target, seed, wrt)"
                raise ShapeError(f"{what}: a loss has rank 0; {remedy}")
            return record_vjp(self, loss, Value(self, target).one_like(), listed(wrt), listed(stop))

    def vjp(self, target: SymbolLike, seed: Any, wrt: Any, stop: Any = ()) -> Adjoints:
        """Record the gradients of ``sum(seed * target)`` by each of `wrt`; the seed is held constant.

        Arguments:
            target: a value or symbol of this tape, of any shape.
            seed: a value of this tape, or an array, of the target's shape. A computed seed is allowed:
                ``vjp(gradient, vector, [x])`` is a Hessian-vector product.
            wrt: one or several values or symbols.
            stop: values through which no gradient flows.

        Raises:
            ShapeError: the seed's shape differs from the target's.
            SymbolError: a symbol is foreign or newer.
        """
        with self.transaction():
            if isinstance(seed, Symbol):
                seed = self.resolve(seed)
            if not isinstance(seed, Value):
                seed = self.leaf(seed)
            elif seed.tape is not self:
                raise TapeError("vjp: the seed belongs to another tape")
            return record_vjp(self, target, seed, listed(wrt), listed(stop))

    # ---- readers
    def resolve(self, symbol: SymbolLike) -> Value:
        """Return the value that a symbol names on this tape.

        Raises:
            SymbolError: it belongs to another recording or is newer than this one.
        """
        return Value(self, self.columns.index(symbol, "resolve"))

    def __repr__(self) -> str:
        is_sealed = self._columns is None
        return "Tape(sealed)" if is_sealed else f"Tape({len(self.columns)} nodes, {self.element.name})"
