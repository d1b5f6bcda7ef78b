"""The kernels: what a row of a program says, and the loop that carries it out.

A row is a run of int64 words. The first four are the same for all: the kernel's address, the row's length
in words, its work (element operations, which decide whether the thread team takes part) and the node it
belongs to. Memory is named by (bank, byte offset); ``banks`` is a table of base addresses, so one program
serves any number of runs at once. Kernels take (row, banks, task, tasks) and do their share of the row.
Strides count elements. `rows.py` writes what is read here, word for word.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from topos.kernels import elements, memory, reference
from topos.kernels.memory import apply, call, fan, load, move, move2, move4, move8, stack, store

HEADER = 4
# Values that pass through the buffers of an elementwise row at a time.
BLOCK = memory.STACK // 24

# The bank that holds the error word: (node, value), or (-1, 0).
ERRORS = 0

Kernel = Callable[[int, int, int, int], None]


def place(banks: int, row: int, word: int) -> int:
    """Return the address that the two words (bank, byte offset) at `word` name."""
    return load(banks, load(row, word)) + load(row, word + 1)


def offset_of(index: int, rank: int, row: int, extents: int, strides: int) -> int:
    """Return the element offset of the logical position `index`, row-major over the extents at `extents`."""
    offset = 0
    for back in range(rank):
        axis = rank - 1 - back
        extent = load(row, extents + axis)
        offset += (index % extent) * load(row, strides + axis)
        index //= extent
    return offset


# Bytes that are repeated at a time: they stay in the nearest cache.
CHUNK = 4096


def move_run(target: int, t_step: int, source: int, s_step: int, count: int, size: int) -> None:
    """Copy `count` elements between two arithmetic progressions of addresses (steps in bytes)."""
    if t_step == size and s_step == size:
        move(target, source, count * size)
        return
    single = min(count, 16) if t_step == size and s_step == 0 else count
    if size == 4:
        for i in range(single):
            move4(target + i * t_step, source + i * s_step)
    elif size == 8:
        for i in range(single):
            move8(target + i * t_step, source + i * s_step)
    else:
        for i in range(single):
            move2(target + i * t_step, source + i * s_step)
    while single < count:
        repeated = min(single, count - single, CHUNK // size)
        move(target + single * size, target, repeated * size)
        single += repeated


def collect(
    buffer: int, base: int, row: int, rank: int, extents: int, strides: int, start: int, count: int, size: int
) -> None:
    """Copy the logical positions ``start .. start+count`` of a strided operand into a dense buffer."""
    last = load(row, extents + rank - 1)
    step = load(row, strides + rank - 1) * size
    done = 0
    while done < count:
        position = start + done
        run = min(count - done, last - position % last)
        source = base + offset_of(position, rank, row, extents, strides) * size
        move_run(buffer + done * size, size, source, step, run, size)
        done += run


def share(count: int, task: int, tasks: int) -> int:
    """Return where the share of `task` starts, a multiple of a vector so that few lanes run twice."""
    return min(count, ((count * task // tasks) + 15) // 16 * 16)


def operand(row: int, banks: int, number: int) -> tuple[int, int, int]:
    """Return the address of an operand (0: the result) of an elementwise row, its size, and whether it is dense."""
    word = HEADER + 4 + 4 * number
    return place(banks, row, word), load(row, word + 2), load(row, word + 3)


def source(row: int, banks: int, number: int, start: int, count: int, buffers: int) -> int:
    """Return where values ``start .. start+count`` of a source of an elementwise row lie dense, if need be in a buffer."""
    base, size, dense = operand(row, banks, number)
    if dense == 1:
        return base + start * size
    rank, extents, buffer = load(row, 5), HEADER + 8 + 4 * load(row, 6), buffers + 8 * BLOCK * (number - 1)
    collect(buffer, base, row, rank, extents, extents + rank * number, start, count, size)
    return buffer


def elementwise(row: int, banks: int, task: int, tasks: int) -> None:
    """Words: routine, rank, arity, count; (bank, offset, size, dense) for out and sources; extents; strides."""
    routine, arity, count = load(row, 4), load(row, 6), load(row, 7)
    first, end = share(count, task, tasks), share(count, task + 1, tasks)
    out, out_size, _ = operand(row, banks, 0)
    buffers, block = stack(), max(1, end - first)
    for number in range(1, arity + 1):
        if operand(row, banks, number)[2] == 0:
            block = BLOCK
    for start in range(first, end, block):
        n = min(block, end - start)
        a = source(row, banks, 1, start, n, buffers)
        b = source(row, banks, 2, start, n, buffers) if arity > 1 else a
        c = source(row, banks, 3, start, n, buffers) if arity > 2 else a
        apply(routine, out + start * out_size, a, b, c, n)


def fill(row: int, banks: int, task: int, tasks: int) -> None:
    """Words: size, count; (bank, offset) of out; (bank, offset) of the value."""
    size, count = load(row, 4), load(row, 5)
    out, value = place(banks, row, 6), place(banks, row, 8)
    first, end = share(count, task, tasks), share(count, task + 1, tasks)
    move_run(out + first * size, size, value, 0, end - first, size)


def arithmetic_of(element: str) -> reference.Arithmetic:
    """Return the accessors of a built-in element; partial results lie at the compute precision."""
    read, write, partial = memory.READ, memory.WRITE, f"f{elements.MEMORY[element].width}"
    values, partials = (read[element], write[element]), (read[partial], write[partial])
    return reference.Arithmetic(*values, *partials, memory.FMA[element], reference.maximum)


def number_of(element: str) -> Any:
    """Return NumPy's type of the compute precision: a bare 0.0 would add up in 64 bits."""
    return np.dtype(f"f{elements.MEMORY[element].width // 8}").type


