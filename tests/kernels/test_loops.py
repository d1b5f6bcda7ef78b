"""Every kernel runs twice on the same memory, interpreted and compiled: the same bytes, for any share of tasks.

Row formats are those of `rows.py`; what a kernel moves or computes is checked against NumPy where it says so.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.helpers import bits
from tests.kernels import interpreted
from tests.kernels.calls import compute, interpret, kernel_text, row_words
from topos.kernels import elements, library, loops, memory, reference, rows, runtime, store

KIND = {"f32": np.dtype("f4"), "f64": np.dtype("f8"), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype("f2")}
ELEMENTS = list(KIND)
GUARD = 64
"""Bytes before and after every output that no kernel may touch."""

OUT, A, B, C = 1, 2, 3, 4
"""Banks of the tests; bank 0 is the error word."""


def partial(element: str) -> np.dtype:
    """Return the compute precision of an element."""
    return np.dtype(f"f{elements.MEMORY[element].width // 8}")


def numbers(count: int, element: str, seed: int) -> np.ndarray:
    """Return finite numbers of ordinary size, with zeros of both signs and subnormals among them."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=count)
    special = generator.choice([0.0, -0.0, 1.0, -1.0, 6e-8, -1e-40], count)
    return np.where(generator.random(count) < 0.2, special, values).astype(KIND[element])


@dataclass
class Case:
    """A row, its operands by bank, and the dtype and size of its output."""

    row: rows.Row
    operands: dict[int, Any]
    kind: np.dtype
    size: int
    node: int = 5
    error: Any = field(default_factory=lambda: np.array([-1, 0], np.int64))

    def run(self, way: Any, tasks: int, fill: int) -> tuple[Any, Any]:
        """Return the output and the error word after all tasks, over memory filled with a byte."""
        words = row_words(self.row, self.node)
        output = np.full(self.size * self.kind.itemsize + 2 * GUARD, fill, np.uint8)
        error = self.error.copy()
        banks = np.zeros(5, np.int64)
        banks[0], banks[OUT] = error.ctypes.data, output.ctypes.data
        for bank, operand in self.operands.items():
            banks[bank] = operand.ctypes.data
        before = {bank: operand.tobytes() for bank, operand in self.operands.items()}
        for task in reversed(range(tasks)):
            way(self.row.kernel, words, banks, task, tasks)
        for bank, operand in self.operands.items():
            assert operand.tobytes() == before[bank], "an operand was written"
        assert (output[:GUARD] == fill).all()
        assert (output[-GUARD:] == fill).all()
        return output[GUARD:-GUARD].view(self.kind), error

    def check(self) -> Any:
        """Run both ways, with 1 to 3 tasks, over two fillings; return the one result."""
        result, error = self.run(compute, 1, 0xAA)
        for way, tasks, fill in (
            (compute, 1, 0x55), (compute, 2, 0x55), (compute, 3, 0xAA), (compute, 7, 0x55),
            (interpret, 1, 0x55), (interpret, 3, 0xAA),
        ):  # fmt: skip
            other, word = self.run(way, tasks, fill)
            assert (bits(other) == bits(result)).all(), (way.__name__, tasks)
            assert (word == error).all(), (way.__name__, tasks)
        self.word = error.tolist()
        return result


def strides_of(extents: Sequence[int]) -> list[int]:
    """Return dense strides."""
    return [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]


