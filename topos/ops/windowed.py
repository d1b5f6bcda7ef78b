"""Rows for whole formulas over windows, without their patches in memory: pooling, convolution, the gradients.

Each has the bits of the opcodes that it stands for.
"""

from typing import NamedTuple, Self

from topos.kernels import rows
from topos.kernels.matmul.product import depth_of
from topos.kernels.reference import K_BLOCK
from topos.kernels.rows import Geometry
from topos.ops.emit import Emitter, Operand, compute_element
from topos.ops.movement import Reshape
from topos.ops.window import Fold, Unfold, window_count
from topos.payload import Layout, Shape

# Numbers of scratch memory for the taps of several images.
AT_ONCE = 1 << 26


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
    def of(cls, y: Unfold | Fold, x: Unfold | Fold, padded: tuple[int, int], *inside: tuple[int, int]) -> Self:
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


def _by_plane(
    emitter: Emitter, kernel: str, planes: int, windows: Windows, shape: Shape, *operands: Operand | tuple[int, int]
) -> Operand:
    """Return the result of a kernel of `windows` over planes, whose operands are dense values or pairs of numbers."""
    element = next(operand.element for operand in operands if isinstance(operand, Operand))
    places = [emitter.dense(operand).place if isinstance(operand, Operand) else operand for operand in operands]
    out = emitter.allocate(shape, element)
    emitter.append(rows.windows(f"{kernel}.{element}", windows.geometry(planes), out.place, *places))
    return out


def pool(emitter: Emitter, source: Operand, windows: Windows) -> Operand:
    """Return the maximum of each window."""
    batch, channels = source.layout.shape[:2]
    return _by_plane(emitter, "pool", batch * channels, windows, Shape((batch, channels, *windows.counts)), source)


