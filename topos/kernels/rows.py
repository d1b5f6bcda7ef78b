"""Rows as `loops` reads them, word for word: the one place that writes the format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[int, int]
"""Memory: a bank, and a byte offset in it."""


class Row(NamedTuple):
    """One row without its header: the kernel's name, its work, its words, and the words that are names.

    `routines` maps a position in `words` to the name of a block routine whose address belongs there.
    """

    kernel: str
    work: int
    words: list[int]
    routines: dict[int, str]


COST = {"exp": 8, "ln": 8, "tanh": 12, "sin": 12, "cos": 12, "log1p": 12, "expm1": 10, "erf": 12, "powf": 30}
"""Work of a map relative to an addition, roughly: it only decides when threads take part."""


def elementwise(
    routine: str,
    extents: Sequence[int],
    count: int,
    out: tuple[Place, int],
    sources: Sequence[tuple[Place, int, bool, Sequence[int]]],
) -> Row:
    """`out` is (place, size); a source is (place, size, dense, strides)."""
    words = [0, len(extents), len(sources), count, *out[0], out[1], 1]
    for place, size, dense, _ in sources:
        words += (*place, size, int(dense))
    words += extents
    for _, _, _, strides in sources:
        words += strides
    cost = COST.get(routine.partition(".")[0], 1)
    return Row("elementwise", cost * count, words, {0: routine})


TRANSPOSED = {2: (8, "transpose.bf16"), 4: (8, "transpose.f32"), 8: (4, "transpose.f64")}
"""By size: the side of the squares that a routine transposes, and its name."""


def copy(
    size: int,
    extents: Sequence[int],
    out: Place,
    out_strides: Sequence[int],
    source: Place,
    strides: Sequence[int],
) -> Row:
    """Copy every logical position between two strided windows.

    Where the last axis is contiguous in out alone, and another in the source, that one becomes the last but one:
    the kernel transposes such planes.
    """
    count = 1
    for extent in extents:
        count *= extent
    walks = [(1, 0, 0), *zip(extents, out_strides, strides, strict=True)]
    side, routine = TRANSPOSED[size]
    turned = [axis for axis, (extent, _, stride) in enumerate(walks[:-1]) if stride == 1 and extent >= side]
    is_turned = bool(turned) and walks[-1][1] == 1 and walks[-1][2] != 1 and walks[-1][0] >= side
    if is_turned:
        walks[-1:-1] = [walks.pop(turned[0])]
    words = [size, len(walks), count, side if is_turned else 0, 0, *out, *source]
    words += [value for column in zip(*walks, strict=True) for value in column]
    return Row("copy", count, words, {4: routine} if is_turned else {})


def fill(size: int, count: int, out: Place, value: Place) -> Row:
    """Repeat one element over dense memory."""
    return Row("fill", count, [size, count, *out, *value], {})


def gather(length: int, count: int, out: Place, table: Place, indices: Place) -> Row:
    """Copy `count` table rows of `length` bytes."""
    return Row("gather", count * length // 4, [length, count, *out, *table, *indices], {})


def scatter(
    element: str, count: int, length: int, targets: int, out: Place, rows: Place, indices: Place
) -> Row:
    """Add `count` rows of `length` elements into `targets` rows at compute precision: by the plain loop."""
    work = targets * (length + count) + count * length
    words = [count, length, targets, *out, *rows, *indices]
    return Row(f"reference_scatter.{element}", work, words, {})


def scatter_runs(
    element: str,
    extents: tuple[int, int, int],
    sizes: tuple[int, int],
    out: Place,
    rows: Place,
    indices: Place,
) -> Row:
    """Add rows, a whole run at a time; `extents` are (rows, length, targets), `sizes` of an element and a sum."""
    count, length, targets = extents
    words = [0, *sizes, *extents, *out, *rows, *indices]
    return Row("scatter", (count + targets) * length, words, {0: f"accumulate.{element}"})


def matmul(
    element: str,
    extents: tuple[int, int, int],
    out: Place,
    a: tuple[Place, int, int],
    b: tuple[Place, int, int],
    batch: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
) -> Row:
    """`extents` are (m, k, n); an operand is (place, row stride, column stride)."""
    count = 1
    for extent in batch:
        count *= extent
    m, k, n = extents
    words = [len(batch), count, m, k, n, *out, *a[0], *a[1:], *b[0], *b[1:], *batch, *strides[0], *strides[1]]
    return Row(f"matmul.{element}", count * m * k * n, words, {})


def reduce(
    name: str,
    size: int,
    n: int,
    stride: int,
    out: tuple[Place, Sequence[int]],
    source: tuple[Place, Sequence[int]],
    extents: Sequence[int],
    width: int = 1,
) -> Row:
    """Reduce `n` values for every outer position; places have strides, a result is `width` elements.

    `name` is a plain loop (``reference_sum.f32``; its results are dense), or a routine that takes a run of the last
    axis at a time. For ``column_sum.f32`` the values are `stride` apart and columns lie side by side, for others the
    values of a row do.
    """
    count = 1
    for extent in extents:
        count *= extent
    columns = int(name.startswith("column_"))
    strides = out[1] if count > 1 else [1] * len(extents)
    words = [0, size, len(extents), count, n, stride, columns, width, *out[0], *source[0], *extents, *strides]
    work = count * n * (COST["exp"] if name.startswith("log") else 1)
    is_plain = name.startswith("reference_")
    return Row(name if is_plain else "reduce", work, [*words, *source[1]], {} if is_plain else {0: name})


def fold(
    element: str,
    axis: int,
    windows: tuple[int, int, int, int],
    window_strides: tuple[int, int],
    out: Place,
    source: Place,
    extents: Sequence[int],
    strides: Sequence[int],
) -> Row:
    """Add windows back by the plain loop: (count, size, step, dilation); `extents` are those of the result."""
    count = 1
    for extent in extents:
        count *= extent
    words = [len(extents), count, axis, *windows, *window_strides, *out, *source, *extents, *strides]
    return Row(f"reference_fold.{element}", count * windows[1], words, {})


def fold_runs(
    element: str,
    size: int,
    extents: tuple[int, int, int],
    windows: tuple[int, int, int, int],
    out: Place,
    source: Place,
) -> Row:
    """Add windows back, whole runs of inner values at a time; `extents` are (outer, extent of the axis, inner)."""
    skip = windows[3] // math.gcd(windows[2], windows[3])
    work = extents[0] * extents[2] * (extents[1] + windows[0] * windows[1])
    return Row("fold", work, [0, size, *extents, *windows, skip, *out, *source], {0: f"ascend.{element}"})


def one_hot(
    element: str, count: int, vocabulary: int, out: Place, source: Place, strides: tuple[int, int]
) -> Row:
    """Find the hot position of each row."""
    return Row(f"one_hot.{element}", count * vocabulary, [count, vocabulary, *out, *source, *strides], {})


def nonzero(element: str, value: Place) -> Row:
    """Report a value that is 0."""
    return Row(f"nonzero.{element}", 1, [*value], {})