def strided_view(array: np.ndarray, extents: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Return the strided window of a flat array."""
    size = array.itemsize
    return np.lib.stride_tricks.as_strided(array, extents, [size * stride for stride in strides])


def plain_row(
    kernel: str, element: str, n: int, stride: int, out: rows.Place, source: rows.Place,
    extents: list[int], strides: list[int],
) -> rows.Row:  # fmt: skip
    """Return the row of a plain reduction with dense results."""
    places = (out, strides_of(extents)), (source, strides)
    return rows.reduce(f"reference_{kernel}.{element}", n, stride, *places, extents)


# ---- movement

WINDOWS = [
    ([5], [1], [1]),
    ([40], [2], [3]),
    ([7], [1], [0]),
    ([3, 5], [5, 1], [1, 3]),
    ([4, 6], [12, 2], [0, 1]),
    ([2, 3, 4], [12, 4, 1], [1, 2, 6]),
    ([3, 2, 2, 5], [20, 10, 5, 1], [40, 3, 20, 0]),
    ([1, 1], [1, 1], [1, 1]),
    ([9, 21], [21, 1], [1, 9]),
    ([2, 17, 8], [136, 8, 1], [1, 16, 2]),
    ([11, 12], [12, 1], [1, 12]),
    ([19, 20], [20, 1], [1, 19]),
    ([2, 40], [40, 1], [1, 0]),
]
"""Extents, strides of the target, strides of the source."""


@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
@pytest.mark.parametrize(("extents", "out_strides", "strides"), WINDOWS)
def test_copy(extents: list[int], out_strides: list[int], strides: list[int], element: str) -> None:
    """A copy between strided windows moves every bit of every value, and touches no gap."""
    kind = interpreted.raw_of(elements.MEMORY[element])
    source = np.random.default_rng(1).integers(0, 256, 8 * 400, np.uint8).view(kind)
    size = elements.MEMORY[element].size
    span = sum((e - 1) * s for e, s in zip(extents, out_strides, strict=True)) + 1
    row = rows.copy(size, extents, (OUT, GUARD), out_strides, (A, 2 * size), strides)
    for way, tasks in ((compute, 1), (compute, 2), (compute, 3), (interpret, 1), (interpret, 3)):
        case = Case(row, {A: source}, np.dtype(f"u{size}"), span)
        got, _ = case.run(way, tasks, 0xAA)
        expected = np.full(span * size, 0xAA, np.uint8).view(f"u{size}")
        view = strided_view(source.view(f"u{size}")[2:], extents, strides)
        strided_view(expected, extents, out_strides)[...] = view
        assert (got == expected).all(), (way.__name__, tasks)


@pytest.mark.parametrize("element", ELEMENTS)
def test_copy_through_a_routine(element: str) -> None:
    """Lines that lie dense on both sides pass through an element function; what lies between them is not touched."""
    source = np.resize(np.array([-0.0, 0.0, 1.5, -np.inf], KIND[element]), 200)
    size = elements.MEMORY[element].size
    for extents, out_strides, strides in (
        ([5], [1], [1]),
        ([3, 7], [20, 1], [9, 1]),
        ([2, 3, 18], [80, 20, 1], [60, 19, 1]),
    ):
        span = sum((e - 1) * s for e, s in zip(extents, out_strides, strict=True)) + 1
        places = (OUT, GUARD), out_strides, (A, size), strides
        row = rows.copy(size, extents, *places, f"positive_zero.{element}")
        for way, tasks in ((compute, 1), (compute, 3), (interpret, 1), (interpret, 2)):
            got, _ = Case(row, {A: source}, KIND[element], span).run(way, tasks, 0xAA)
            expected = np.full(span * size, 0xAA, np.uint8).view(KIND[element])
            wanted = strided_view(source[1:], extents, strides)
            strided_view(expected, extents, out_strides)[...] = np.where(
                wanted == 0, np.zeros(1, KIND[element]), wanted
            )
            assert (bits(got) == bits(expected)).all(), (way.__name__, tasks, extents)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
def test_fill(count: int, element: str) -> None:
    """A fill repeats one value with its bits."""
    value = np.array([0.0, -1.5], KIND[element])
    size = elements.MEMORY[element].size
    row = rows.fill(size, count, (OUT, GUARD), (A, size))
    assert (Case(row, {A: value}, KIND[element], count).check() == value[1]).all()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("element", ELEMENTS)
def test_gather(length: int, element: str) -> None:
    """Rows of a table, repeated and in any order, with their bits; row lengths of any number of bytes."""
    table = numbers(9 * length, element, length)
    indices = np.array([3, 0, 8, 3, 1, 7, 8], np.int64)
    size = elements.MEMORY[element].size
    row = rows.gather(length * size, len(indices), (OUT, GUARD), (A, 0), (B, 0))
    got = Case(row, {A: table, B: indices}, KIND[element], len(indices) * length).check()
    assert (bits(got) == bits(table.reshape(9, length)[indices].reshape(-1))).all()


# ---- elementwise


def source(element: str, bank: int, extents: Sequence[int], strides: Sequence[int]) -> tuple[Any, ...]:
    """Return a source of an elementwise row."""
    dense = list(strides) == strides_of(extents)
    return (bank, 0), elements.MEMORY[element].size, dense, strides


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("extents", "strides"),
    [
        ([37], [[1], [1], [1]]),
        ([37], [[2], [1], [0]]),
        ([5, 7], [[7, 1], [1, 5], [0, 1]]),
        ([3, 4, 5], [[1, 3, 12], [20, 5, 1], [0, 0, 0]]),
        ([2, 700], [[1, 2], [0, 1], [700, 1]]),
        ([1300], [[1], [2], [1]]),
    ],
)
def test_elementwise(extents: list[int], strides: list[list[int]], element: str) -> None:
    """One, two or three operands of any strides, across several buffers: NumPy's values at the compute precision."""
    data = [numbers(2700, element, seed) for seed in range(3)]
    views = [strided_view(array, extents, s) for array, s in zip(data, strides, strict=True)]
    count, size = math.prod(extents), elements.MEMORY[element].size
    for routine, arity in (("neg", 1), ("mul", 2), ("select", 3)):
        sources = [source(element, A + i, extents, strides[i]) for i in range(arity)]
        row = rows.elementwise(f"{routine}.{element}", extents, ((OUT, GUARD), size), sources)
        got = Case(row, {A + i: data[i] for i in range(arity)}, KIND[element], count).check()
        with np.errstate(all="ignore"):
            wide = [view.astype(partial(element)) for view in views]
            stated = (-wide[0], wide[0] * wide[1], np.where(wide[0] == 0, wide[2], wide[1]))[arity - 1]
            assert (bits(got) == bits(stated.astype(KIND[element]).reshape(-1))).all(), routine


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_elementwise_between_widths(element: str) -> None:
    """The conversions read one size and write another."""
    extents, data = [6, 9], numbers(54, element, 1)
    wide = data.astype(np.float32)
    widen = rows.elementwise(f"widen.{element}", extents, ((OUT, GUARD), 4), [source(element, A, extents, [1, 6])])
    got = Case(widen, {A: data}, np.dtype("f4"), 54).check()
    assert (bits(got) == bits(wide.reshape(9, 6).T.reshape(-1))).all()
    narrow = rows.elementwise(f"narrow.{element}", extents, ((OUT, GUARD), 2), [source("f32", A, extents, [9, 1])])
    got = Case(narrow, {A: wide}, KIND[element], 54).check()
    assert (bits(got) == bits(data)).all()


# ---- kernels that compute


def order(count: int, layout: str) -> tuple[int, int]:
    """Return row and column strides of a matrix of `count` columns."""
    return {"dense": (count, 1), "doubled": (2 * count, 2), "row repeated": (0, 1)}[layout]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("batch", "m", "k", "n", "layout"),
    [
        ([], 1, 1, 1, "dense"),
        ([], 3, 5, 4, "dense"),
        ([], 5, 3, 70, "doubled"),
        ([2, 3], 2, 4, 3, "dense"),
        ([3], 2, 4, 5, "row repeated"),
    ],
)
def test_matmul(batch: list[int], m: int, k: int, n: int, layout: str, element: str) -> None:
    """Matrices of any strides, per leading index: one rounding of the exact product where it is small."""
    a_row, a_column = order(k, layout)
    b_row, b_column = order(n, layout)
    a_span, b_span = m * max(a_row, k), k * max(b_row, n)
    a_batch = [s * a_span for s in strides_of(batch)]
    b_batch = [0 for _ in batch]
    generator = np.random.default_rng(4)
    count = math.prod(batch)
    a = generator.integers(-3, 4, a_span * count + a_span).astype(KIND[element])
    b = generator.integers(-3, 4, b_span + n).astype(KIND[element])
    row = rows.reference_matmul(
        element, (m, k, n), (OUT, GUARD), ((A, 0), a_row, a_column), ((B, 0), b_row, b_column),
        batch, (a_batch, b_batch),
    )  # fmt: skip
    got = Case(row, {A: a, B: b}, KIND[element], count * m * n).check()
    left = strided_view(a, [*batch, m, k], [*a_batch, a_row, a_column]).astype(np.float64)
    right = strided_view(b, [*batch, k, n], [*b_batch, b_row, b_column]).astype(np.float64)
    assert (got.astype(np.float64) == (left @ right).reshape(-1)).all()


