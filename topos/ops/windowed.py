"""Rows for whole formulas over windows, without their patches in memory: pooling, convolution, the gradients.

Each has the bits of the opcodes that it stands for.
"""

from __future__ import annotations

from typing import NamedTuple

from topos.kernels import rows, runtime
from topos.kernels.rows import Geometry, Row
from topos.ops.emit import Emitter, Operand, compute_element
from topos.ops.movement import Reshape
from topos.ops.window import Fold, Unfold, window_count
from topos.payload.layout import Layout
from topos.payload.shape import Shape


class Windows(NamedTuple):
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
    def of(cls, y: Unfold | Fold, x: Unfold | Fold, padded: tuple[int, int], *inside: tuple[int, int]) -> Windows:
        """Return the windows that a pair of kinds cuts or adds up."""
        return cls((y.size, x.size), (y.step, x.step), (y.dilation, x.dilation), padded, *inside)

    @property
    def positions(self) -> int:
        """How many values a window holds."""
        return self.size[0] * self.size[1]

    @property
    def counts(self) -> tuple[int, int]:
        """How many windows there are."""
        y, x = (window_count(*given) for given in zip(self.padded, self.size, self.step, self.dilation, strict=True))
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
    emitter.append(rows.windows(f"pool.{source.element}", windows.geometry(batch * channels), out.place, source.place))
    return out


def pool_gradient(emitter: Emitter, source: Operand, cotangent: Operand, windows: Windows) -> Operand:
    """Return the gradient of `pool` by its source."""
    element, shape = source.element, source.layout.shape
    source, cotangent = emitter.dense(source), emitter.dense(cotangent)
    geometry = windows.geometry(shape[0] * shape[1])
    out = emitter.allocate(shape, element)
    if windows.size == windows.step == (2, 2):
        emitter.append(rows.windows(f"pool_slope.{element}", geometry, out.place, source.place, cotangent.place))
        return out
    chosen = emitter.allocate(cotangent.layout.shape, compute_element(element))
    emitter.append(rows.windows(f"winners.{element}", geometry, chosen.place, source.place))
    emitter.append(rows.windows(f"winner_sum.{element}", geometry, out.place, chosen.place, cotangent.place))
    return out


def product(emitter: Emitter, source: Operand, kernel: Operand, windows: Windows, shape: Shape) -> Operand:
    """Return a convolution without bias.

    The source is ``[batch, channels, height, width]``, padded; the kernel ``[channels * size y * size x, filters]``,
    in any layout; the shape that of planes of filters (rank 3 or 4), or of a matrix ``[batch * windows, filters]``.
    """
    (taps, filters), (deep, wide) = kernel.layout.shape, kernel.layout.strides
    image, places, positions = _sides(source, windows)
    out = emitter.allocate(shape, compute_element(source.element))
    weights = (kernel.place, [(filters, wide)], [(taps, deep)])
    if shape.rank == 2:
        weights = (kernel.place, weights[2], weights[1])
        patches = (source.place, [image, *places], positions)
        extents = (shape[0], taps, filters)
        emitter.product(source.element, (out.place, filters), patches, weights, extents)
    else:
        count = Shape(shape[2:]).volume
        batch = [(image[0], 0, image[1], filters * count)]
        planes = (source.place, positions, places)
        emitter.product(source.element, (out.place, count), weights, planes, (filters, taps, count), batch)
    return emitter.narrowed(out, source.element)


