"""Formulas that a card carries out as groups of the catalog: in the simulator, and by ``bench/card.py`` on a card."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers import drawn, special, strided
from topos import Element, Tape, Value, concat, conv2d, max_pool


def chain(tape: Tape, element: Element, size: int) -> list[Value]:
    """Record an elementwise chain over operands of every layout, with several results."""
    shape = 3 * size, 4 * size
    a, b, c, *_ = (tape.leaf(tensor) for _, tensor in strided(shape, element, 5))
    wide = tape.leaf(special(shape[1:], element, 1)).broadcast_along(0, shape[0])
    tall = tape.leaf(special(shape[:1], element, 2)).broadcast_along(1, shape[1])
    first = (a * wide + b).tanh() - tall
    second = first.step(c).select(first.exp(), (c / a).maximum(wide))
    return [first, second * first]


def rows(tape: Tape, element: Element, size: int) -> list[Value]:
    """Record a softmax, sums and a layer norm, which are one chain, and a gradient of them."""
    shape = 2 * size, 37 * size
    x, scale = tape.parameter(drawn(shape, element, 3)), tape.parameter(drawn(shape[1:], element, 4))
    shares, part = x.log_softmax(1), 1 / shape[1]
    total = (shares.exp() * x).sum_along(1) + tape.leaf(special(shape, element)).logsumexp(1)
    centred = x - (x.sum_along(1) * part).broadcast_along(1, shape[1])
    spread = ((centred * centred).sum_along(1) * part + 1e-5).sqrt()
    out = centred / spread.broadcast_along(1, shape[1]) * scale.broadcast_along(0, shape[0])
    loss = (out * shares).sum() + total.sum()
    return [shares, total, spread, out, *tape.differentiate(loss, [x]).roots]


def pool(tape: Tape, element: Element, size: int, step: int = 2) -> list[Value]:
    """Record a max pool of windows of 2 by 2, or of 3 by 3 that overlap, and its gradient."""
    windows = (2, 2, 0) if step == 2 else (3, 2, 1)
    image = tape.input(special((size, 2, 6 * size, 8 * size), element, 1))
    out = max_pool(image, *windows)
    return [out, *tape.vjp(out, tape.input(drawn(out.shape, element, 4)), [image]).gradients]


def convolution(tape: Tape, element: Element, size: int, groups: int = 1) -> list[Value]:
    """Record a convolution, with steps and dilations, and its gradients."""
    channels, filters = 2 * size, 2 * size + (groups == 1)
    image = tape.input(drawn((2, channels, 5 * size, 6 * size), element, 2))
    kernel = tape.parameter(special((filters, channels // groups, 3, 2), element, 3))
    out = conv2d(image, kernel, None, stride=(1, 2), padding=(1, 0), dilation=(1, 2), groups=groups)
    return [out, *tape.vjp(out, tape.input(drawn(out.shape, element, 4)), [image, kernel]).gradients]


def concatenation(tape: Tape, element: Element, size: int) -> list[Value]:
    """Record parts that go to their places, -0 as +0, whether these lie side by side or not."""
    parts = [tape.leaf(special((3 * size, width * size), element, width)) for width in (1, 4, 2)]
    return [concat(parts, 1), concat([part.T for part in parts], 0)]


FORMULAS: dict[str, tuple[Callable[[Tape, Element, int], list[Value]], set[str]]] = {
    "chain": (chain, {"elementwise"}),
    "rows": (rows, {"lines", "elementwise"}),
    "pool": (pool, {"pool", "pool_slope"}),
    "pool with overlap": (lambda *given: pool(*given, step=3), {"pool", "pool_slope", "elementwise"}),
    "convolution": (convolution, {"matmul", "window_sum", "elementwise"}),
    "depthwise": (lambda tape, element, size: convolution(tape, element, size, 2 * size),
                  {"matmul", "window_sum", "elementwise"}),
    "concatenation": (concatenation, {"elementwise"}),
}  # fmt: skip
"""By name, and the families of the kernels that compute them; products of every size are one."""
