"""Maps: names, special values, small arguments, saturation, and the bits of vector bodies and scalar tails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, same_bits, special
from tests.ops.oracle import Eager, check, floats, gradients
from topos import Element, MapOperation, Tensor
from topos.ops import Map, Powf
from topos.ops.maps import DERIVATIVES

INF, NAN = math.inf, math.nan
OPERATIONS = pytest.mark.parametrize("operation", MapOperation, ids=lambda o: o.value)


def test_every_operation_has_a_rule() -> None:
    """The table of derivatives is complete; titles are the printed names."""
    assert set(DERIVATIVES) == set(MapOperation)
    assert [operation.title for operation in MapOperation] == [
        "Exp", "Ln", "Sqrt", "Tanh", "Sin", "Cos", "Log1p", "Expm1", "Erf", "ErfDerivative",
    ]  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@OPERATIONS
def test_tails_have_the_bits_of_bodies(operation: MapOperation, element: Element) -> None:
    """A number has one result at every position of an array of any length, strided or not."""
    values = special([97], element, 3)
    whole = bits(check(Map(operation), values))
    for start, length in ((0, 1), (5, 7), (64, 33), (96, 1), (3, 16)):
        part = Map(operation).express([values.narrow(0, start, length)])
        assert np.array_equal(bits(part), whole[start : start + length])
    turned = values.narrow(0, 0, 96).reshape([8, 12]).permute([1, 0])
    assert np.array_equal(bits(Map(operation).express([turned])).T.ravel(), whole[:96])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@OPERATIONS
def test_special_values(operation: MapOperation, element: Element) -> None:
    """Zeros with their signs, infinities, NaN and the edges of the domain are exact."""
    table = {
        "exp": ([0.0, -0.0, INF, -INF], [1, 1, INF, 0.0]),
        "ln": ([1.0, 0.0, -0.0, INF, -1.0, -INF], [0.0, -INF, -INF, INF, NAN, NAN]),
        "sqrt": ([0.0, -0.0, INF, -1.0, 4.0], [0.0, -0.0, INF, NAN, 2.0]),
        "tanh": ([0.0, -0.0, INF, -INF, 1000.0, -1000.0], [0.0, -0.0, 1, -1, 1, -1]),
        "sin": ([0.0, -0.0, INF, -INF], [0.0, -0.0, NAN, NAN]),
        "cos": ([0.0, -0.0, INF, -INF], [1, 1, NAN, NAN]),
        "log1p": ([0.0, -0.0, -1.0, INF, -2.0], [0.0, -0.0, -INF, INF, NAN]),
        "expm1": ([0.0, -0.0, INF, -INF], [0.0, -0.0, INF, -1]),
        "erf": ([0.0, -0.0, INF, -INF, 30.0], [0.0, -0.0, 1, -1, 1]),
        "erf_derivative": ([INF, -INF, 30.0], [0.0, 0.0, 0.0]),
    }[operation.value]
    given, wanted = ([*column, NAN] for column in table)
    result = Map(operation).express([Tensor(given, element=element)])
    assert np.array_equal(bits(result), bits(Tensor(wanted, element=element)))


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("count", [1, 5, 16, 67])
def test_small_arguments_keep_their_digits(element: str, count: int) -> None:
    """`log1p(1e-20)` and `expm1(1e-20)` are 1e-20, in bodies and tails (case 10)."""
    tiny = Tensor.filled([count], 1e-20, element=element) * Tensor(np.ones(count), element=element)
    for sign in (tiny, -tiny):
        for result in (sign.log1p(), sign.expm1(), sign.sin(), sign.tanh()):
            assert same_bits(result, sign)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_odd_and_even(element: Element) -> None:
    """Odd functions are exactly odd, even ones exactly even."""
    x = special([300], element, 8)
    for odd in (x.tanh(), x.sin(), x.erf()):
        assert odd.shape == (300,)
    for speak in (Tensor.tanh, Tensor.sin, Tensor.erf):
        assert same_bits(speak(-x), -speak(x))
    for speak in (Tensor.cos, Tensor.erf_derivative):
        assert same_bits(speak(-x), speak(x))


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("point", [1000.0, 125.0, -125.0, -1000.0])
def test_saturated_slopes(element: str, point: float) -> None:
    """Tanh and erf are flat and finite far out; softplus and sigmoid from maps alone, too (case 5)."""
    x = Eager(Tensor([point], element=element))
    for value in (x.tanh(), x.erf()):
        assert floats(value.tensor).tolist() == [math.copysign(1, point)]
        assert floats(gradients(value, [x])[0].tensor).tolist() == [0.0]
    zero = x.zero_like()
    softplus = zero.maximum(x) + (-(zero.maximum(x) + zero.maximum(-x))).exp().log1p()
    slope = gradients(softplus, [x])[0]
    tail = math.exp(-abs(point)) if element == "f64" else 0.0
    assert floats(softplus.tensor).tolist() == [pytest.approx(max(point, 0) + tail, rel=1e-14, abs=0)]
    assert floats(slope.tensor).tolist() == [pytest.approx((point > 0) + math.copysign(tail, -point), rel=1e-14, abs=0)]


def test_powf_special_values() -> None:
    """A power keeps the C standard's answers at zeros, ones, infinities and NaN."""
    bases = [0.0, -0.0, 0.0, -0.0, -0.0, 1.0, NAN, -2.0, -2.0, -2.0, INF, 2.0, -1.0, 0.5, 4.0]
    powers = [2.0, 3.0, -1.0, -3.0, 2.0, NAN, 0.0, 2.0, 3.0, 0.5, -1.0, INF, INF, INF, 0.5]
    wanted = [0.0, -0.0, INF, -INF, 0.0, 1.0, 1.0, 4.0, -8.0, NAN, 0.0, INF, 1.0, 0.0, 2.0]
    for element in ELEMENTS:
        result = Powf().express([Tensor(bases, element=element), Tensor(powers, element=element)])
        assert np.array_equal(bits(result), bits(Tensor(wanted, element=element))), element
