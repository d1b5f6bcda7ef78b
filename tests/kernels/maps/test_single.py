"""The float32 maps: within 1 ulp, exact where a value is exact, and the same bits however they are run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.interpreted import NumpyTable
from tests.kernels.maps.harness import compiled
from topos.kernels.maps import single

INF, NAN = math.inf, math.nan
TINY = 2.0**-149  # the least subnormal
HUGE = (2.0 - 2.0**-23) * 2.0**127  # the greatest finite

Reference = Callable[[np.ndarray], np.ndarray]

REFERENCES: dict[str, Reference] = {
    "exp": np.exp,
    "ln": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erf_derivative": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
}
MAPS = sorted(REFERENCES)

# Where a result overflows, goes subnormal or to 0, saturates, or an argument reduction changes.
THRESHOLDS = [
    88.72284, -87.33655, -103.97208, -103.27893, 17.32868, -17.32868, 0.34657359, -0.34657359, 1.0397208,
    0.70710678, 1.41421356, 1.0, 2.0, -0.29289322, 0.41421356, -1.0, 9.010913, 10.0, 3.8325069, 4.0, 11.0,
    9.3, 9.16, 10.196, 90.0, -110.0, -40.0, math.pi / 2, math.pi, 3 * math.pi / 2, 2 * math.pi, 355.0, 22.0,
    2.0**28, 2.0**24, 16367173 * 2.0**72, HUGE,
]  # fmt: skip


def around(value: float, ulps: int = 100) -> np.ndarray:
    """Return the floats within `ulps` of the float nearest to `value`."""
    centre = int(np.float32(value).view(np.int32))
    return np.arange(centre - ulps, centre + ulps + 1, dtype=np.int64).astype(np.int32).view(np.float32)


def stratified(per_exponent: int, seed: int = 7) -> np.ndarray:
    """Return floats of every exponent and both signs, the ends of each binade among them."""
    draws = np.random.default_rng(seed).integers(0, 1 << 23, (255, per_exponent))
    draws[:, 0], draws[:, 1] = 0, (1 << 23) - 1
    bits = (np.arange(255)[:, None] << 23 | draws).ravel().astype(np.uint32)
    return np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the error of float32 `result` in units in the last place of `exact`, 0 where both are NaN."""
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(np.where(np.isfinite(exact), exact, 1.0))[1] - 1, -126)
        wide = result.astype(np.float64)
        wide = np.where(np.isinf(wide), np.copysign(2.0**128, wide), wide)
        target = np.where(np.abs(exact) > 2.0**128, np.copysign(2.0**128, exact), exact)
        error = np.abs(wide - target) * np.ldexp(1.0, 23 - exponent)
    return np.where(np.isnan(exact) & np.isnan(result), 0.0, np.where(np.isnan(error), INF, error))


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of `values`, every NaN as one."""
    return np.where(np.isnan(values), np.float32(NAN), values).view(np.uint32)


def run(name: str, *arrays: object) -> np.ndarray:
    """Return the compiled map `name` over the arrays."""
    operands = [np.atleast_1d(np.asarray(a, np.float32)) for a in arrays]
    return compiled(getattr(single, name), len(operands), 32)(*operands)


def sample(per_exponent: int) -> np.ndarray:
    """Return the stratified values, and the neighbourhoods of the thresholds with both signs."""
    edges = np.concatenate([around(t) for t in THRESHOLDS])
    edges = edges[np.isfinite(edges)]
    return np.concatenate([stratified(per_exponent), edges, -edges])


@pytest.mark.parametrize("name", MAPS)
def test_a_map_errs_by_at_most_one_ulp(name: str) -> None:
    """Over every exponent, both signs and around every threshold."""
    x = sample(64)
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
    error = ulps(run(name, x), exact)
    assert error.max() <= 1.0, (x[error.argmax()], error.max())


def powers() -> tuple[np.ndarray, np.ndarray]:
    """Return bases of every exponent and next to 1, and exponents that mostly give a finite power."""
    draw = np.random.default_rng(11)
    base = stratified(40)[: 255 * 40]
    near = np.concatenate([around(1.0, 2000), (1 + draw.normal(0, 1e-3, 20_000)).astype(np.float32)])
    base = np.concatenate([base, base, near, around(2.0), around(0.5)])
    with np.errstate(all="ignore"):
        limit = 128 / np.abs(np.log2(base.astype(np.float64)))
        exponent = draw.uniform(-1.2, 1.05, base.size) * np.minimum(limit, 1e30)
    return base, exponent.astype(np.float32)


def test_powf_errs_by_at_most_one_ulp() -> None:
    """Over bases of every exponent and next to 1, with results from 0 to infinity."""
    base, exponent = powers()
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64))
    error = ulps(run("powf", base, exponent), exact)
    assert error.max() <= 1.0, (base[error.argmax()], exponent[error.argmax()], error.max())


def test_powf_of_a_negative_base_is_that_of_its_size_but_for_the_sign() -> None:
    """Even exponents give a positive power, odd ones a negative, the rest NaN."""
    base = -np.abs(stratified(4))
    for exponent in (-3.0, -2.0, 1.0, 2.0, 3.0, 8388607.0, 16777215.0, 16777216.0):
        positive = run("powf", -base, np.full_like(base, exponent))
        expected = -positive if exponent % 2 else positive
        assert np.array_equal(bits(run("powf", base, np.full_like(base, exponent))), bits(expected))
    finite = base[base < 0]
    assert np.isnan(run("powf", finite, np.full_like(finite, 0.5))).all()


SAME = [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-TINY, -TINY), (1e-20, 1e-20)]
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (TINY, 1.0), (-103.5, TINY), (-104.0, 0.0), (-HUGE, 0.0), (-INF, 0.0),
            (88.73, INF), (HUGE, INF), (INF, INF)],
    "ln": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-TINY, NAN)],
    "tanh": [*SAME, (9.5, 1.0), (HUGE, 1.0), (INF, 1.0), (-INF, -1.0)],
    "sin": [*SAME, (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (TINY, 1.0), (INF, NAN), (-INF, NAN)],
    "log1p": [*SAME, (-1.0, -INF), (-1.5, NAN), (-HUGE, NAN), (-INF, NAN), (INF, INF)],
    "expm1": [*SAME, (88.73, INF), (HUGE, INF), (INF, INF), (-HUGE, -1.0), (-INF, -1.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (4.0, 1.0), (HUGE, 1.0), (INF, 1.0), (-HUGE, -1.0), (-INF, -1.0)],
    "erf_derivative": [(0.0, 2 / math.sqrt(math.pi)), (11.0, 0.0), (HUGE, 0.0), (INF, 0.0), (-INF, 0.0)],
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_special_values_are_exact(name: str) -> None:
    """Zeros with their signs, infinities, the ends of the domain, and a NaN for a NaN."""
    arguments, values = np.array([*SPECIAL[name], (NAN, NAN)], np.float32).T
    assert np.array_equal(bits(run(name, arguments)), bits(values))


def test_powf_has_the_special_values_of_c() -> None:
    """Every pair of zeros, ones, infinities, NaN, integers odd and even, and fractions, against C's pow."""
    values = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 1e30, 16777216.0, TINY, INF]
    values = [*values, *(-v for v in values), NAN]
    exponents = [*values, 16777215.0, -16777215.0, 1.5 * 2.0**104, 2.0**76]
    base, exponent = np.array([(a, b) for a in values for b in exponents], np.float32).T
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(np.float32)
    assert np.array_equal(bits(run("powf", base, exponent)), bits(exact))


