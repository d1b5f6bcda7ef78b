"""The kernel of a chain: many operations, one block of rows after the other, through buffers in a near cache."""

from topos.kernels.loops import HEADER, collect
from topos.kernels.memory import apply, load, room, store

# What an instruction works on: every value of the block, one value per row, rows as wholes, a strided source.
#
# ``LOOP``: what the next instructions do to every value, once there is a loop for it.
FULL, ROW, OVER, COLLECT, LOOP = 0, 1, 2, 3, -1

# What the text of a loop (`fused.loop`) starts with.
LOOP_OF = "loop of "

# Words of a row's frame, of a value, and of an instruction.
FRAME, VALUE, INSTRUCTION = 6, 3, 6


def settle(row: int, banks: int, addresses: int, values: int, start: int) -> None:
    """Write the address of every value, in the block that starts at the row `start` of the frame."""
    for value in range(values):
        at = HEADER + FRAME + VALUE * value
        bank = load(row, at)
        base = load(banks, bank) if bank >= 0 else addresses
        store(addresses, value, base + load(row, at + 1) + start * load(row, at + 2))


def instruct(row: int, addresses: int, at: int, end: int, start: int, count: int, n: int) -> None:
    """Carry out the instructions at the words `at` to `end` on `count` rows of `n` values."""
    while at < end:
        routine, kind = load(row, at), load(row, at + 1)
        if kind == LOOP:
            if routine != 0:
                apply(routine, addresses, row + 8 * load(row, at + 4), count, 0, n)
                at += INSTRUCTION * load(row, at + 2)
            at += INSTRUCTION
            continue
        out, a = load(addresses, load(row, at + 2)), load(addresses, load(row, at + 3))
        if kind == COLLECT:
            geometry = load(row, at + 4)
            size, rank, span = load(row, geometry), load(row, geometry + 1), load(row, geometry + 2)
            extents = geometry + 3
            collect(out, a, row, rank, extents, extents + rank, start * span, count * span, size)
        elif kind == OVER:
            apply(routine, out, a, count, n, n)
        else:
            b, c = load(addresses, load(row, at + 4)), load(addresses, load(row, at + 5))
            apply(routine, out, a, b, c, count * n if kind == FULL else count)
        at += INSTRUCTION


def chain(row: int, banks: int, task: int, tasks: int) -> None:
    """Run a block program: once what no block changes, then per block the rest.

    Words: rows, values per row, rows per block, counts of values, of instructions before and within blocks; values: (bank
    or -1 for a buffer, offset, bytes per row); instructions: (routine, kind, out, a, b, c), where a collecting one has the
    word of its geometry for b: size, rank, values per row, extents, strides. A loop, whose routine may be 0, has for out how
    many instructions it stands for, and for b the word of the numbers of its values.
    """
    rows, n, block = load(row, 4), load(row, 5), load(row, 6)
    values, before, within = load(row, 7), load(row, 8), load(row, 9)
    blocks = (rows + block - 1) // block
    first, end = blocks * task // tasks, blocks * (task + 1) // tasks
    if first == end:
        return
    addresses = room()
    code = HEADER + FRAME + VALUE * values
    body = code + INSTRUCTION * before
    settle(row, banks, addresses, values, 0)
    instruct(row, addresses, code, body, 0, block, n)
    for index in range(first, end):
        start = index * block
        settle(row, banks, addresses, values, start)
        instruct(row, addresses, body, body + INSTRUCTION * within, start, min(block, rows - start), n)