@pytest.mark.parametrize("element", ELEMENTS)
def test_matmul_over_several_blocks(element: str) -> None:
    """An inner extent beyond K_BLOCK, of numbers that round."""
    k = 2 * reference.K_BLOCK + 5
    a, b = numbers(2 * k, element, 1), numbers(2 * k, element, 2)
    row = rows.reference_matmul(element, (2, k, 2), (OUT, GUARD), ((A, 0), k, 1), ((B, 0), 2, 1), [], ([], []))
    case = Case(row, {A: a, B: b}, KIND[element], 4)
    got, _ = case.run(compute, 1, 0xAA)
    assert (case.run(interpret, 1, 0x55)[0].tobytes()) == got.tobytes()
    assert (case.run(compute, 2, 0x55)[0].tobytes()) == got.tobytes()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("kernel", ["sum", "max"])
@pytest.mark.parametrize(
    ("extents", "strides", "n", "stride"),
    [
        ([], [], 1, 1),
        ([], [], 100, 1),
        ([3], [40], 40, 1),
        ([5], [1], 7, 5),
        ([2, 3], [1, 66], 33, 2),
        ([4], [0], 65, 3),
    ],
)
def test_reduce(extents: list[int], strides: list[int], n: int, stride: int, kernel: str, element: str) -> None:
    """Sums and maxima over any axis: both ways the same bytes, and the maximum is NumPy's."""
    data = numbers(250, element, 6)
    count = math.prod(extents)
    row = plain_row(kernel, element, n, stride, (OUT, GUARD), (A, 0), extents, strides)
    got = Case(row, {A: data}, KIND[element], count).check()
    window = strided_view(data, [*extents, n], [*strides, stride]).astype(np.float64)
    with np.errstate(all="ignore"):
        stated = window.max(-1) if kernel == "max" else window.sum(-1)
    tolerance = {"f64": 1e-12, "f32": 1e-4, "bf16": 0.3, "f16": 0.05}[element] if kernel == "sum" else 0
    assert np.abs(got.astype(np.float64) - stated.reshape(-1)).max() <= tolerance


