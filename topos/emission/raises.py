"""Groups of the catalog as the operations that StableHLO has: convolution, pooling, batch norm, all with gradients."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topos.emission.emittable import TYPES
from topos.emission.writer import Term, Writer, applied, generic, listed, region
from topos.engine.catalog.group import Group, TextOperation
from topos.ops import movement, windowed
from topos.ops.windowed import Windows


def _convolution(
    w: Writer, a: Term, b: Term, form: str, shape: Sequence[int], groups: Sequence[int], **window: Any
) -> Term:
    """Append a convolution; `form` says which axis of each is which, `window` how `b` slides over `a`.

    `groups` counts those of the batch and of the features.
    """
    settings = ", ".join(f"{name} = {list(given)}" for name, given in window.items())
    precise = "#stablehlo<precision HIGHEST>"
    counts = f"batch_group_count = {groups[0]} : i64, feature_group_count = {groups[1]} : i64"
    names, types = listed([a, b])
    head = f"stablehlo.convolution({names}) dim_numbers = {form}, window = {{{settings}}}"
    text = f"{head} {{{counts}, precision_config = [{precise}, {precise}]}} : ({types}) -> {{type}}"
    return w.narrowed(w.append(text, shape, w.element.accumulation or a.kind))


def _turned(w: Writer, matrix: Term) -> Term:
    return w.operation("transpose", [matrix], matrix.shape[::-1], matrix.kind, ", dims = [1, 0]")


def _grouped(w: Writer, kernel: Term) -> Term:
    """Return a matrix of a kernel for each group, turned where there is but one; what has three axes is that."""
    return kernel if len(kernel.shape) == 3 else w.reshape(_turned(w, kernel), (1, *kernel.shape[::-1]))


def _product(w: Writer, source: Term, kernel: Term, windows: Windows, shape: Sequence[int]) -> Term:
    batch, channels = source.shape[:2]
    kernel = _grouped(w, kernel)
    groups, filters = kernel.shape[0], kernel.shape[0] * kernel.shape[1]
    taps = w.reshape(kernel, (filters, channels // groups, *windows.size))
    form, out = "[b, f, 0, 1]", (batch, filters, *windows.counts)
    if len(shape) == 2:
        form, out = "[b, 0, 1, f]", (batch, *windows.counts, filters)
    form = f"[b, f, 0, 1]x[o, i, 0, 1]->{form}"
    found = _convolution(w, source, taps, form, out, (1, groups), stride=windows.step, rhs_dilate=windows.dilation)
    return w.reshape(found, shape)


def _cotangent(w: Writer, given: Term, batch: int, windows: Windows) -> tuple[Term, str]:
    """Return a cotangent of planes or of a matrix in rank 4, and which axis is which: b, f, 0 and 1."""
    if len(given.shape) == 2:
        return w.reshape(given, (batch, *windows.counts, given.shape[1])), "b01f"
    return w.reshape(given, (batch, given.shape[1], *windows.counts)), "bf01"


def _axes(letters: str) -> str:
    return f"[{', '.join(letters)}]"


def _kernel_gradient(w: Writer, source: Term, cotangent: Term, windows: Windows, groups: int) -> Term:
    # The cotangent slides over the source: windows and positions change places, and the batch is summed.
    batch, channels = source.shape[:2]
    seeds, letters = _cotangent(w, cotangent, batch, windows)
    filters = seeds.shape[letters.index("f")]
    for axis in (0, 1):
        reach = (windows.size[axis] - 1) * windows.dilation[axis]
        last = (windows.counts[axis] - 1) * windows.step[axis]
        source = w.slice(source, axis + 2, 0, last + reach + 1)
    form = f"[f, b, 0, 1]x{_axes(letters.replace('f', 'o').replace('b', 'i'))}->[b, 0, 1, f]"
    parts = groups or 1
    shape = (channels // parts, *windows.size, filters)
    found = _convolution(w, source, seeds, form, shape, (parts, 1), stride=windows.dilation, rhs_dilate=windows.step)
    matrix = w.reshape(found, (math.prod(shape[:3]), filters))
    return w.reshape(_turned(w, matrix), (groups, filters // groups, matrix.shape[0])) if groups else matrix


def _input_gradient(w: Writer, cotangent: Term, kernel: Term, windows: Windows, shape: Sequence[int]) -> Term:
    # Each source position collects the taps that met it: the reversed kernel slides over spread cotangents.
    seeds, letters = _cotangent(w, cotangent, shape[0], windows)
    kernel = _grouped(w, kernel)
    taps = w.reshape(kernel, (shape[1], *windows.size, kernel.shape[2]))
    turned = w.operation("reverse", [taps], taps.shape, taps.kind, ", dims = [1, 2]")
    pads: list[list[int]] = []
    starts, full = [], []
    for axis in (0, 1):
        reach, step = (windows.size[axis] - 1) * windows.dilation[axis], windows.step[axis]
        span, extent = (windows.counts[axis] - 1) * step + 1, shape[axis + 2]
        before = reach - windows.start[axis]
        pads.append([max(before, 0), max(extent + reach - span - before, 0)])
        starts.append(max(-before, 0))
        full.append(span + sum(pads[-1]) - reach)
    form = f"{_axes(letters)}x[o, 0, 1, i]->[b, f, 0, 1]"
    sliding = {"pad": pads, "lhs_dilate": windows.step, "rhs_dilate": windows.dilation}
    found = _convolution(w, seeds, turned, form, (*shape[:2], *full), (1, kernel.shape[0]), **sliding)
    for axis in (0, 1):
        found = w.slice(found, axis + 2, starts[axis], shape[axis + 2])
    return found


def _pool(w: Writer, source: Term, windows: Windows) -> Term:
    operands = source, w.real(-math.inf, (), source.kind)
    text = generic("reduce_window", operands, _window(windows), applied(source.kind, "maximum"))
    return w.append(text, (*source.shape[:2], *windows.counts), source.kind)


def _window(windows: Windows) -> str:
    sizes, steps = (", ".join(map(str, (1, 1, *pair))) for pair in (windows.size, windows.step))
    return f"window_dimensions = array<i64: {sizes}>, window_strides = array<i64: {steps}>"


def _pool_gradient(w: Writer, source: Term, cotangent: Term, windows: Windows) -> Term:
    # The first of equal maxima is kept, and a NaN is not left, as `Maximum` has it.
    image, seeds = w.widened(source), w.widened(cotangent)
    zero = w.zero((), image.kind)
    compared = f"FLOAT : ({zero.type}, {zero.type}) -> tensor<i1>"
    kept = (
        f"%g = stablehlo.compare GE, %a, %b, {compared}",
        f"%n = stablehlo.compare NE, %a, %a, {compared}",
        "%s = stablehlo.or %g, %n : tensor<i1>",
    )
    regions = region(image.kind, kept, "tensor<i1>"), applied(image.kind, "add")
    text = generic("select_and_scatter", [image, seeds, zero], _window(windows), *regions)
    return w.narrowed(w.append(text, image.shape, image.kind))


def _concatenation(w: Writer, *parts: Term, axis: int, shape: Sequence[int]) -> Term:
    joined = w.operation("concatenate", parts, shape, parts[0].kind, f", dim = {axis}")
    return w.elementwise("add", joined, w.zero(shape, joined.kind))


RAISES: dict[Callable[..., Any], Callable[..., Term]] = {
    windowed.product: _product,
    windowed.kernel_gradient: _kernel_gradient,
    windowed.input_gradient: _input_gradient,
    windowed.pool: _pool,
    windowed.pool_gradient: _pool_gradient,
    windowed.padded: lambda w, a, start, shape: w.pad(w.pad(a, 2, start[0], shape[2]), 3, start[1], shape[3]),
    movement.concatenation: _concatenation,
}


def _batch_norm(w: Writer, name: str, epsilon: float, operands: Sequence[Term]) -> list[Term]:
    wide = [w.widened(term) for term in operands]
    source, features = wide[:2]
    shapes = [source.shape] if name == "batch_norm_inference" else [source.shape, features.shape, features.shape]
    settings = f"epsilon = {TYPES['f32'].literal(np.float32(epsilon))} : f32, feature_index = 1 : i64"
    found = w.append_all(generic(name, wide, settings), shapes, source.kind)
    return [w.narrowed(term) for term in found]


def raised(w: Writer, group: Group, operands: Sequence[Term]) -> list[Term]:
    """Append the operation that stands for a group, and return its results."""
    lower: Any = group.lower
    if isinstance(lower, TextOperation):
        return _batch_norm(w, lower.name, lower.epsilon, operands)
    return [RAISES[lower.func](w, *operands, **lower.keywords)]
