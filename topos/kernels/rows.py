"""Rows as `loops` reads them, word for word: the one place that writes the format."""

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from topos.kernels import elements
from topos.kernels.matmul import product
from topos.kernels.target import tile_of

# Memory: a bank, and a byte offset in it.
Place: TypeAlias = tuple[int, int]

# Where values lie, and their strides.
Walk: TypeAlias = tuple[Place, Sequence[int]]

# Of three axes: (rows, inner, columns) of a product, or what a kernel says.
Extents: TypeAlias = tuple[int, int, int]

# An operand of an elementwise row: its place, its size, whether it is dense, its strides.
Source: TypeAlias = tuple[Place, int, bool, Sequence[int]]


class Row(NamedTuple):
    """One row without its header: the kernel's name, its work, its words, and the words that are names.

    `routines` maps a position in `words` to the name of a block routine whose address belongs there.
    """

    kernel: str
    work: int
    words: list[int]
    routines: dict[int, str]


# Filters of one channel whose kernels have their gradient in the lanes of a vector.
TOGETHER = 8

Word = TypeVar("Word")


class Geometry(NamedTuple, Generic[Word]):
    """Windows over planes of ``[height, width]``, themselves the middle of planes padded at `top` and `left`."""

    planes: Word
    size_y: Word
    size_x: Word
    windows_y: Word
    windows_x: Word
    step_y: Word
    step_x: Word
    dilation_y: Word
    dilation_x: Word
    top: Word
    left: Word
    height: Word
    width: Word


# Work of a map relative to an addition, roughly: it only decides when threads take part.
COST = {
    "exp": 8, "ln": 8, "tanh": 12, "sin": 12, "cos": 12, "log1p": 12, "expm1": 10, "erf": 12, "erf_derivative": 10,
    "powf": 30,
}  # fmt: skip

# Multiply-adds of packed panels that take as long as an addition of values from memory, roughly.
FUSED = 16


def elementwise(routine: str, extents: Sequence[int], out: tuple[Place, int], sources: Sequence[Source]) -> Row:
    """`out` is (place, size)."""
    count = math.prod(extents)
    words = [0, len(extents), len(sources), count, *out[0], out[1], 1]
    for place, size, dense, _ in sources:
        words += (*place, size, int(dense))
    words += extents
    for _, _, _, strides in sources:
        words += strides
    cost = COST.get(routine.partition(".")[0], 1)
    return Row("elementwise", cost * count, words, {0: routine})


# Phases of a line: once, at every position, its values added up, or the greatest of them.
LINE, EACH, TOTAL, GREATEST = range(4)

# What a phase does at a position: (routine, sources) of its steps, (value, place) of what it stores, and the (value, place)
# that lines combine. Places count from 0, results of steps from -1 down.
Phase: TypeAlias = tuple[int, tuple[tuple[str, tuple[int, ...]], ...], tuple[tuple[int, int], ...], tuple[int, ...]]


def positions(
    extents: Sequence[int], n: int, places: Sequence[tuple[str, Place, Sequence[int]]], phases: Sequence[Phase]
) -> Row:
    """Carry out the phases of a chain in registers, on a card: the name is the structure that the kernel is made of.

    `extents` are the axes of lines of `n` positions (1: a thread each). A place is an element, where it lies, and its
    strides along the axes and a line.
    """
    family = "elementwise" if len(phases) == n == 1 and not phases[0][3] else "lines"
    structure = len(extents), tuple(place[0] for place in places), tuple(phase[1:] for phase in phases)
    words = [math.prod(extents), n, len(phases), int(any(strides[-1] == 1 for _, _, strides in places))]
    for kind, _, _, combined in phases:
        words += (kind, *(places[combined[1]][1] if combined else (0, 0)))
    words += extents
    for _, where, strides in places:
        words += (*where, *strides)
    routines = [name for phase in phases for name, _ in phase[1]]
    named = {len(words) + number: name for number, name in enumerate(routines)}
    width = elements.MEMORY[places[0][0]].width
    return Row(f"{family}.f{width}.{structure!r}", words[0] * n, words + [0] * len(routines), named)


