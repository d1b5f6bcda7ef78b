"""`Composites`: operations on a value that record several nodes. Their gradients follow by the chain rule.

Each is all or nothing: where one of its nodes is refused, none stays on the tape.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, Self

from topos.errors import PositionError, ShapeError
from topos.payload import Recordable, Shape

# One axis, several, or all (None).
Axes = int | Sequence[int] | None


def _whole(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a recording of several nodes all or nothing."""

    @functools.wraps(method)
    def whole(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.tape.transaction():
            return method(self, *arguments, **options)

    return whole


class Composites(Recordable):
    """The methods of `Value` that are formulas over the vocabulary."""

    __slots__ = ()

    tape: Any

    # ---- activations
    def abs(self) -> Self:
        """Return max(0, x) + max(0, -x): slope 0 at 0."""
        zero = self.zero_like()
        return zero.maximum(self) + zero.maximum(-self)

    def __abs__(self) -> Self:
        return self.abs()

    def relu(self) -> Self:
        """Return max(0, x): slope 0 at 0."""
        return self.zero_like().maximum(self)

    def leaky_relu(self, slope: Any = 0.01) -> Self:
        """Return x where x > 0, else slope * x."""
        return self.zero_like().step(self).select(self * slope, self)

    def elu(self, alpha: Any = 1.0) -> Self:
        """Return x where x > 0, else alpha * (e**x - 1) (Clevert et al., 2016)."""
        return self.zero_like().step(self).select(self.expm1() * alpha, self)

    def softplus(self) -> Self:
        """Return ln(1 + e**x) as max(0, x) + ln(1 + e**-|x|): finite for finite x, its slope is the sigmoid."""
        # -|x| with slope 1 at 0, so that the two slopes there, 0 and 1/2, add up.
        folded = -(-self).maximum(self)
        return self.relu() + folded.exp().log1p()

    def sigmoid(self) -> Self:
        """Return 1 / (1 + e**-x), by e**-|x| so that nothing overflows."""
        # -|x| with slope -1 at 0, the side that the numerator takes there.
        decay = (-self.maximum(-self)).exp()
        one = self.one_like()
        return self.step(self.zero_like()).select(one, decay) / (one + decay)

    def silu(self) -> Self:
        """Return x * sigmoid(x) (Elfwing et al., 2018)."""
        return self * self.sigmoid()

    def gelu(self) -> Self:
        """Return x * ((1 + erf(x * sqrt(1/2))) / 2), the exact form (Hendrycks & Gimpel, 2016)."""
        # Products, since a division takes as long as five; the halving comes first, since it is exact.
        half: Self = self.tape.leaf(0.5)
        scaled = self * half.sqrt().broadcast(self.shape)
        return self * (half.broadcast(self.shape) * (self.one_like() + scaled.erf()))

    def softmax(self, axis: int) -> Self:
        """Return e**log_softmax along an axis."""
        return self.log_softmax(axis).exp()

    # ---- comparison and choice
    def __ge__(self, other: Any) -> Self:
        return self.step(other)

    def __le__(self, other: Any) -> Self:
        return self._two_sided(other)[1]

    def __gt__(self, other: Any) -> Self:
        above, below = self._two_sided(other)
        return below.select(self.zero_like(), above)

    def __lt__(self, other: Any) -> Self:
        above, below = self._two_sided(other)
        return above.select(self.zero_like(), below)

    def _two_sided(self, other: Any) -> tuple[Self, Self]:
        """Return the masks of self >= other and self <= other; both are 0 where one is NaN."""
        fixed = self.fixed(other)
        return self.step(fixed), fixed.step(self)

    def fixed(self, other: Any) -> Self:
        """Return an operand as a value: a number is recorded as a leaf of this shape."""
        literal: Any = self.lift(other)
        if isinstance(literal, type(self)):
            return literal
        leaf: Self = self.tape.leaf(literal.payload)
        return leaf if leaf.shape == literal.shape else leaf.broadcast(literal.shape)

    def minimum(self, other: Any) -> Self:
        """Return self where ``self <= other`` or self is NaN, else other: ties go to the left."""
        return -(-self).maximum(-self.fixed(other))

    def clamp(self, low: Any = None, high: Any = None) -> Self:
        """Return the value limited to ``low .. high``; either may be None."""
        if low is None and high is None:
            raise ShapeError("clamp: give low, high, or both")
        raised = self if low is None else self.maximum(low)
        return raised if high is None else raised.minimum(high)

    # ---- reductions
    def _axes(self, axes: Axes) -> list[int]:
        """Return axes counted from the front, ascending.

        Raises:
            ShapeError: one is outside the rank or named twice.
        """
        rank = len(self.shape)
        if axes is None:
            return list(range(rank))
        try:
            given = [operator.index(a) for a in (axes if isinstance(axes, Iterable) else [axes])]
        except TypeError:
            raise ShapeError(f"axes {axes!r}: give an int, several ints, or None for all") from None
        counted = sorted(self.axis(axis) for axis in given)
        if len(set(counted)) != len(counted) or any(not 0 <= axis < rank for axis in counted):
            raise ShapeError(f"axes {given} of shape {self.shape}: name each of 0..{rank - 1} at most once")
        return counted

    def _sum_over(self, axes: list[int]) -> Self:
        if len(axes) == len(self.shape):
            return self.sum()
        return functools.reduce(lambda total, axis: total.sum_along(axis), reversed(axes), self)

    def _count(self, axes: list[int]) -> int:
        return Shape(self.shape[axis] for axis in axes).volume

    def _restored(self, reduced: Self, axes: list[int]) -> Self:
        """Return a reduced value repeated along its lost axes again."""
        if len(axes) == len(self.shape):
            return reduced.broadcast(self.shape)
        for axis in axes:
            reduced = reduced.broadcast_along(axis, self.shape[axis])
        return reduced

    def mean(self, axes: Axes = None) -> Self:
        """Return the mean over all axes, or over some, which are removed."""
        counted = self._axes(axes)
        total = self._sum_over(counted)
        return total / total.constant_like(self._count(counted))

    def mean_along(self, axis: int) -> Self:
        """Return the means along an axis, which is removed."""
        total = self.sum_along(axis)
        return total / total.constant_like(self.shape[self.axis(axis)])

    def var(self, axes: Axes = None, correction: int = 0) -> Self:
        """Return the variance: squared distances to the mean over ``count - correction``."""
        counted = self._axes(axes)
        divisor = self._count(counted) - correction
        if divisor <= 0:
            raise ShapeError(f"var over {self._count(counted)} values with correction {correction}: nothing is left")
        centered = self - self._restored(self.mean(counted), counted)
        total = (centered * centered)._sum_over(counted)
        return total / total.constant_like(divisor)

    def std(self, axes: Axes = None, correction: int = 0) -> Self:
        """Return the square root of `var`."""
        return self.var(axes, correction).sqrt()

    def max_along(self, axis: int) -> Self:
        """Return the maxima along an axis, which is removed; the first of equals takes the gradient."""
        axis, *more = self._axes(axis)
        if more:
            what = f"max_along of {self.shape} along {[axis, *more]}"
            raise ShapeError(f"{what}: give one axis, and do one after the other")
        best = self
        rest = []
        while best.shape[axis] > 1:
            extent = best.shape[axis]
            if extent % 2:
                rest.append(best.narrow(axis, extent - 1, 1))
                best = best.narrow(axis, 0, extent - 1)
            halves = [*best.shape[:axis], extent // 2, 2, *best.shape[axis + 1 :]]
            pairs = best.reshape(halves)  # views, whose gradient needs no fold
            first, second = pairs.narrow(axis + 1, 0, 1), pairs.narrow(axis + 1, 1, 1)
            best = first.maximum(second).squeeze(axis + 1)
        for later in reversed(rest):
            best = best.maximum(later)
        return best.squeeze(axis)

    def min_along(self, axis: int) -> Self:
        """Return the minima along an axis, which is removed; the first of equals takes the gradient."""
        return -(-self).max_along(axis)

    def logsumexp(self, axis: Axes = None) -> Self:
        """Return ln(sum(exp(x))) over an axis or several, which are removed."""
        if axis is not None and not isinstance(axis, Iterable):
            return super().logsumexp(axis)
        counted = self._axes(axis)
        kept = [i for i in range(len(self.shape)) if i not in counted]
        lead = [self.shape[i] for i in kept]
        flat = self.permute([*kept, *counted]).reshape([*lead, self._count(counted)])
        return Recordable.logsumexp(flat, len(kept))

    # ---- shapes
    broadcast_to = Recordable.broadcast_to  # several nodes: it is made whole with the others

    def unsqueeze(self, axis: int) -> Self:
        """Insert an axis of extent 1."""
        at = self.axis(axis, 1)
        if not 0 <= at <= len(self.shape):
            raise ShapeError(f"unsqueeze({axis}) of {self.shape}: axes run from 0 to {len(self.shape)}")
        return self.reshape((*self.shape[:at], 1, *self.shape[at:]))

    def squeeze(self, axis: int) -> Self:
        """Remove an axis of extent 1."""
        at = self.axis(axis)
        if not 0 <= at < len(self.shape) or self.shape[at] != 1:
            raise ShapeError(f"squeeze({axis}) of {self.shape}: the axis has to exist and have extent 1")
        return self.reshape(self.shape.without_axis(at))

    def flatten(self, start: int = 0) -> Self:
        """Merge the axes from `start` on into one."""
        at = self.axis(start)
        if not 0 <= at <= len(self.shape):
            raise ShapeError(f"flatten({start}) of {self.shape}: axes run from 0 to {len(self.shape)}")
        return self.reshape((*self.shape[:at], Shape(self.shape[at:]).volume))

    def __getitem__(self, key: Any) -> Self:
        """Take parts: ints, slices with a positive step, ``...`` and None, as in NumPy."""
        keys = list(key) if isinstance(key, tuple) else [key]
        used = sum(k is not None and k is not Ellipsis for k in keys)
        rank = len(self.shape)
        if used > rank or sum(k is Ellipsis for k in keys) > 1:
            raise PositionError(f"value[{_index_text(keys)}] of shape {self.shape}: {used} indices for {rank} axes")
        at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
        keys[at : at + 1] = [slice(None)] * (rank - used)
        result, axis = self, 0
        for one in keys:
            if one is None:
                result = result.unsqueeze(axis)
                axis += 1
            elif isinstance(one, slice):
                result = _sliced(result, axis, one)
                axis += 1
            else:
                result = _taken(result, axis, one)
        return result


# But for helpers, and what is one node or another method.
for _name, _method in list(vars(Composites).items()):
    is_whole = _name.startswith("__") or not _name.startswith("_")
    if isinstance(_method, FunctionType) and is_whole and _name not in ("fixed", "__ge__", "__abs__"):
        setattr(Composites, _name, _whole(_method))


def _sliced(value: Any, axis: int, part: slice) -> Any:
    extent = value.shape[axis]
    start, stop, step = part.indices(extent)
    if step < 1 or stop <= start:
        rule = "needs a positive step and at least one element"
        raise PositionError(f"slice {_index_text([part])} of axis {axis} with extent {extent}: {rule}")
    if (start, stop, step) == (0, extent, 1):
        return value
    narrowed = value.narrow(axis, start, stop - start)
    return narrowed if step == 1 else narrowed.unfold(axis, 1, step, 1).squeeze(axis + 1)


def _taken(value: Any, axis: int, position: Any) -> Any:
    extent = value.shape[axis]
    try:
        index = operator.index(position)
    except TypeError:
        remedy = "choose rows with gather(selection)"
        raise PositionError(f"an index is an int, a slice, ... or None, not {position!r}; {remedy}") from None
    if not -extent <= index < extent:
        raise PositionError(f"index {index} is outside axis {axis} of extent {extent}")
    return value.narrow(axis, index % extent, 1).squeeze(axis)


def _index_text(keys: Sequence[Any]) -> str:
    def text(key: Any) -> str:
        if isinstance(key, slice):
            parts = ["" if p is None else str(p) for p in (key.start, key.stop, key.step)]
            return ":".join(parts[:2] if not parts[2] else parts)
        return "..." if key is Ellipsis else str(key)

    return ", ".join(map(text, keys))
