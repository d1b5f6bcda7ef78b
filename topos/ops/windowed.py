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


def product(emitter: Emitter, source: Operand, kernel: Operand, windows: Windows, shape: Shape) -> Operand:
    """Return a convolution without bias.

    Arguments:
        source: ``[batch, channels, height, width]``, padded.
        kernel: ``[channels * size y * size x, filters]``, in any layout.
        shape: of the result: planes of filters (rank 3 or 4), or a matrix ``[batch * windows, filters]``.
    """
    element, (taps, filters) = source.element, kernel.layout.shape
    batch = source.layout.shape[0]
    count = windows.counts[0] * windows.counts[1]
    out = emitter.allocate(shape, element)
    slots = min(runtime.num_threads(), batch)
    scratch = emitter.allocate(Shape((slots, taps, count)), element)
    patches = _patches(source, windows).permute((0, 3, 4, 5, 1, 2))
    one = Shape(patches.shape[1:])
    dense = Layout.dense(one).strides

    def turn(number: int, slot: int) -> list[Row]:
        room = _shifted(scratch, slot * taps * count)
        target = _shifted(out, number * filters * count)
        image = _shifted(source, number * patches.strides[0])
        gather = rows.copy(source.size, one, room, dense, image, patches.strides[1:])
        matrix, weights = (room, count, 1), (kernel.place, *kernel.layout.strides)
        if shape.rank == 2:
            sides = ((count, taps, filters), (room, 1, count), weights)
        else:
            sides = ((filters, taps, count), (kernel.place, *reversed(kernel.layout.strides)), matrix)
        return [gather, rows.matmul(element, sides[0], target, *sides[1:], [1], ([0], [0]))]

    emitter.append(rows.repeat(batch, slots, turn))
    return out


def _patches(source: Operand, windows: Windows) -> Layout:
    """Return ``[batch, rows, columns, channels, size y, size x]``, a view of a source."""
    down, across = (
        (axis, windows.size[i], windows.step[i], windows.dilation[i]) for i, axis in enumerate((2, 4))
    )
    return source.layout.unfold(*down).unfold(*across).permute((0, 2, 4, 1, 3, 5))


def kernel_gradient(emitter: Emitter, source: Operand, cotangent: Operand, windows: Windows) -> Operand:
    """Return a convolution's gradient by its kernel, ``[channels * size y * size x, filters]``.

    Arguments:
        source: ``[batch, channels, height, width]``, padded.
        cotangent: planes of filters or a matrix, as the results of `product`.
    """
    element = source.element
    planes = _planes(emitter, cotangent, source.layout.shape[0])
    batch, filters, count = planes.layout.shape
    patches = _patches(source, windows).permute((3, 4, 5, 0, 1, 2))
    taps = Shape(patches.shape[:3]).volume
    matrix = emitter.dense(source.view(patches))
    turned = emitter.dense(planes.view(planes.layout.permute((1, 0, 2))))
    out = emitter.allocate(Shape((taps, filters)), element)
    inner = batch * count
    emitter.append(
        rows.matmul(
            element,
            (taps, inner, filters),
            out.place,
            (matrix.place, inner, 1),
            (turned.place, 1, inner),
            [1],
            ([0], [0]),
        )
    )
    return out


def _planes(emitter: Emitter, cotangent: Operand, batch: int) -> Operand:
    """Return a cotangent as ``[batch, filters, windows]``, from planes of rank 3 or 4 or from a matrix."""
    shape, layout = cotangent.layout.shape, cotangent.layout
    if shape.rank == 2:
        count, (row, column) = shape[0] // batch, layout.strides
        view = Layout(Shape((batch, shape[1], count)), (count * row, column, row), layout.offset)
        return cotangent.view(view)
    wanted = Shape((batch, shape[1], Shape(shape[2:]).volume))
    joined = layout.reshape(wanted)
    return cotangent.view(joined) if joined is not None else emitter.dense(cotangent).view(Layout.dense(wanted))


def input_gradient(
    emitter: Emitter, cotangent: Operand, kernel: Operand, windows: Windows, shape: Shape
) -> Operand:
    """Return a convolution's gradient by its input.

    Arguments:
        cotangent: planes of filters or a matrix, as the results of `product`.
        kernel: ``[filters, channels * size y * size x]``, in any layout.
        shape: of the input, without padding.

    An image at a time: the taps of all its windows are a product in scratch memory, then they are added up.
    """
    element, batch, (filters, taps) = cotangent.element, shape[0], kernel.layout.shape
    planes = _planes(emitter, cotangent, batch)
    count = planes.layout.shape[2]
    out = emitter.allocate(shape, element)
    slots = min(runtime.num_threads(), batch)
    scratch = emitter.allocate(Shape((slots, taps, count)), element)
    geometry = windows.geometry(shape[1])
    image = Shape(shape[1:]).volume
    weights = (kernel.place, *reversed(kernel.layout.strides))

    def turn(number: int, slot: int) -> list[Row]:
        room = _shifted(scratch, slot * taps * count)
        seeds = (_shifted(planes, number * planes.layout.strides[0]), *planes.layout.strides[1:])
        return [
            rows.matmul(element, (taps, filters, count), room, weights, seeds, [1], ([0], [0])),
            rows.windows(f"window_sum.{element}", geometry, _shifted(out, number * image), room),
        ]

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
