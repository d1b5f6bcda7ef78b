"""The fast matrix product has the bits of the reference loop, over shapes, layouts, paths and tasks."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS
from tests.kernels.calls import compute, interpret, row_words
from tests.kernels.interpreted import raw_of
from topos.kernels import elements, rows
from topos.kernels.matmul import product
from topos.kernels.target import tile_of

OUT, LEFT, RIGHT, SCRATCH = 1, 2, 3, 4
TASKS = 3
NAMES = [element.name for element in ELEMENTS]


def numbers(rng: np.random.Generator, name: str, count: int) -> np.ndarray:
    """Return values as they lie in memory, with zeros of both signs and, seldom, infinities and NaN."""
    values = rng.standard_normal(count)
    values[rng.random(count) < 0.05] = 0.0
    values[rng.random(count) < 0.05] = -0.0
    if rng.random() < 0.2:
        values[rng.random(count) < 0.01] = rng.choice([np.inf, -np.inf, np.nan])
    with np.errstate(all="ignore"):
        if name == "bf16":
            return (values.astype("f4").view("u4") >> 16).astype("u2")
        return values.astype({"f32": "f4", "f64": "f8", "f16": "f2"}[name]).view(raw_of(elements.MEMORY[name]))


def side(rng: np.random.Generator, extent: int, split: bool, start: int) -> tuple[rows.Side, int]:
    """Return an index of up to three axes with strides of at least `start`, and the span that it walks."""
    extents = [extent]
    if split:
        for factor in (2, 3):
            if extents[-1] % factor == 0 and extents[-1] > factor:
                extents[-1:] = (
                    [factor, extents[-1] // factor] if rng.random() < 0.5 else [extents[-1] // factor, factor]
                )
    axes: list[tuple[int, int]] = []
    step, span = start, 0
    for inner in reversed(extents):
        stride = 0 if rng.random() < 0.05 else step
        axes.insert(0, (inner, stride))
        span += (inner - 1) * stride
        step = step * inner + int(rng.integers(0, 2)) * start
    return axes, span


def operand(rng: np.random.Generator, extents: tuple[int, int], split: bool) -> tuple[list[rows.Side], int]:
    """Return the two indices of a matrix, either of them the inner one in memory, and the values it spans."""
    order = [0, 1] if rng.random() < 0.6 else [1, 0]
    sides: list[Any] = [None, None]
    start, total = 1 if rng.random() < 0.8 else 2, 1
    for which in reversed(order):
        sides[which], span = side(rng, extents[which], split, start)
        total += span
        start = max(total + int(rng.integers(0, 3)), 1)
    return sides, total


def strides(axes: rows.Side) -> np.ndarray:
    """Return the offset of every position of an index."""
    offsets = np.zeros(1, int)
    for extent, stride in axes:
        offsets = (offsets[:, None] + np.arange(extent) * stride).reshape(-1)
    return offsets


SPECIAL = [(1, 1, 1), (1, 900, 70), (64, 784, 33), (13, 1000, 1), (100, 385, 17), (2, 2, 300), (300, 3, 2), (7, 30, 48)]


def drawn(rng: np.random.Generator, case: int) -> tuple[int, int, int]:
    """Return m, k and n: small ones, edges of tiles and blocks, and now and then a large extent."""
    if case < len(SPECIAL):
        return SPECIAL[case]
    m, k, n = (int(extent) for extent in rng.integers(1, 40, 3))
    large = rng.random()
    if large < 0.2:
        m, k = int(rng.integers(2, 10)), int(rng.integers(385, 1200))
    elif large < 0.28:
        m, n = int(rng.integers(1, 9)), int(rng.integers(513, 900))
    elif large < 0.36:
        m, k, n = int(rng.integers(130, 250)), int(rng.integers(256, 500)), int(rng.integers(97, 200))
    elif large < 0.6:
        m = 1
    return m, k, n


@pytest.mark.parametrize("name", NAMES)
def test_drawn_products_have_the_bits_of_the_reference(name: str) -> None:
    """500 shapes and layouts, at 1 to 3 tasks; every path of the kernel is taken at least 20 times."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    memory, taken = elements.MEMORY[name], Counter[str]()
    wide = np.dtype(f"f{memory.width // 8}")
    tile = tile_of(memory.width)
    for case in range(500):
        m, k, n = drawn(rng, case)
        split = rng.random() < 0.4
        batch = int(rng.integers(2, 5)) if rng.random() < 0.15 else 1
        (a_rows, a_steps), a_span = operand(rng, (m, k), split)
        (b_steps, b_columns), b_span = operand(rng, (k, n), split)
        left, right = numbers(rng, name, batch * a_span), numbers(rng, name, b_span)
        gap = int(rng.integers(0, 4))
        out = np.full((batch, m, n + gap), np.nan, wide)
        scratch = np.full(TASKS * rows.scratch_bytes(name, m, k, n) // 8 + 8, np.nan)
        row = row_words(
            rows.matmul(
                name,
                ((OUT, 0), n + gap),
                ((LEFT, 0), a_rows, a_steps),
                ((RIGHT, 0), b_steps, b_columns),
                ((SCRATCH, 0), rows.scratch_bytes(name, m, k, n), TASKS),
                [(batch, a_span, 0, m * (n + gap))],
            )
        )
        banks = np.array([0, *(x.ctypes.data for x in (out, left, right, scratch))], np.int64)
        tasks = int(rng.integers(1, TASKS + 1))
        for task in range(tasks):
            compute("matmul", row, banks, task, tasks)

        for index in range(batch):
            chosen = left[index * a_span :][strides(a_rows)[:, None] + strides(a_steps)]
            matrix = np.ascontiguousarray(chosen)
            other = np.ascontiguousarray(right[strides(b_steps)[:, None] + strides(b_columns)])
            expected = reference(name, matrix, other)
            found = out[index, :, :n]
            if memory.narrow is not None:
                found = narrowed(name, found)
            same = found.tobytes() == expected.tobytes() or np.array_equal(
                canonical(name, found), canonical(name, expected)
            )
            assert same, (name, case, m, k, n, tasks)
        assert np.isnan(out[:, :, n:]).all()

        b_even = not any(e > 1 for s in (b_steps, b_columns) for e, _ in s[:-1])
        even = not any(e > 1 for s in (a_steps, b_steps, b_columns) for e, _ in s[:-1])
        near_steps, near_columns = (extent == 1 or axes[-1][1] == 1 for extent, axes in ((k, b_steps), (n, b_columns)))
        line = m == 1 and even and (near_steps or near_columns)
        column = line and near_steps and (n == 1 or not near_columns)
        block = product.depth_of(k) * wide.itemsize
        placed = memory.widen is None and not line
        placed &= n <= product.NARROW * tile.columns or m * block <= product.SMALL_A
        in_runs = placed and b_columns[-1][1] == 1 and b_columns[-1][0] >= tile.lanes
        in_runs &= not b_even or m <= tile.rows or n * block <= product.SMALL_B
        taken["line"] += line and not column
        taken["column"] += column
        taken["packed"] += not placed and not line
        taken["in place"] += placed
        taken["packed b"] += placed and not in_runs
        taken["b in place"] += in_runs
        taken["vectors that overlap"] += in_runs and b_columns[-1][0] % tile.lanes > 0
        taken["added in place"] += in_runs and k > 384
        taken["edge of rows"] += m % tile.rows > 0
        taken["edge of columns"] += n % tile.columns > 0
        taken["blocks of k"] += k > 384
        taken["blocks of columns"] += n > 16384 // memory.width
        taken["blocks of rows"] += m > product.BLOCK_TILES * tile.rows
        taken["threaded"] += tasks > 1
        taken["batched"] += batch > 1
        taken["separable"] += max(len(a_rows), len(a_steps), len(b_steps), len(b_columns)) > 1
    never = {"in place", "packed b", "b in place", "vectors that overlap", "added in place"}
    never = never if memory.widen is not None else set()
    few = {path: count for path, count in taken.items() if count < 20 and path not in never}
    assert not few, taken


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [17, 64, 20_000])
@pytest.mark.parametrize("step", [1, 403, 2048])
def test_a_line_of_any_length(name: str, n: int, step: int) -> None:
    """One row of chains over two blocks of k, its columns or its steps side by side; the memory behind is kept.

    Columns 2,048 steps apart share a set of the nearest cache.
    """
    k, n = 401, n if step < 2048 else min(n, 64)
    rng = np.random.default_rng(n)
    a, b = (numbers(rng, name, extent * k).reshape(shape) for extent, shape in ((1, (1, k)), (n, (k, n))))
    steps, columns = [(k, n)], [(n, 1)]
    memory = b
    if step > 1:
        steps, columns, memory = [(k, 1)], [(n, step)], np.zeros((n, step), b.dtype)
        memory[:, :k] = b.T
    size, out = rows.scratch_bytes(name, 1, k, n), np.empty((1, n), f"f{elements.MEMORY[name].width // 8}")
    scratch = np.full(TASKS * size + 64, 0x55, np.uint8)
    given = ((LEFT, 0), [(1, k)], [(k, 1)]), ((RIGHT, 0), steps, columns), ((SCRATCH, 0), size, TASKS)
    row = row_words(rows.matmul(name, ((OUT, 0), n), *given))
    banks = np.array([0, *(x.ctypes.data for x in (out, a, memory, scratch))], np.int64)
    for task in range(TASKS):
        compute("matmul", row, banks, task, TASKS)
    found = out if elements.MEMORY[name].narrow is None else narrowed(name, out)
    assert np.array_equal(canonical(name, found), canonical(name, reference(name, a, b)))
    assert (scratch[TASKS * size :] == 0x55).all()


