"""The reference kernels, published for differential testing of elements and kernels, bit for bit."""

from topos.backend.tasks import GemmTask
from topos.errors import ShapeError
from topos.graph import Tape
from topos.payload import Layout, Shape, Tensor

__all__ = ["composed_batch_norm", "composed_max_pool", "composed_windowed_patches", "multiply"]


def multiply(task: GemmTask) -> Tensor:
    """Return the product ``[m, n]`` by the plain loops: one chain per element, k ascending, in blocks (docs/numerics.md).

    >>> task = GemmTask(np.float32([1, 2, 3, 4]), (2, 1), np.float32([1, 1]), (1, 1), m=2, k=2, n=1)
    >>> print(reference.multiply(task))
    [[3.0], [7.0]]
    """
    left = Tensor(task.a).view(Layout(Shape((task.m, task.k)), tuple(task.a_strides)))
    right = Tensor(task.b).view(Layout(Shape((task.k, task.n)), tuple(task.b_strides)))
    network, product = Tape.record(lambda tape: tape.leaf(left) @ tape.leaf(right), left.element)
    found: Tensor = network.forward(network.parameters()).of(product)
    return found


def composed_windowed_patches(
    input: Tensor, kernel_height: int, kernel_width: int, stride: int, padding: int
) -> Tensor:
    """Return the im2col matrix ``[B*oh*ow, C*kh*kw]`` of ``[B, C, H, W]``, zero-padded on each side.

    Raises:
        ShapeError: the rank is not 4, the stride is not positive, or the window does not fit.

    >>> image = Tensor([1, 1, 2, 3], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> print(reference.composed_windowed_patches(image, 2, 2, stride=1, padding=0))
    [[1.0, 2.0, 4.0, 5.0], [2.0, 3.0, 5.0, 6.0]]
    """
    windows = _windows(_padded(input, padding), kernel_height, kernel_width, stride)
    batch, channels, rows, _, columns, _ = windows.shape
    patches = windows.permute([0, 2, 4, 1, 3, 5])
    return patches.reshape([batch * rows * columns, channels * kernel_height * kernel_width])


def composed_max_pool(input: Tensor, size: int, stride: int) -> Tensor:
    """Return the maxima of ``size x size`` windows of ``[B, C, H, W]``; ties to the earliest, row-major.

    Raises:
        ShapeError: the rank is not 4, size or stride are not positive, or the window does not fit.

    >>> image = Tensor([1, 1, 2, 4], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    >>> print(reference.composed_max_pool(image, 2, 2).reshape([2]))
    [6.0, 8.0]
    """
    windows = _windows(_padded(input, 0), size, size, stride)
    batch, channels, rows, _, columns, _ = windows.shape
    lanes = windows.permute([0, 1, 2, 4, 3, 5]).reshape([batch, channels, rows, columns, size * size])
    return lanes.max_along(4)


def composed_batch_norm(input: Tensor, scale: Tensor, shift: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, biased variance) of ``[batch, features]`` normalised over the batch.

    Raises:
        ShapeError: the rank is not 2, or scale, shift or epsilon do not fit.

    >>> scale, shift = Tensor([1.0]), Tensor([5.0])
    >>> batch = Tensor([[1.0], [3.0]])
    >>> output, mean, variance = reference.composed_batch_norm(batch, scale, shift, Tensor(0.0))
    >>> print(output.reshape([2]), mean, variance)
    [4.0, 6.0] [2.0] [1.0]
    """
    batch, features = _ranked(input, 2)
    count = Tensor.counted([features], batch, element=input.element)
    mean = input.sum_along(0) / count
    centered = input - mean.broadcast_along(0, batch)
    variance = (centered * centered).sum_along(0) / count
    deviation = (variance + epsilon.broadcast([features])).sqrt()
    normalized = centered / deviation.broadcast_along(0, batch)
    output = normalized * scale.broadcast_along(0, batch) + shift.broadcast_along(0, batch)
    return output, mean, variance


def _ranked(input: Tensor, rank: int) -> Shape:
    if input.shape.rank != rank:
        raise ShapeError(f"a tensor of rank {rank} is needed, not {input.shape}")
    return input.shape


def _padded(input: Tensor, padding: int) -> Tensor:
    _, _, height, width = _ranked(input, 4)
    if padding == 0:
        return input
    return input.pad(2, padding, height + 2 * padding).pad(3, padding, width + 2 * padding)


def _windows(input: Tensor, kernel_height: int, kernel_width: int, stride: int) -> Tensor:
    return input.unfold(2, kernel_height, stride, 1).unfold(4, kernel_width, stride, 1)