def matmul(element: str) -> Kernel:
    """Multiply matrices, per leading index; the result is dense.

    Words: batch rank, batch, m, k, n; out (bank, offset); a and b (bank, offset, row and column stride);
    batch extents; batch strides of a, of b.
    """
    multiply_row = reference.multiply(arithmetic_of(element))
    size = elements.MEMORY[element].size

    def matmul_kernel(row: int, banks: int, task: int, tasks: int) -> None:
        rank, batch, m, k, n = load(row, 4), load(row, 5), load(row, 6), load(row, 7), load(row, 8)
        out, a, b = place(banks, row, 9), place(banks, row, 11), place(banks, row, 15)
        a_row, a_column, b_row, b_column = load(row, 13), load(row, 14), load(row, 17), load(row, 18)
        extents = 19
        partial = stack()
        rows = batch * m
        for r in range(rows * task // tasks, rows * (task + 1) // tasks):
            at_a = a + offset_of(r // m, rank, row, extents, extents + rank) * size
            at_b = b + offset_of(r // m, rank, row, extents, extents + 2 * rank) * size
            multiply_row(out, r * n, at_a, (r % m) * a_row, a_column, at_b, 0, b_row, b_column, k, n, partial)

    return matmul_kernel


def reduction(loop: Callable[[reference.Arithmetic], reference.Loop]) -> Callable[[str], Kernel]:
    """Return the kernels of a loop over one row. Words: those of `runs.reduce`; the routine is not read.

    Results are dense.
    """

    def of_element(element: str) -> Kernel:
        reduce_row = loop(arithmetic_of(element))
        write, size = memory.WRITE[element], elements.MEMORY[element].size

        def reduce_kernel(row: int, banks: int, task: int, tasks: int) -> None:
            rank, count, n, stride = load(row, 6), load(row, 7), load(row, 8), load(row, 9)
            out, source = place(banks, row, 12), place(banks, row, 14)
            lanes = stack()
            for i in range(count * task // tasks, count * (task + 1) // tasks):
                base = source + offset_of(i, rank, row, 16, 16 + 2 * rank) * size
                write(out, i, reduce_row(base, 0, stride, n, lanes))

        return reduce_kernel

    return of_element


def fold(element: str) -> Kernel:
    """Add windows back to an axis. Words: those of `runs.fold`; the routine is not read."""
    fold_loop = reference.fold_at(arithmetic_of(element))
    write, zero = memory.WRITE[element], number_of(element)(0)

    def fold_kernel(row: int, banks: int, task: int, tasks: int) -> None:
        extent, inner = load(row, 7), load(row, 8)
        windows, size, step, dilation = load(row, 9), load(row, 10), load(row, 11), load(row, 12)
        out, source = place(banks, row, 14), place(banks, row, 16)
        count = load(row, 6) * extent * inner
        for i in range(count * task // tasks, count * (task + 1) // tasks):
            position, first = i // inner % extent, i // (extent * inner) * windows * size * inner + i % inner
            value = fold_loop(source, first, size * inner, inner, position, windows, size, step, dilation, zero)
            write(out, i, value)

    return fold_kernel


def scatter(element: str) -> Kernel:
    """Add rows into zeros; the result is dense and at the compute precision. Words: those of `runs.scatter`."""
    scatter_loop = reference.scatter_rows(arithmetic_of(element))

    def scatter_kernel(row: int, banks: int, task: int, tasks: int) -> None:
        count, length, targets = load(row, 7), load(row, 8), load(row, 9)
        out, rows, indices = place(banks, row, 10), place(banks, row, 12), place(banks, row, 14)
        at, end = targets * length * task // tasks, targets * length * (task + 1) // tasks
        while at < end:
            column = at % length
            until = min(length, column + end - at)
            scatter_loop(out, at // length, rows, indices, load, count, length, column, until, 0.0)
            at += until - column

    return scatter_kernel


def report(banks: int, node: int, value: int) -> None:
    """Write the error word, unless it holds an error already."""
    word = load(banks, ERRORS)
    if load(word, 0) < 0:
        store(word, 0, node)
        store(word, 1, value)


def one_hot(element: str) -> Kernel:
    """Find the hot position of each row of a dense one-hot matrix; report a row that is not one-hot.

    Words: count, vocabulary; (bank, offset) of out (int64) and source; its row and column stride.
    """
    read, bytes_ = memory.READ[element], elements.MEMORY[element].size

    def one_hot_kernel(row: int, banks: int, task: int, tasks: int) -> None:
        count, vocabulary = load(row, 4), load(row, 5)
        out, source = place(banks, row, 6), place(banks, row, 8)
        if task > 0:
            return
        for i in range(count):
            base = source + i * load(row, 10) * bytes_
            hot, ones, others = 0, 0, 0
            for j in range(vocabulary):
                value = read(base, j * load(row, 11))
                if value == 1.0:
                    hot = j
                    ones += 1
                elif value != 0.0:
                    others += 1
            if ones != 1 or others > 0:
                report(banks, load(row, 3), i)
            store(out, i, hot)

    return one_hot_kernel


def nonzero(element: str) -> Kernel:
    """Report a value that is 0. Words: (bank, offset) of the value."""
    read = memory.READ[element]

    def nonzero_kernel(row: int, banks: int, task: int, tasks: int) -> None:
        if task == 0 and read(place(banks, row, 4), 0) == 0.0:
            report(banks, load(row, 3), 0)

    return nonzero_kernel


def repeat(row: int, banks: int, task: int, tasks: int) -> None:
    """Carry out a run of rows once per index, over a table of banks of its own.

    Words: count, slots, rank, banks; extents of the index; a bank of the table is (bank, offset), what a slot adds, what
    each axis adds (bytes); the run. A row without a kernel, of (bank, offset) and a mask, ends a run where that is 0.
    """
    count, slots, rank, places = load(row, 4), load(row, 5), load(row, 6), load(row, 7)
    lanes, extents, width = min(tasks, slots), 8, 3 + rank
    table = stack()
    body = row + 8 * (extents + rank + places * width)
    if task < lanes:
        for turn in range(count * task // lanes, count * (task + 1) // lanes):
            for number in range(places):
                at = extents + rank + number * width
                change = task * load(row, at + 2) + offset_of(turn, rank, row, extents, at + 3)
                store(table, number, place(banks, row, at) + change)
            at = body
            while at < row + 8 * load(row, 1):
                if load(at, 0) != 0:
                    call(load(at, 0), at, table, 0, 1)
                elif load(place(table, at, 4), 0) & load(at, 6) == 0:
                    break
                at += 8 * load(at, 1)


def execute(code: int, end: int, banks: int, team: int, threads: int, grain: int) -> None:
    """Walk the rows of a program: the executor. Rows of at least `grain` work go to the thread team."""
    row = code
    while row < end:
        if threads > 1 and load(row, 2) >= grain:
            fan(team, load(row, 0), row, banks, threads)
        else:
            call(load(row, 0), row, banks, 0, 1)
        row += 8 * load(row, 1)


# Kernels that serve every element: they move bits.
SHARED: dict[str, Callable[..., None]] = {"elementwise": elementwise, "fill": fill, "repeat": repeat}

# Kernels that compute, by element.
TYPED: dict[str, Callable[[str], Kernel]] = {
    "reference_matmul": matmul,
    "reference_sum": reduction(reference.total),
    "reference_max": reduction(reference.greatest),
    "reference_fold": fold,
    "reference_scatter": scatter,
    "one_hot": one_hot,
    "nonzero": nonzero,
}
