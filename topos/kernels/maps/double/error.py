"""The error function of float64, within 1.3 ulp, and its derivative, within 1.1.

Both are written on ``expm1`` of an argument reduced by a multiple of ln(2). The polynomials are minimax fits
made for these intervals (Remez exchange at 50 digits); a comment gives each one's error.
"""

from __future__ import annotations

from topos.kernels.maps.common import at_most, bits_of, hexes, polynomial, signed
from topos.kernels.maps.double.exponential import ROUND
from topos.kernels.table import Lanes, Table

_LOG2E = float.fromhex("0x1.71547652b82fep+0")
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_LN2_LOST = float.fromhex("0x1.abc9e3b39803fp-56")
_LN2_HEAD = float.fromhex("0x1.62e42fefa3800p-1")  # 42 bits: its multiples by an exponent are exact
_LN2_TAIL = float.fromhex("0x1.ef35793c76730p-45")
_TWO_OVER_ROOT_PI = float.fromhex("0x1.20dd750429b6dp+0")
_TWO_OVER_ROOT_PI_TAIL = float.fromhex("0x1.1ae3a914fed80p-56")
_SATURATED = 5.93  # from here on erf rounds to 1
_VANISHED = 27.5  # from here on the derivative rounds to 0
_GUARD = 128  # binary orders that keep the scale of the derivative in the normal range

# (expm1(r) - r) / r**2 on |r| <= ln(2)/2, to 2**-55.4 of expm1(r) and 2**-57.9 of exp(r)
_EXPM1 = hexes(
    "0x1.0000000000006p-1", "0x1.5555555555560p-3", "0x1.5555555551aa5p-5", "0x1.111111110b6a9p-7",
    "0x1.6c16c180e358cp-10", "0x1.a01a01d36576fp-13", "0x1.a019a15c9a404p-16", "0x1.71dd8837c5383p-19",
    "0x1.28a7e7a609fa7p-22", "0x1.b045256001283p-26",
)  # fmt: skip
# (-ln(erfc(x))/x - 2/sqrt(pi)) / x on 0 <= x <= 5.93, to 2**-57.5 of erf(x)
_ERFC = hexes(
    "0x1.45f306dc9c890p-1", "0x1.a4f4e2a1b2964p-4", "-0x1.3966859400eacp-6", "-0x1.b6b68b16d13f3p-13",
    "0x1.bca67b1cfb088p-10", "-0x1.3565492b7b69dp-11", "0x1.b2291d059cf24p-16", "0x1.0e813ac1d0c4cp-14",
    "-0x1.f2bbf3c971b1dp-16", "0x1.c9de7bca05849p-19", "0x1.7be36937c6ce0p-19", "-0x1.d2522c0297ee1p-20",
    "0x1.65b55ded2ff79p-22", "0x1.2ab6f301112a2p-23", "-0x1.3268d066a7dbcp-23", "0x1.1bda8c557b0f3p-24",
    "-0x1.6a089737f0697p-26", "0x1.594ec9648acb0p-28", "-0x1.f62d207e8b449p-31", "0x1.143813fb40ab7p-33",
    "-0x1.bea3d2ad71322p-37", "0x1.f57b75a3670dcp-41", "-0x1.5d712b496307bp-45", "0x1.c73be8b5d28b3p-51",
)  # fmt: skip


def _leading(o: Table, x: Lanes, coefficients: tuple[float, ...]) -> Lanes:
    """A polynomial whose first coefficient dominates, added last so that the sum is rounded once."""
    return o.fma(x, polynomial(o, x, coefficients[1:]), o.real(coefficients[0]))


def _nearest(o: Table, x: Lanes) -> tuple[Lanes, Lanes]:
    """Return the `k` for which ``x - k*ln(2)`` is least, and `k` shifted to an exponent's place."""
    rounded = o.fma(x, o.real(_LOG2E), o.real(ROUND))
    return o.sub(rounded, o.real(ROUND)), o.shl(o.to_bits(rounded), 52)


def erf(o: Table, x: Lanes) -> Lanes:
    """``1 - exp(-q)``, ``q = -ln(erfc(|x|))`` a polynomial, as ``(1 - 2**k) - 2**k * expm1(-q - k*ln(2))``.

    The first difference is exact, and `q`'s rounding error is carried along (fast two-sum, Dekker 1971), so
    that one rounding dominates everywhere, also next to 0, where `k` is 0.
    """
    size = at_most(o, o.abs(x), _SATURATED)
    inner = o.fma(size, _leading(o, size, _ERFC), o.real(_TWO_OVER_ROOT_PI_TAIL))
    q = o.fma(size, o.real(_TWO_OVER_ROOT_PI), o.mul(size, inner))
    minus = o.neg(q)
    lost = o.fma(size, inner, o.fma(size, o.real(_TWO_OVER_ROOT_PI), minus))
    k, exponent = _nearest(o, minus)
    r = o.fma(k, o.real(-_LN2), minus)
    lost = o.fma(k, o.real(-_LN2_LOST), o.neg(lost))
    tail = o.add(r, o.fma(o.mul(r, r), _leading(o, r, _EXPM1), lost))
    minus_power = o.from_bits(o.iadd(exponent, o.whole(bits_of(-1.0))))
    value = o.fma(minus_power, tail, o.add(minus_power, o.real(1.0)))
    return signed(o, value, x)


def erf_derivative(o: Table, x: Lanes) -> Lanes:
    """``2/sqrt(pi) * exp(-x**2)``, the square in two parts; subnormals are rounded once, by the last product."""
    size = at_most(o, o.abs(x), _VANISHED)
    minus = o.neg(size)
    head = o.mul(minus, size)
    lost = o.fma(minus, size, o.neg(head))
    k, exponent = _nearest(o, head)
    r = o.add(o.fma(k, o.real(-_LN2_HEAD), head), o.fma(k, o.real(-_LN2_TAIL), lost))
    tail = o.fma(o.mul(r, r), _leading(o, r, _EXPM1), r)
    power = o.from_bits(o.iadd(exponent, o.whole(bits_of(_TWO_OVER_ROOT_PI * 2.0**_GUARD))))
    return o.mul(o.fma(power, tail, power), o.real(2.0**-_GUARD))