@pytest.mark.parametrize("name", ["tanh", "sin", "erf"])
def test_an_odd_map_is_odd_to_the_bit(name: str) -> None:
    """A negated argument negates the result."""
    x = sample(16)
    assert np.array_equal(bits(run(name, -x)), bits(-run(name, x)))


@pytest.mark.parametrize("name", ["cos", "erf_derivative"])
def test_an_even_map_is_even_to_the_bit(name: str) -> None:
    """A negated argument changes nothing."""
    x = sample(16)
    assert np.array_equal(bits(run(name, -x)), bits(run(name, x)))


@pytest.mark.parametrize("name", ["tanh", "erf", "exp", "expm1", "ln"])
def test_a_monotone_map_never_decreases(name: str) -> None:
    """Over sorted samples, and over consecutive floats around the thresholds."""
    x = np.unique(np.concatenate([sample(64), *(around(v, 20_000) for v in (0.35, 2.0, 3.8))]))
    results = run(name, x[x > 0] if name == "ln" else x)
    assert (np.diff(results[np.isfinite(results)]) >= 0).all()


def operands(arity: int) -> list[np.ndarray]:
    """Return a few thousand values per operand, specials among them."""
    edges = [v for t in (0.0, TINY, 2.0**-126, HUGE, INF, NAN, *THRESHOLDS) for v in (t, -t)]
    x = np.concatenate([np.array(edges, np.float32), stratified(5)])
    if arity == 1:
        return [x]
    base, exponent = powers()
    return [np.concatenate([x, base[::40]]), np.concatenate([np.roll(x, 1237), exponent[::40]])]


@pytest.mark.parametrize("name", [*MAPS, "powf"])
def test_the_emitted_routine_gives_the_bits_of_the_numpy_table(name: str) -> None:
    """The vector code and the oracle are one text, so every bit agrees."""
    values = operands(2 if name == "powf" else 1)
    oracle = NumpyTable(32)(getattr(single, name), *values)
    assert np.array_equal(bits(run(name, *values)), bits(oracle))


@pytest.mark.parametrize("name", [*MAPS, "powf"])
def test_the_tail_of_a_block_gives_the_bits_of_its_body(name: str) -> None:
    """A value's result does not depend on where in a block it lies, nor on its neighbours."""
    values = operands(2 if name == "powf" else 1)
    whole = bits(run(name, *values))
    for length in (1, 7, 16, 17, 31, 33):
        for start in (0, 5, 40):
            part = [v[start : start + length] for v in values]
            assert np.array_equal(bits(run(name, *part)), whole[start : start + length])


def test_exp_of_vectors_of_which_none_some_and_all_lanes_vanish() -> None:
    """What neighbours are changes nothing: results are those of each value alone, a NaN and a subnormal among them."""
    generator = np.random.default_rng(3)
    lanes, rest = [-INF, -104.0, -1e30], [1.0, -87.5, -103.9, -100.0, 89.0, NAN, INF, -0.0]
    rows = [[*generator.choice(lanes, count), *generator.choice(rest, 16 - count)] for count in range(17)]
    rows += [[*generator.choice(lanes, count), *[-0.5] * (16 - count)] for count in range(17)]
    x = np.concatenate([generator.permutation(row) for row in rows] + [[-INF] * 40]).astype(np.float32)
    alone = np.concatenate([np.atleast_1d(NumpyTable(32)(single.exp, x[i : i + 1])) for i in range(x.size)])
    assert np.array_equal(bits(run("exp", x)), bits(alone))
    assert np.count_nonzero(alone == 0) > 300