def _sides(source: Operand, windows: Windows) -> tuple[tuple[int, int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the (extent, stride) of images, of the axes of windows, and of the axes of positions in them."""
    down, across = ((axis, windows.size[i], windows.step[i], windows.dilation[i]) for i, axis in enumerate((2, 4)))
    cut = source.layout.unfold(*down).unfold(*across)
    axes = list(zip(cut.shape, cut.strides, strict=True))
    return axes[0], [axes[2], axes[4]], [axes[1], axes[3], axes[5]]


def kernel_gradient(emitter: Emitter, source: Operand, cotangent: Operand, windows: Windows) -> Operand:
    """Return a convolution's gradient by its kernel, ``[channels * size y * size x, filters]``.

    The source is padded; the cotangent planes of filters or a matrix, as the results of `product`.
    """
    planes = _planes(emitter, cotangent, source.layout.shape[0])
    image, places, positions = _sides(source, windows)
    whole, filters, count = zip(planes.layout.shape, planes.layout.strides, strict=True)
    taps = Shape(extent for extent, _ in positions).volume
    extents = (filters[0], whole[0] * count[0], taps)
    out = emitter.allocate(Shape((filters[0], taps)), compute_element(source.element))
    seeds = (planes.place, [filters], [whole, count])
    patches = (source.place, [image, *places], positions)
    emitter.product(source.element, (out.place, taps), seeds, patches, extents)
    turned = emitter.narrowed(out, source.element)
    return turned.view(turned.layout.permute((1, 0)))


def _planes(emitter: Emitter, cotangent: Operand, batch: int) -> Operand:
    """Return a cotangent as ``[batch, filters, windows]``, from planes of rank 3 or 4 or from a matrix."""
    shape, layout = cotangent.layout.shape, cotangent.layout
    if shape.rank == 2:
        count, (row, column) = shape[0] // batch, layout.strides
        view = Layout(Shape((batch, shape[1], count)), (count * row, column, row), layout.offset)
        return cotangent.view(view)
    wanted = Shape((batch, shape[1], Shape(shape[2:]).volume))
    return Reshape(wanted).lower(emitter, cotangent)


def input_gradient(emitter: Emitter, cotangent: Operand, kernel: Operand, windows: Windows, shape: Shape) -> Operand:
    """Return a convolution's gradient by its input.

    The cotangent is planes of filters or a matrix, as the results of `product`; the kernel ``[filters, channels *
    size y * size x]``, in any layout; the shape that of the input without padding.

    An image at a time: the taps of all its windows are a product in scratch memory, then they are added up.
    """
    element, batch, (filters, taps) = cotangent.element, shape[0], kernel.layout.shape
    planes = _planes(emitter, cotangent, batch)
    count = planes.layout.shape[2]
    out = emitter.allocate(shape, element)
    slots = min(runtime.num_threads(), batch)
    partial = compute_element(element)
    exact = emitter.allocate(Shape((slots, taps, count)), partial)
    rounded = exact if partial == element else emitter.allocate(exact.layout.shape, element)
    size = rows.scratch_bytes(element, taps, filters, count)
    scratch = emitter.allocate(Shape((slots * size // 8,)), "f64")
    geometry = windows.geometry(shape[1])
    image = Shape(shape[1:]).volume
    deep, wide = kernel.layout.strides
    step, *strides = planes.layout.strides

    def turn(number: int, slot: int) -> list[Row]:
        room = _shifted(exact, slot * taps * count)
        weights = (kernel.place, [(taps, wide)], [(filters, deep)])
        seeds = (_shifted(planes, number * step), [(filters, strides[0])], [(count, strides[1])])
        packed = (_shifted(scratch, slot * size // 8), size, 1)
        run = [rows.matmul(element, (room, count), weights, seeds, packed)]
        if rounded is not exact:
            narrow = _shifted(rounded, slot * taps * count)
            whole = [(room, exact.size, True, (1,))]
            run.append(rows.elementwise(f"narrow.{element}", [taps * count], (narrow, rounded.size), whole))
            room = narrow
        return [*run, rows.windows(f"window_sum.{element}", geometry, _shifted(out, number * image), room)]

    emitter.append(rows.repeat(batch, slots, turn))
    return out


def _shifted(operand: Operand, count: int) -> tuple[int, int]:
    bank, start = operand.place
    return bank, start + count * operand.size


def padded(emitter: Emitter, source: Operand, start: tuple[int, int], shape: Shape) -> Operand:
    """Return a value of rank 4 inside zeros around its last two axes."""
    out = emitter.zeros(shape, source.element)
    middle = out.layout
    for axis, first in zip((2, 3), start, strict=True):
        middle = middle.narrow(axis, first, source.layout.shape[axis])
    emitter.copy(source, out.view(middle))
    return out
