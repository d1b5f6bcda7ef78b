"""Movement: the same elements under another shape. All but Pad are views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from topos.ops.emit import Emitter, Operand
from topos.ops.opcode import Cotangents, Opcode, Typed
from topos.payload.element import Element
from topos.payload.layout import Layout
from topos.payload.shape import Shape


@dataclass(frozen=True)
class Broadcast(Opcode):
    """A single element repeated over a shape."""

    arity = 1
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

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return operands[0].view(operands[0].layout.broadcast(self.shape))

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        return np.broadcast_to(arrays[0].reshape(()), tuple(self.shape))


@dataclass(frozen=True)
class BroadcastAlong(Typed, Opcode):
    """A new axis of equal copies."""

    arity = 1
    axis: int
    extent: int

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        self.check_axis(self.axis, a.rank + 1, a)
        self.check_positive(a, extent=self.extent)
        return self.sized(Shape((*a[: self.axis], self.extent, *a[self.axis :])), a)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.sum_along(self.axis),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return operands[0].view(operands[0].layout.broadcast_along(self.axis, self.extent))

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        return np.repeat(np.expand_dims(arrays[0], self.axis), self.extent, self.axis)


@dataclass(frozen=True)
class Reshape(Opcode):
    """The same elements, row-major, in another shape."""

    arity = 1
    shape: Shape

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        if a.volume != self.sized(self.shape, a).volume:
            raise self.fail(f"{a.volume} elements do not fill {self.shape}, which holds {self.shape.volume}", a)
        return self.shape

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.reshape(operands[0].shape),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        layout = a.layout.reshape(self.shape)
        return a.view(layout) if layout is not None else emitter.dense(a).view(Layout.dense(self.shape))

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        return arrays[0].reshape(tuple(self.shape))


@dataclass(frozen=True)
class Permute(Opcode):
    """Axis i of the result is axis ``order[i]``."""

    arity = 1
    order: tuple[int, ...]

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        if sorted(self.order) != list(range(a.rank)):
            raise self.fail(f"the order has to name each axis 0..{a.rank - 1} once", a)
        return Shape(a[axis] for axis in self.order)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        inverse = tuple(int(axis) for axis in np.argsort(self.order))
        return (lambda: g.permute(inverse),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return operands[0].view(operands[0].layout.permute(self.order))

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        return arrays[0].transpose(self.order)


@dataclass(frozen=True)
class Narrow(Typed, Opcode):
    """``start .. start+length`` of an axis."""

    arity = 1
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

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return operands[0].view(operands[0].layout.narrow(self.axis, self.start, self.length))

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        return arrays[0].take(range(self.start, self.start + self.length), self.axis)


@dataclass(frozen=True)
class Pad(Typed, Opcode):
    """An axis placed at `start` in `full_extent` zeros."""

    arity = 1
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

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        (a,) = arrays
        shape = self.infer(Shape(a.shape))
        out = np.empty(tuple(shape), object)
        out.fill(element.zero)
        window: list[Any] = [slice(None)] * a.ndim
        window[self.axis] = slice(self.start, self.start + a.shape[self.axis])
        out[tuple(window)] = a
        return out