def pool_gradient(emitter: Emitter, source: Operand, cotangent: Operand, windows: Windows) -> Operand:
    """Return the gradient of `pool` by its source."""
    shape, seeds = source.layout.shape, cotangent.layout.shape
    source, planes = emitter.dense(source), shape[0] * shape[1]
    if emitter.reference or (windows.size == windows.step == (2, 2) and shape[2:] == (2 * seeds[2], 2 * seeds[3])):
        return _by_plane(emitter, "pool_slope", planes, windows, shape, source, cotangent)
    layers = -(-windows.size[0] // windows.step[0])
    tasks, room = emitter.tasks, layers * Shape(shape[2:]).volume + Shape(seeds[2:]).volume
    # One more for the tasks that have nothing to do.
    scratch = emitter.allocate(Shape((tasks + 1, room)), compute_element(source.element))
    return _by_plane(emitter, "pool_scatter", planes, windows, shape, source, cotangent, scratch, (tasks, room))


def product(emitter: Emitter, source: Operand, kernel: Operand, windows: Windows, shape: Shape) -> Operand:
    """Return a convolution without bias.

    The source is ``[batch, channels, height, width]``, padded; the kernel ``[channels * size y * size x, filters]``,
    or by groups ``[groups, filters / groups, channels / groups * size y * size x]``, in any layout; the shape that of
    planes of filters (rank 3 or 4), or of a matrix ``[batch * windows, filters]``.
    """
    if kernel.layout.shape.rank == 2:
        kernel = kernel.view(kernel.layout.permute((1, 0)).broadcast_along(0, 1))
    (groups, filters, taps), (apart, wide, deep) = kernel.layout.shape, kernel.layout.strides
    image, group, places, positions = _sides(source, windows, groups)
    if groups == source.layout.shape[1] and taps <= K_BLOCK and shape.rank > 2 and not emitter.reference:
        numbers = shape[1], filters
        return _by_plane(emitter, "window_product", shape[0] * shape[1], windows, shape, source, kernel, numbers)
    out = emitter.allocate(shape, compute_element(source.element))
    weights = (kernel.place, [(filters, wide)], [(taps, deep)])
    if shape.rank == 2:
        weights = (kernel.place, weights[2], weights[1])
        patches = (source.place, [image, *places], positions)
        emitter.product(source.element, (out.place, filters), patches, weights, (shape[0], taps, filters))
    else:
        count = Shape(shape[2:]).volume
        batch = [(image[0], 0, image[1], groups * filters * count), (groups, apart, group, filters * count)]
        planes = (source.place, positions, places)
        emitter.product(source.element, (out.place, count), weights, planes, (filters, taps, count), batch)
    return emitter.narrowed(out, source.element)


def _sides(source: Operand, windows: Windows, groups: int) -> tuple[tuple[int, int], int, rows.Side, rows.Side]:
    """Return the axis of images, the stride of groups, the axes of windows, and of positions in them of a group."""
    down, across = ((axis, windows.size[i], windows.step[i], windows.dilation[i]) for i, axis in enumerate((2, 4)))
    cut = source.layout.unfold(*down).unfold(*across)
    image, (channels, plane), *axes = zip(cut.shape, cut.strides, strict=True)
    depth = channels // groups
    return image, depth * plane, [axes[0], axes[2]], [(depth, plane), axes[1], axes[3]]


def kernel_gradient(emitter: Emitter, source: Operand, cotangent: Operand, windows: Windows, groups: int) -> Operand:
    """Return a convolution's gradient by its kernel, of the shape that `product` takes it in: by groups, or by 0 groups.

    The source is padded; the cotangent planes of filters or a matrix, as the results of `product`.
    """
    planes, parts = _planes(emitter, cotangent, source.layout.shape[0]), groups or 1
    image, group, places, positions = _sides(source, windows, parts)
    whole, (filters, apart), count = zip(planes.layout.shape, planes.layout.strides, strict=True)
    filters //= parts
    taps, steps = Shape(extent for extent, _ in positions).volume, whole[0] * count[0]
    if parts == source.layout.shape[1] and not emitter.reference:
        shape, values = Shape((parts, filters, taps)), Shape(source.layout.shape[2:]).volume + count[0] + rows.TOGETHER
        room = Shape((-(-parts * filters // rows.TOGETHER), values * rows.TOGETHER))
        scratch = emitter.allocate(room, compute_element(source.element))
        numbers = (filters, room[1]), (steps, depth_of(steps))
        found = _by_plane(emitter, "window_weights", parts * filters, windows, shape, source, planes, scratch, *numbers)
    else:
        # Filters are the columns: the cotangent alone is packed, and the source is read where it lies.
        out = emitter.allocate(Shape((parts, taps, filters)), compute_element(source.element))
        patches = (source.place, positions, [image, *places])
        seeds = (planes.place, [whole, count], [(filters, apart)])
        batch = [(parts, group, filters * apart, taps * filters)]
        emitter.product(source.element, (out.place, filters), patches, seeds, (taps, steps, filters), batch)
        found = emitter.narrowed(out, source.element)
        found = found.view(found.layout.permute((0, 2, 1)))
    layout = found.layout
    return found if groups else found.view(Layout(Shape((taps, filters)), layout.strides[:0:-1], layout.offset))


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
    size y * size x]``, or by groups ``[groups, channels / groups * size y * size x, filters / groups]``, in any layout;
    the shape that of the input without padding.

    An image at a time, or on a card as many as scratch memory may hold: the taps of all windows are a product, then added up.
    """
    if kernel.layout.shape.rank == 2:
        kernel = kernel.view(kernel.layout.permute((1, 0)).broadcast_along(0, 1))
    (groups, taps, filters), (apart, wide, deep) = kernel.layout.shape, kernel.layout.strides
    element, batch = cotangent.element, shape[0]
    planes = _planes(emitter, cotangent, batch)
    count = planes.layout.shape[2]
    if groups == shape[1] and filters == 1 and not emitter.reference:
        return _by_plane(emitter, "window_slope", batch * groups, windows, shape, planes, kernel, (groups, 1))
    out = emitter.allocate(shape, element)
    image_step, filter_step, count_step = planes.layout.strides

    def turn(inner: Emitter, image: Operand, seeds: Operand, kernel: Operand, images: int = 1) -> None:
        tapped = inner.allocate(Shape((images * groups, taps, count)), compute_element(element))
        weights = (kernel.place, [(taps, wide)], [(filters, deep)])
        cotangents = (seeds.place, [(filters, filter_step)], [(count, count_step)])
        batch = [(images, 0, image_step, groups * taps * count), (groups, apart, filters * filter_step, taps * count)]
        inner.product(element, (tapped.place, count), weights, cotangents, (taps, filters, count), batch)
        geometry = windows.geometry(images * shape[1])
        inner.append(rows.windows(f"window_sum.{element}", geometry, image.place, tapped.place))

    if not emitter.reference:
        emitter.repeat(1, turn, out, planes, kernel.view(kernel.layout.broadcast_along(0, batch)))
        return out
    step = max(1, AT_ONCE // (groups * taps * count))
    for first in range(0, batch, step):
        images = min(step, batch - first)
        image, seeds = (o.view(o.layout.narrow(0, first, images)) for o in (out, planes))
        turn(emitter, image, seeds, kernel, images)
    return out


def padded(emitter: Emitter, source: Operand, start: tuple[int, int], shape: Shape) -> Operand:
    """Return a value of rank 4 inside zeros around its last two axes."""
    batch, channels, height, width = source.layout.shape
    if source.layout.is_dense and not emitter.reference:
        windows = Windows((1, 1), (1, 1), (1, 1), (shape[2], shape[3]), start, (height, width))
        return _by_plane(emitter, "padding", batch * channels, windows, shape, source)
    out = emitter.zeros(shape, source.element)
    emitter.copy(source, out.view(out.layout.narrow(2, start[0], height).narrow(3, start[1], width)))
    return out
