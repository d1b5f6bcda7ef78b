"""Rows for whole formulas over windows, without their patches in memory: pooling, convolution, the gradients.

Each has the bits of the opcodes that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

from topos.kernels import elements, rows, runtime
from topos.kernels.rows import Geometry, Row
from topos.ops.emit import Emitter, Operand
from topos.ops.window import Fold, Unfold, window_count
from topos.payload.layout import Layout
from topos.payload.shape import Shape


@dataclass(frozen=True)
class Windows:
    """Windows over the last two axes of ``[batch, channels, height, width]``; (y, x) pairs.

    `start` is how many rows and columns of padding come before the extent, which is that inside the padding;
    `padded` counts padding on both sides.
    """

    size: tuple[int, int]
    step: tuple[int, int]
    dilation: tuple[int, int]
    padded: tuple[int, int]
    start: tuple[int, int] = (0, 0)
    extent: tuple[int, int] | None = None

    @classmethod
    def of(cls, y: Unfold | Fold, x: Unfold | Fold, padded: tuple[int, int]) -> Windows:
        """Return the windows that a pair of kinds cuts or adds up."""
        return cls((y.size, x.size), (y.step, x.step), (y.dilation, x.dilation), padded)

    @property
    def counts(self) -> tuple[int, int]:
        """How many windows there are."""
        y, x = (
            window_count(*given) for given in zip(self.padded, self.size, self.step, self.dilation, strict=True)
        )
        return y, x

    def geometry(self, planes: int) -> Geometry[int]:
        """Return these windows as rows state them."""
        inside = self.padded if self.extent is None else self.extent
        return Geometry(planes, *self.size, *self.counts, *self.step, *self.dilation, *self.start, *inside)


def pool(emitter: Emitter, source: Operand, windows: Windows) -> Operand:
    """Return the maximum of each window."""
    source = emitter.dense(source)
    batch, channels = source.layout.shape[:2]
    out = emitter.allocate(Shape((batch, channels, *windows.counts)), source.element)
    emitter.append(
        rows.windows(f"pool.{source.element}", windows.geometry(batch * channels), out.place, source.place)
    )
    return out


def pool_gradient(emitter: Emitter, source: Operand, cotangent: Operand, windows: Windows) -> Operand:
    """Return the gradient of `pool` by its source."""
    element, shape = source.element, source.layout.shape
    source, cotangent = emitter.dense(source), emitter.dense(cotangent)
    geometry = windows.geometry(shape[0] * shape[1])
    out = emitter.allocate(shape, element)
    if windows.size == windows.step == (2, 2):
        emitter.append(
            rows.windows(f"pool_slope.{element}", geometry, out.place, source.place, cotangent.place)
        )
        return out
    chosen = emitter.allocate(cotangent.layout.shape, f"f{elements.MEMORY[element].width}")
    emitter.append(rows.windows(f"winners.{element}", geometry, chosen.place, source.place))
    emitter.append(rows.windows(f"winner_sum.{element}", geometry, out.place, chosen.place, cotangent.place))
    return out


def input_gradient(
    emitter: Emitter, cotangent: Operand, kernel: Operand, channels: int, windows: Windows
) -> Operand:
    """Return a convolution's gradient by its input.

    Arguments:
        cotangent: ``[batch, filters, windows]``, in any layout.
        kernel: ``[channels * size y * size x, filters]``, in any layout.

    An image at a time: the taps of all its windows are a product in scratch memory, then they are added up.
    """
    element, size = cotangent.element, cotangent.size
    batch, filters, count = cotangent.layout.shape
    assert windows.extent is not None
    taps = kernel.layout.shape[0]
    out = emitter.allocate(Shape((batch, channels, *windows.extent)), element)
    slots = min(runtime.num_threads(), batch)
    scratch = emitter.allocate(Shape((slots, taps, count)), element)
    geometry = windows.geometry(channels)
    image = channels * windows.extent[0] * windows.extent[1] * size

    def one(number: int, slot: int) -> list[Row]:
        room = _shifted(scratch, slot * taps * count)
        seeds = _shifted(cotangent, number * cotangent.layout.strides[0])
        product = rows.matmul(
            element,
            (taps, filters, count),
            room,
            (kernel.place, *kernel.layout.strides),
            (seeds, *cotangent.layout.strides[1:]),
            [1],
            ([0], [0]),
        )
        bank, start = out.place
        return [product, rows.windows(f"window_sum.{element}", geometry, (bank, start + number * image), room)]

    emitter.append(rows.repeat(batch, slots, one))
    return out


def _shifted(operand: Operand, count: int) -> tuple[int, int]:
    bank, start = operand.place
    return bank, start + count * operand.size


def padded(emitter: Emitter, source: Operand, windows: Windows) -> Operand:
    """Return ``[batch, channels, height, width]`` in the middle of zeros."""
    shape = source.layout.shape
    out = emitter.zeros(Shape((*shape[:2], *windows.padded)), source.element)
    middle = out.layout
    for axis in (2, 3):
        middle = middle.narrow(axis, windows.start[axis - 2], shape[axis])
    emitter.copy(source, out.view(middle))
    return out


__all__ = ["Layout", "Windows", "input_gradient", "padded", "pool", "pool_gradient"]
