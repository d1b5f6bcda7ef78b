"""Sums by lanes and blocks, and the two log-domain reductions on hostile rows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, drawn, same_bits, special
from tests.ops.oracle import Eager, Wrapped, check, expected, floats, gradients, total
from tests.ops.refusals import c, m, refuses, s
from topos import Element, Tensor
from topos.kernels import reference
from topos.ops import LogSoftmax, LogSumExp, Sum, SumAlong

INF = np.inf


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 100, 4095, 4096, 4097, 8192, 9001])
def test_the_order_of_a_sum(element: Element, n: int) -> None:
    """32 lanes, then halves; blocks of 4096 beyond: along an axis or of all, whatever the layout."""
    line = drawn([n], element, n)
    whole = check(Sum(), line)
    assert same_bits(check(SumAlong(0), line), whole)
    assert same_bits(line.reshape([n, 1]).broadcast_along(1, 2).sum_along(0).narrow(0, 1, 1).reshape([]), whole)
    doubled = Tensor(np.repeat(line.numpy(), 2)).reshape([n, 2]).narrow(1, 0, 1)
    assert same_bits(doubled.sum(), whole)
    assert same_bits(doubled.sum_along(0).reshape([]), whole)


def test_a_sum_of_many_blocks() -> None:
    """More than one level of blocks: 17 million equal numbers, none of them stored."""
    n = 4096 * 4096 + 5000
    value = np.float32(0.1)
    block, rest = total([value] * 4096), total([value] * (5000 - 4096))
    level = [total([block] * 4096), total([block, rest])]
    assert Tensor.filled([n], value).sum().scalar() == level[0] + level[1]
    whole = Tensor.filled([4098, 4096], value)  # nothing but whole blocks: their sums are rows that threads share
    assert whole.sum().scalar() == level[0] + total([block] * 2)


@pytest.mark.parametrize("block", [4, 7, 40])
def test_blocks_of_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """The loop that states the rule is the recursion, with small blocks to five levels."""
    monkeypatch.setattr(reference, "R_BLOCK", block)
    counts = [1, block, block + 1, block**2, block**2 + 1, block**2 + 5 * block + 3, 2 * block**2 + 1]
    if block < 10:
        counts += [block**3 - 1, block**3 + 1, block**4 + block + 2]
    for n in counts:
        values = np.random.default_rng(n).normal(size=n)
        found = Tensor(values, element=Wrapped).sum().scalar()
        assert float(found) == total(list(values), block), n
    exact = [Fraction(i, 7) for i in range(block**2 + 3)]
    assert Tensor(exact).sum().scalar() == sum(exact)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("n", [1, 5, 32, 33, 4100])
def test_negative_zeros_stay(element: Element, n: int) -> None:
    """A sum of -0.0 alone is -0.0: unused lanes are skipped, not filled with +0."""
    minus = int(bits(Tensor(-0.0, element=element)))
    zeros = Tensor(np.full([n, 2], -0.0), element=element)
    assert int(bits(zeros.sum())) == minus
    assert bits(zeros.sum_along(0)).tolist() == [minus, minus]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_sixteen_bits_round_the_total_once(element: Element) -> None:
    """Partial sums stay in f32: ten thousand ones are ten thousand, if the element holds that."""
    count = 10_000
    assert float(Tensor.filled([count], 1, element=element).sum().scalar()) == float(element(count))
    big = Tensor([60000.0, 60000.0, -60000.0], element=element)
    assert float(big.sum().scalar()) == float(element(60000.0))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(element: Element, axis: int) -> None:
    """Each axis of a permuted operand, for sums and in the log domain."""
    a = special([4, 3, 5], element, axis).permute([2, 0, 1])
    for opcode in (SumAlong(axis), LogSumExp(axis), LogSoftmax(axis)):
        check(opcode, a)


# ---- the log domain (case 6)

ROWS = {
    "-inf alone": [-INF, -INF, -INF],
    "one -inf": [1.0, -INF, 2.0],
    "one finite": [-INF, 0.5, -INF],
    "large": [5000.0, -5000.0, 4999.0],
    "all large": [5000.0, 5000.0, 5000.0],
    "all small": [-5000.0, -5000.0, -5001.0],
    "ordinary": [0.1, -0.7, 2.3],
    "NaN": [np.nan, 0.0, -INF],
    "inf": [INF, 0.0, 1.0],
}


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_rows_keep_the_bits_that_they_have_alone(element: Element) -> None:
    """A row of -inf, NaN or huge numbers changes no bit of the others, forward or backward."""
    rows = dict(ROWS)
    if element.name == "f64":
        rows["extreme"] = [1e308, -1e308, 1e307]
    matrix = Tensor(list(rows.values()), element=element)
    for opcode in (LogSumExp(1), LogSoftmax(1)):
        result = check(opcode, matrix)
        seed = drawn(result.shape, element, 1)
        (cotangent,) = opcode.vjp([matrix], result, seed)
        for i, name in enumerate(rows):
            alone = matrix.narrow(0, i, 1)
            single = opcode.express([alone])
            assert same_bits(result.narrow(0, i, 1), single), name
            (own,) = opcode.vjp([alone], single, seed.narrow(0, i, 1))
            assert same_bits(cotangent.narrow(0, i, 1), own), name


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_hostile_rows(element: Element) -> None:
    """-inf alone gives -inf with gradient 0; huge logits stay finite; NaN stays NaN."""

    def of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        x = Eager(Tensor(ROWS[name], element=element))
        total_, share = x.logsumexp(0), x.log_softmax(0)
        both = [floats(gradients(value, [x])[0].tensor) for value in (total_, share.narrow(0, 0, 1))]
        return floats(total_.tensor), floats(share.tensor), *both

    value, share, slope, share_slope = of("-inf alone")
    assert (value, share.tolist(), slope.tolist(), share_slope.tolist()) == (-INF, [-INF] * 3, [0] * 3, [0] * 3)
    value, share, slope, _ = of("one finite")
    assert (value, share.tolist(), slope.tolist()) == (0.5, [-INF, 0, -INF], [0, 1, 0])
    value, share, slope, _ = of("large")
    assert np.isfinite(value)
    assert np.isfinite(slope).all()
    assert slope[1] == 0
    if element.name in ("f32", "f64"):  # exp(x - out) of 16 bits knows the sum no better than its rounding
        assert slope.sum() == pytest.approx(1, abs=2**-6)
    value, share, slope, _ = of("all large")
    assert share == pytest.approx(np.full(3, -np.log(3)), rel=2**-7)
    for result in of("NaN")[:3]:
        assert np.isnan(result).any()
    assert of("inf")[0] == INF


def test_extreme_rows_of_f64() -> None:
    """Differences that overflow do no harm."""
    x = Eager(Tensor([1e308, -1e308], element="f64"))
    assert floats(x.logsumexp(0).tensor) == 1e308
    assert floats(gradients(x.logsumexp(0), [x])[0].tensor).tolist() == [1, 0]
    assert floats(x.log_softmax(0).tensor).tolist() == [0, -INF]


def test_a_number_type_has_the_same_hostile_rows() -> None:
    """The object path answers as the native one, for infinite maxima of both signs."""
    for row in ROWS.values():
        native = Tensor(row, element="f64")
        wrapped = Tensor(row, element=Wrapped)
        for opcode in (LogSumExp(0), LogSoftmax(0)):
            found = floats(opcode.express([wrapped]))
            assert np.array_equal(bits(found), bits(expected(opcode, [native])))


@pytest.mark.parametrize(
    ("speak", "message"),
    [
        (lambda: m.sum_along(2), "SumAlong([2, 3], axis=2): axis 2 is outside the rank; axes run from 0 to 1"),
        (lambda: m.sum_along(-3), "SumAlong([2, 3], axis=-3): axis -3 is outside the rank; axes run from 0 to 1"),
        (lambda: s.sum_along(0), "SumAlong([], axis=0): axis 0 is outside the rank; rank 0 has no axes"),
        (lambda: c.logsumexp(3), "LogSumExp([2, 3, 4], axis=3): axis 3 is outside the rank; axes run from 0 to 2"),
        (lambda: m.log_softmax(2), "LogSoftmax([2, 3], axis=2): axis 2 is outside the rank; axes run from 0 to 1"),
        (lambda: m.max_along(-3), "MaxAlong([2, 3], axis=-3): axis -3 is outside the rank; axes run from 0 to 1"),
    ],
)
def test_mistakes(speak: Any, message: str) -> None:
    """An axis outside the rank is refused, counted from either end."""
    refuses(speak, message)
