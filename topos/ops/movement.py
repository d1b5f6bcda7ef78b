"""Movement: the same elements under another shape. All but Pad are views."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from topos.ops import objects
from topos.ops.emit import Emitter, Operand
from topos.ops.opcode import Cotangents, Opcode, Typed
from topos.payload import Element, Layout, Shape, Tensor


class View(Opcode):
    """A kind that reads its operand's memory through another layout."""

    def over(self, layout: Layout) -> Layout | None:
        """Return the layout of the result over an operand's; None where that has to be dense first."""
        raise NotImplementedError

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        layout = self.over(a.layout)
        return a.view(layout) if layout is not None else self.lower(emitter, emitter.dense(a))


class Broadcast(View):
    """A single element repeated over a shape."""

    shape: Shape

    def infer(self, *shapes: Shape) -> Shape:
        if shapes[0].volume != 1:
            raise self.fail("the operand has to hold one element; use broadcast_to(shape) for more", *shapes)
        if self.sized(self.shape, *shapes).volume == 0:
            raise self.fail("a value holds at least one element", *shapes)
        return self.shape

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        shape = operands[0].shape
        return (lambda: g.sum().broadcast(shape) if shape.rank else g.sum(),)

    def over(self, layout: Layout) -> Layout:
        return layout.broadcast(self.shape)


class BroadcastAlong(Typed, View):
    """A new axis of equal copies."""

    axis: int
    extent: int

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        self.check_axis(self.axis, a.rank + 1, a)
        self.check_positive(a, extent=self.extent)
        return self.sized(Shape((*a[: self.axis], self.extent, *a[self.axis :])), a)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.sum_along(self.axis),)

    def over(self, layout: Layout) -> Layout:
        return layout.broadcast_along(self.axis, self.extent)


class Reshape(View):
    """The same elements, row-major, in another shape."""

    shape: Shape

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        if a.volume != self.sized(self.shape, a).volume:
            raise self.fail(f"{a.volume} elements do not fill {self.shape}, which holds {self.shape.volume}", a)
        return self.shape

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.reshape(operands[0].shape),)

    def over(self, layout: Layout) -> Layout | None:
        return layout.reshape(self.shape)


class Permute(View):
    """Axis i of the result is axis ``order[i]``."""

    order: tuple[int, ...]

    @classmethod
    def checked(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (tuple(map(operator.index, given[0])),)

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        if sorted(self.order) != list(range(a.rank)):
            raise self.fail(f"the order has to name each axis 0..{a.rank - 1} once", a)
        return Shape(a[axis] for axis in self.order)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        inverse = tuple(int(axis) for axis in np.argsort(self.order))
        return (lambda: g.permute(inverse),)

    def over(self, layout: Layout) -> Layout:
        return layout.permute(self.order)


class Narrow(Typed, View):
    """``start .. start+length`` of an axis."""

    axis: int
    start: int
    length: int

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        self.check_axis(self.axis, a.rank, a)
        self.check_positive(a, length=self.length)
        if self.start < 0 or self.start + self.length > a[self.axis]:
            raise self.fail(
                f"{self.start}..{self.start + self.length} is outside axis {self.axis} of extent {a[self.axis]}", a
            )
        return Shape((*a[: self.axis], self.length, *a[self.axis + 1 :]))

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.pad(self.axis, self.start, operands[0].shape[self.axis]),)

    def over(self, layout: Layout) -> Layout:
        return layout.narrow(self.axis, self.start, self.length)


class Pad(Typed):
    """An axis placed at `start` in `full_extent` zeros."""

    axis: int
    start: int
    full_extent: int

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        self.check_axis(self.axis, a.rank, a)
        if self.start < 0 or self.start + a[self.axis] > self.full_extent:
            raise self.fail(
                f"axis {self.axis} of extent {a[self.axis]} at {self.start} does not fit into {self.full_extent}", a
            )
        return self.sized(Shape((*a[: self.axis], self.full_extent, *a[self.axis + 1 :])), a)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.narrow(self.axis, self.start, operands[0].shape[self.axis]),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        out = emitter.zeros(self.infer(a.layout.shape), a.element)
        emitter.copy(a, out.view(out.layout.narrow(self.axis, self.start, a.layout.shape[self.axis])))
        return out

    def evaluate(self, element: Element, *operands: Tensor) -> Tensor:
        (a,) = operands
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
