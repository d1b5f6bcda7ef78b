"""The float64 maps: within 1.5 ulp (powf 2), exact where a value is exact, and the same bits however run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.kernels.interpreted import NumpyTable
from tests.kernels.maps.harness import compiled
from topos.kernels.maps import double

INF, NAN = math.inf, math.nan
TINY = 5e-324
HUGE = 1.7976931348623157e308

EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "ln": mpmath.log,
    "tanh": mpmath.tanh,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "log1p": mpmath.log1p,
    "expm1": mpmath.expm1,
}
MAPS = sorted(EXACT)

THRESHOLDS = {
    "exp": [709.782712893384, -708.3964185322641, -745.1332191019411, 708.0, 0.34657359, 1.0397208],
    "expm1": [709.782712893384, 700.0, -60.0, -37.4, 0.34657359, -0.34657359, 1.0397208],
    "tanh": [19.0625, 20.0, 0.17328679, 0.5, 0.34657359],
    "ln": [2.2250738585072014e-308, 0.7071067811865476, 1.0, 1.4142135623730951, HUGE],
    "log1p": [-0.2928932188134524, 0.41421356237309503, 2.0**-54, 2.0**53, 2.0**54, HUGE],
    "sin": [math.pi / 4, math.pi / 2, math.pi, 2.0**30, 6381956970095103 * 2.0**797],
    "cos": [math.pi / 4, math.pi / 2, math.pi, 2.0**30, 6381956970095103 * 2.0**797],
}


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of `values`, every NaN as one."""
    return np.where(np.isnan(values), NAN, values).view(np.uint64)


def run(name: str, *arrays: object) -> np.ndarray:
    """Return the compiled map `name` over the arrays."""
    operands = [np.atleast_1d(np.asarray(a, np.float64)) for a in arrays]
    return compiled(getattr(double, name), len(operands), 64)(*operands)


def sample(name: str, count: int, seed: int = 3) -> np.ndarray:
    """Return numbers of all magnitudes, moderate ones, and the neighbourhoods of the map's thresholds."""
    rng = np.random.default_rng(seed)
    wide = 10.0 ** rng.uniform(-320, 308, count)
    with np.errstate(over="ignore"):
        edges = [np.nextafter(t, s * INF) for t in THRESHOLDS[name] for s in (-1, 1)]
    moderate = [rng.normal(size=count), rng.uniform(-1, 1, count), rng.uniform(-745, 710, count)]
    near_zeros = np.arange(1, count) * math.pi / 2
    x = np.concatenate([wide, -wide, *moderate, near_zeros, edges, THRESHOLDS[name]])
    if name == "ln":
        return np.abs(x)
    return x[x > -1] if name == "log1p" else x


def error(result: float, exact: Any) -> float:
    """Return the distance to the exact value in units in the last place of it."""
    if abs(exact) > mpmath.mpf(HUGE) * (1 + mpmath.mpf(2) ** -54):
        return 0.0 if math.isinf(result) and (result > 0) == (exact > 0) else INF
    step = mpmath.mpf(2) ** max(mpmath.floor(mpmath.log(abs(exact), 2)) - 52, -1074)
    return float(abs(mpmath.mpf(result) - exact) / step) if math.isfinite(result) else INF


@pytest.mark.parametrize("name", MAPS)
def test_a_map_errs_by_at_most_one_and_a_half_ulp(name: str) -> None:
    """Over all magnitudes, moderate numbers, next to zeros and thresholds, against mpmath."""
    x = sample(name, 250)
    with mpmath.workprec(1300 if name in ("sin", "cos") else 160):
        pairs = zip(x, run(name, x), strict=True)
        worst = max((error(float(y), EXACT[name](mpmath.mpf(float(a)))), float(a)) for a, y in pairs)
    assert worst[0] <= 1.5, worst


