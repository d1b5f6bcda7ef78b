"""Arithmetic: signs of zero, NaN, ties, and the two factors of derivative rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, same_bits, special
from tests.ops.oracle import Eager, floats, gradients
from tests.ops.refusals import c, m, refuses, v
from topos import Element, Tensor

INF, NAN = math.inf, math.nan


def unary(build: Callable[[Eager], Eager], point: Any, order: int, element: Any = "f64") -> list[float]:
    """Return the derivatives 0 to `order` of an elementwise function at a point."""
    x = Eager(Tensor([point], element=element))
    value = build(x)
    found = [float(value.tensor.to_list()[0])]
    for _ in range(order):
        (value,) = gradients(value, [x])
        found.append(float(value.tensor.to_list()[0]))
    return found


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_signs_of_zero(element: Element) -> None:
    """IEEE zeros keep their signs; Scale and Ratio answer +0."""
    negative = Tensor([-0.0], element=element)
    positive = Tensor([0.0], element=element)
    minus, plus = int(bits(negative)[0]), 0
    one = Tensor([-1.0], element=element)
    for result, wanted in [
        (negative + negative, minus), (negative + positive, plus), (negative - positive, minus),
        (-positive, minus), (-negative, plus), (positive * one, minus), (negative / one, plus),
        (positive.scale(one), plus), (negative.scale(one), plus), (one.scale(negative), plus),
        (negative.ratio(one), plus), (positive.ratio(one), plus),
        (negative.maximum(positive), minus), (positive.maximum(negative), plus),
        (negative.step(positive), int(bits(one.one_like())[0])),
        (negative.select(one, positive), plus),
    ]:  # fmt: skip
        assert int(bits(result)[0]) == wanted


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_nan_has_one_answer(element: Element) -> None:
    """`maximum` propagates NaN, `step` answers 0, a NaN mask selects the first branch (case 8)."""
    nan, one = Tensor([NAN] * 37, element=element), Tensor([1.0] * 37, element=element)
    zero = one.zero_like()
    assert np.isnan(nan.maximum(one).numpy().astype(float)).all()
    assert np.isnan(one.maximum(nan).numpy().astype(float)).all()
    for left, right in ((nan, one), (one, nan), (nan, nan)):
        assert same_bits(left.step(right), zero)
    assert same_bits(nan.select(one, zero), one)
    assert np.isnan(nan.scale(one).numpy().astype(float)).all()
    assert same_bits(nan.scale(zero), zero)
    assert same_bits(zero.ratio(nan), zero)
    assert same_bits(zero.ratio(zero), zero)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_maximum_takes_bits_of_an_operand(element: Element) -> None:
    """A tie goes left; against -inf everything but NaN wins."""
    a, b = special([400], element, 1), special([400], element, 2)
    x, y = a.numpy().astype(float), b.numpy().astype(float)
    chosen = np.where((x >= y) | np.isnan(x), bits(a), bits(b))
    assert np.array_equal(bits(a.maximum(b)), chosen)
    assert same_bits(a.maximum(a), a)
    assert same_bits(a.maximum(a.constant_like(None)), a)


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_maximum_has_one_winner(element: Any) -> None:
    """At a tie the left operand takes the whole cotangent; the cotangents of `maximum(a, a)` add up (case 4)."""
    a = Eager(Tensor([1, 2, 3], element=element))
    b = Eager(Tensor([1, 3, 2], element=element))
    left, right = gradients(a.maximum(b), [a, b])
    assert left.tensor.to_list() == [1, 0, 1]
    assert right.tensor.to_list() == [0, 1, 0]
    assert gradients(a.maximum(a), [a])[0].tensor.to_list() == [1, 1, 1]


def test_maximum_routes_nan_to_its_operand() -> None:
    """The cotangent follows the bits that were taken, NaN included."""
    a, b = Eager(Tensor([NAN, 1.0, NAN])), Eager(Tensor([1.0, NAN, NAN]))
    left, right = gradients(a.maximum(b), [a, b])
    assert (left.tensor.to_list(), right.tensor.to_list()) == ([1, 0, 1], [0, 1, 0])


def test_seventy_thousand_ties() -> None:
    """The maximum of 70,000 equal f16 entries, by halves, has one winner: the first, with gradient 1 (case 4)."""
    x = Eager(Tensor.filled([70_000], 1.5, element="f16"))
    best, odd = x, None
    while best.shape[0] > 1:
        half = best.shape[0] // 2
        if best.shape[0] % 2:
            last = best.narrow(0, 2 * half, 1)
            odd = last if odd is None else last.maximum(odd)
        best = best.narrow(0, 0, half).maximum(best.narrow(0, half, half))
    assert odd is not None
    best = best.maximum(odd)
    (slope,) = gradients(best, [x])
    assert best.tensor.to_list() == [1.5]
    found = slope.tensor.numpy()
    assert (int(np.count_nonzero(found)), float(found[0])) == (1, 1.0)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_neg_flips_the_sign_bit_alone(element: Element) -> None:
    """Also of infinities and zeros; of every number, twice is the identity."""
    a = special([300], element, 4)
    sign = np.uint64(1) << np.uint64(8 * element.raw.itemsize - 1)
    is_number = ~np.isnan(a.numpy().astype(float))
    assert np.array_equal((bits(-a) ^ bits(a))[is_number], np.full(is_number.sum(), sign, bits(a).dtype))
    negated = -a
    assert same_bits(-negated, a)


# ---- branches not taken, and powers (cases 1 and 3)

SINGULAR: dict[str, tuple[Callable[[Eager], Eager], float]] = {
    "sqrt": (lambda x: x.sqrt(), 0.0),
    "ln": (lambda x: x.ln(), 0.0),
    "reciprocal": (lambda x: 1.0 / x, 0.0),
    "exp": (lambda x: x.exp(), 1000.0),
    "expm1": (lambda x: x.expm1(), 1000.0),
    "log1p": (lambda x: x.log1p(), -1.0),
    "power": (lambda x: x.powf(0.5), 0.0),
    "negative power": (lambda x: x.powf(-2.0), 0.0),
    "exponent": (lambda x: x.zero_like().powf(x), -1.0),
    "square of a root": (lambda x: (x * x).sqrt(), 0.0),
    "quotient": (lambda x: x / (x * x), 0.0),
}


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("element", ["f32", "f64"])
def test_a_branch_not_taken_is_silent(name: str, element: str) -> None:
    """A singular or overflowing branch contributes 0 to the gradient, to third order (case 1)."""
    singular, point = SINGULAR[name]
    for build in (
        lambda x: x.one_like().select(x * x * x, singular(x)),
        lambda x: x.zero_like().select(singular(x), x * x * x),
    ):
        found = unary(build, point, 3, element)
        assert found[1:] == [3 * point**2, 6 * point, 6.0]


def test_the_square_root_of_a_square_at_zero() -> None:
    """`sqrt(sum(x*x))` and its square have gradient 0 at 0 (case 2)."""
    x = Eager(Tensor([0.0, 0.0]))
    norm = (x * x).sum().sqrt()
    for value in (norm, norm * norm):
        assert gradients(value, [x])[0].tensor.to_list() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("exponent", "slope"), [(3.0, 0.0), (2.0, 0.0), (1.5, 0.0), (1.0, 1.0), (0.5, INF), (0.0, 0.0), (-1.0, -INF)]
)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_slope_of_a_power_at_zero(exponent: float, slope: float, element: Element) -> None:
    """d/dx x**p at 0 is what calculus says (case 3)."""
    assert unary(lambda x: x.powf(exponent), 0.0, 1, element)[1] == slope


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, 4.0])
def test_higher_slopes_of_a_power_at_zero(power: float) -> None:
    """Repeated differentiation of x**p agrees with the polynomial, at 0 and beside it."""
    for point in (0.0, 2.0, -3.0):
        wanted, factor = [], 1.0
        for k in range(5):
            wanted.append(factor * point ** (power - k) if factor else 0.0)
            factor *= power - k
        assert unary(lambda x: x.powf(power), point, 4) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_slope_of_a_power_in_its_exponent(element: Element) -> None:
    """d/dp 0**p is 0 for p >= 0; elsewhere it is the logarithm's; a negative base gives NaN."""
    base = Eager(Tensor([0.0, 0.0, 1.0, 2.0, -0.0, -1.0], element=element))
    exponent = Eager(Tensor([2.0, 0.0, 5.0, 1.0, 1.0, 2.0], element=element))
    slope = floats(gradients(base.powf(exponent), [exponent])[0].tensor)
    assert slope[:5] == pytest.approx([0, 0, 0, 2 * math.log(2), 0], rel=2**-7)
    assert np.isnan(slope[5])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_value_that_feeds_itself_twice(element: Element) -> None:
    """Both contributions arrive (case 13), of every binary kind."""
    x = Eager(Tensor([3.0], element=element))
    for value, slope in [(x + x, 2), (x - x, 0), (x * x, 6), (x / x, 0), (x.maximum(x), 1), (x.step(x), 0)]:
        assert floats(gradients(value, [x])[0].tensor).tolist() == [slope]
    square = Eager(Tensor([[2.0]], element=element))
    assert floats(gradients(square.matmul(square), [square])[0].tensor).tolist() == [[4.0]]


