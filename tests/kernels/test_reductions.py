"""The routines of `reductions`, `columns` and `moves`: the bits of the plain loops, over drawn values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.helpers import bits
from tests.kernels.calls import call_routine, call_row_routine, child_environment, compute, row_words, run_python
from tests.kernels.interpreted import raw_of
from tests.kernels.test_loops import GUARD, KIND, OUT, A, Case, partial, plain_row, strided_view, strides_of
from topos.kernels import columns, elements, library, reference, rows, store

ELEMENTS = list(KIND)
COUNTS = [1, 2, 3, 7, 8, 9, 17, 31, 32, 33, 47, 64, 65, 100, 128, 129, 256, 257, 1000, 4095, 4096, 4097, 8193]


def drawn(count: int, element: str, generator: np.random.Generator) -> np.ndarray:
    """Return numbers of many sizes; one array in three has special values, one in nine NaNs among them."""
    values = generator.normal(size=count) * 10.0 ** generator.integers(-3, 3, count)
    if generator.random() < 0.33:
        special = generator.choice([0.0, -0.0, np.inf, -np.inf, 6e-8, 1.0], count)
        values = np.where(generator.random(count) < generator.choice([0.05, 0.9]), special, values)
    if generator.random() < 0.11:
        values[generator.integers(0, count)] = np.nan
    with np.errstate(all="ignore"):
        return values.astype(KIND[element])


def plain(
    kernel: str, values: np.ndarray, element: str, shape: tuple[int, int], outer: int, n: int, stride: int
) -> np.ndarray:
    """Return what the plain loop makes of `shape[0]` reductions `outer` apart."""
    out = np.empty(shape[0], KIND[element])
    row = row_words(plain_row(kernel, element, n, stride, (1, 0), (2, 0), [shape[0]], [outer]))
    banks = np.array([0, out.ctypes.data, values.ctypes.data], np.int64)
    compute(f"reference_{kernel}.{element}", row, banks, 0, 1)
    return out


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("kernel", ["sum", "max"])
def test_rows_have_the_bits_of_the_plain_loop(kernel: str, element: str) -> None:
    """Rows of any length, with and without gaps between them; what lies beside them is neither used nor written."""
    generator = np.random.default_rng(3)
    for n in COUNTS * 4:
        count, step = int(generator.integers(1, 6)), n + int(generator.integers(0, 3))
        values = drawn(count * step, element, generator)
        out = np.full(count + 1, 42, KIND[element])
        call_row_routine(store.address(f"row_{kernel}.{element}"), out, values, count, step, n)
        assert (bits(out[:count]) == bits(plain(kernel, values, element, (count, n), step, n, 1))).all(), n
        assert out[count] == 42


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("kernel", ["sum", "max"])
def test_columns_have_the_bits_of_the_plain_loop(kernel: str, element: str) -> None:
    """Any number of columns side by side, of a strip and more, also of more than R_BLOCK values each."""
    generator = np.random.default_rng(4)
    wide = [max(columns.SUM_STRIP, columns.MAX_STRIP) // 2 + 21]
    for n in [*COUNTS[:-4], *COUNTS] * 2:
        many = wide if n in (9, 33, 65, 129, 1000) else [1, 3, 16, 17, 40, 130, 300]
        side = int(generator.choice(many if n < 4000 else [1, 5, 19]))
        step = side + int(generator.integers(0, 3))
        values = drawn(n * step, element, generator)
        out = np.full(side + 1, 42, KIND[element])
        call_row_routine(store.address(f"column_{kernel}.{element}"), out, values, step, n, side)
        assert (bits(out[:side]) == bits(plain(kernel, values, element, (side, n), 1, n, step))).all(), n
        assert out[side] == 42


@pytest.mark.parametrize("element", ELEMENTS)
def test_few_rows_are_added_in_one_pass(element: str) -> None:
    """Around 8, 16 and 32 rows, short ones and long ones: the sums of the plain loop, and nothing written behind."""
    generator = np.random.default_rng(6)
    narrow = columns.NARROW // elements.MEMORY[element].size
    for n in (1, 2, 8, 9, 16, 17, 28, 31, 32, 33):
        for side in (1, 15, 16, 17, 28, narrow, narrow + 1):
            step = side + n % 3
            values = drawn(n * step, element, generator)
            out = np.full(side + 1, 42, KIND[element])
            call_row_routine(store.address(f"column_sum.{element}"), out, values, step, n, side)
            assert (bits(out[:side]) == bits(plain("sum", values, element, (side, n), 1, n, step))).all(), (n, side)
            assert out[side] == 42


@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_sums_beyond_a_block_of_blocks(element: str) -> None:
    """Two and three levels of blocks, along a row and along repeated columns."""
    n = reference.R_BLOCK**2 + 3 * reference.R_BLOCK + 5
    values = np.resize(np.random.default_rng(5).normal(size=9973), n).astype(KIND[element])
    out = np.zeros(1, KIND[element])
    call_row_routine(store.address(f"row_sum.{element}"), out, values, 1, n, n)
    assert (bits(out) == bits(plain("sum", values, element, (1, n), 1, n, 1))).all()
    columns = np.zeros(3, KIND[element])
    call_row_routine(store.address(f"column_sum.{element}"), columns, values, 0, n, 3)
    assert (bits(columns) == bits(plain("sum", values, element, (3, n), 1, n, 0))).all()


@pytest.mark.parametrize("element", ELEMENTS)
def test_the_earliest_of_several_zeros_is_the_maximum(element: str) -> None:
    """A tie of zeros keeps the sign of the first, wherever in a vector it stands."""
    for n in (2, 20, 33, 100):
        for first in range(0, n - 1, 3):
            for zero in (0.0, -0.0):
                values = np.full(n, -1, KIND[element])
                values[first], values[first + 1 :] = zero, -zero
                for name, operands in (("row_max", (1, n, n)), ("column_max", (1, n, 1))):
                    out = np.ones(1, KIND[element])
                    call_row_routine(store.address(f"{name}.{element}"), out, values, *operands)
                    assert np.signbit(out[0]) == np.signbit(np.float64(zero)), (name, n, first)


def log_rows(values: np.ndarray, element: str) -> tuple[np.ndarray, np.ndarray]:
    """Return logsumexp and log_softmax of the rows of a matrix, made of one routine after the other."""
    count, n = values.shape
    wide, kind = values.astype(partial(element)), f"f{elements.MEMORY[element].width}"

    def at(name: str, *operands: np.ndarray) -> np.ndarray:
        lines = [np.ascontiguousarray(line) for line in np.broadcast_arrays(*operands)]
        out = np.empty_like(lines[0])
        call_routine(store.address(f"{name}.{kind}"), out, *lines)
        return out

    shift = at("finite_or_zero", plain("max", wide, kind, (count, n), n, n, 1))
    shifted = at("sub", wide, shift[:, None])
    log = at("ln", plain("sum", at("exp", shifted), kind, (count, n), n, n, 1))
    with np.errstate(all="ignore"):
        results = at("add", shift, log), at("log_difference", shifted, log[:, None])
        return results[0].astype(KIND[element]), results[1].astype(KIND[element])


@pytest.mark.parametrize("element", ELEMENTS)
def test_log_domain_rows_and_columns(element: str) -> None:
    """The fused rows have the bits of maximum, subtraction, exp, sum and ln one after the other; in place too.

    So have columns: of few rows and of many, more than a strip of them, and longer than R_BLOCK.
    """
    generator = np.random.default_rng(6)
    wide = columns.SUM_STRIP // (elements.MEMORY[element].width // 8) + 21
    for n in [1, 2, 10, 16, 31, 32, 33, 100, 300, 1000, 4097]:
        for count in (1, 3, 40 if n < 300 else 5, wide if n == 300 else 2):
            values = drawn(count * n, element, generator).reshape(count, n)
            sums, shares = log_rows(values, element)
            out, single = np.empty_like(values), np.empty(count + 1, KIND[element])
            call_row_routine(store.address(f"log_softmax.{element}"), out, values, count, n, n)
            call_row_routine(store.address(f"logsumexp.{element}"), single, values, count, n, n)
            assert (bits(out) == bits(shares)).all(), n
            assert (bits(single[:-1]) == bits(sums)).all(), n
            upright, single = values.T.copy(), np.full(count + 1, 42, KIND[element])
            call_row_routine(store.address(f"column_logsumexp.{element}"), single, upright, count, n, count)
            call_row_routine(store.address(f"column_log_softmax.{element}"), upright, upright, count, n, count)
            assert (bits(upright) == bits(np.ascontiguousarray(shares.T))).all(), n
            assert (bits(single[:-1]) == bits(sums)).all(), n
            assert single[-1] == 42
            call_row_routine(store.address(f"log_softmax.{element}"), values, values, count, n, n)
            assert (bits(values) == bits(shares)).all(), n


@pytest.mark.parametrize("element", ELEMENTS)
def test_spread_and_accumulate(element: str) -> None:
    """A value per row is repeated with every bit; values are added at compute precision."""
    raw = raw_of(elements.MEMORY[element])
    generator = np.random.default_rng(7)
    for n in (1, 5, 16, 37):
        data = generator.integers(0, 256, 3 * raw.itemsize, np.uint8).view(raw)
        out = np.zeros(3 * n + 1, raw)
        call_row_routine(store.address(f"spread.{element}"), out, data, 3, 0, n)
        unsigned = f"u{raw.itemsize}"
        assert (out[:-1].view(unsigned) == np.repeat(data, n).view(unsigned)).all()
        assert out[-1] == 0
        values, total = drawn(n, element, generator), generator.normal(size=n).astype(partial(element))
        with np.errstate(all="ignore"):
            expected = total + values.astype(partial(element))
        call_routine(store.address(f"accumulate.{element}"), total, values)
        assert (bits(total) == bits(expected)).all()


RUNS = [([1], (0,)), ([5], (0,)), ([3, 40], (0, 1)), ([40, 3], (1, 0)), ([2, 3, 20], (1, 2, 0))]
"""Extents of results, and the axes of the source in the order in which results lie."""


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", library.ROWS)
def test_runs_of_results(name: str, element: str) -> None:
    """The kernel walks outer axes in any order of memory and shares them; interpreted and compiled agree."""
    n, generator = 7, np.random.default_rng(8)
    keeps, is_column = name.endswith("log_softmax"), name.startswith("column")
    for extents, order in RUNS:
        count, rank = math.prod(extents), len(extents)
        strides = [n * stride for stride in strides_of(extents)]
        if is_column:
            strides[-1] = 1
        stride = extents[-1] if is_column else 1
        dense = strides_of([extents[axis] for axis in order])
        out = strides if keeps else [dense[order.index(axis)] for axis in range(rank)]
        data = drawn(count * n, element, generator)
        places = ((OUT, GUARD), out), ((A, 0), strides)
        row = rows.reduce(f"{name}.{element}", n, stride, *places, extents, n if keeps and not is_column else 1)
        got = Case(row, {A: data}, KIND[element], count * (n if keeps else 1)).check()
        window = [*extents, n], [*strides, stride]
        lines = np.ascontiguousarray(strided_view(data, *window)).reshape(count, n)
        if "log" in name:
            stated = log_rows(lines, element)[keeps]
        else:
            stated = plain(name.partition("_")[2], lines, element, (count, n), n, n, 1)
        if keeps:
            got = np.ascontiguousarray(strided_view(got, *window))
        else:
            stated = np.ascontiguousarray(stated.reshape(extents).transpose(order))
        assert (bits(got.reshape(-1)) == bits(stated.reshape(-1))).all(), (extents, order)


SMALL_STACK = """
import threading
import numpy as np
from topos import Tensor, set_num_threads

set_num_threads(1)
threading.stack_size(512 * 1024)
x = Tensor(np.ones((5000, 4096), np.float32))
found = []
thread = threading.Thread(target=lambda: found.append(x.sum_along(0)))
thread.start()
thread.join()
print(set(found[0].numpy().tolist()))
"""


def test_columns_fit_the_stack_of_a_small_thread() -> None:
    """Every level of blocks has a tile there: half a megabyte is enough for two."""
    assert run_python(SMALL_STACK, child_environment()) == "{5000.0}"
