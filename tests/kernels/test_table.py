"""`NumpyTable` against exact rationals and Python integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.kernels.interpreted import NumpyTable, exact_fma

LIMITS = {32: (24, -149, 128), 64: (53, -1074, 1024)}
"""By width: significant bits, exponent of the least subnormal, exponent past the greatest number."""


def rounded(exact: Fraction, width: int) -> float:
    """Round a rational to nearest even by integer arithmetic; 0 gives +0."""
    digits, lowest, end = LIMITS[width]
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = math.floor(magnitude.numerator.bit_length() - magnitude.denominator.bit_length())
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** max(exponent - digits + 1, lowest)
    count, rest = divmod(magnitude, unit)
    up = rest * 2 > unit or (rest * 2 == unit and count % 2 == 1)
    result = (count + up) * unit
    value = math.inf if result >= Fraction(2) ** end else float(result)
    return value if exact > 0 else -value


def bit_patterns(width: int, count: int, seed: int) -> np.ndarray:
    """Return finite numbers with bits drawn evenly, so of all magnitudes, a quarter of them subnormal."""
    generator = np.random.default_rng(seed)
    unsigned = np.dtype(f"u{width // 8}")
    drawn = generator.integers(0, 1 << width, count, dtype=unsigned)
    fraction = LIMITS[width][0] - 1
    subnormal = generator.random(count) < 0.25
    drawn = np.where(subnormal, drawn & ~unsigned.type(((1 << (width - 1 - fraction)) - 1) << fraction), drawn)
    numbers = drawn.view(f"f{width // 8}")
    return numbers[np.isfinite(numbers)]


def near_cancellation(width: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a, b, c) where c is close to -a*b, the hardest sums, and products at the subnormal border."""
    generator = np.random.default_rng(seed)
    real = np.dtype(f"f{width // 8}").type
    half = LIMITS[width][1] // 2
    scale = np.ldexp(1.0, generator.integers(half - 2, -half // 2, count) // 2)
    a = (generator.normal(size=count) * scale).astype(real)
    b = (generator.normal(size=count) * scale).astype(real)
    c = -(a * b)
    return a, b, np.nextafter(c, np.where(generator.random(count) < 0.5, c, real(np.inf)).astype(real))


@pytest.mark.parametrize("width", [32, 64])
def test_fma_rounds_the_exact_value_once(width: int) -> None:
    """Fma is the exact a*b + c rounded to nearest even: all magnitudes, subnormals, near cancellation."""
    triples = [bit_patterns(width, 400, seed)[:290] for seed in range(3)]
    near = near_cancellation(width, 300, 3)
    a, b, c = (np.concatenate(pair) for pair in zip(triples, near, strict=True))
    with np.errstate(all="ignore"):
        got = NumpyTable(width).fma(a, b, c)
    subnormal = 0
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert result == rounded(exact, width), (x, y, z)
        if exact != 0:
            assert math.copysign(1.0, result) == (1.0 if exact > 0 else -1.0), (x, y, z)
        subnormal += 0 < abs(result) < 2.0 ** (LIMITS[width][1] + LIMITS[width][0] - 1)
    assert subnormal > 10


def test_fma_overflows_to_infinity_at_the_rounding_boundary() -> None:
    """The greatest number plus just under half a unit stays finite, plus half a unit is infinite."""
    top, unit = float(np.finfo(np.float64).max), 2.0**970
    assert exact_fma(top, 1.0, unit * 0.999) == top
    assert exact_fma(top, 1.0, unit) == math.inf
    assert exact_fma(-top, 2.0, 0.0) == -math.inf
    top32 = np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        fma = NumpyTable(32).fma
        assert fma(top32, 1.0, 2.0**102) == top32
        assert fma(top32, 1.0, 2.0**103) == np.inf
        assert fma(top32, -2.0, 0.0) == -np.inf


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (0.0, 1.0, 0.0, 0.0), (0.0, -1.0, 0.0, 0.0), (0.0, -1.0, -0.0, -0.0), (-0.0, 1.0, -0.0, -0.0),
        (0.0, 1.0, -0.0, 0.0), (1.0, 1.0, -1.0, 0.0), (-1.0, 1.0, 1.0, 0.0),
        (2.0**-100, 2.0**-100, 0.0, 2.0**-200), (-1e-300, 1e-300, 0.0, -0.0), (1e-300, 1e-300, -0.0, 0.0),
        (math.inf, 1.0, 0.0, math.inf), (math.inf, -1.0, 5.0, -math.inf), (2.0, 3.0, -math.inf, -math.inf),
        (math.inf, 0.0, 1.0, math.nan), (math.inf, 1.0, -math.inf, math.nan), (math.nan, 1.0, 1.0, math.nan),
        (1.0, 1.0, math.nan, math.nan),
    ],
)  # fmt: skip
def test_fma_of_zeros_infinities_and_nan(width: int, a: float, b: float, c: float, expected: float) -> None:
    """The sign of a zero and the special values are those of IEEE 754 at round to nearest."""
    if width == 32 and abs(a) == 1e-300:
        a, b = math.copysign(1e-40, a), 1e-40
    if width == 32 and expected == 2.0**-200:
        expected = 0.0
    with np.errstate(all="ignore"):
        result = float(NumpyTable(width).fma(a, b, c)[0])
    if math.isnan(expected):
        assert math.isnan(result)
    else:
        assert (result, math.copysign(1, result)) == (expected, math.copysign(1, expected))


def test_fma_broadcasts_constants() -> None:
    """A constant of the table stands beside arrays."""
    o = NumpyTable(32)
    result = o(lambda o, x: o.fma(x, o.real(2.0), o.real(1.0)), [1.0, 2.0, 3.0])
    assert result.dtype == np.float32
    assert result.tolist() == [3.0, 5.0, 7.0]


