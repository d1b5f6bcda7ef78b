"""Kernels that move whole runs of values, or hand them to the routines of `reductions`, `columns` and `moves`."""

from topos.kernels.loops import BLOCK, move_run, offset_of, place, share
from topos.kernels.memory import apply, load, move, stack


def reduce(row: int, banks: int, task: int, tasks: int) -> None:
    """Reduce rows or columns, one run of results after the other.

    Words: routine, size, rank, count, n, stride, whether results are columns side by side, elements per result;
    (bank, offset) of out and source; extents of the results; their strides in out; their strides in the source.
    """
    routine, size, rank, count = load(row, 4), load(row, 5), load(row, 6), load(row, 7)
    n, stride, columns, width = load(row, 8), load(row, 9), load(row, 10), load(row, 11)
    out, source = place(banks, row, 12), place(banks, row, 14)
    extents = 16
    last = load(row, extents + rank - 1)
    t_step, s_step = load(row, extents + 2 * rank - 1), load(row, extents + 3 * rank - 1)
    position, end = count * task // tasks, count * (task + 1) // tasks
    if columns == 1:
        position, end = share(count, task, tasks), share(count, task + 1, tasks)
    buffer = stack()
    while position < end:
        run = min(end - position, last - position % last)
        target = out + offset_of(position, rank, row, extents, extents + rank) * size
        origin = source + offset_of(position, rank, row, extents, extents + 2 * rank) * size
        results = target
        if t_step != width:
            run = min(run, BLOCK)
            results = buffer
        if columns == 1:
            apply(routine, results, origin, stride, n, run)
        else:
            apply(routine, results, origin, run, s_step, n)
        if t_step != width:
            move_run(target, t_step * size, buffer, size, run, size)
        position += run


def copy(row: int, banks: int, task: int, tasks: int) -> None:
    """Copy a window, planes of its last two axes one after the other.

    Words: size, rank (at least 2), count, the shortest side that the routine transposes, or 0 where it takes contiguous
    lines, the routine or 0; (bank, offset) of out and source; extents; out strides; source strides.
    """
    size, rank, count, side, routine = load(row, 4), load(row, 5), load(row, 6), load(row, 7), load(row, 8)
    out, source = place(banks, row, 9), place(banks, row, 11)
    extents = 13
    height, last = load(row, extents + rank - 2), load(row, extents + rank - 1)
    t_line, t_step = load(row, extents + 2 * rank - 2), load(row, extents + 2 * rank - 1)
    s_line, s_step = load(row, extents + 3 * rank - 2), load(row, extents + 3 * rank - 1)
    lines = count // last
    line, end = lines * task // tasks, lines * (task + 1) // tasks
    while line < end:
        run = min(end - line, height - line % height)
        target = out + offset_of(line * last, rank, row, extents, extents + rank) * size
        origin = source + offset_of(line * last, rank, row, extents, extents + 2 * rank) * size
        if 0 < side <= run:
            apply(routine, target, origin, t_line, s_step, run + (last << 32))
        else:
            for i in range(run):
                to, at = target + i * t_line * size, origin + i * s_line * size
                if routine != 0 and side == 0:
                    apply(routine, to, at, at, at, last)
                else:
                    move_run(to, t_step * size, at, s_step * size, last, size)
        line += run


def gather(row: int, banks: int, task: int, tasks: int) -> None:
    """Words: row bytes, count; (bank, offset) of out, dense table, int64 indices."""
    length, count = load(row, 4), load(row, 5)
    out, table, indices = place(banks, row, 6), place(banks, row, 8), place(banks, row, 10)
    for i in range(count * task // tasks, count * (task + 1) // tasks):
        move(out + i * length, table + load(indices, i) * length, length)


def scatter(row: int, banks: int, task: int, tasks: int) -> None:
    """Add rows into others: each task has columns of its own, or targets of its own where rows are short.

    Words: accumulate, sizes of a value and of a result, source rows, row length, target rows; (bank, offset) of
    out, dense rows, int64 indices.
    """
    accumulate, size, wide = load(row, 4), load(row, 5), load(row, 6)
    count, length, targets = load(row, 7), load(row, 8), load(row, 9)
    out, rows, indices = place(banks, row, 10), place(banks, row, 12), place(banks, row, 14)
    low, high, begin, end = targets * task // tasks, targets * (task + 1) // tasks, 0, length
    if length >= 16 * tasks:
        low, high, begin, end = 0, targets, share(length, task, tasks), share(length, task + 1, tasks)
    for i in range(count):
        target = load(indices, i)
        if low <= target < high:
            place_of = out + (target * length + begin) * wide
            apply(accumulate, place_of, rows + (i * length + begin) * size, 0, 0, end - begin)


def fold(row: int, banks: int, task: int, tasks: int) -> None:
    """Add windows back to an axis; source ``[outer, windows, size, inner]`` and out are dense.

    Words: ascend, size of a value; outer, extent, inner; windows, size, step, dilation; how many windows further the
    next one lies that reaches the same position; (bank, offset) of out and source.
    """
    ascend, bytes_, outer, extent, inner = (load(row, 4), load(row, 5), load(row, 6), load(row, 7), load(row, 8))
    windows, size, step = load(row, 9), load(row, 10), load(row, 11)
    dilation, skip = load(row, 12), load(row, 13)
    out, source = place(banks, row, 14), place(banks, row, 16)
    further = (skip * size - skip * step // dilation) * inner
    lines = outer * extent
    for line in range(lines * task // tasks, lines * (task + 1) // tasks):
        position = line % extent
        first = max(0, (position - (size - 1) * dilation + step - 1) // step)
        last = min(windows - 1, position // step)
        while first <= last and (position - first * step) % dilation != 0:
            first += 1
        terms = max(0, (last - first) // skip + 1)
        at = (line // extent * windows + first) * size + (position - first * step) // dilation
        apply(ascend, out + line * inner * bytes_, source + at * inner * bytes_, further, terms, inner)


# Kernels that serve every element: they move bits, or call the routine that their row names.
SHARED = {"copy": copy, "gather": gather, "reduce": reduce, "scatter": scatter, "fold": fold}
