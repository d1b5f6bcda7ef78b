"""Kernels that hand whole runs of values to the routines of `reductions` and `moves`."""

from __future__ import annotations

from collections.abc import Callable

from topos.kernels.loops import BLOCK, move_run, offset_of, place, share
from topos.kernels.memory import apply, load, stack


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
        target = out + offset_of(position, rank, row, extents, extents + rank) * size * width
        origin = source + offset_of(position, rank, row, extents, extents + 2 * rank) * size
        results = target
        if t_step != 1:
            run = min(run, BLOCK)
            results = buffer
        if columns == 1:
            apply(routine, results, origin, stride, n, run)
        else:
            apply(routine, results, origin, run, s_step, n)
        if t_step != 1:
            move_run(target, t_step * size, buffer, size, run, size)
        position += run


SHARED: dict[str, Callable[..., None]] = {"reduce": reduce}
"""Kernels that serve every element, through the routine that their row names."""
