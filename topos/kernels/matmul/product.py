"""The product of two matrices as a row: blocks of k, blocks of columns, panels in cache, tiles in registers.

The bits are those of `reference.multiply`: one FMA chain per result and block of k, blocks added in ascending
order. Nothing else is free, and everything else is: the order of tiles, what is packed, how tasks share them.
"""

from collections.abc import Callable

from topos.kernels.loops import offset_of, place
from topos.kernels.memory import apply, line, load, pack, stack, store, tile
from topos.kernels.reference import K_BLOCK

# Axes that a row or column index, or the index k, may be made of.
AXES = 3

# Panels of columns up to which A is read where it lies: packing pays from a few passes over it on.
NARROW = 3

# Lanes side by side, on average, from which on they are copied as runs.
SHORTEST = 4

# Bytes of a block of A, of A beside a B that is read where it lies, and of B, up to which it is read where it lies.
SMALL_A, SMALL_BESIDE, SMALL_B = 1 << 14, 1 << 17, 1 << 14

# Columns of a single row of A whose chains stay in cache: B comes from memory in lines that long.
LINE_COLUMNS = 8192

# Tiles of rows in a packed block of A: 96 rows of 384 steps are 147 KB of f32.
BLOCK_TILES = 16

# Words of a row, after the header.
RANK, BATCH, M, K, N = 4, 5, 6, 7, 8
OUT, OUT_ROW, A, B = 9, 11, 12, 14
SCRATCH, SCRATCH_STEP, WORKERS = 16, 18, 19
TILE_ROWS, TILE_COLUMNS, COLUMNS_BLOCK = 20, 21, 22
# Bytes of a value of the operands, and of the result: operands at compute precision may be read where they lie.
SIZE, WIDE = 23, 24
LANES, ROWS_PANEL, COLUMNS_PANEL, LINE, ACCUMULATE = 25, 26, 29, 32, 34
# Behind the address of a panel's routine: those that read tables of offsets. Behind a line's: that of columns.
RUNS, TURN = 1, 2
# Extents, then strides, of `AXES` axes each: rows of A, k of A, k of B, columns of B.
SIDES = 35
# Extents of the leading axes, then their strides in A, in B, in the result; then the addresses of the tiles.
BATCHES = SIDES + 8 * AXES

ROWS_OF_A, STEPS_OF_A, STEPS_OF_B, COLUMNS_OF_B = 0, 1, 2, 3


def side_of(row: int, side: int) -> int:
    """Return the address of a side's extents and strides."""
    return row + 8 * (SIDES + 2 * AXES * side)


def even_step(row: int, side: int) -> int:
    """Return the stride of a side that is one axis."""
    return load(side_of(row, side), 2 * AXES - 1)


def is_even(row: int, side: int) -> bool:
    """Return whether a side is one axis."""
    axes = side_of(row, side)
    return load(axes, 0) * load(axes, 1) == 1


def offsets(table: int, axes: int, first: int, count: int) -> int:
    """Write the offsets of positions ``first .. first+count`` of a side; return how many runs side by side they are."""
    middle, inner = load(axes, 1), load(axes, 2)
    if load(axes, 0) * middle == 1:
        step = load(axes, 2 * AXES - 1)
        for at in range(count):
            store(table, at, (first + at) * step)
        return 1 if step == 1 else count
    x, rest = first % inner, first // inner
    y, z = rest % middle, rest // middle
    runs, expected = 0, 0
    for at in range(count):
        offset = z * load(axes, AXES) + y * load(axes, AXES + 1) + x * load(axes, AXES + 2)
        store(table, at, offset)
        if at == 0 or offset != expected:
            runs += 1
        expected = offset + 1
        x += 1
        if x == inner:
            x = 0
            y += 1
            if y == middle:
                y = 0
                z += 1
    return runs


