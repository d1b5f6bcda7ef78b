"""ln, log1p and powf of float64: one split into exponent and mantissa, one series in (m - 1)/(m + 1)."""

import math

from topos.kernels.maps.cases import log_cases, power_cases
from topos.kernels.maps.common import bits_of, clamp, coefficients, polynomial, signed, split, two_sum
from topos.kernels.maps.constants import LN2_HEAD, LN2_TAIL
from topos.kernels.maps.double.exponential import exp_pair
from topos.kernels.table import Lanes, Table

_NORMAL_BITS = bits_of(2.0**-1022)
_THIRD, _THIRD_TAIL = float.fromhex("0x1.5555555555555p-2"), float.fromhex("0x1.5555555555555p-56")

# (2*artanh(s)/s - 2)/s**2 in z = s**2 on |s| <= (sqrt(2)-1)/(sqrt(2)+1), to 2**-59.5 of the logarithm
_LOG = coefficients("double.logarithm.log")
# (artanh(s)/s - 1 - z/3)/z**2 on the same interval, to 2**-73.5 of the logarithm
_LOG_FINE = coefficients("double.logarithm.log_fine")


def _log(o: Table, k: Lanes, f: Lanes, small: Lanes) -> Lanes:
    """``k*ln(2) + log1p(f) + small`` with ``s = f/(2 + f)``: ``f - (f*f/2 - s*(f*f/2 + z*R(z)))``."""
    s = o.div(f, o.add(f, o.real(2.0)))
    z = o.mul(s, s)
    half = o.mul(o.mul(f, o.real(0.5)), f)
    series = o.fma(z, polynomial(o, z, _LOG), half)
    tail = o.fma(s, series, o.fma(k, o.real(LN2_TAIL), small))
    return o.fma(k, o.real(LN2_HEAD), o.sub(f, o.sub(half, tail)))


def _ordinary(o: Table, x: Lanes) -> Lanes:
    """The mask of positive normal finite numbers."""
    shifted = o.iadd(o.to_bits(x), o.whole((1 << 63) - _NORMAL_BITS))
    return o.ilt(shifted, o.whole((1 << 63) + bits_of(math.inf) - _NORMAL_BITS))


def ln(o: Table, x: Lanes) -> Lanes:
    """``k*ln(2) + log1p(f)`` (Cody & Waite 1980, chapter 5, with Tang's 1990 order of the last sums)."""

    def special(o: Table, x: Lanes) -> Lanes:
        k, f = split(o, o.mul(x, o.real(2.0**54)))
        return log_cases(o, x, 0.0, _log(o, o.sub(k, o.real(54.0)), f, o.real(0.0)))

    k, f = split(o, x)
    return o.rarely(o.negate(_ordinary(o, x)), _log(o, k, f, o.real(0.0)), special, x)


def log1p(o: Table, x: Lanes) -> Lanes:
    """As `ln` of ``u = 1 + x``, with what `u` lost added as ``lost/u``; at ``k = 0`` nothing is lost but that."""
    u, lost = two_sum(o, o.real(1.0), x)
    k, f = split(o, u)
    common = signed(o, _log(o, k, f, o.div(lost, u)), x)
    common = o.select(o.lt(o.abs(x), o.real(2.0**-54)), x, common)
    regular = o.both(o.gt(x, o.real(-1.0)), o.lt(x, o.real(math.inf)))
    return o.rarely(o.negate(regular), common, lambda o, x: log_cases(o, x, -1.0, o.real(math.nan)), x)


def _log_pair(o: Table, k: Lanes, f: Lanes) -> tuple[Lanes, Lanes]:
    """Return ``k*ln(2) + log1p(f)`` as a sum of two reals, to 2**-66: ``2s*(1 + z/3 + z*z*R(z))`` in pairs."""
    two = o.real(2.0)
    d = o.add(f, two)
    d_lost = o.sub(f, o.sub(d, two))
    inverse = o.div(o.real(1.0), d)
    s = o.mul(f, inverse)
    s_low = o.mul(o.fma(o.neg(s), d_lost, o.fma(o.neg(s), d, f)), inverse)
    z = o.mul(s, s)
    z_low = o.fma(o.add(s, s), s_low, o.fma(s, s, o.neg(z)))
    third = o.mul(z, o.real(_THIRD))
    third_low = o.fma(z, o.real(_THIRD), o.neg(third))
    third_low = o.fma(z_low, o.real(_THIRD), o.fma(z, o.real(_THIRD_TAIL), third_low))
    square, series = o.mul(z, z), polynomial(o, z, _LOG_FINE)
    square_low = o.fma(o.add(z, z), z_low, o.fma(z, z, o.neg(square)))
    fine = o.mul(square, series)
    fine_low = o.fma(square_low, series, o.fma(square, series, o.neg(fine)))
    a = o.add(third, fine)
    a_low = o.add(o.sub(fine, o.sub(a, third)), o.add(third_low, fine_low))
    double, double_low = o.add(s, s), o.add(s_low, s_low)
    u = o.mul(double, a)
    u_low = o.fma(double, a_low, o.fma(double_low, a, o.fma(double, a, o.neg(u))))
    w = o.add(double, u)
    w_low = o.add(o.sub(u, o.sub(w, double)), o.add(double_low, u_low))
    whole = o.mul(k, o.real(LN2_HEAD))
    total = o.add(whole, w)
    return total, o.fma(k, o.real(LN2_TAIL), o.add(o.sub(w, o.sub(total, whole)), w_low))


def powf(o: Table, a: Lanes, b: Lanes) -> Lanes:
    """``exp(b * ln|a|)`` with the logarithm and the product as pairs."""
    size = o.abs(a)
    tiny = o.lt(size, o.real(2.0**-1022))
    k, f = split(o, o.select(tiny, o.mul(size, o.real(2.0**54)), size))
    k = o.select(tiny, o.sub(k, o.real(54.0)), k)
    log, log_low = _log_pair(o, k, f)
    high = o.mul(b, log)
    low = o.fma(b, log_low, o.fma(b, log, o.neg(high)))
    bounded = clamp(o, high, -800.0, 800.0)
    low = o.select(o.eq(bounded, high), low, o.real(0.0))
    return power_cases(o, exp_pair(o, bounded, low), a, b)