@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("n", [4096, 4097, 9000])
def test_a_long_sum(n: int, element: str) -> None:
    """Beyond R_BLOCK the blocks are summed alike; interpreted and compiled agree."""
    data = numbers(n, element, n)
    row = plain_row("sum", element, n, 1, (OUT, GUARD), (A, 0), [], [])
    case = Case(row, {A: data}, KIND[element], 1)
    assert case.run(compute, 1, 0xAA)[0].tobytes() == case.run(interpret, 1, 0x55)[0].tobytes()


@pytest.mark.parametrize("element", ELEMENTS)
def test_reductions_of_special_values(element: str) -> None:
    """NaN propagates, a tie of zeros goes to the earliest, infinities of both signs add to NaN."""
    lines = [
        [1.0, np.nan, 3.0], [np.inf, -np.inf, 1.0], [-0.0, 0.0, -0.0], [0.0, -0.0, -0.0], [-np.inf] * 3,
        [-0.0] * 3,
    ]  # fmt: skip
    data = np.array(lines, KIND[element])
    for kernel, expected in (
        ("max", [np.nan, np.inf, -0.0, 0.0, -np.inf, -0.0]),
        ("sum", [np.nan, np.nan, 0.0, 0.0, -np.inf, -0.0]),
    ):
        row = plain_row(kernel, element, 3, 1, (OUT, GUARD), (A, 0), [6], [3])
        got = Case(row, {A: data}, KIND[element], 6).check()
        assert (bits(got) == bits(np.array(expected, KIND[element]))).all(), kernel


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("axis", "windows", "extents"),
    [(0, (3, 2, 1, 1), [5]), (0, (4, 3, 2, 1), [9, 2]), (1, (2, 3, 3, 2), [2, 8, 3]), (2, (3, 2, 2, 3), [2, 2, 9])],
)
def test_fold(axis: int, windows: tuple[int, int, int, int], extents: list[int], element: str) -> None:
    """Windows add back to their axis, in ascending order from +0, rounded once at the end."""
    count, size, step, dilation = windows
    shape = [*extents[:axis], count, size, *extents[axis + 1 :]]
    data = numbers(math.prod(shape), element, 8)
    folded = math.prod(extents[:axis]), extents[axis], math.prod(extents[axis + 1 :])
    row = rows.fold(f"reference_fold.{element}", folded, windows, (OUT, GUARD), (A, 0))
    got = Case(row, {A: data}, KIND[element], math.prod(extents)).check()
    stated = np.zeros(extents, partial(element))
    moved, source = np.moveaxis(stated, axis, 0), np.moveaxis(data.reshape(shape), (axis, axis + 1), (0, 1))
    for window in range(count):
        for inner in range(size):
            moved[window * step + inner * dilation] += source[window, inner].astype(partial(element))
    assert (bits(got) == bits(stated.astype(KIND[element]).reshape(-1))).all()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("length", [1, 3, 130])
