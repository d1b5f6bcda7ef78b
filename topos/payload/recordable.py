"""`Recordable`: the vocabulary that derivative rules, and any payload-generic algorithm, are written in."""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Self, TypeVar

from topos.errors import ShapeError
from topos.payload.shape import Shape, ShapeLike

# Opcode classes by name; `topos.ops` fills it.
OPCODES: dict[str, Any] = {}

_plain = functools.cache(lambda name: OPCODES[name]())
_FIXED = {int, tuple, Shape}
_latest = functools.lru_cache(1024)(lambda name, **parameters: OPCODES[name](**parameters))


def _opcode(name: str, **parameters: Any) -> Any:
    """Return the opcode of a kind with these parameters: the latest are kept, since one is slow to make.

    A number of another library may change, or be no number: it is a key to nothing.
    """
    is_fixed = {*map(type, parameters.values())} <= _FIXED
    return _latest(name, **parameters) if is_fixed else OPCODES[name](**parameters)


R = TypeVar("R", bound="Recordable")


def _operator(name: str) -> Callable[[R, Any], R]:
    """Return what Python calls of an operator's left operand."""

    def left(self: R, other: Any) -> R:
        return NotImplemented if self.defers(other) else self.apply(_plain(name), (self, self.lift(other)))

    return left


def _reflected(name: str) -> Callable[[R, Any], R]:
    """Return what Python calls of an operator's right operand, where the left one knows nothing of it."""

    def right(self: R, other: Any) -> R:
        return self.apply(_plain(name), (self.lift(other), self))

    return right


def _unary(name: str, text: str) -> Callable[[R], R]:
    """Return the method of a kind with one operand and no parameters."""

    def method(self: R) -> R:
        return self.apply(_plain(name), (self,))

    method.__doc__ = text
    return method


