"""Windows: overlapping views of an axis, and their adjoint."""

import math
from typing import Any

import numpy as np

from topos.kernels import rows
from topos.ops import objects
from topos.ops.emit import Emitter, Operand
from topos.ops.movement import View
from topos.ops.opcode import Cotangents, Typed
from topos.payload import Element, Layout, Shape, Tensor

# Values below which a run is not worth a call.
SHORT = 16


def window_count(extent: int, size: int, step: int, dilation: int) -> int:
    """Return how many windows fit: 0 or fewer where none does."""
    return (extent - dilation * (size - 1) - 1) // step + 1


class Windowed(Typed):
    """A kind over windows of an axis: `size` taps each, `dilation` apart, every `step`."""

    axis: int
    size: int
    step: int
    dilation: int

    @property
    def span(self) -> int:
        """From the first tap of a window to the last, both included."""
        return self.dilation * (self.size - 1) + 1

    def count(self, extent: int) -> int:
        """Return how many windows fit into an extent."""
        return window_count(extent, self.size, self.step, self.dilation)


class Unfold(Windowed, View):
    """An axis becomes (windows, size): a view in which windows may overlap."""

    over = staticmethod(Layout.unfold)

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank, a)
        self.check_positive(a, size=self.size, step=self.step, dilation=self.dilation)
        extent = a[self.axis]
        if self.span > extent:
            raise self.fail(f"a window spans {self.span}, axis {self.axis} holds {extent}", a)
        return self.sized(Shape((*a[: self.axis], self.count(extent), self.size, *a[self.axis + 1 :])), a)

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        extent = a.shape[self.axis]
        return (lambda: g.fold(self.axis, self.size, self.step, self.dilation, extent),)


class Fold(Windowed):
    """Axes (windows, size) are added back to one axis: zero-seeded, ascending window index."""

    extent: int

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank, a)
        self.check_axis(self.axis + 1, a.rank, a)
        self.check_positive(a, size=self.size, step=self.step, dilation=self.dilation, extent=self.extent)
        if self.span > self.extent:
            raise self.fail(f"a window spans {self.span}, the extent is {self.extent}", a)
        wanted = Shape((self.count(self.extent), self.size))
        if a[self.axis : self.axis + 2] != wanted:
            first, second = self.axis, self.axis + 1
            raise self.fail(f"axes {first} and {second} have to be {wanted}, the windows of the extent", a)
        return self.sized(Shape((*a[: self.axis], self.extent, *a[self.axis + 2 :])), a)

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.unfold(self.axis, self.size, self.step, self.dilation),)

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        axis, shape = self.axis, self.infer(a.layout.shape)
        windows = (a.layout.shape[axis], self.size, self.step, self.dilation)
        # The axes after the windows are runs; where those are short, the axes before come last.
        turn = axis if math.prod(shape[axis + 1 :]) < SHORT else 0
        order, stored = ((*range(turn, rank), *range(turn)) for rank in (shape.rank + 1, shape.rank))
        outer = math.prod(shape[turn:axis])
        extents = outer, self.extent, shape.volume // (outer * self.extent)
        dense = emitter.dense(a.view(a.layout.permute(order)))
        out = emitter.allocate(Shape(shape[at] for at in stored), a.element)
        name = "reference_fold" if emitter.reference else "ascend"
        emitter.append(rows.fold(f"{name}.{a.element}", extents, windows, out.place, dense.place))
        return out.view(out.layout.permute([stored.index(at) for at in range(shape.rank)]))

    def evaluate(self, element: Element, a: Tensor) -> Tensor:
        windows = np.moveaxis(a.numpy(), (self.axis, self.axis + 1), (0, 1))
        out = objects.zeros((self.extent, *windows.shape[2:]), element)
        for window, taps in enumerate(windows):
            start = window * self.step
            out[start : start + self.span : self.dilation] += taps
        return objects.tensor(element, np.moveaxis(out, 0, self.axis))