def test_scatter(length: int, element: str) -> None:
    """Rows add into zeros in ascending order, at the compute precision: by the plain loop and by runs."""
    indices = np.array([2, 0, 2, 4, 2, 0], np.int64)
    data = numbers(6 * length, element, 9)
    stated = np.zeros((5, length), partial(element))
    for position, target in enumerate(indices):
        stated[target] += data.reshape(6, length)[position].astype(partial(element))
    places = (OUT, GUARD), (A, 0), (B, 0)
    plain, fast = (
        Case(
            rows.scatter(f"{name}.{element}", (6, length, 5), *places),
            {A: data, B: indices},
            partial(element),
            5 * length,
        )
        for name in ("reference_scatter", "accumulate")
    )
    assert (bits(plain.check()) == bits(stated.reshape(-1))).all()
    for way, tasks in ((compute, 1), (compute, 3), (compute, 7), (interpret, 1), (interpret, 3)):
        got, _ = fast.run(way, tasks, 0)  # into zeros
        assert (bits(got) == bits(stated.reshape(-1))).all(), (way.__name__, tasks)


@pytest.mark.parametrize("element", ELEMENTS)
def test_fold_by_runs(element: str) -> None:
    """Runs of inner values, short and longer than a buffer, in any number of windows: the bits of the plain loop."""
    for outer, extent, inner, windows in (
        (1, 5, 1, (3, 2, 1, 1)),
        (2, 9, 18, (4, 3, 2, 1)),
        (3, 8, 5, (2, 3, 3, 2)),
        (1, 4, loops.BLOCK + 9, (2, 2, 2, 1)),
        (2, 9, 7, (3, 2, 2, 3)),
        (2, 30, 7, (5, 4, 4, 6)),
        (2, 40, 3, (9, 5, 3, 2)),
    ):
        count, size = windows[:2]
        data = numbers(outer * count * size * inner, element, 8)
        by_runs, plain = (
            rows.fold(f"{name}.{element}", (outer, extent, inner), windows, (OUT, GUARD), (A, 0))
            for name in ("ascend", "reference_fold")
        )
        got, stated = (
            Case(row, {A: data}, KIND[element], outer * extent * inner).run(compute, 1, 0x55)[0]
            for row in (by_runs, plain)
        )
        assert (bits(got) == bits(stated)).all(), (outer, extent, inner, windows)
        if inner < loops.BLOCK:
            Case(by_runs, {A: data}, KIND[element], outer * extent * inner).check()


# ---- the error word


@pytest.mark.parametrize("element", ELEMENTS)
def test_one_hot(element: str) -> None:
    """The hot positions of rows of any strides; nothing is reported."""
    hot = [3, 0, 2, 2]
    dense = np.zeros((4, 5), KIND[element])
    dense[range(4), hot] = 1
    for data, strides in ((dense, (5, 1)), (np.ascontiguousarray(dense.T), (1, 4))):
        case = Case(rows.one_hot(element, 4, 5, (OUT, GUARD), (A, 0), strides), {A: data}, np.dtype("i8"), 4)
        assert case.check().tolist() == hot
        assert case.word == [-1, 0]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("broken", [[0, 0, 0], [1, 1, 0], [0.5, 0, 1], [0, 2, 0], [0, np.nan, 1], [-1, 0, 1]])
def test_a_row_that_is_not_one_hot_is_reported(broken: list[float], element: str) -> None:
    """The error word names the node and the first such row; an earlier report stays."""
    data = np.array([[0, 1, 0], broken, [1, 1, 1], [1, 0, 0]], KIND[element])
    row = rows.one_hot(element, 4, 3, (OUT, GUARD), (A, 0), (3, 1))
    case = Case(row, {A: data}, np.dtype("i8"), 4, node=17)
    result = case.check().tolist()
    assert case.word == [17, 1]
    assert (result[0], result[3]) == (1, 0)
    assert all(0 <= position < 3 for position in result)
    case.error[:] = (4, 2)
    case.check()
    assert case.word == [4, 2]