# ---- mistakes

ROWS = [
    (
        lambda: m + v,
        (
            "Add([2, 3], [3]): operands of one shape are needed, operand 0 has [2, 3] and operand 1 has [3]; "
            "nothing broadcasts by itself: write b.broadcast_to([2, 3])"
        ),
    ),
    (
        lambda: v * m,
        (
            "Mul([3], [2, 3]): operands of one shape are needed, operand 0 has [3] and operand 1 has [2, 3]; "
            "nothing broadcasts by itself: write a.broadcast_to([2, 3])"
        ),
    ),
    (
        lambda: m.narrow(0, 0, 1) - m.narrow(1, 0, 1),
        (
            "Sub([1, 3], [2, 1]): operands of one shape are needed, operand 0 has [1, 3] and operand 1 has [2, 1]; "
            "nothing broadcasts by itself: write a.broadcast_to([2, 3]) and b.broadcast_to([2, 3])"
        ),
    ),
    (
        lambda: m.maximum(m.permute([1, 0])),
        (
            "Maximum([2, 3], [3, 2]): operands of one shape are needed, operand 0 has [2, 3] and operand 1 has "
            "[3, 2]; nothing broadcasts by itself: and these two could not; reshape, permute or "
            "broadcast_along(axis, extent) one of them"
        ),
    ),
    (
        lambda: m.select(m, c.sum_along(2).narrow(0, 0, 1)),
        (
            "Select([2, 3], [2, 3], [1, 3]): operands of one shape are needed, operand 0 has [2, 3] and operand 2 "
            "has [1, 3]; nothing broadcasts by itself: write b.broadcast_to([2, 3])"
        ),
    ),
    (
        lambda: m.__add__([1.0, 2.0]),
        (
            "Add([2, 3], [2]): operands of one shape are needed, operand 0 has [2, 3] and operand 1 has [2]; "
            "nothing broadcasts by itself: and these two could not; reshape, permute or "
            "broadcast_along(axis, extent) one of them"
        ),
    ),
]


@pytest.mark.parametrize(("speak", "message"), ROWS)
def test_mistakes(speak: Any, message: str) -> None:
    """Shapes that differ are refused with both, the rule, and what to write instead."""
    refuses(speak, message)
