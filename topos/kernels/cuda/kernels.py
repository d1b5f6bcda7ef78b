"""The kernels of a card, ``kernel(row, banks)``, and how many blocks of threads a row takes.

They read the rows that `rows` writes. A kernel of one thread per result shares its row among tasks as on a CPU, where
the text of `loops` serves as it is; products and reductions have an order of threads of their own. The bits are those
of `reference`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import cuda

from topos.kernels import elements, loops, memory
from topos.kernels.cuda import windows
from topos.kernels.loops import HEADER, Kernel, number_of, offset_of, place
from topos.kernels.matmul import product
from topos.kernels.matmul.product import AXES, BATCHES, SIDES, depth_of
from topos.kernels.memory import load, move2, rounded_to_tf32, tensor_product
from topos.kernels.reference import K_BLOCK, LANES, R_BLOCK, maximum
from topos.kernels.rows import LINE, TOTAL, Row


class Shape(NamedTuple):
    """How the threads of a card are grouped.

    Attributes:
        threads: of a block whose kernel is one thread per result.
        blocks: the most that a row of such a kernel takes.
        lookers: the most blocks of a scatter: each thread looks through all indices.
        sums: reductions that a block carries out side by side, 32 threads each.
        across: a block of a product is a square of so many threads a side.
        tiles: results a side that a thread of a product keeps, of a small and of a large one.
        steps: of k that lie in shared memory at a time.
        enough: blocks that occupy the card: products that have fewer are cut finer.
    """

    threads: int = 256
    blocks: int = 1 << 20
    lookers: int = 256
    sums: int = 8
    across: int = 16
    tiles: tuple[int, int] = (2, 8)
    steps: int = 16
    enough: int = 128


# ---- one thread per result


# ``PHASE[element](phase, row, banks, line, at)``: carry out a phase of the chain that the kernel is linked with, at a position
# of a line (`values.phases`).
PHASE: dict[str, Callable[..., Any]] = {element: lambda *_: None for element in ("f32", "f64")}


def elementwise(element: str) -> Kernel:
    """Carry out the only phase of a chain, whose lines are single positions. Words: those of `rows.positions`."""
    value = PHASE[element]

    def kernel(row: int, banks: int, task: int, tasks: int) -> None:
        for i in range(task, load(row, 4), tasks):
            value(0, row, banks, i, 0)

    return kernel


def gather(row: int, banks: int, task: int, tasks: int) -> None:
    """Copy rows, 2 bytes at a time: that is the least that their places are multiples of. Words: those of `runs.gather`."""
    length, out, table, indices = load(row, 4), place(banks, row, 6), place(banks, row, 8), place(banks, row, 10)
    for i in range(task, load(row, 5) * length // 2, tasks):
        at = 2 * i
        move2(out + at, table + load(indices, at // length) * length + at % length)


def blocks_of_k(element: str) -> Kernel:
    """Add the results of the blocks of k, ascending. Words: results, blocks; (bank, offset) of out and results."""
    read, write = memory.READ[element], memory.WRITE[element]

    def kernel(row: int, banks: int, task: int, tasks: int) -> None:
        count, out, source = load(row, 4), place(banks, row, 6), place(banks, row, 8)
        for i in range(task, count, tasks):
            total = read(source, i)
            for block in range(1, load(row, 5)):
                total = total + read(source, block * count + i)
            write(out, i, total)

    return kernel


# ---- threads that work together

Joint = Callable[[int, int], None]


def combine(kind: int, a: Any, b: Any) -> Any:
    """Return what two values of a line make."""
    return a + b if kind == TOTAL else maximum(a, b)


def lines(element: str, shape: Shape) -> Joint:
    """Carry out the phases of a chain line by line, 32 threads each. Words: those of `rows.positions`.

    Thread i of a line takes the positions i, i + 32, ...: what lines combine has the lanes of a sum, then halves. Every
    block of `R_BLOCK` positions has a combination, the last axis of a dense result. Where no line lies side by side,
    lines do: neighbouring threads take neighbouring lines.
    """
    value, number, sums = PHASE[element], number_of(element), shape.sums
    together, write = LANES * sums, memory.WRITE[element]

    def kernel(row: int, banks: int) -> None:
        lanes = cuda.shared.array(together, number)
        here, blocks = cuda.threadIdx.x, (load(row, 5) + R_BLOCK - 1) // R_BLOCK
        lane, own, apart = here % LANES, here // LANES, 1
        if load(row, 7) == 0:
            lane, own, apart = here // sums, here % sums, sums
        i = cuda.blockIdx.x * sums + own
        line, first = i // blocks, i % blocks * R_BLOCK
        n = min(R_BLOCK, load(row, 5) - first) if i < load(row, 4) * blocks else 0
        for phase in range(load(row, 6)):
            word = HEADER + 4 + 3 * phase
            kind = load(row, word)
            held = number(0)
            for at in range(lane, min(n, 1) if kind == LINE else n, LANES):
                found = value(phase, row, banks, line, first + at)
                held = combine(kind, held, found) if at > lane else found
            lanes[here] = held
            half, used = LANES // 2 if kind >= TOTAL else 0, min(n, LANES)
            while half > 0:
                cuda.syncthreads()
                if lane < half and lane + half < used:
                    lanes[here] = combine(kind, lanes[here], lanes[here + half * apart])
                used = min(used, half)
                half //= 2
            if kind >= TOTAL and lane == 0 and n > 0:
                write(place(banks, row, word + 1), i, lanes[here])
            cuda.syncthreads()

    return kernel


# How the threads of a product share the work on what lies in shared memory.
#
# ``pad``: numbers by which the lanes of one step lie apart from those of the next, less the square's side, so that threads that
# read together read from different banks; ``load(number)``: what it becomes on its way there;
# ``advance(chains, a_values, b_values, left, right)`` adds the products of all steps to a thread's results, and
# ``place(at)`` is the (row, column) in the square of one of them.
Inner: TypeAlias = tuple[int, Callable[[Any], Any], Callable[..., None], Callable[[int], tuple[int, int]]]


def fused_chains(element: str, tile: int, shape: Shape) -> Inner:
    """A thread keeps ``tile * tile`` chains, `across` rows and columns apart: the contract's.

    Masks, here and below, show the compiler that no index is negative: else it writes out what Python means by those,
    more instructions than the chains take.
    """
    across, steps, pad, fma = shape.across, shape.steps, tile * shape.across + 1, memory.FMA[element]

    def advance(chains: Any, a_values: Any, b_values: Any, left: Any, right: Any) -> None:
        y, x = (cuda.threadIdx.x // across) & (across - 1), cuda.threadIdx.x & (across - 1)
        for step in range(steps):
            for i in range(tile):
                a_values[i] = left[(step & (steps - 1)) * pad + i * across + y]
                b_values[i] = right[(step & (steps - 1)) * pad + i * across + x]
            for i in range(tile):
                for j in range(tile):
                    chains[i * tile + j] = fma(a_values[i], b_values[j], chains[i * tile + j])

    def place(at: int) -> tuple[int, int]:
        y, x = (cuda.threadIdx.x // across) & (across - 1), cuda.threadIdx.x & (across - 1)
        return at // tile * across + y, at % tile * across + x

    return 1, number_of(element), advance, place


def tensor_cores(element: str, tile: int, shape: Shape) -> Inner:
    """A warp multiplies 16 x 8 by 8 x 8 numbers at a time on the tensor cores, `tile` / 2 such products a side.

    Operands are rounded to TF32, 11 bits, and sums kept in f32, in the card's order: of envelope fidelity. Twice as many
    warps lie side by side as below each other. Which thread holds which number of a product: PTX ISA, "Matrix fragments
    for mma.m16n8k8".
    """
    side, steps, pad, warps = tile // 2, shape.steps, tile * shape.across + 8, shape.across // 4
    fold, half = warps.bit_length() - 1, side.bit_length() - 1  # shifts: cheaper than what Python means by // and %

    def corner() -> tuple[int, int, int, int]:
        warp, lane = (cuda.threadIdx.x >> 5) & (warps * warps // 2 - 1), cuda.threadIdx.x & 31
        return (warp >> fold) * 16 * side, (warp & (warps - 1)) * 8 * side, lane >> 2, lane & 3

    def advance(chains: Any, a_values: Any, b_values: Any, left: Any, right: Any) -> None:
        row, column, group, member = corner()
        for step in range(0, steps, 8):
            for part in range(2):
                at = ((step & (steps - 1)) + 4 * part + member) * pad + group
                for i in range(side):
                    a_values[4 * i + 2 * part] = left[at + row + 16 * i]
                    a_values[4 * i + 2 * part + 1] = left[at + row + 16 * i + 8]
                    b_values[2 * i + part] = right[at + column + 8 * i]
            for i in range(side):
                for j in range(side):
                    at, a, b = 4 * (i * side + j), 4 * i, 2 * j
                    chains[at], chains[at + 1], chains[at + 2], chains[at + 3] = tensor_product(
                        a_values[a], a_values[a + 1], a_values[a + 2], a_values[a + 3], b_values[b], b_values[b + 1],
                        chains[at], chains[at + 1], chains[at + 2], chains[at + 3],
                    )  # fmt: skip

    def place(at: int) -> tuple[int, int]:
        row, column, group, member = corner()
        row += (at >> (half + 2)) * 16 + ((at & 2) << 2) + group
        return row, column + ((at >> 2) & (side - 1)) * 8 + 2 * member + (at & 1)

    return 8, rounded_to_tf32, advance, place


def matmul(inside: Callable[[str, int, Shape], Inner], side: int, element: str, shape: Shape) -> Joint:
    """Multiply matrices, a square of results per block of threads. Words: those of `matmul.product`.

    A thread keeps ``tile * tile`` results. Steps of k lie in shared memory; offsets of rows, columns and of a block of
    k, which may be made of several axes, lie there as tables. Where k is short of a whole number of steps, the rest is
    ``-0 * 1``: that added to a chain leaves all its bits. The scratch memory's step says how many parts the blocks
    of k are cut into; each of several parts has results of its own there.
    """
    width, size = elements.MEMORY[element].width, elements.MEMORY[element].size
    number, wide = number_of(element), width // 8
    nothing, one = number(-0.0), number(1.0)
    read = memory.READ[element]
    read_partial, write_partial = memory.READ[f"f{width}"], memory.WRITE[f"f{width}"]
    tile, across, steps = shape.tiles[side], shape.across, shape.steps
    square, threads, results = tile * across, across * across, tile * tile
    extra, loaded, advance, place_of = inside(element, tile, shape)
    pad = square + extra
    held_values, left_values = steps * pad, 2 * tile
    loads = square * steps // threads

    def table(offsets: Any, row: int, number: int, first: int, count: int) -> None:
        axes = SIDES + 2 * AXES * number
        for at in range(cuda.threadIdx.x, count, threads):
            offsets[at] = offset_of(first + at, AXES, row, axes, axes + AXES) * size

    def fetch(
        fetched: Any, held: Any, base: int, lanes: Any, count: int, offsets: Any, k: int, end: int, by: int, rest: Any
    ) -> None:
        """Bring steps of k into shared memory, along the axis whose values lie side by side: lanes if `by` is 1.

        All loads are under way before the first is waited for.
        """
        thread = cuda.threadIdx.x & (threads - 1)
        for i in range(loads):
            at = i * threads + thread
            lane, step = (at % square, at // square) if by == 1 else (at // steps, at % steps)
            fetched[i] = rest
            if lane < count and k + step < end:
                fetched[i] = read(base + lanes[lane] + offsets[(k + step) & 0xFFFF], 0)
        for i in range(loads):
            at = i * threads + thread
            lane, step = (at % square, at // square) if by == 1 else (at // steps, at % steps)
            held[step * pad + lane] = loaded(fetched[i])

    def kernel(row: int, banks: int) -> None:
        left = cuda.shared.array(held_values, number)
        right = cuda.shared.array(held_values, number)
        rows = cuda.shared.array(square, np.int64)
        columns = cuda.shared.array(square, np.int64)
        left_steps = cuda.shared.array(K_BLOCK, np.int64)
        right_steps = cuda.shared.array(K_BLOCK, np.int64)
        chains = cuda.local.array(results, number)
        a_values = cuda.local.array(left_values, number)
        b_values = cuda.local.array(tile, number)
        fetched = cuda.local.array(loads, number)
        rank, m, k, n = load(row, product.RANK), load(row, product.M), load(row, product.K), load(row, product.N)
        down, wide_tiles, parts = -(-m // square), -(-n // square), load(row, product.SCRATCH_STEP)
        column, block = cuda.blockIdx.x % wide_tiles * square, cuda.blockIdx.x // wide_tiles
        first_row, block = block % down * square, block // down
        part, batch = block % parts, block // parts
        a = place(banks, row, product.A) + offset_of(batch, rank, row, BATCHES, BATCHES + rank) * size
        b = place(banks, row, product.B) + offset_of(batch, rank, row, BATCHES, BATCHES + 2 * rank) * size
        out, out_row = place(banks, row, product.OUT), load(row, product.OUT_ROW)
        out += offset_of(batch, rank, row, BATCHES, BATCHES + 3 * rank) * wide
        if parts > 1:
            out = place(banks, row, product.SCRATCH) + (part * load(row, product.BATCH) + batch) * m * n * wide
        height, breadth = min(square, m - first_row), min(square, n - column)
        table(rows, row, product.ROWS_OF_A, first_row, height)
        table(columns, row, product.COLUMNS_OF_B, column, breadth)
        row_step, column_step = load(row, SIDES + 2 * AXES - 1), load(row, SIDES + 8 * AXES - 1)
        per_block = depth_of(k)
        for start in range(part * per_block, k, parts * per_block):
            count = min(per_block, k - start)
            cuda.syncthreads()
            table(left_steps, row, product.STEPS_OF_A, start, count)
            table(right_steps, row, product.STEPS_OF_B, start, count)
            for at in range(results):
                chains[at] = nothing
            for first in range(0, count, steps):
                cuda.syncthreads()
                fetch(fetched, left, a, rows, height, left_steps, first, count, row_step, nothing)
                fetch(fetched, right, b, columns, breadth, right_steps, first, count, column_step, one)
                cuda.syncthreads()
                advance(chains, a_values, b_values, left, right)
            for i in range(tile):
                for j in range(tile):
                    r, c = place_of(i * tile + j)
                    if r < height and c < breadth:
                        at, value = (first_row + r) * out_row + column + c, chains[i * tile + j]
                        if parts == 1 and start > 0:
                            value = read_partial(out, at) + value
                        write_partial(out, at, value)

    return kernel


# ---- by name

# Kernels of one thread per result, or what makes them for an element; and the words whose product says how many.
SINGLE: dict[str, tuple[Any, Sequence[int]]] = {
    "elementwise": (elementwise, (0,)),
    "gather": (gather, (0, 1)),
    "reference_scatter": (loops.scatter, (4, 5)),
    "reference_fold": (loops.fold, (2, 3, 4)),
    "blocks_of_k": (blocks_of_k, (0,)),
    "one_hot": (loops.one_hot, ()),
    "nonzero": (loops.nonzero, ()),
    **windows.SINGLE,
}

# Kernels whose threads work together, by element.
JOINT: dict[str, Callable[[str, Shape], Joint]] = {
    "lines": lines,
    "small_matmul": partial(matmul, fused_chains, 0),
    "matmul": partial(matmul, fused_chains, 1),
    "small_tensor_matmul": partial(matmul, tensor_cores, 0),
    "tensor_matmul": partial(matmul, tensor_cores, 1),
}


def squares(words: list[int], shape: Shape, side: int) -> int:
    """Return the blocks of threads of a product in small squares (`side` 0) or large ones (1)."""
    square = shape.tiles[side] * shape.across
    return words[1] * words[product.SCRATCH_STEP - HEADER] * -(-words[2] // square) * -(-words[4] // square)


def split(name: str) -> tuple[str, str]:
    """Return the kernel of a name, and the structure of the chain that it is linked with, if it is."""
    family, element, structure = (*name.split(".", 2), "", "")[:3]
    return (f"{family}.{element}" if structure else name), structure


def launch(row: Row, shape: Shape) -> tuple[str, int, int]:
    """Return how a row is carried out: the name of a kernel, blocks, threads of a block."""
    family = row.kernel.partition(".")[0]
    if family.endswith("matmul"):
        return row.kernel, squares(row.words, shape, int(not family.startswith("small"))), shape.across**2
    if family in JOINT:
        return row.kernel, -(-row.words[0] * -(-row.words[1] // R_BLOCK) // shape.sums), LANES * shape.sums
    count = math.prod(row.words[position] for position in SINGLE[family][1])
    most = shape.lookers if family == "reference_scatter" else shape.blocks
    return row.kernel, min(most, -(-count // shape.threads)), shape.threads


def make(name: str, shape: Shape) -> Joint:
    """Return a kernel by name; the chain that it is linked with is not its concern."""
    family, _, element = name.partition(".")
    if family in JOINT:
        return JOINT[family](element, shape)
    shared = SINGLE[family][0](element) if element else SINGLE[family][0]

    def kernel(row: int, banks: int) -> None:
        shared(row, banks, cuda.grid(1), cuda.gridsize(1))

    return kernel