# By size: the side of the squares that a routine transposes, and its name.
TRANSPOSED = {2: (8, "transpose.bf16"), 4: (8, "transpose.f32"), 8: (4, "transpose.f64")}


def copy(
    size: int, extents: Sequence[int], out: Place, out_strides: Sequence[int], source: Place, strides: Sequence[int],
    through: str = "",
) -> Row:  # fmt: skip
    """Copy every logical position between two strided windows, `through` a routine if the last axis lies dense in both.

    Where the last axis is contiguous in out alone, and another in the source, that one becomes the last but one:
    the kernel transposes such planes.
    """
    count = math.prod(extents)
    walks = [(1, 0, 0), *zip(extents, out_strides, strides, strict=True)]
    side, transpose = TRANSPOSED[size]
    turned = [axis for axis, (extent, _, stride) in enumerate(walks[:-1]) if stride == 1 and extent >= side]
    is_turned = bool(turned) and walks[-1][1] == 1 and walks[-1][2] != 1 and walks[-1][0] >= side
    if is_turned:
        walks[-1:-1] = [walks.pop(turned[0])]
    routine = transpose if is_turned else through
    words = [size, len(walks), count, side if is_turned else 0, 0, *out, *source]
    words += [value for column in zip(*walks, strict=True) for value in column]
    return Row("copy", count, words, {4: routine} if routine else {})


def fill(size: int, count: int, out: Place, value: Place) -> Row:
    """Repeat one element over dense memory."""
    return Row("fill", count, [size, count, *out, *value], {})