def canonical(name: str, values: np.ndarray) -> np.ndarray:
    """Return bits in which every NaN is the same one."""
    if name == "bf16":
        bits = values.view("u2").copy()
        bits[(bits & 0x7FFF) > 0x7F80] = 0x7FC0
        return bits
    kind = {"f32": "f4", "f64": "f8", "f16": "f2"}[name]
    reals = values.view(kind).copy()
    reals[np.isnan(reals)] = np.nan
    return reals.view(f"u{reals.itemsize}")


def reference(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product by the compiled reference loop."""
    (m, k), n = a.shape, b.shape[1]
    out = np.empty((m, n), raw_of(elements.MEMORY[name]))
    sides = ((LEFT, 0), k, 1), ((RIGHT, 0), n, 1)
    row = row_words(rows.reference_matmul(name, (m, k, n), (OUT, 0), *sides, [1], ([0], [0])))
    banks = np.array([0, out.ctypes.data, a.ctypes.data, b.ctypes.data], np.int64)
    compute(f"reference_matmul.{name}", row, banks, 0, 1)
    return out


def narrowed(name: str, values: np.ndarray) -> np.ndarray:
    """Return f32 values rounded once to a 16-bit element."""
    dense = np.ascontiguousarray(values)
    out = np.empty(dense.shape, "u2")
    row = row_words(rows.elementwise(f"narrow.{name}", [dense.size], ((OUT, 0), 2), [((LEFT, 0), 4, True, [1])]))
    compute("elementwise", row, np.array([0, out.ctypes.data, dense.ctypes.data], np.int64), 0, 1)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "k", "n"), [(7, 390, 20), (1, 390, 20)])
def test_the_text_of_the_kernel_runs_in_python_too(name: str, m: int, k: int, n: int) -> None:
    """Interpreted, the loops of the kernel call the same routines, and give the same bits."""
    rng = np.random.default_rng(5)
    a, b = numbers(rng, name, m * k).reshape(m, k), numbers(rng, name, k * n).reshape(k, n)
    wide = np.dtype(f"f{elements.MEMORY[name].width // 8}")
    out = np.empty((m, n), wide)
    size = rows.scratch_bytes(name, m, k, n)
    scratch = np.empty(2 * size // 8)
    given = ((LEFT, 0), [(m, k)], [(k, 1)]), ((RIGHT, 0), [(k, n)], [(n, 1)]), ((SCRATCH, 0), size, 2)
    row = row_words(rows.matmul(name, ((OUT, 0), n), *given))
    banks = np.array([0, *(x.ctypes.data for x in (out, a, b, scratch))], np.int64)
    for task in range(3):  # a task beyond the memory that was planned for has nothing to do
        interpret("matmul", row, banks, task, 3)
    found = out if elements.MEMORY[name].narrow is None else narrowed(name, out)
    assert np.array_equal(canonical(name, found), canonical(name, reference(name, a, b)))