def pack_panels(
    row: int, side: int, source: int, size: int, first: int, lanes: int, start: int, steps: int, out: int, wide: int
) -> None:
    """Pack rows of A or columns of B ``first .. first+lanes``, of steps ``start .. start+steps``, into panels of a tile's.

    Panels are `length_of` steps apart. Sides of one axis are walked by their strides, others by tables of offsets:
    lanes that are few runs side by side are copied, others transposed.
    """
    is_a, length = side == ROWS_OF_A, length_of(steps)
    steps_side, routine = (STEPS_OF_A, ROWS_PANEL) if is_a else (STEPS_OF_B, COLUMNS_PANEL)
    lane_axes, step_axes = side_of(row, side), side_of(row, steps_side)
    width = load(row, TILE_ROWS if is_a else TILE_COLUMNS)
    if is_even(row, side) and is_even(row, steps_side):
        lane_step, k_step = load(lane_axes, 2 * AXES - 1), load(step_axes, 2 * AXES - 1)
        together = max(lanes, width) if lane_step == 1 else width
        for lane in range(0, lanes, together):
            origin = source + ((first + lane) * lane_step + start * k_step) * size
            panel = out + lane * length * wide
            pack(load(row, routine), panel, origin, lane_step, min(lanes - lane, together), k_step, steps)
        return
    lane_table = stack()
    step_table = lane_table + 8 * 64
    offsets(step_table, step_axes, start, steps)
    for lane in range(0, lanes, width):
        panel, together = out + lane * length * wide, min(lanes - lane, width)
        runs = offsets(lane_table, lane_axes, first + lane, together)
        if runs * SHORTEST > together:
            pack(load(row, routine + TURN), panel, source, lane_table, together, step_table, steps)
            continue
        at = 0
        while at < together:
            end = at + 1
            while end < together and load(lane_table, end) == load(lane_table, end - 1) + 1:
                end += 1
            origin = source + load(lane_table, at) * size
            pack(load(row, routine + RUNS), panel + at * wide, origin, 0, end - at, step_table, steps)
            at = end


def is_line(row: int) -> bool:
    """Return whether A is one row, all sides are one axis, and the columns or the steps of B lie side by side."""
    even = is_even(row, STEPS_OF_A) and is_even(row, STEPS_OF_B) and is_even(row, COLUMNS_OF_B)
    return load(row, M) == 1 and even and (even_step(row, COLUMNS_OF_B) == 1 or even_step(row, STEPS_OF_B) == 1)


def multiply_line(row: int, a: int, b: int, out: int, scratch: int, first: int, end: int, size: int, wide: int) -> None:
    """Multiply one row of A with columns ``first .. end`` of B, which is streamed in the order of memory."""
    k, a_step, b_step = load(row, K), even_step(row, STEPS_OF_A), even_step(row, STEPS_OF_B)
    b_column, depth = even_step(row, COLUMNS_OF_B), depth_of(k)
    if b_step == 1 and (b_column != 1 or load(row, N) == 1):
        source = b + first * b_column * size
        line(load(row, LINE + 1), out + first * wide, a, a_step, source, b_column, k, end - first, depth)
        return
    for j in range(first, end, LINE_COLUMNS):
        count = min(LINE_COLUMNS, end - j)
        for start in range(0, k, depth):
            steps = min(depth, k - start)
            chain = out + j * wide if start == 0 else scratch
            source = b + (start * b_step + j) * size
            line(load(row, LINE), chain, a + start * a_step * size, a_step, source, b_step, steps, count, depth)
            if start > 0:
                apply(load(row, ACCUMULATE), out + j * wide, chain, 0, 0, count)


def depth_of(k: int) -> int:
    """Return the steps of a block: all blocks but the last have as many, and there are as few as may be."""
    blocks = (k + K_BLOCK - 1) // K_BLOCK
    return (k + blocks - 1) // blocks


def length_of(steps: int) -> int:
    """Return the length of a panel of so many steps: an odd one, so that panels do not meet in a set of the cache."""
    return steps | 1


