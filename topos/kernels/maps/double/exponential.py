"""exp, expm1 and tanh of float64: one reduction, one polynomial, the sums that matter in two parts."""

from topos.kernels.maps.cases import exp_cases
from topos.kernels.maps.common import ROUND, at_most, bits_of, clamp, coefficients, nearest, polynomial, signed
from topos.kernels.maps.constants import LN2, LN2_LOST, LOG2E
from topos.kernels.table import Lanes, Table

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2, to 2**-57.9 of exp(r)
_EXP = coefficients("double.exponential.exp")


def _reduced(o: Table, x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Return `k` (in the low bits of a sum with `ROUND`), ``r = x - k*ln(2)``, and what `r` lost."""
    rounded, k = nearest(o, x, LOG2E)
    head = o.fma(k, o.real(-LN2), x)
    r = o.fma(k, o.real(-LN2_LOST), head)
    return rounded, r, o.fma(k, o.real(-LN2_LOST), o.sub(head, r))


def _mantissa(o: Table, r: Lanes, lost: Lanes) -> tuple[Lanes, Lanes]:
    """Return ``exp(r + lost)`` as a sum of two reals, the first ``1 + r`` rounded (fast two-sum, Dekker 1971)."""
    one = o.real(1.0)
    total = o.add(one, r)
    lost = o.add(o.sub(r, o.sub(total, one)), lost)
    return total, o.fma(o.mul(r, r), polynomial(o, r, _EXP), lost)


def _scaled(o: Table, y: Lanes, rounded: Lanes) -> Lanes:
    """Return ``y * 2**k`` in two factors, so that a subnormal result is rounded once."""
    k = o.sub(rounded, o.real(ROUND))
    half = o.add(o.mul(k, o.real(0.5)), o.real(ROUND))
    rest = o.add(o.sub(k, o.sub(half, o.real(ROUND))), o.real(ROUND))
    first, second = (o.from_bits(o.iadd(o.shl(o.to_bits(h), 52), o.whole(bits_of(1.0)))) for h in (half, rest))
    return o.mul(o.mul(y, first), second)


def _exp_extreme(o: Table, x: Lanes) -> Lanes:
    rounded, r, lost = _reduced(o, clamp(o, x, -750.0, 712.0))
    return _scaled(o, o.add(*_mantissa(o, r, lost)), rounded)


def exp(o: Table, x: Lanes) -> Lanes:
    """``2**k * P(x - k*ln(2))`` (Cody & Waite 1980, chapter 6); results out of the normal range apart."""

    def ordinary(o: Table, x: Lanes) -> Lanes:
        rounded, r, lost = _reduced(o, x)
        mantissa = o.add(*_mantissa(o, r, lost))
        return o.from_bits(o.iadd(o.to_bits(mantissa), o.shl(o.to_bits(rounded), 52)))

    return exp_cases(o, x, ordinary, 708.0, -746.0, _exp_extreme)


def exp_pair(o: Table, high: Lanes, low: Lanes) -> Lanes:
    """Return ``exp(high + low)`` for a `low` far below `high`, over the whole range of results."""
    rounded, r, lost = _reduced(o, clamp(o, high, -750.0, 712.0))
    total, tail = _mantissa(o, r, lost)
    return _scaled(o, o.add(total, o.fma(low, o.add(total, tail), tail)), rounded)


def _expm1_pair(o: Table, x: Lanes) -> tuple[Lanes, Lanes]:
    """Return ``exp(x) - 1``, ``|x| < 700``, as a sum of two reals: ``(2**k - 1) + 2**k * expm1(r)``."""
    rounded, r, lost = _reduced(o, x)
    power = o.from_bits(o.iadd(o.shl(o.to_bits(rounded), 52), o.whole(bits_of(1.0))))
    tail = o.fma(o.mul(r, r), polynomial(o, r, _EXP), lost)
    whole, part = o.sub(power, o.real(1.0)), o.mul(power, r)
    total = o.add(whole, part)
    return total, o.fma(power, tail, o.add(o.sub(whole, total), part))


def expm1(o: Table, x: Lanes) -> Lanes:
    """The sum of ``2**k - 1`` and ``2**k`` times that of the remainder, in two parts; ``exp(x)`` from 700 on."""
    common = signed(o, o.add(*_expm1_pair(o, clamp(o, x, -60.0, 709.0))), x)
    return o.rarely(o.gt(x, o.real(700.0)), common, _exp_extreme, x)


def tanh(o: Table, x: Lanes) -> Lanes:
    """``m / (m + 2)`` with ``m = expm1(2|x|)`` in two parts and a corrected quotient; 1 from 19.0625 on."""
    size = o.abs(x)
    bounded = at_most(o, size, 20.0)
    total, tail = _expm1_pair(o, o.add(bounded, bounded))
    high = o.add(total, tail)
    low = o.add(o.sub(total, high), tail)
    two = o.real(2.0)
    divisor = o.add(high, two)
    lost = o.select(o.gt(high, two), o.sub(two, o.sub(divisor, high)), o.sub(high, o.sub(divisor, two)))
    inverse = o.div(o.real(1.0), divisor)
    quotient = o.mul(high, inverse)
    rest = o.fma(o.neg(quotient), o.add(lost, low), o.add(o.fma(o.neg(quotient), divisor, high), low))
    value = o.fma(rest, inverse, quotient)
    return signed(o, o.select(o.ge(size, o.real(19.0625)), o.real(1.0), value), x)
