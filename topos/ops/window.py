"""Windows: overlapping views of an axis, and their adjoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from topos.kernels import rows
from topos.ops import objects
from topos.ops.opcode import Cotangents, Opcode, Typed
from topos.payload.shape import Shape

if TYPE_CHECKING:
    from topos.ops.emit import Emitter, Operand
    from topos.payload.element import Element


def window_count(extent: int, size: int, step: int, dilation: int) -> int:
    """Return how many windows fit: 0 or fewer where none does."""
    return (extent - dilation * (size - 1) - 1) // step + 1


@dataclass(frozen=True)
class Unfold(Typed, Opcode):
    """An axis becomes (windows, size): a view in which windows may overlap."""

    arity = 1
    axis: int
    size: int
    step: int
    dilation: int

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        self.check_axis(self.axis, a.rank, a)
        self.check_positive(a, size=self.size, step=self.step, dilation=self.dilation)
        extent, span = a[self.axis], self.dilation * (self.size - 1) + 1
        if span > extent:
            raise self.fail(f"a window spans {span}, axis {self.axis} holds {extent}", a)
        count = window_count(extent, self.size, self.step, self.dilation)
        return self.sized(Shape((*a[: self.axis], count, self.size, *a[self.axis + 1 :])), a)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        extent = operands[0].shape[self.axis]
        return (lambda: g.fold(self.axis, self.size, self.step, self.dilation, extent),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        return a.view(a.layout.unfold(self.axis, self.size, self.step, self.dilation))

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        (a,) = arrays
        count = window_count(a.shape[self.axis], self.size, self.step, self.dilation)
        taps = np.arange(count)[:, None] * self.step + np.arange(self.size) * self.dilation
        return a.take(taps, self.axis)


@dataclass(frozen=True)
class Fold(Typed, Opcode):
    """Axes (windows, size) are added back to one axis: zero-seeded, ascending window index."""

    arity = 1
    axis: int
    size: int
    step: int
    dilation: int
    extent: int

    def infer(self, *shapes: Shape) -> Shape:
        (a,) = shapes
        self.check_axis(self.axis, a.rank, a)
        self.check_axis(self.axis + 1, a.rank, a)
        self.check_positive(a, size=self.size, step=self.step, dilation=self.dilation, extent=self.extent)
        count = window_count(self.extent, self.size, self.step, self.dilation)
        if self.dilation * (self.size - 1) + 1 > self.extent:
            raise self.fail(
                f"a window spans {self.dilation * (self.size - 1) + 1}, the extent is {self.extent}", a
            )
        if a[self.axis : self.axis + 2] != (count, self.size):
            raise self.fail(
                f"axes {self.axis} and {self.axis + 1} have to be [{count}, {self.size}], the windows of the extent",
                a,
            )
        return self.sized(Shape((*a[: self.axis], self.extent, *a[self.axis + 2 :])), a)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.unfold(self.axis, self.size, self.step, self.dilation),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        shape = self.infer(a.layout.shape)
        out = emitter.allocate(shape, a.element)
        walk = a.layout.strides
        strides = (*walk[: self.axis], 0, *walk[self.axis + 2 :])
        windows = (a.layout.shape[self.axis], self.size, self.step, self.dilation)
        pair = (walk[self.axis], walk[self.axis + 1])
        emitter.append(rows.fold(a.element, self.axis, windows, pair, out.place, a.place, shape, strides))
        return out

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        moved = np.moveaxis(arrays[0], (self.axis, self.axis + 1), (-2, -1))
        count = moved.shape[-2]
        out = np.empty((*moved.shape[:-2], self.extent), object)
        for index in np.ndindex(moved.shape[:-2]):
            taps = objects.flat(moved[index])
            for position in range(self.extent):
                out[(*index, position)] = objects.LOOPS["fold"](
                    taps, 0, self.size, 1, position, count, self.size, self.step, self.dilation, element.zero
                )
        return np.moveaxis(out, -1, self.axis)