def rows_area(m: int, tile_rows: int) -> int:
    """Return the rows of A that are packed together: all of few, with the rest of the last tile."""
    return min(BLOCK_TILES * tile_rows, (m + tile_rows - 1) // tile_rows * tile_rows)


def reads_a(row: int, rows: int, columns: int, wide: int, small: int) -> bool:
    """Return whether so many rows of A are read where they lie: they are up to `small` bytes, or few the passes over them."""
    is_few = columns <= NARROW * load(row, TILE_COLUMNS) or rows * depth_of(load(row, K)) * wide <= small
    return load(row, SIZE) == wide and is_few


def reads_b(row: int, rows: int, columns: int, wide: int) -> bool:
    """Return whether so many columns of B are read where they lie: in runs of at least a vector.

    Those of a matrix are packed where many rows share that; windows that overlap are near each other as they lie.
    """
    axes, is_even_b = side_of(row, COLUMNS_OF_B), is_even(row, STEPS_OF_B) and is_even(row, COLUMNS_OF_B)
    is_few = rows <= load(row, TILE_ROWS) or columns * depth_of(load(row, K)) * wide <= SMALL_B
    in_runs = load(axes, 2 * AXES - 1) == 1 and load(axes, AXES - 1) >= load(row, LANES)
    return in_runs and (is_few or not is_even_b)


def place_vectors(row: int, table: int, in_place: bool, first: int, end: int, length: int) -> int:
    """Write (offset in B, column, lanes to write) of the vectors that hold columns ``first .. end``; return how many.

    Where B lies in place the last vector of a run ends where the run does. Some columns are computed twice then, and
    written twice unless blocks of k are added up. Else vectors lie in panels. Those that a last tile lacks write nothing,
    or what the one before them does.
    """
    axes, k = side_of(row, COLUMNS_OF_B), load(row, K)
    extent, whole = load(axes, AXES - 1), in_place and k == depth_of(k)
    lanes, tile_columns = load(row, LANES), load(row, TILE_COLUMNS)
    count, at = 0, first
    while at < end or count * lanes % tile_columns != 0:
        entry, place, taken = table + 24 * count, min(at, end - 1), min(lanes, end - at)
        column = place
        if in_place:
            run_end = place - place % extent + extent
            taken, column = min(taken, run_end - place), min(place, run_end - lanes)
            offsets(entry, axes, column, 1)
        else:
            panel, lane = (place - first) // tile_columns, (place - first) % tile_columns
            store(entry, 0, panel * length * tile_columns + lane)
        store(entry, 1, column)
        store(entry, 2, (1 << lanes) - 1 if whole else ((1 << taken) - 1) << (place - column))
        at += taken
        count += 1
    return count


def multiply_block(
    row: int, a: int, b: int, out: int, scratch: int, first_row: int, end_row: int, first: int, end: int,
    size: int, wide: int,
) -> None:  # fmt: skip
    """Multiply rows ``first_row .. end_row`` of A with columns ``first .. end`` of B.

    Both are packed into panels, or A is read where it lies, and B if it may be: then all offsets come from tables, of the
    rows and the steps of A, of the steps of B and its vectors.
    """
    k, out_row, lanes = load(row, K), load(row, OUT_ROW), load(row, LANES)
    tile_rows, tile_columns, block = load(row, TILE_ROWS), load(row, TILE_COLUMNS), load(row, COLUMNS_BLOCK)
    rows, columns = end_row - first_row, end - first
    in_place = reads_b(row, rows, columns, wide) and reads_a(row, rows, columns, wide, SMALL_BESIDE)
    placed = in_place or reads_a(row, rows, columns, wide, SMALL_A)
    tiles = row + 8 * (BATCHES + 4 * load(row, RANK) + (tile_rows if placed else 0))
    depth, rows_block = depth_of(k), BLOCK_TILES * tile_rows
    panels = scratch + (rows_area(load(row, M), tile_rows) * length_of(depth) + 2 * tile_columns) * wide
    a_steps, vectors = stack(), stack()
    b_steps, a_rows = a_steps + 8 * 512, a_steps + 16 * 512
    for j in range(first, end, block):
        wide_block = min(block, end - j)
        count = (wide_block + lanes - 1) // lanes
        for start in range(0, k, depth):
            steps, is_first = min(depth, k - start), 1 if start == 0 else 0
            length = length_of(steps)
            if in_place:
                offsets(b_steps, side_of(row, STEPS_OF_B), start, steps)
            else:
                pack_panels(row, COLUMNS_OF_B, b, size, j, wide_block, start, steps, panels, wide)
            if placed:
                offsets(a_steps, side_of(row, STEPS_OF_A), start, steps)
                count = place_vectors(row, vectors, in_place, j, j + wide_block, length)
                if not in_place:
                    for step in range(steps):
                        store(b_steps, step, step * tile_columns)
            for i in range(first_row, end_row, rows_block):
                high = min(rows_block, end_row - i)
                if placed:
                    offsets(a_rows, side_of(row, ROWS_OF_A), i, high)
                else:
                    pack_panels(row, ROWS_OF_A, a, size, i, high, start, steps, scratch, wide)
                for vector in range(0, count, tile_columns // lanes):
                    jr, right, b_word, c_word = vector * lanes, panels, b_steps, vectors + 24 * vector
                    if in_place:
                        right = b
                    elif not placed:
                        right, b_word, c_word = panels + jr * length * wide, tile_columns, wide_block - jr
                    ir = 0
                    while ir < high:
                        many = min(tile_rows, high - ir)
                        if placed and tile_rows < high - ir < 2 * tile_rows:
                            many = (high - ir + 1) // 2  # the few chains of a row or two would wait for each other
                        routine, target = load(tiles, many - 1), out + (i + ir) * out_row * wide
                        left, a_word = a, a_rows + 8 * ir
                        if not placed:
                            left, target = scratch + ir * length * wide, target + (j + jr) * wide
                        tile(routine, steps, left, a_word, a_steps, right, b_word, target, out_row, c_word, is_first)
                        ir += many


def whole_tiles(extent: int, side: int, task: int, tasks: int) -> tuple[int, int]:
    """Return where the share of `task` starts and ends: at edges of tiles of that side."""
    tiles = (extent + side - 1) // side
    return min(extent, tiles * task // tasks * side), min(extent, tiles * (task + 1) // tasks * side)


def matmul(row: int, banks: int, task: int, tasks: int) -> None:
    """Multiply matrices, per leading index, into rows of any stride; the words stand at the top of this module.

    The result has the compute precision of the operands. Tasks share the leading indices, or else the columns, so that
    each packs its own panels of B, or the rows where these are more.
    """
    tasks = min(tasks, load(row, WORKERS))
    if task >= tasks:
        return
    size, wide = load(row, SIZE), load(row, WIDE)
    rank, batch, m, n = load(row, RANK), load(row, BATCH), load(row, M), load(row, N)
    tile_rows, tile_columns = load(row, TILE_ROWS), load(row, TILE_COLUMNS)
    out, a, b = place(banks, row, OUT), place(banks, row, A), place(banks, row, B)
    scratch = place(banks, row, SCRATCH) + task * load(row, SCRATCH_STEP)
    first_index, end_index = 0, batch
    first_row, end_row, first, end = 0, m, 0, n
    if batch >= tasks:
        first_index, end_index = batch * task // tasks, batch * (task + 1) // tasks
    elif (n >= m and n >= tasks * tile_columns) or n // tile_columns > m // tile_rows:
        first, end = whole_tiles(n, tile_columns, task, tasks)
    else:
        first_row, end_row = whole_tiles(m, tile_rows, task, tasks)
    single = is_line(row)
    for index in range(first_index, end_index):
        at_a = a + offset_of(index, rank, row, BATCHES, BATCHES + rank) * size
        at_b = b + offset_of(index, rank, row, BATCHES, BATCHES + 2 * rank) * size
        at_out = out + offset_of(index, rank, row, BATCHES, BATCHES + 3 * rank) * wide
        if not single:
            multiply_block(row, at_a, at_b, at_out, scratch, first_row, end_row, first, end, size, wide)
        elif end > first and end_row > first_row:
            multiply_line(row, at_a, at_b, at_out, scratch, first, end, size, wide)


# It packs, copies and calls routines: one serves every element.
SHARED: dict[str, Callable[..., None]] = {"matmul": matmul}