@pytest.mark.parametrize("element", ELEMENTS)
def test_nonzero(element: str) -> None:
    """A zero of either sign is reported, no other number is, not even NaN or the least subnormal."""
    size = elements.MEMORY[element].size
    for value, expected in ((0.0, [5, 0]), (-0.0, [5, 0]), (1.0, [-1, 0]), (np.nan, [-1, 0])):
        data = np.array([7.0, value], KIND[element])
        case = Case(rows.nonzero(element, (A, size)), {A: data}, np.dtype("u1"), 1)
        case.run(compute, 1, 0)
        for way in (compute, interpret):
            assert case.run(way, 1, 0)[1].tolist() == expected
            assert case.run(way, 3, 0)[1].tolist() == expected
    least = np.array([1], interpreted.raw_of(elements.MEMORY[element]))
    case = Case(rows.nonzero(element, (A, 0)), {A: least}, np.dtype("u1"), 1)
    assert case.run(compute, 1, 0)[1].tolist() == case.run(interpret, 1, 0)[1].tolist() == [-1, 0]


# ---- the executor


@pytest.mark.parametrize("threads", [1, 3])
def test_the_executor_walks_rows(threads: int, settings: None) -> None:
    """Interpreted, and entered natively, one row after the other: later rows read what earlier ones wrote."""
    data = numbers(60, "f32", 1)
    arena = np.zeros(200, np.float32)
    banks = np.array([0, arena.ctypes.data, data.ctypes.data], np.int64)
    pieces = [
        rows.copy(4, [6, 10], (1, 0), [10, 1], (2, 0), [1, 6]),
        plain_row("sum", "f32", 10, 1, (1, 240), (1, 0), [6], [10]),
        plain_row("max", "f32", 6, 1, (1, 264), (1, 240), [], []),
    ]
    code = np.concatenate([row_words(piece) for piece in pieces])
    start, end = code.ctypes.data, code.ctypes.data + code.nbytes
    runtime.set_num_threads(threads)
    runtime.set_grain(0)
    runtime.enter(start, end, banks.ctypes.data)
    native, arena[:] = arena.copy(), 0
    interpreted.runnable(loops.execute)(start, end, banks.ctypes.data, 0, threads, 0)
    assert arena.tobytes() == native.tobytes()
    assert native[66] == native[60:66].max()
    walked = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(store.address("execute"))
    arena[:] = 0
    walked(start, end, banks.ctypes.data, 0, 1, 0)
    assert arena.tobytes() == native.tobytes()


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_repeat(slots: int) -> None:
    """A run of rows is carried out once per index, with the places of the index and scratch memory of the slot."""
    table = numbers(6 * 12, "f32", 7)
    scratch = np.zeros(12 * slots, np.float32)
    source, room, target = 0, 1, 2
    run = [
        rows.copy(4, [4, 3], (room, 0), [3, 1], (source, 0), [1, 4]),
        rows.copy(4, [12], (target, 0), [1], (room, 0), [1]),
    ]
    banks = [((A, 0), 0, [48, 96]), ((B, 0), 48, [0, 0]), ((OUT, GUARD), 0, [144, 48])]
    row = rows.repeat([2, 3], slots, banks, run, 0)
    want = table.reshape(3, 2, 3, 4).transpose(1, 0, 3, 2).tobytes()
    for way, tasks in ((compute, 1), (compute, 3), (interpret, 2)):
        words, output = row_words(row), np.zeros(288 + GUARD, np.uint8)
        bases = np.array([0, output.ctypes.data, table.ctypes.data, scratch.ctypes.data], np.int64)
        for task in range(tasks):
            way("repeat", words, bases, task, tasks)
        assert output[GUARD:].tobytes() == want


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("interpreted_text", [False, True])
def test_a_turn_ends_where_a_value_is_zero(size: int, interpreted_text: bool) -> None:
    """Rows behind `rows.leave` are carried out for indices whose value has a bit, the sign of a zero included."""
    values = np.array([1, 0, -0.0, np.nan, 0, 5], f"f{size}")
    want = np.where(values.view(f"i{size}") == 0, 7, 9).astype(np.float64)
    marks, out = np.array([7.0, 9.0]), np.zeros(6)
    first, second = (rows.copy(8, [1], (2, 0), [1], (1, offset), [1]) for offset in (0, 8))
    run = [first, rows.leave((0, 0), size), second]
    banks = [((1, 0), 0, [size]), ((2, 0), 0, [0]), ((3, 0), 0, [8])]
    bases = np.array([0, values.ctypes.data, marks.ctypes.data, out.ctypes.data], np.int64)
    (interpret if interpreted_text else compute)("repeat", row_words(rows.repeat([6], 1, banks, run, 7)), bases, 0, 1)
    assert out.tolist() == want.tolist()


