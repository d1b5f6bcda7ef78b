"""Movement: the same elements under another shape. All but Pad are views."""

import operator
from collections.abc import Callable
from typing import Any, ClassVar

from topos.ops import objects
from topos.ops.emit import Emitter, Operand
from topos.ops.opcode import Cotangents, Opcode, Typed
from topos.payload import Element, Layout, Shape, Tensor


class View(Opcode):
    """A kind that reads its operand's memory through another layout.

    `over` is the view of `Layout` that it is: it takes the kind's parameters, and gives None where the operand has to be
    dense first.
    """

    over: ClassVar[Callable[..., Layout | None]]

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        layout = self.over(a.layout, *self[1:])
        return a.view(layout) if layout is not None else self.lower(emitter, emitter.dense(a))


class Broadcast(View):
    """A single element repeated over a shape."""

    over = staticmethod(Layout.broadcast)

    shape: Shape

    def infer(self, a: Shape) -> Shape:
        if a.volume != 1:
            raise self.fail("the operand has to hold one element; use broadcast_to(shape) for more", a)
        if self.sized(self.shape, a).volume == 0:
            raise self.fail("a value holds at least one element", a)
        return self.shape

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        shape = a.shape
        return (lambda: g.sum().broadcast(shape) if shape.rank else g.sum(),)


class BroadcastAlong(Typed, View):
    """A new axis of equal copies."""

    over = staticmethod(Layout.broadcast_along)

    axis: int
    extent: int

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank + 1, a)
        self.check_positive(a, extent=self.extent)
        return self.sized(Shape((*a[: self.axis], self.extent, *a[self.axis :])), a)

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.sum_along(self.axis),)


class Reshape(View):
    """The same elements, row-major, in another shape."""

    over = staticmethod(Layout.reshape)

    shape: Shape

    def infer(self, a: Shape) -> Shape:
        if a.volume != self.sized(self.shape, a).volume:
            raise self.fail(f"{a.volume} elements do not fill {self.shape}, which holds {self.shape.volume}", a)
        return self.shape

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.reshape(a.shape),)


class Permute(View):
    """Axis i of the result is axis ``order[i]``."""

    over = staticmethod(Layout.permute)

    order: tuple[int, ...]

    @property
    def inverse(self) -> tuple[int, ...]:
        """The order that puts the axes back."""
        return tuple(map(self.order.index, range(len(self.order))))

    @classmethod
    def checked(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (tuple(map(operator.index, given[0])),)

    def infer(self, a: Shape) -> Shape:
        if sorted(self.order) != list(range(a.rank)):
            raise self.fail(f"the order has to name each axis 0..{a.rank - 1} once", a)
        return Shape(a[axis] for axis in self.order)

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.permute(self.inverse),)


class Narrow(Typed, View):
    """``start .. start+length`` of an axis."""

    over = staticmethod(Layout.narrow)

    axis: int
    start: int
    length: int

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank, a)
        self.check_positive(a, length=self.length)
        if self.start < 0 or self.start + self.length > a[self.axis]:
            part = f"{self.start}..{self.start + self.length}"
            raise self.fail(f"{part} is outside axis {self.axis} of extent {a[self.axis]}", a)
        return Shape((*a[: self.axis], self.length, *a[self.axis + 1 :]))

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.pad(self.axis, self.start, a.shape[self.axis]),)


class Pad(Typed):
    """An axis placed at `start` in `full_extent` zeros."""

    axis: int
    start: int
    full_extent: int

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank, a)
        if self.start < 0 or self.start + a[self.axis] > self.full_extent:
            part = f"axis {self.axis} of extent {a[self.axis]} at {self.start}"
            raise self.fail(f"{part} does not fit into {self.full_extent}", a)
        return self.sized(Shape((*a[: self.axis], self.full_extent, *a[self.axis + 1 :])), a)

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.narrow(self.axis, self.start, a.shape[self.axis]),)

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        out = emitter.zeros(self.infer(a.layout.shape), a.element)
        emitter.copy(a, out.view(out.layout.narrow(self.axis, self.start, a.layout.shape[self.axis])))
        return out

    def evaluate(self, element: Element, a: Tensor) -> Tensor:
        out = objects.zeros(self.infer(a.shape), element)
        end = self.start + a.shape[self.axis]
        out.swapaxes(0, self.axis)[self.start : end] = a.numpy().swapaxes(0, self.axis)
        return objects.tensor(element, out)


def concatenation(emitter: Emitter, *parts: Operand, axis: int, shape: Shape) -> Operand:
    """Return parts side by side along an axis, as the sum of their pads has it: -0 becomes +0."""
    out, start = emitter.allocate(shape, parts[0].element), 0
    for part in parts:
        place = out.view(out.layout.narrow(axis, start, part.layout.shape[axis]))
        if place.layout.is_dense:
            emitter.compute(f"positive_zero.{part.element}", place, (part,))
        else:
            emitter.copy(part, place, "positive_zero")
        start += part.layout.shape[axis]
    return out
