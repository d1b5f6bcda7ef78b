"""2-D convolution: rectangular, dilated, grouped and depthwise."""

from typing import Any

from topos.graph import Tape, Value
from topos.neural.layers import axes_pair, biased, check, each, padded, record, recorded
from topos.neural.module import Weighted

# One number for rows and columns, or one each.
Pair = int | tuple[int, int]


@recorded
def conv2d(
    input: Value, weights: Value, bias: Value | None = None,
    stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1,
) -> Value:  # fmt: skip
    """Record a 2-D cross-correlation with symmetric zero padding, plus a bias per filter.

    Arguments:
        input: ``[batch, channels, height, width]``.
        weights: ``[filters, channels / groups, kernel height, kernel width]``.
        bias: ``[filters]``, or None for none.
        stride: rows and columns between windows.
        padding: zeros on each side.
        dilation: rows and columns between the taps of a window.
        groups: filter f sees the channels of group ``f * groups // filters``; as many as channels is depthwise.

    Returns ``[batch, filters, out height, out width]``, with
    out = (extent + 2 padding - dilation (kernel - 1) - 1) // stride + 1.

    Raises:
        ShapeError: ranks, channels, filters or groups disagree, a number is out of range, or the kernel does
            not fit the padded input.

    >>> tape = Tape()
    >>> image = tape.input(np.ones((1, 2, 5, 5)))
    >>> kernel, bias = tape.parameter(np.ones((2, 1, 3, 3))), tape.parameter([0.0, 0.0])
    >>> conv2d(image, kernel, bias, padding=(1, 0), groups=2).shape
    [1, 2, 5, 3]
    """
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    call: dict[str, Any] = {"input": input, "weights": weights, "bias": bias, **options}
    strides, pads, gaps = _geometry("conv2d", call)
    fits = input.shape.rank == weights.shape.rank == 4 and (bias is None or bias.shape.rank == 1)
    check(fits, "conv2d", "needs [B, C, H, W], [F, C / groups, h, w] and [F]", **call)
    batch, channels = input.shape[:2]
    filters, depth, *kernel = weights.shape
    added = filters if bias is None else bias.shape[0]
    fits = channels == depth * groups and filters % groups == 0 and added == filters
    rule = f"channels ({channels}, {depth * groups}) and filters ({filters}, {added}) have to agree"
    check(fits, "conv2d", f"{rule}, and the groups to divide both", **call)
    spans = [gap * (size - 1) + 1 for gap, size in zip(gaps, kernel, strict=True)]
    fits = all(s <= e + 2 * p for s, e, p in zip(spans, input.shape[2:], pads, strict=True))
    check(fits, "conv2d", "the kernel does not fit: it is larger than the padded input", **call)
    source = padded(input, 2, pads)
    windows = source.unfold(2, kernel[0], strides[0], gaps[0]).unfold(4, kernel[1], strides[1], gaps[1])
    rows, columns = windows.shape[2], windows.shape[4]
    places, taps = batch * rows * columns, depth * kernel[0] * kernel[1]
    # As the catalog recognises them. The bias is added after the planes are laid out, so that its gradient sums along
    # memory.
    if groups == 1:
        patches = windows.permute([0, 2, 4, 1, 3, 5]).reshape([places, taps])
        product = patches.matmul(weights.permute([1, 2, 3, 0]).reshape([taps, filters]))
        planes = product.reshape([batch, rows * columns, filters]).permute([0, 2, 1])
    else:
        patches = windows.permute([1, 3, 5, 0, 2, 4]).reshape([groups, taps, places])
        product = weights.reshape([groups, filters // groups, taps]).matmul(patches)
        planes = product.reshape([filters, batch, rows * columns]).permute([1, 0, 2])
    return biased(planes, bias, 1).reshape([batch, filters, rows, columns])


def _geometry(name: str, call: dict[str, Any]) -> list[tuple[int, int]]:
    """Return stride, padding and dilation by axis, checked."""
    pairs = [axes_pair(call[key], name, **call) for key in ("stride", "padding", "dilation")]
    check(hasattr(call["groups"], "__index__"), name, "groups is an int", **call)
    positive = min(*pairs[0], *pairs[2], call["groups"]) >= 1 and min(pairs[1]) >= 0
    rule = "the stride is positive, dilation and groups are positive, padding is not negative"
    check(positive, name, rule, **call)
    return pairs


class Conv2d(Weighted):
    """`conv2d` with its kernels and bias held as parameters.

    Arguments:
        tape: where the parameters are recorded.
        weights: ``[filters, channels / groups, kernel height, kernel width]``.
        bias: ``[filters]``, or None for none, as before a batch norm.
        stride: rows and columns between windows.
        padding: zeros on each side.
        dilation: rows and columns between the taps of a window.
        groups: see `conv2d`.

    Raises:
        ShapeError: ranks or filters disagree, or a number is out of range.

    >>> tape = Tape()
    >>> layer = Conv2d(tape, init.normal(7, 0.1)([8, 3, 3, 3]), np.zeros(8), padding=1)
    >>> layer.express(tape.input(np.zeros((2, 3, 16, 16)))).shape
    [2, 8, 16, 16]
    """

    def __init__(
        self, tape: Tape, weights: Any, bias: Any = None,
        stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        weights, bias = each(tape.payload_of, weights, bias)
        self.options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        call = {"weights": weights, "bias": bias, **self.options}
        fits = weights.shape.rank == 4 and (bias is None or bias.shape == weights.shape[:1])
        check(fits, "Conv2d", "needs weights [F, C / groups, h, w] and bias [F]", **call)
        _geometry("Conv2d", call)
        self.weights, self.bias = record(tape, weights, bias)

    @recorded
    def express(self, input: Value) -> Value:
        """Record the convolution of ``[batch, channels, height, width]``.

        Raises:
            ShapeError: as `conv2d`.
        """
        return conv2d(input, *each(input.tape.resolve, self.weights, self.bias), **self.options)