def gather(length: int, count: int, out: Place, table: Place, indices: Place) -> Row:
    """Copy `count` table rows of `length` bytes."""
    return Row("gather", count * length // 4, [length, count, *out, *table, *indices], {})


def scatter(name: str, extents: Extents, out: Place, rows: Place, indices: Place) -> Row:
    """Add rows at compute precision: into zeros by a plain loop (``reference_scatter.f32``), or ``accumulate.f32``.

    `extents` are (rows, length, targets).
    """
    memory, (count, length, targets) = _memory(name), extents
    work = (count + targets) * length + (count * targets if _is_plain(name) else 0)
    return _of_routine("scatter", name, work, [0, memory.size, memory.width // 8, *extents, *out, *rows, *indices])


def _is_plain(name: str) -> bool:
    return name.startswith("reference_")


def _memory(name: str) -> elements.Memory:
    """Return how the element of a kernel or routine lies in memory."""
    return elements.MEMORY[name.partition(".")[2]]


def _of_routine(kernel: str, name: str, work: int, words: list[int]) -> Row:
    """Return a row of `kernel`, whose first word is a routine, or of a plain loop that reads the other words."""
    return Row(name, work, words, {}) if _is_plain(name) else Row(kernel, work, words, {0: name})


def reference_matmul(
    element: str, extents: Extents, out: Place, a: tuple[Place, int, int], b: tuple[Place, int, int],
    batch: Sequence[int], strides: tuple[Sequence[int], Sequence[int]],
) -> Row:  # fmt: skip
    """`extents` are (m, k, n); an operand is (place, row stride, column stride)."""
    count = math.prod(batch)
    m, k, n = extents
    words = [len(batch), count, m, k, n, *out, *a[0], *a[1:], *b[0], *b[1:], *batch, *strides[0], *strides[1]]
    return Row(f"reference_matmul.{element}", count * m * k * n, words, {})


# The code of kernels that serve every element.
CODE = {f"matmul.{element}": "matmul" for element in elements.MEMORY}

# Where rows of values that lie side by side start, and their stride.
Lines: TypeAlias = tuple[Place, int]

# Leading axes of a product: the extent, then the strides in A, in B and in the result.
Batch: TypeAlias = Sequence[tuple[int, int, int, int]]

# An index of a matrix: the (extent, stride) of the axes that it is made of, row-major.
Side: TypeAlias = Sequence[tuple[int, int]]

# An operand of a product: where it starts, and its two sides as the product walks them.
Factor: TypeAlias = tuple[Place, Side, Side]


def matmul(element: str, out: Lines, a: Factor, b: Factor, scratch: tuple[Place, int, int], batch: Batch = ()) -> Row:
    """Multiply matrices; an index of an operand may be made of up to `product.AXES` axes.

    Arguments:
        element: of the operands; the result has its compute precision.
        out: the place of the result, and the stride of its rows; its columns lie side by side.
        a: the place, the rows and the inner index of the left operand.
        b: the place, the inner index and the columns of the right one.
        scratch: the place, the bytes per task and the count of tasks: `scratch_bytes`.
        batch: (extent, stride in a, in b, in the result) of each leading axis.
    """
    memory = elements.MEMORY[element]
    width = f"f{memory.width}"
    shape = tile_of(memory.width)
    sides = [_padded(side) for side in (a[1], a[2], b[1], b[2])]
    m, k, _, n = (math.prod(extent for extent, _ in side) for side in sides)
    leading = list(batch) or [(1, 0, 0, 0)]
    count = math.prod(axis[0] for axis in leading)
    words = [len(leading), count, m, k, n, *out[0], out[1], *a[0], *b[0], *scratch[0], *scratch[1:]]
    words += [shape.rows, shape.columns, _columns_block(memory.width), memory.size, memory.width // 8, shape.lanes]
    panels = [f"{side}_{kind}.{element}" for side in ("rows", "columns") for kind in ("panel", "runs", "turn")]
    routines = [*panels, f"line.{element}", f"column.{element}", f"accumulate.{width}"]
    first = len(words)
    words += [0] * len(routines)
    for side in sides:
        words += [extent for extent, _ in side]
        words += [stride for _, stride in side]
    for position in range(4):
        words += [axis[position] for axis in leading]
    tiles = [f"{kind}{rows}.{width}" for kind in ("tile", "placed") for rows in range(1, shape.rows + 1)]
    named = {first + i: routine for i, routine in enumerate(routines)}
    named |= {len(words) + i: routine for i, routine in enumerate(tiles)}
    return Row(f"matmul.{element}", count * m * k * n // FUSED, [*words, *[0] * len(tiles)], named)


def scratch_bytes(element: str, m: int, k: int, n: int) -> int:
    """Return the bytes that a task of a product packs its operands into."""
    width = elements.MEMORY[element].width
    shape = tile_of(width)
    depth = product.length_of(product.depth_of(k))
    columns = -(-min(n, _columns_block(width)) // shape.columns) * shape.columns
    area = product.rows_area(m, shape.rows) * depth
    values = area + 2 * shape.columns + columns * depth + 64
    return values * width // 8 // 64 * 64 + 64


def _columns_block(width: int) -> int:
    """Return the columns of a packed block of B: with a block of A it stays in the second-level cache."""
    return 16384 // width


def _padded(side: Side) -> list[tuple[int, int]]:
    axes = [axis for axis in side if axis[0] != 1] or [(1, 1)]
    return [(1, 0)] * (product.AXES - len(axes)) + axes


def reduce(name: str, n: int, stride: int, out: Walk, source: Walk, extents: Sequence[int], width: int = 1) -> Row:
    """Reduce `n` values for every outer position; places have strides, a result is `width` elements.

    `name` is a plain loop (``reference_sum.f32``; its results are dense), or a routine that takes a run of the last
    axis at a time. For ``column_sum.f32`` the values are `stride` apart and columns lie side by side, for others the
    values of a row do.
    """
    count, size = math.prod(extents), _memory(name).size
    columns = int(name.startswith("column_"))
    strides = out[1] if count > 1 else [width] * len(extents)
    words = [0, size, len(extents), count, n, stride, columns, width, *out[0], *source[0], *extents, *strides]
    work = count * n * (COST["exp"] if "log" in name else 1)
    return _of_routine("reduce", name, work, [*words, *source[1]])


def fold(name: str, extents: Extents, windows: tuple[int, int, int, int], out: Place, source: Place) -> Row:
    """Add windows back to an axis: by a plain loop (``reference_fold.f32``), or ``ascend.f32`` over inner values.

    `extents` are (outer, extent of the axis, inner), `windows` (count, size, step, dilation); both places are dense.
    """
    skip = windows[3] // math.gcd(windows[2], windows[3])
    work = extents[0] * extents[2] * (extents[1] + windows[0] * windows[1])
    return _of_routine("fold", name, work, [0, _memory(name).size, *extents, *windows, skip, *out, *source])


def windows(kernel: str, geometry: Geometry[int], out: Place, *sources: Place) -> Row:
    """Walk windows of planes: a kernel of `windows`, with its operands."""
    is_summed = kernel.startswith("window_weights")  # over the windows of all images: its last pair counts them
    count = sources[-1][0] if is_summed else geometry.windows_y * geometry.windows_x
    work = geometry.planes * count * geometry.size_y * geometry.size_x
    return Row(kernel, work, [*geometry, *out, *(word for source in sources for word in source)], {})


def chain(
    frame: Extents,
    values: Sequence[tuple[int, int, int]],
    before: int,
    instructions: Sequence[tuple[str, int, int, Sequence[int], Sequence[int], int]],
) -> Row:
    """Run a block program (`chains.chain`); `frame` is (rows, values per row, rows per block).

    An instruction is (routine or "", kind, out, sources, geometry, cost per row); the first `before` run once.
    """
    words = [*frame, len(values), before, len(instructions) - before]
    for value in values:
        words += value
    blobs: list[int] = []
    routines: dict[int, str] = {}
    geometries = 4 + len(words) + 6 * len(instructions)
    for name, kind, out, sources, geometry, _ in instructions:
        a, b, c = (*sources, sources[0], sources[0])[:3]
        if geometry:
            b = geometries + len(blobs)
            blobs += geometry
        if name:
            routines[len(words)] = name
        words += (0, kind, out, a, b, c)
    work = frame[0] * sum(instruction[-1] for instruction in instructions[before:])
    return Row("chain", work, words + blobs, routines)


def repeat(
    extents: Sequence[int], slots: int, banks: Sequence[tuple[Place, int, Sequence[int]]], run: Sequence[Row], node: int
) -> Row:
    """Carry out a run of rows for every index below `extents`, over a table of `banks` of its own.

    Tasks share the turns, and have a slot each. A bank lies at a place, so many bytes further per slot, and so many per
    step along each axis.
    """
    words, names, _ = joined(run, node)
    count = math.prod(extents)
    head = [count, slots, len(extents), len(banks), *extents]
    for where, beside, steps in banks:
        head += (*where, beside, *steps)
    routines = {len(head) + position: name for position, name in names.items()}
    return Row("repeat", count * sum(row.work for row in run), head + words, routines)


def leave(value: Place, size: int) -> Row:
    """End a turn of `repeat` where the bytes of a value are 0."""
    return Row("", 0, [*value, -1 if size == 8 else (1 << 8 * size) - 1], {})


def joined(rows: Sequence[Row], node: int = 0) -> tuple[list[int], dict[int, str], list[int]]:
    """Return rows with headers of a node as one run of words, the words that are names, and where each row starts."""
    words: list[int] = []
    names: dict[int, str] = {}
    starts = []
    for row in rows:
        start = len(words)
        starts.append(start)
        if row.kernel:
            names[start] = row.kernel
        names |= {start + 4 + position: name for position, name in row.routines.items()}
        words += (0, 4 + len(row.words), row.work, node, *row.words)
    return words, names, starts


def one_hot(element: str, count: int, vocabulary: int, out: Place, source: Place, strides: tuple[int, int]) -> Row:
    """Find the hot position of each row."""
    return Row(f"one_hot.{element}", count * vocabulary, [count, vocabulary, *out, *source, *strides], {})


def nonzero(element: str, value: Place) -> Row:
    """Report a value that is 0."""
    return Row(f"nonzero.{element}", 1, [*value], {})