@pytest.mark.parametrize("interpreted_text", [False, True])
def test_errors_inside_a_repetition(interpreted_text: bool) -> None:
    """What a run of rows reports is reported of the repetition's node, in the error word of the program."""
    table = np.array([[0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]], np.float32)
    found, word = np.zeros(2, np.int64), np.array([-1, 0], np.int64)
    run = [rows.one_hot("f32", 2, 3, (1, 0), (2, 0), (3, 1))]
    banks = [((0, 0), 0, [0]), ((1, 0), 0, [0]), ((2, 0), 0, [24])]
    bases = np.array([word.ctypes.data, found.ctypes.data, table.ctypes.data], np.int64)
    (interpret if interpreted_text else compute)("repeat", row_words(rows.repeat([2], 1, banks, run, 7)), bases, 0, 1)
    assert word.tolist() == [7, 0]
    assert found[1] == 2


def test_many_walks_over_tables_of_banks() -> None:
    """`enter` walks a program several times, each with the next table of banks."""
    value = np.arange(4, dtype=np.float64)
    out = np.zeros(4)
    code = row_words(rows.fill(8, 1, (1, 0), (2, 0)))
    tables = np.array([[0, out[i:].ctypes.data, value[i:].ctypes.data] for i in range(4)], np.int64)
    runtime.enter(code.ctypes.data, code.ctypes.data + code.nbytes, tables.ctypes.data, 3, 24)
    assert out.tolist() == [0.0, 1.0, 2.0, 0.0]


def test_every_kernel_has_an_interpreted_text() -> None:
    """The names of the library that rows may hold are kernels that Python runs too."""
    names = [name for name in library.names() if library.is_numba(name)]
    assert len(names) == len(library.SHARED) + 4 * len(loops.TYPED)
    assert all(callable(kernel_text(name)) for name in names)


# ---- memory


def test_memory_reads_and_writes_words() -> None:
    """int64 words, and elements of 2, 4 and 8 bytes, at an address and an index."""
    words = np.array([5, -6, 7], np.int64)
    address = words.ctypes.data
    assert interpreted.load(address, 1) == -6
    interpreted.store(address, 2, -(2**63))
    assert words[2] == -(2**63)
    for size, move in ((2, interpreted.move2), (4, interpreted.move4), (8, interpreted.move8)):
        source = np.arange(1, 17, dtype=np.uint8)
        target = np.zeros(16, np.uint8)
        move(target.ctypes.data + 3, source.ctypes.data + 1)
        assert target.tolist() == [0] * 3 + list(range(2, 2 + size)) + [0] * (13 - size)


def test_memory_stacks_until_released() -> None:
    """Every call of `stack` gives memory of its own; `release` drops it."""
    first, second = interpreted.stack(), interpreted.stack()
    assert abs(first - second) >= memory.STACK
    interpreted.store(first, 0, 1)
    interpreted.store(second, 0, 2)
    assert interpreted.load(first, 0) == 1
    interpreted.release()
    assert interpreted._stacks == []


@pytest.mark.parametrize("element", ELEMENTS)
def test_memory_accesses_elements(element: str) -> None:
    """READ widens, WRITE rounds once, FMA computes at the compute precision."""
    data = np.array([1.5, -2.0, 0.25], KIND[element])
    read, write = interpreted.BODIES[memory.READ[element]], interpreted.BODIES[memory.WRITE[element]]
    assert read(data.ctypes.data, 1) == -2.0
    assert read(data.ctypes.data, 1).dtype == partial(element)
    write(data.ctypes.data, 2, 1 / 3)
    assert data[2] == np.array(1 / 3, partial(element)).astype(KIND[element])
    one = partial(element).type(1)
    tiny = partial(element).type(2.0 ** -(23 if element != "f64" else 52))
    assert interpreted.BODIES[memory.FMA[element]](one + tiny, one + tiny, -(one + 2 * tiny)) == float(tiny) ** 2