def wrapped(value: int, width: int) -> int:
    """Return an integer modulo 2**width, in two's complement."""
    half = 1 << (width - 1)
    return (value + half) % (1 << width) - half


@pytest.mark.parametrize("width", [32, 64])
def test_integers_wrap(width: int) -> None:
    """Every integer operation is that of two's complement at the width, beyond overflow too."""
    o, half = NumpyTable(width), 1 << (width - 1)
    generator = np.random.default_rng(width)
    kind = np.dtype(f"i{width // 8}")
    edges = [0, 1, -1, half - 1, -half, 12345, -98765]
    pairs = [(x, y) for x in edges for y in edges]
    pairs += generator.integers(-half, half, (200, 2), dtype=kind).tolist()
    i, j = (np.array(column, kind) for column in zip(*pairs, strict=True))
    expected = {
        "iadd": lambda x, y: x + y,
        "isub": lambda x, y: x - y,
        "iand": lambda x, y: x & y,
        "ior": lambda x, y: x | y,
        "ixor": lambda x, y: x ^ y,
    }
    with np.errstate(all="ignore"):
        for name, operation in expected.items():
            got = getattr(o, name)(i, j)
            assert got.dtype == kind, name
            assert got.tolist() == [wrapped(operation(x, y), width) for x, y in pairs], name
    assert o.ilt(i, j).tolist() == [x < y for x, y in pairs]
    assert o.ieq(i, j).tolist() == [x == y for x, y in pairs]
    for count in (0, 1, 7, width - 1):
        values = i.tolist()
        assert o.shl(i, count).tolist() == [wrapped(x << count, width) for x in values]
        assert o.ashr(i, count).tolist() == [x >> count for x in values]
        assert o.lshr(i, count).tolist() == [wrapped(x % (1 << width) >> count, width) for x in values]
    for value in (0, -1, half, half - 1, 3 * half + 5, -(1 << width) - 2):
        assert int(o.whole(value)) == wrapped(value, width)
    assert o.lookup([0, half, -1, 1 << width], np.array([3, 1, 2])).tolist() == [0, -half, -1]


@pytest.mark.parametrize("width", [32, 64])
def test_signs_move_without_touching_the_rest(width: int) -> None:
    """Neg flips and abs clears the sign bit, of zeros, infinities and every NaN."""
    o, top = NumpyTable(width), 1 << (width - 1)
    unsigned = np.dtype(f"u{width // 8}")
    patterns = np.random.default_rng(1).integers(0, 2**width, 500, dtype=unsigned)
    nan = np.array([0x7FC00001 if width == 32 else 0x7FF8000000000001], unsigned)
    patterns = np.concatenate([patterns, nan, nan | unsigned.type(top), [unsigned.type(top)]]).astype(unsigned)
    reals = patterns.view(f"f{width // 8}")
    assert (o.neg(reals).view(unsigned) == patterns ^ unsigned.type(top)).all()
    assert (o.abs(reals).view(unsigned) == patterns & unsigned.type(top - 1)).all()
    assert (o.from_bits(o.to_bits(reals)).view(unsigned) == patterns).all()


def test_comparisons_with_nan_are_false() -> None:
    """Every comparison with a NaN is false, and the two zeros are equal."""
    o = NumpyTable(64)
    a = np.array([math.nan, 1.0, math.nan, 0.0, 1.0, 2.0])
    b = np.array([1.0, math.nan, math.nan, -0.0, 2.0, 1.0])
    assert o.lt(a, b).tolist() == [False, False, False, False, True, False]
    assert o.le(a, b).tolist() == [False, False, False, True, True, False]
    assert o.eq(a, b).tolist() == [False, False, False, True, False, False]
    assert o.gt(a, b).tolist() == [False, False, False, False, False, True]
    assert o.ge(a, b).tolist() == [False, False, False, True, False, True]
    assert o.is_nan(a).tolist() == [True, False, True, False, False, False]


def test_rarely_runs_its_body_only_where_a_lane_needs_it() -> None:
    """The body of `rarely` runs if some lane asks for it, and those lanes alone take its result."""
    o, calls = NumpyTable(32), []

    def body(o: NumpyTable, x: np.ndarray) -> np.ndarray:
        calls.append(x.size)
        return -x

    x = np.array([1.0, 2.0], np.float32)
    assert o.rarely(x > 5, x, body, x).tolist() == [1.0, 2.0]
    assert calls == []
    assert o.rarely(x > 1, x, body, x).tolist() == [1.0, -2.0]
    assert calls == [2]


def test_branch_runs_one_of_two_bodies_for_all_lanes() -> None:
    """The first runs if some lane asks for it, over lanes that did not as well; else the second does."""
    o, x = NumpyTable(32), np.array([1.0, 2.0], np.float32)
    some, none = (lambda o, x: -x), (lambda o, x: x + 1)
    assert o.branch(x > 1, some, none, x).tolist() == [-1.0, -2.0]
    assert o.branch(x > 5, some, none, x).tolist() == [2.0, 3.0]


def test_double_rounds_its_result_once() -> None:
    """A 64-bit body over 32-bit reals is exact up to one rounding: (1 + 2**-23)**2 - 1 keeps its tail."""
    x = np.float32(1 + 2**-23)
    result = NumpyTable(32)(lambda o, a: o.double(lambda w, v: w.sub(w.mul(v, v), w.real(1.0)), a), x)
    assert result.dtype == np.float32
    assert result[0] == np.float32(2**-22 + 2**-46)
    assert np.float32(x * x - np.float32(1)) == np.float32(2**-22)
