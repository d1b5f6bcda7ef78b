"""The contract of `docs/numerics.md` as short, plain loops: products, sums, folds, scatters, maxima.

Each loop is written over `read(base, index)` and `write(base, index, value)`. Compiled, a base is an
address and the values are machine floats; for a user's number type a base is an object array and Python
runs the same text. `Arithmetic` holds those functions for one element.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

# A product's inner extent is cut into ``ceil(K / K_BLOCK)`` balanced blocks, each a chain of its own.
K_BLOCK = 384

# A sum of more values than this is the sum of the sums of its blocks.
R_BLOCK = 4096

# Interleaved partial sums of a block.
LANES = 32

# Columns of a product that run through their chains together: for speed alone, no bit depends on it.
TILE = 64

# Levels of blocks of blocks: ``R_BLOCK**6`` exceeds any extent.
LEVELS = 6

Base = Any
Loop = Callable[..., Any]


class Arithmetic(NamedTuple):
    """Access to the values of one element, and to partial results at its compute precision."""

    read: Callable[[Base, int], Any]
    write: Callable[[Base, int, Any], None]
    read_partial: Callable[[Base, int], Any]
    write_partial: Callable[[Base, int, Any], None]
    fma: Callable[[Any, Any, Any], Any]
    maximum: Callable[[Any, Any], Any]


def maximum(a: Any, b: Any) -> Any:
    """`a` where ``a >= b`` or `a` is NaN, else `b`."""
    return a if a >= b or a != a else b


def multiply(arithmetic: Arithmetic) -> Loop:
    """Return the loop of one row of a matrix product.

    ``out[j]`` is a chain ``acc = fma(a[k], b[k, j], acc)`` over ascending k that starts from the first
    product; a long k is cut into balanced blocks whose chains are added in ascending order.
    """
    read, write, fma = arithmetic.read, arithmetic.write, arithmetic.fma
    read_partial, write_partial = arithmetic.read_partial, arithmetic.write_partial

    def multiply_row(
        out: Base, o: int, a: Base, i: int, a_step: int, b: Base, j: int, b_row: int, b_column: int,
        k: int, n: int, partial: Base,
    ) -> None:  # fmt: skip
        blocks = (k + K_BLOCK - 1) // K_BLOCK
        size = (k + blocks - 1) // blocks
        for first in range(0, n, TILE):
            width = min(TILE, n - first)
            column = j + first * b_column
            for start in range(0, k, size):
                x = read(a, i + start * a_step)
                for t in range(width):
                    y = read(b, column + start * b_row + t * b_column)
                    write_partial(partial, t, x * y)
                for p in range(start + 1, min(start + size, k)):
                    x = read(a, i + p * a_step)
                    for t in range(width):
                        y = read(b, column + p * b_row + t * b_column)
                        write_partial(partial, t, fma(x, y, read_partial(partial, t)))
                for t in range(width):
                    chain = read_partial(partial, t)
                    if start > 0:
                        chain = read_partial(partial, TILE + t) + chain
                    write_partial(partial, TILE + t, chain)
            for t in range(width):
                write(out, o + first + t, read_partial(partial, TILE + t))

    return multiply_row


def total(arithmetic: Arithmetic) -> Loop:
    """Return the loop that sums `n` values: 32 interleaved lanes, then halves; blocks of blocks beyond."""
    read, read_partial, write_partial = arithmetic.read, arithmetic.read_partial, arithmetic.write_partial

    def halve(lanes: Base, level: int, count: int) -> Any:
        """Add lane i + half to lane i for half = 16, 8, 4, 2, 1; unused lanes are skipped."""
        base = level * LANES
        used = min(count, LANES)
        half = LANES // 2
        while half > 0:
            for lane in range(used - half):
                upper = read_partial(lanes, base + lane + half)
                write_partial(lanes, base + lane, read_partial(lanes, base + lane) + upper)
            used = min(used, half)
            half //= 2
        return read_partial(lanes, base)

    def sum_block(values: Base, start: int, stride: int, count: int, lanes: Base) -> Any:
        for lane in range(min(count, LANES)):
            write_partial(lanes, lane, read(values, start + lane * stride))
        for first in range(LANES, count, LANES):
            at = start + first * stride
            for lane in range(min(LANES, count - first)):
                value = read(values, at + lane * stride)
                write_partial(lanes, lane, read_partial(lanes, lane) + value)
        return halve(lanes, 0, count)

    def total_loop(values: Base, start: int, stride: int, n: int, lanes: Base) -> Any:
        blocks = (n + R_BLOCK - 1) // R_BLOCK
        for block in range(blocks):
            first = block * R_BLOCK
            value = sum_block(values, start + first * stride, stride, min(R_BLOCK, n - first), lanes)
            position, extent, level = block, blocks, 1
            while extent > 1:
                place = position % R_BLOCK
                lane = level * LANES + place % LANES
                if place >= LANES:
                    value = read_partial(lanes, lane) + value
                write_partial(lanes, lane, value)
                if place < R_BLOCK - 1 and position < extent - 1:
                    break
                value = halve(lanes, level, place + 1)
                position //= R_BLOCK
                extent = (extent + R_BLOCK - 1) // R_BLOCK
                level += 1
        return value

    return total_loop


def greatest(arithmetic: Arithmetic) -> Loop:
    """Return the loop of a maximum: an ascending fold, ties to the earliest, NaN propagates."""
    read, larger = arithmetic.read, arithmetic.maximum

    def greatest_loop(values: Base, start: int, stride: int, n: int, _: Base = None) -> Any:
        best = read(values, start)
        for i in range(1, n):
            best = larger(best, read(values, start + i * stride))
        return best

    return greatest_loop


def fold_at(arithmetic: Arithmetic) -> Loop:
    """Return the loop of one folded position: zero-seeded, ascending window index."""
    read = arithmetic.read

    def fold_loop(
        values: Base, start: int, window_stride: int, inner_stride: int, position: int,
        count: int, size: int, step: int, dilation: int, seed: Any,
    ) -> Any:  # fmt: skip
        accumulated = seed
        for window in range(count):
            offset = position - window * step
            if offset >= 0 and offset % dilation == 0 and offset // dilation < size:
                inner = offset // dilation
                accumulated = accumulated + read(values, start + window * window_stride + inner * inner_stride)
        return accumulated

    return fold_loop


def scatter_rows(arithmetic: Arithmetic) -> Loop:
    """Return the loop that adds columns of source rows to one target row: zero-seeded, ascending source row."""
    read = arithmetic.read
    read_partial, write_partial = arithmetic.read_partial, arithmetic.write_partial

    def scatter_loop(
        out: Base, target: int, rows: Base, indices: Base, index: Callable[[Base, int], int],
        count: int, length: int, first: int, end: int, seed: Any,
    ) -> None:  # fmt: skip
        for column in range(first, end):
            write_partial(out, target * length + column, seed)
        for row in range(count):
            if index(indices, row) == target:
                for column in range(first, end):
                    at = target * length + column
                    value = read(rows, row * length + column)
                    write_partial(out, at, read_partial(out, at) + value)

    return scatter_loop
