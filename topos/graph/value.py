"""`Value`: a proxy to a recorded value, the operand of recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from topos.errors import ElementError, ShapeError, TapeError, UsageError
from topos.graph.composites import Composites
from topos.graph.symbol import Symbol
from topos.ops import Opcode
from topos.payload import Shape, Tensor

if TYPE_CHECKING:
    from topos.graph.tape import Tape


class Literal(NamedTuple):
    """A payload met as an operand: recorded as a Leaf (and a Broadcast) with the node that takes it."""

    payload: Tensor
    shape: Shape


def _refusal(use: str, remedy: str) -> Callable[..., NoReturn]:
    """Return the method of a value that a number would have: it says what to write instead."""

    def refuse(self: Value, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(f"{use} of {self!r}: a recorded value has no number until a run; {remedy}")

    return refuse


class Value(Composites):
    """A position on a tape. Operators record; nothing computes until a run.

    A Python number beside a ranked value spreads over its shape; an array has to have the value's shape.
    Comparisons give 0/1 masks, except ``==``, which is identity.

    >>> x = Tape().input([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x.T).tanh()[1:, 0].shape
    [1]
    """

    __slots__ = ("index", "tape")
    __array_ufunc__ = None

    tape: Tape

    def __init__(self, tape: Tape, index: int) -> None:
        self.tape, self.index = tape, index

    @property
    def symbol(self) -> Symbol:
        """The detached name."""
        return Symbol(self.tape.columns.family, self.index)

    @property
    def shape(self) -> Shape:
        """The extents, known as soon as it is recorded."""
        return self.tape.columns.shapes[self.index]

    def payload(self) -> Tensor | None:
        """Return the stored payload of a source; None for a computed value."""
        return self.tape.columns.payloads.get(self.index)

    def detach(self) -> Symbol:
        """Return the detached name."""
        return self.symbol

    def named(self, name: str) -> Value:
        """Give this value a name and return it.

        Raises:
            SymbolError: another value has the name.
        """
        self.tape.name(self, name)
        return self

    # ---- Recordable
    def apply(self, opcode: Opcode, operands: tuple[Any, ...]) -> Value:
        """Record `opcode` over operands (values of this tape, or literals)."""
        tape = self.tape
        for operand in operands:
            if type(operand) is Value and operand.tape is not tape:
                self._same_tape(operand)
        return tape.record_node(opcode, operands)

    def constant_like(self, count: int | None) -> Value:
        """Record a leaf of this shape that holds an integer; None asks for minus infinity."""
        return self.tape.leaf(Tensor.counted(self.shape, count, element=self.tape.element))

    def lift(self, literal: Any) -> Any:
        """Return a value as it is, anything else as a literal of this shape."""
        found = self.operand(literal)
        spread = isinstance(found, Literal) and found.shape.rank == 0 < self.shape.rank
        return Literal(found.payload, self.shape) if spread else found

    def operand(self, given: Any) -> Any:
        """Return a value as it is, anything else as a literal of its own shape."""
        if isinstance(given, Value):
            return self._same_tape(given)
        try:
            payload = self.tape.payload_of(given)
        except (ElementError, ShapeError) as error:
            raise type(error)(f"{given!r} beside a value: {error}") from None
        return Literal(payload, payload.shape)

    def _same_tape(self, other: Value) -> Value:
        if other.tape is not self.tape:
            remedy = "record both on one tape, or feed one of them as an input"
            raise TapeError(f"{self!r} and {other!r} belong to different tapes: {remedy}")
        return other

    # ---- identity, and what a value is not
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.tape is other.tape and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self.tape), self.index))

    def __repr__(self) -> str:
        return f"Value(n#{self.index})"

    __bool__ = _refusal("the truth", "choose in the graph with topos.where(mask, on_true, on_false)")
    __float__ = _refusal("float()", "read run.of(symbol).scalar() after network.forward(...)")
    __int__ = _refusal("int()", "read run.of(symbol).scalar() after network.forward(...)")
    __len__ = _refusal("len()", "read value.shape[0]")
    __iter__ = _refusal("iteration", "take parts with value[i] or value.narrow(axis, start, length)")
    __array__ = _refusal("a NumPy array", "read run.of(symbol).numpy() after network.forward(...)")
