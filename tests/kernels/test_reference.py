"""The reference loops over Fractions and plain lists, against independent statements of the contract."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.ops import oracle
from topos.kernels import reference

EXACT = reference.Arithmetic(
    read=lambda base, index: base[index],
    write=lambda base, index, value: base.__setitem__(index, value),
    read_partial=lambda base, index: base[index],
    write_partial=lambda base, index, value: base.__setitem__(index, value),
    fma=lambda a, b, c: a * b + c,
    maximum=reference.maximum,
)
"""Lists of any numbers."""


class Term:
    """A number that remembers how it was computed: equal terms were computed in one order."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Term) -> Term:
        return Term(f"({self.text}+{other.text})")

    def __mul__(self, other: Term) -> Term:
        return Term(f"{self.text}{other.text}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


SYMBOLIC = reference.Arithmetic(
    EXACT.read, EXACT.write, EXACT.read_partial, EXACT.write_partial,
    fma=lambda a, b, c: Term(f"fma({a},{b},{c})"), maximum=reference.maximum,
)  # fmt: skip


@pytest.fixture(params=[1, 2, 5, 7, 100])
def k_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Cut products into short blocks, and tiles of three columns."""
    monkeypatch.setattr(reference, "K_BLOCK", request.param)
    monkeypatch.setattr(reference, "TILE", 3)
    return int(request.param)


def chain(pairs: list[tuple[Any, Any]]) -> Any:
    """A product's chain, as a sentence: the first product, then an fma per further pair."""
    (a, b), *rest = pairs
    value = a * b
    for a, b in rest:
        value = Term(f"fma({a},{b},{value})")
    return value


@pytest.mark.parametrize("k", [1, 2, 5, 6, 11, 13])
def test_a_product_is_balanced_blocks_of_chains(k: int, k_block: int) -> None:
    """ceil(K / K_BLOCK) blocks of one size but the last, each a chain of its own, added in ascending order."""
    n = 7
    a = [Term(f"a{p}") for p in range(k)]
    b = [[Term(f"b{p}.{j}") for j in range(n)] for p in range(k)]
    blocks = math.ceil(k / k_block)
    size = math.ceil(k / blocks)
    cuts = [range(s, min(s + size, k)) for s in range(0, k, size)]
    out: list[Any] = [None] * n
    flat = [value for line in b for value in line]
    multiply = reference.multiply(SYMBOLIC)
    multiply(out, 0, a, 0, 1, flat, 0, n, 1, k, n, [None] * (2 * reference.TILE))
    for j in range(n):
        results = [chain([(a[p], b[p][j]) for p in cut]) for cut in cuts]
        expected = results[0]
        for result in results[1:]:
            expected = expected + result
        assert out[j] == expected


def test_a_product_reads_strided_operands(k_block: int) -> None:
    """Offsets and strides place the operands; over rationals the product is exact."""
    draw = random.Random(1)
    k, n = 9, 4
    a = [Fraction(draw.randint(-9, 9), draw.randint(1, 9)) for _ in range(3 + 2 * k)]
    b = [Fraction(draw.randint(-9, 9), draw.randint(1, 9)) for _ in range(5 + 3 * n * k)]
    out = [None] * (n + 2)
    multiply = reference.multiply(EXACT)
    multiply(out, 2, a, 3, 2, b, 5, 1, 3 * k, k, n, [None] * (2 * reference.TILE))
    assert out[:2] == [None, None]
    assert out[2:] == [sum(a[3 + 2 * p] * b[5 + p + 3 * k * j] for p in range(k)) for j in range(n)]


def test_a_product_starts_from_the_first_product() -> None:
    """The seed is -0.0: a sum of negative zeros stays -0, and adding +0 gives +0."""
    out = [None]
    reference.multiply(EXACT)(out, 0, [-0.0, 0.0], 0, 1, [1.0, -1.0], 0, 1, 1, 2, 1, [None] * 200)
    assert math.copysign(1, out[0]) == -1
    reference.multiply(EXACT)(out, 0, [-0.0, 0.0], 0, 1, [1.0, 1.0], 0, 1, 1, 2, 1, [None] * 200)
    assert math.copysign(1, out[0]) == 1


@pytest.mark.parametrize(("block", "lanes"), [(4096, 32), (8, 4), (4, 4), (3, 2), (2, 2)])
def test_a_sum_is_lanes_then_halves_then_blocks_of_blocks(
    block: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over symbols, the order of additions is that of the rule, at every extent across several levels."""
    monkeypatch.setattr(reference, "R_BLOCK", block)
    monkeypatch.setattr(reference, "LANES", lanes)
    total = reference.total(SYMBOLIC)
    extents = [1, 2, 3, 31, 32, 33, 48, 64, 65, 100] if block > 100 else range(1, min(block**5, 70))
    for n in extents:
        values = [Term(f"v{i}") for i in range(n)]
        scratch = [None] * (lanes * (reference.LEVELS + 2))
        assert total(values, 0, 1, n, scratch) == oracle.total(values, block, lanes), n


@pytest.mark.parametrize("n", [4095, 4096, 4097, 8192, 8192 + 33, 3 * 4096 + 1])
def test_a_sum_of_floats_beyond_a_block(n: int) -> None:
    """At the pinned constants, floats around the borders of blocks are added in the order of the rule."""
    values = np.random.default_rng(n).normal(size=n).tolist()
    total = reference.total(EXACT)
    assert total(values, 0, 1, n, [None] * 400) == oracle.total(values, 4096, 32)


def test_a_sum_is_strided_and_exact_over_rationals() -> None:
    """A start and a stride place the values; nothing is lost or added twice."""
    draw = random.Random(2)
    values = [Fraction(draw.randint(-9, 9), draw.randint(1, 9)) for _ in range(400)]
    assert reference.total(EXACT)(values, 7, 3, 111, [None] * 400) == sum(values[7 : 7 + 333 : 3])


def test_a_sum_of_one_value_keeps_its_sign() -> None:
    """Lanes start from their first value: -0 stays -0, unused lanes are skipped."""
    total = reference.total(EXACT)
    for n in (1, 2, 5, 33, 70):
        assert math.copysign(1, total([-0.0] * n, 0, 1, n, [None] * 400)) == -1


def test_greatest_prefers_the_earliest_and_keeps_nan() -> None:
    """A fold of the left-biased maximum: ties stay with the earliest, a NaN wins, whatever follows."""
    greatest = reference.greatest(EXACT)
    assert greatest([9.0, 3.0, 9.0, 7.0, 9.0, 5.0], 1, 2, 3) == 7.0
    assert math.copysign(1, greatest([-0.0, 0.0], 0, 1, 2)) == -1
    assert math.copysign(1, greatest([0.0, -0.0], 0, 1, 2)) == 1
    for values in itertools.permutations([1.0, math.nan, math.inf]):
        assert math.isnan(greatest(list(values), 0, 1, 3))
    assert reference.maximum(math.nan, 1.0) != reference.maximum(math.nan, 1.0)
    assert reference.maximum(2, 1) == 2
    assert reference.maximum(1, 2) == 2


@pytest.mark.parametrize(
    ("count", "size", "step", "dilation"),
    [(1, 1, 1, 1), (3, 2, 1, 1), (4, 3, 1, 2), (3, 3, 2, 1), (2, 2, 3, 1), (4, 3, 2, 3), (5, 4, 3, 2)],
)
def test_a_fold_adds_windows_in_ascending_order(count: int, size: int, step: int, dilation: int) -> None:
    """A position is 0 plus each window's contribution to it, in the order of the windows."""
    extent = (count - 1) * step + (size - 1) * dilation + 2
    fold = reference.fold_at(SYMBOLIC)
    values = [Term(f"w{w}.{i}") for w in range(count) for i in range(size)]
    expected = [Term("0")] * extent
    for window in range(count):
        for inner in range(size):
            at = window * step + inner * dilation
            expected[at] = expected[at] + values[window * size + inner]
    for position in range(extent):
        folded = fold(values, 0, size, 1, position, count, size, step, dilation, Term("0"))
        assert folded == expected[position]


def test_a_scatter_adds_rows_in_ascending_order() -> None:
    """Each target row is 0 plus its source rows, in their order; rows that nothing reaches are 0."""
    scatter = reference.scatter_rows(SYMBOLIC)
    length, indices, targets = 3, [2, 0, 2, 2, 0], 4
    rows = [Term(f"r{r}.{c}") for r in range(len(indices)) for c in range(length)]
    expected = [[Term("0")] * length for _ in range(targets)]
    for row, target in enumerate(indices):
        expected[target] = [expected[target][c] + rows[row * length + c] for c in range(length)]
    out: list[Any] = [None] * (targets * length)
    for target in range(targets):
        scatter(out, target, rows, indices, list.__getitem__, len(indices), length, 0, length, Term("0"))
    assert out == [term for line in expected for term in line]