class Recordable(ABC):
    """One method per opcode. A `Tensor` computes, a `Trace` or `Value` records; a subclass may do either.

    A subclass says what applying an opcode means (`apply`), what its shape is, and how it holds a constant
    (`constant_like`). A number beside a ranked operand spreads over its shape; nothing else broadcasts.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The extents."""

    @abstractmethod
    def apply(self, opcode: Any, operands: tuple[Self, ...]) -> Self:
        """Return the result of `opcode` over `operands` (`self` is one of them)."""

    @abstractmethod
    def constant_like(self, count: int | None) -> Self:
        """Return a constant of this shape holding the integer `count`; None asks for minus infinity."""

    @abstractmethod
    def lift(self, literal: Any) -> Self:
        """Return a literal as an operand of this shape (an operand is returned as it is)."""

    def axis(self, axis: int, more: int = 0) -> int:
        """Return an axis counted from the front; a negative one counts from the end of rank + `more` axes."""
        rank = len(self.shape) + more
        return axis + rank if -rank <= axis < 0 else axis

    def defers(self, other: Any) -> bool:
        """Return whether an operator is left to the other operand: a tensor beside what records or is dual."""
        del other
        return False

    def zero_like(self) -> Self:
        """Return zeros of this shape."""
        return self.constant_like(0)

    def one_like(self) -> Self:
        """Return ones of this shape."""
        return self.constant_like(1)

    def _result(self, name: str, *others: Any, **parameters: Any) -> Self:
        """Return what an opcode makes of this operand and others."""
        return self.apply(_opcode(name, **parameters), (self, *others))

    # ---- arithmetic, elementwise over equal shapes
    __add__, __radd__ = _operator("Add"), _reflected("Add")
    __sub__, __rsub__ = _operator("Sub"), _reflected("Sub")
    __mul__, __rmul__ = _operator("Mul"), _reflected("Mul")
    __truediv__, __rtruediv__ = _operator("Div"), _reflected("Div")
    __pow__, __rpow__ = _operator("Powf"), _reflected("Powf")
    __neg__ = _unary("Neg", "Return -self.")

    def __matmul__(self, other: Any) -> Self:
        return NotImplemented if self.defers(other) else self.apply(_plain("MatMul"), (self, self.operand(other)))

    def __rmatmul__(self, other: Any) -> Self:
        return self.apply(_plain("MatMul"), (self.operand(other), self))

    def powf(self, exponent: Any) -> Self:
        """Return self ** exponent, elementwise."""
        return self._result("Powf", self.lift(exponent))

    def maximum(self, other: Any) -> Self:
        """Return self where ``self >= other`` or self is NaN, else other: ties go to the left."""
        return self._result("Maximum", self.lift(other))

    def step(self, threshold: Any) -> Self:
        """Return 1 where ``self >= threshold``, else 0; NaN gives 0. Carries no gradient."""
        return self._result("Step", self.lift(threshold))

    def select(self, on_true: Any, on_false: Any) -> Self:
        """Return `on_true` where this mask is not 0, else `on_false`, with the bits of the chosen one."""
        return self._result("Select", self.lift(on_true), self.lift(on_false))

    def scale(self, factor: Any) -> Self:
        """Return +0 where self or `factor` is 0, else self * factor: the product of derivative rules."""
        return self._result("Scale", self.lift(factor))

    def ratio(self, divisor: Any) -> Self:
        """Return +0 where self is 0, else self / divisor: the quotient of derivative rules."""
        return self._result("Ratio", self.lift(divisor))

    # ---- maps
    exp = _unary("Exp", "Return e ** self.")
    ln = _unary("Ln", "Return the natural logarithm.")
    sqrt = _unary("Sqrt", "Return the square root, correctly rounded.")
    tanh = _unary("Tanh", "Return the hyperbolic tangent.")
    sin = _unary("Sin", "Return the sine (radians).")
    cos = _unary("Cos", "Return the cosine (radians).")
    log1p = _unary("Log1p", "Return ln(1 + self), exact near 0.")
    expm1 = _unary("Expm1", "Return e ** self - 1, exact near 0.")
    erf = _unary("Erf", "Return the error function.")
    erf_derivative = _unary("ErfDerivative", "Return 2 / sqrt(pi) * e ** -self**2.")

    # ---- products and reductions
    def matmul(self, other: Any) -> Self:
        """Return the product of the last two axes, ``[..., m, k] @ [..., k, n]``; leading axes are equal."""
        return self._result("MatMul", self.operand(other))

    def operand(self, given: Any) -> Self:
        """Return an operand of another shape: an array becomes a constant of its own shape."""
        return self.lift(given)

    sum = _unary("Sum", "Return the sum of all elements, rank 0.")

    def sum_along(self, axis: int) -> Self:
        """Return the sums along an axis, which is removed."""
        return self._result("SumAlong", axis=self.axis(axis))

    def logsumexp(self, axis: int) -> Self:
        """Return ln(sum(exp(self))) along an axis, which is removed; finite for all finite operands."""
        return self._result("LogSumExp", axis=self.axis(axis))

    def log_softmax(self, axis: int) -> Self:
        """Return self - logsumexp(self) along an axis."""
        return self._result("LogSoftmax", axis=self.axis(axis))

    # ---- movement
    def broadcast(self, shape: ShapeLike) -> Self:
        """Repeat a single element over a shape."""
        return self._result("Broadcast", shape=Shape(shape))

    def broadcast_along(self, axis: int, extent: int) -> Self:
        """Insert an axis of `extent` equal copies."""
        return self._result("BroadcastAlong", axis=self.axis(axis, 1), extent=extent)

    def broadcast_like(self, reference: Any) -> Self:
        """Repeat a single element over the shape of another value (no edge to it)."""
        return self.broadcast(reference.shape)

    def broadcast_along_like(self, axis: int, reference: Any) -> Self:
        """Insert the axis that makes this the shape of `reference`."""
        shape = reference.shape
        if not 0 <= axis < shape.rank or self.shape != shape.without_axis(axis):
            rule = f"needs the shape of the reference without axis {axis}"
            raise ShapeError(f"broadcast_along_like({axis}, {shape}) of {self.shape}: {rule}")
        return self.broadcast_along(axis, shape[axis])

    def broadcast_to(self, shape: ShapeLike) -> Self:
        """Repeat to a shape by NumPy's rule: axes align from the last, extents match or are 1.

        Raises:
            ShapeError: they don't, or the rank would fall.
        """
        wanted, own = Shape(shape), self.shape
        lead = wanted.rank - own.rank
        if lead < 0 or not all(e in (1, w) for e, w in zip(own, wanted[lead:], strict=True)):
            rule = "aligned from the last axis, every extent has to match or be 1"
            raise ShapeError(f"broadcast_to({wanted}) of {own}: {rule}")
        if own == wanted:
            return self
        if own.volume == 1:
            return self.broadcast(wanted)
        spread = self if lead == 0 else self.reshape((*(1,) * lead, *own))
        for axis, extent in enumerate(wanted):
            if spread.shape[axis] != extent:
                spread = spread.reshape(spread.shape.without_axis(axis)).broadcast_along(axis, extent)
        return spread

    def reshape(self, shape: ShapeLike) -> Self:
        """Return the same elements, row-major, in another shape of the same volume."""
        return self._result("Reshape", shape=Shape(shape))

    def permute(self, order: Sequence[int]) -> Self:
        """Let axis i of the result be axis ``order[i]``; negative ones count from the end."""
        return self._result("Permute", order=tuple(self.axis(operator.index(a)) for a in order))

    def transpose(self) -> Self:
        """Reverse the axes."""
        return self._result("Permute", order=tuple(range(len(self.shape)))[::-1])

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """The same with its axes reversed."""
        return self.transpose()

    def narrow(self, axis: int, start: int, length: int) -> Self:
        """Keep ``start .. start+length`` of an axis."""
        return self._result("Narrow", axis=self.axis(axis), start=start, length=length)

    def pad(self, axis: int, start: int, full_extent: int) -> Self:
        """Place an axis at `start` in `full_extent` zeros."""
        return self._result("Pad", axis=self.axis(axis), start=start, full_extent=full_extent)

    def unfold(self, axis: int, size: int, step: int, dilation: int = 1) -> Self:
        """Replace an axis by (windows, size): windows of `size` taps, `dilation` apart, every `step`."""
        return self._result("Unfold", axis=self.axis(axis), size=size, step=step, dilation=dilation)

    def fold(self, axis: int, size: int, step: int, dilation: int, extent: int) -> Self:
        """Add windows back to an axis of `extent`: the adjoint of `unfold`."""
        return self._result("Fold", axis=self.axis(axis, -1), size=size, step=step, dilation=dilation, extent=extent)

    # ---- index pair
    def gather(self, selection: Any) -> Self:
        """Return the rows that a one-hot ``[count, vocabulary]`` selection names."""
        return self._result("Gather", self.operand(selection))

    def scatter(self, selection: Any) -> Self:
        """Add rows into ``[vocabulary, ...]`` zeros at the positions a one-hot selection names."""
        return self._result("Scatter", self.operand(selection))


for _name, _method in vars(Recordable).items():
    if isinstance(_method, FunctionType):  # what a function above returned is pickled and shown by the name it has here
        _method.__name__, _method.__qualname__ = _name, f"Recordable.{_name}"
