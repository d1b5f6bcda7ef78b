"""erf of float64 and its derivative: the error in ulp, the exact values, and the same bits however they run."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from tests.kernels.interpreted import NumpyTable
from tests.kernels.maps.harness import compiled
from topos.kernels.maps.double import error

INF, NAN = math.inf, math.nan
TINY = 2.0**-1074  # the least subnormal
HUGE = (2.0 - 2.0**-52) * 2.0**1023  # the greatest finite
MAPS = ("erf", "erf_derivative")

# Where a result saturates, goes subnormal or to 0, changes binade, or the multiple of ln(2) changes.
THRESHOLDS = [
    0.2250, 0.2796, 0.4769, 0.5246, 0.7314, 0.5887, 0.34658, 1.0197, 1.0, 2.0, 5.8636, 5.9216, 5.93, 6.0,
    26.615, 26.64, 27.2, 27.297, 27.5, 2.0**-1022, 2.0**-968, 2.0**-511, 2.0**-27, HUGE,
]  # fmt: skip


def around(value: float, ulps: int = 10) -> np.ndarray:
    """Return the finite floats within `ulps` of `value`."""
    centre = int(np.float64(value).view(np.int64))
    near = np.arange(centre - ulps, centre + ulps + 1).view(np.float64)
    return near[np.isfinite(near)]


def sample(per_exponent: int, seed: int = 7) -> np.ndarray:
    """Return values of both signs: some of every exponent, most where a result is neither tiny nor flat."""
    draw = np.random.default_rng(seed)
    exponents = np.concatenate([np.arange(2047), np.repeat(np.arange(1023 - 28, 1023 + 5), 40)])
    mantissas = draw.integers(0, 1 << 52, (exponents.size, per_exponent))
    mantissas[:, 0] = np.where(np.arange(exponents.size) % 2, 0, (1 << 52) - 1)
    x = (exponents[:, None] << 52 | mantissas).ravel().view(np.float64)
    x = np.concatenate([x, draw.uniform(0, 6, 1500), draw.uniform(0, 27.5, 1500), *map(around, THRESHOLDS)])
    return x * draw.choice([-1.0, 1.0], x.size)


def exactly(name: str, x: float) -> mpmath.mpf:
    """Return the value at `x` to 120 bits."""
    if name == "erf":
        return mpmath.erf(x)
    return 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-(mpmath.mpf(x) ** 2)) if abs(x) < 100 else mpmath.mpf(0)


def ulps(result: float, exact: mpmath.mpf) -> float:
    """Return the error of `result` in units in the last place of `exact`."""
    exponent = max(mpmath.frexp(exact)[1] - 1, -1022) if exact else -1022
    return float(abs(mpmath.mpf(result) - exact) * mpmath.ldexp(1, 52 - exponent))


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of `values`, every NaN as one."""
    return np.where(np.isnan(values), NAN, values).view(np.uint64)


def run(name: str, x: object) -> np.ndarray:
    """Return the compiled map `name` over `x`."""
    function: Callable[..., np.ndarray] = compiled(getattr(error, name), 1, 64)
    return function(np.atleast_1d(np.asarray(x, np.float64)))


@pytest.mark.parametrize("name", MAPS)
def test_a_map_errs_by_little_more_than_one_ulp(name: str) -> None:
    """Over every exponent, both signs and around every threshold, against 120 bits."""
    x = sample(2)
    with mpmath.workprec(120):
        errors = [ulps(y, exactly(name, v)) for v, y in zip(x.tolist(), run(name, x).tolist(), strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= 1.2, (x[worst], errors[worst])


SPECIAL: dict[str, list[tuple[float, float]]] = {
    "erf": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-TINY, -TINY), (5.93, 1.0), (6.0, 1.0), (HUGE, 1.0),
            (INF, 1.0), (-HUGE, -1.0), (-INF, -1.0)],
    "erf_derivative": [(0.0, 2 / math.sqrt(math.pi)), (-0.0, 2 / math.sqrt(math.pi)), (27.5, 0.0),
                       (-27.5, 0.0), (HUGE, 0.0), (INF, 0.0), (-INF, 0.0)],
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_special_values_are_exact(name: str) -> None:
    """Zeros with their signs, the least subnormal, saturation, infinities."""
    arguments, values = np.array(SPECIAL[name]).T
    assert np.array_equal(bits(run(name, arguments)), bits(values))


@pytest.mark.parametrize("name", MAPS)
def test_every_nan_gives_a_nan(name: str) -> None:
    """Quiet or signalling, with any payload and sign."""
    payloads = [0x7FF0000000000001, 0x7FF8000000000000, 0x7FF8000000000123, 0xFFF8ABCDEF123456, 2**64 - 1]
    assert np.isnan(run(name, np.array(payloads, np.uint64).view(np.float64))).all()


def test_erf_is_odd_and_its_derivative_even_to_the_bit() -> None:
    """A negated argument negates the one result and leaves the other."""
    x = sample(4)
    assert np.array_equal(bits(run("erf", -x)), bits(-run("erf", x)))
    assert np.array_equal(bits(run("erf_derivative", -x)), bits(run("erf_derivative", x)))


def test_erf_never_decreases_and_its_derivative_falls_with_distance_from_zero() -> None:
    """Over a dense sorted sample, and over consecutive floats where a result moves with each."""
    draw = np.random.default_rng(3)
    runs = [around(v, 20_000) for v in (2.0**-1022, 1e-9, 0.01, 0.2796, 0.5246, 0.7314, 1.0197, 3.0, 5.9216)]
    x = np.sort(np.concatenate([draw.uniform(0, 6.1, 300_000), np.abs(sample(8)), *runs]))
    assert (np.diff(run("erf", x)) >= 0).all()
    assert (np.diff(run("erf_derivative", x)) <= 0).all()


def operands() -> np.ndarray:
    """Return about 200 values, specials among them."""
    edges = [v for t in (0.0, TINY, 2.0**-1022, HUGE, INF, NAN, *THRESHOLDS) for v in (t, -t)]
    draw = np.random.default_rng(5)
    return np.concatenate([edges, draw.normal(0, 1.5, 100), draw.uniform(-28, 28, 40)])


@pytest.mark.parametrize("name", MAPS)
def test_the_emitted_routine_gives_the_bits_of_the_numpy_table(name: str) -> None:
    """The vector code and the oracle are one text, so every bit agrees."""
    x = operands()
    assert np.array_equal(bits(run(name, x)), bits(NumpyTable(64)(getattr(error, name), x)))


@pytest.mark.parametrize("name", MAPS)
def test_the_tail_of_a_block_gives_the_bits_of_its_body(name: str) -> None:
    """A value's result does not depend on where in a block it lies, nor on its neighbours."""
    x = operands()
    whole = bits(run(name, x))
    for length in (1, 3, 7, 8, 9, 15, 17):
        for start in (0, 5, 40):
            assert np.array_equal(bits(run(name, x[start : start + length])), whole[start : start + length])