def test_powf_errs_by_at_most_two_ulp() -> None:
    """Over bases of all magnitudes and next to 1, with results from subnormal to the overflow edge."""
    rng = np.random.default_rng(5)
    base = np.concatenate([10.0 ** rng.uniform(-320, 308, 500), 1 + rng.normal(0, 1e-6, 300)])
    limit = 745 / np.abs(np.log(base))
    exponent = rng.uniform(-1, 0.95, base.size) * limit
    result = run("powf", base, exponent)
    with mpmath.workprec(200):
        worst = max(
            (error(float(y), mpmath.mpf(float(a)) ** mpmath.mpf(float(b))), float(a), float(b))
            for a, b, y in zip(base, exponent, result, strict=True)
        )
    assert worst[0] <= 2.0, worst


SAME = [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-TINY, -TINY), (1e-20, 1e-20)]
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (TINY, 1.0), (-745.0, TINY), (-746.0, 0.0), (-HUGE, 0.0), (-INF, 0.0),
            (709.8, INF), (HUGE, INF), (INF, INF)],
    "ln": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-TINY, NAN)],
    "tanh": [*SAME, (22.0, 1.0), (1000.0, 1.0), (HUGE, 1.0), (INF, 1.0), (-INF, -1.0)],
    "sin": [*SAME, (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (TINY, 1.0), (INF, NAN), (-INF, NAN)],
    "log1p": [*SAME, (-1.0, -INF), (-1.5, NAN), (-HUGE, NAN), (-INF, NAN), (INF, INF)],
    "expm1": [*SAME, (709.8, INF), (HUGE, INF), (INF, INF), (-HUGE, -1.0), (-INF, -1.0)],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_special_values_are_exact(name: str) -> None:
    """Zeros keep their sign, infinities and domain edges give what IEEE 754 recommends, NaN stays NaN."""
    given, expected = zip(*SPECIAL[name], (NAN, NAN), strict=True)
    assert np.array_equal(bits(run(name, given)), bits(np.array(expected)))


def test_powf_has_the_special_cases_of_c() -> None:
    """Every pair of special numbers gives what the C library's pow gives."""
    numbers = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, INF, -INF, NAN, 2.0**52 + 1, -(2.0**53), 1e300]
    a, b = (m.ravel() for m in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        expected = np.power(a, b)
    inexact = np.isfinite(expected) & (np.abs(expected) != np.round(np.abs(expected), 3))
    result = run("powf", a, b)
    assert np.array_equal(bits(result[~inexact]), bits(expected[~inexact]))
    assert np.allclose(result[inexact], expected[inexact], rtol=4e-16, atol=0)


@pytest.mark.parametrize("name", ["tanh", "sin"])
def test_odd_maps_are_exactly_odd(name: str) -> None:
    """f(-x) has the bits of -f(x)."""
    x = sample(name, 2000)
    assert np.array_equal(bits(run(name, -x)), bits(-run(name, x)))


def test_cos_is_exactly_even() -> None:
    """f(-x) has the bits of f(x)."""
    x = sample("cos", 2000)
    assert np.array_equal(bits(run("cos", -x)), bits(run("cos", x)))


@pytest.mark.parametrize("name", [*MAPS, "powf"])
def test_the_emitted_vector_code_has_the_bits_of_the_numpy_table(name: str) -> None:
    """One text, two interpretations: LLVM vectors and NumPy arrays with an exact fma."""
    x = sample(name if name in EXACT else "ln", 12)
    extra = np.array([0.0, -0.0, INF, -INF, NAN, TINY, HUGE, -1.0])
    x = np.concatenate([x, extra])
    operands = (x,) if name in EXACT else (x, np.resize([2.0, -0.5, 3.0, 1e-3, 700.0], x.size))
    oracle = NumpyTable(64)(getattr(double, name), *operands)
    assert np.array_equal(bits(run(name, *operands)), bits(np.asarray(oracle)))


@pytest.mark.parametrize("name", [*MAPS, "powf"])
def test_tails_have_the_bits_of_bodies(name: str) -> None:
    """A short run gives the first values of a long one."""
    x = np.abs(sample("ln", 10))
    operands = (x,) if name in EXACT else (x, x[::-1].copy())
    whole = run(name, *operands)
    for length in (1, 5, 8, 9, 15, 17):
        assert np.array_equal(bits(run(name, *(a[:length] for a in operands))), bits(whole[:length]))
