"""The error function of float64, and its derivative, each within 1.2 ulp.

Both are written on ``expm1`` of an argument reduced by a multiple of ln(2). The polynomials are minimax fits
made for these intervals (Remez exchange at 50 digits); a comment gives each one's error.
"""

from topos.kernels.maps.common import at_most, bits_of, coefficients, nearest, polynomial, signed
from topos.kernels.maps.constants import LN2, LN2_HEAD, LN2_LOST, LN2_TAIL, LOG2E, TWO_OVER_ROOT_PI
from topos.kernels.table import Lanes, Table

_TWO_OVER_ROOT_PI_LOST = float.fromhex("0x1.1ae3a914fed80p-56")
_SATURATED = 5.93  # from here on erf rounds to 1
_VANISHED = 27.5  # from here on the derivative rounds to 0
_GUARD = 128  # binary orders that keep the scale of the derivative in the normal range

# (expm1(r) - r) / r**2 on |r| <= ln(2)/2, to 2**-55.4 of expm1(r) and 2**-57.9 of exp(r)
_EXPM1 = coefficients("double.error.expm1")
# a = (-ln(erfc(x))/x - 2/sqrt(pi)) / x on 0 <= x <= 5.93, to 2**-57.5 of erf(x): the first coefficient is
# the value at 0, the rest is the polynomial (a - first)/x in x - 3, where no terms cancel
_ERFC = coefficients("double.error.erfc")


def _expm1_rest(o: Table, r: Lanes) -> Lanes:
    """``(expm1(r) - r) / r**2``, the leading coefficient added last so that the sum is rounded once."""
    return o.fma(r, polynomial(o, r, _EXPM1[1:]), o.real(_EXPM1[0]))


def _power(o: Table, rounded: Lanes, factor: float) -> Lanes:
    """``factor * 2**k`` for a `rounded` of `nearest`."""
    return o.from_bits(o.iadd(o.shl(o.to_bits(rounded), 52), o.whole(bits_of(factor))))


def erf(o: Table, x: Lanes) -> Lanes:
    """``1 - exp(-q)``, ``q = -ln(erfc(|x|))`` a polynomial, as ``(1 - 2**k) - 2**k * expm1(-q - k*ln(2))``.

    The first difference is exact, and `q`'s rounding error is carried along (found with ``fma``), so
    that one rounding dominates everywhere, also next to 0, where `k` is 0.
    """
    size = at_most(o, o.abs(x), _SATURATED)
    outer = polynomial(o, o.sub(size, o.real(3.0)), _ERFC[1:])
    outer = o.fma(size, outer, o.real(_ERFC[0]))
    inner = o.fma(size, outer, o.real(_TWO_OVER_ROOT_PI_LOST))
    q = o.fma(size, o.real(TWO_OVER_ROOT_PI), o.mul(size, inner))
    minus = o.neg(q)
    lost = o.fma(size, inner, o.fma(size, o.real(TWO_OVER_ROOT_PI), minus))
    rounded, k = nearest(o, minus, LOG2E)
    r = o.fma(k, o.real(-LN2), minus)
    lost = o.fma(k, o.real(-LN2_LOST), o.neg(lost))
    tail = o.add(r, o.fma(o.mul(r, r), _expm1_rest(o, r), lost))
    minus_power = _power(o, rounded, -1.0)
    value = o.fma(minus_power, tail, o.add(minus_power, o.real(1.0)))
    return signed(o, value, x)


def erf_derivative(o: Table, x: Lanes) -> Lanes:
    """``2/sqrt(pi) * exp(-x**2)``, the square in two parts; subnormals are rounded once, by the last product."""
    size = at_most(o, o.abs(x), _VANISHED)
    minus = o.neg(size)
    head = o.mul(minus, size)
    lost = o.fma(minus, size, o.neg(head))
    rounded, k = nearest(o, head, LOG2E)
    r = o.add(o.fma(k, o.real(-LN2_HEAD), head), o.fma(k, o.real(-LN2_TAIL), lost))
    tail = o.fma(o.mul(r, r), _expm1_rest(o, r), r)
    power = _power(o, rounded, TWO_OVER_ROOT_PI * 2.0**_GUARD)
    return o.mul(o.fma(power, tail, power), o.real(2.0**-_GUARD))
