"""sin and cos of float64: a multiple of pi/2 is taken off in three parts, or by the bits of 2/pi."""

import math

from topos.kernels.maps.common import ROUND, bits_of, coefficients, hexes, nearest, polynomial, two_sum
from topos.kernels.maps.constants import inverse_pi_table
from topos.kernels.table import Lanes, Table

_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI = hexes("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110")
_LARGE = 30  # from 2**30 on, arguments are reduced by the bits of 2/pi
_SPLIT = 27  # bits of the lower part of a mantissa there

# (sin(r)/r - 1)/z and (cos(r) - 1 + z/2)/z**2 in z = r**2 on |r| <= pi/4, to 2**-58.0 and 2**-64.0
_SINE = coefficients("double.trigonometric.sine")
_COSINE = coefficients("double.trigonometric.cosine")


def _kernel(o: Table, r: Lanes, low: Lanes, quadrant: Lanes) -> Lanes:
    """Return ``sin(r + low + quadrant*pi/2)``, ``|r| <= pi/4``; the quadrant is in the low bits of an integer."""
    z = o.mul(r, r)
    cube = o.mul(z, r)
    sine_tail = o.fma(o.mul(cube, z), polynomial(o, z, _SINE[1:]), o.fma(o.mul(z, o.real(-0.5)), low, low))
    sine = o.add(r, o.fma(cube, o.real(_SINE[0]), sine_tail))
    half = o.mul(z, o.real(0.5))
    one = o.real(1.0)
    head = o.sub(one, half)
    lost = o.sub(o.sub(one, head), half)
    cosine = o.add(head, o.fma(o.mul(z, z), polynomial(o, z, _COSINE), o.fma(o.neg(r), low, lost)))
    swapped = o.ieq(o.iand(quadrant, o.whole(1)), o.whole(1))
    value = o.select(swapped, cosine, sine)
    flip = o.shl(o.iand(quadrant, o.whole(2)), 62)
    return o.from_bits(o.ixor(o.to_bits(value), flip))


def _large(o: Table, x: Lanes, shift: int) -> Lanes:
    """Reduce ``|x| >= 2**30`` (Payne & Hanek 1983).

    The mantissa is an integer in two parts; each, times the rest modulo 4 of ``2**e * 2/pi``, is a sum of
    products whose heads are exact, so quadrant and fraction come out to some 2**-120.
    """
    # The bits of three doubles with the sum ``2**e * 2/pi mod 4``, for e from ``_LARGE - 52`` up.
    tables = inverse_pi_table(range(_LARGE - 51, 1024 - 51 + _SPLIT), 4, 3, 1400)
    bits = o.to_bits(o.abs(x))
    index = o.isub(o.lshr(bits, 52), o.whole(1023 + _LARGE))
    inside = o.both(o.ilt(o.whole(-1), index), o.ilt(bits, o.whole(bits_of(math.inf))))
    index = o.select(inside, index, o.whole(0))
    mantissa = o.ior(o.iand(bits, o.whole((1 << 52) - 1)), o.whole(1 << 52))
    parts = (o.iand(mantissa, o.whole((1 << _SPLIT) - 1)), o.lshr(mantissa, _SPLIT))
    highs, terms, finest = [], [], o.real(0.0)
    for place, part in enumerate(parts):
        whole = o.whole(bits_of(2.0**52))
        factor = o.sub(o.from_bits(o.ior(part, whole)), o.real(2.0**52))
        at = o.iadd(index, o.whole(place * _SPLIT))
        first, second, third = (o.from_bits(o.lookup(table, at)) for table in tables)
        high, middle = o.mul(factor, first), o.mul(factor, second)
        turns = o.sub(o.add(o.mul(high, o.real(0.25)), o.real(ROUND)), o.real(ROUND))
        highs.append(o.fma(turns, o.real(-4.0), high))
        terms += [o.fma(factor, first, o.neg(high)), middle]
        finest = o.add(finest, o.fma(factor, third, o.fma(factor, second, o.neg(middle))))
    total, lost = two_sum(o, *highs)
    rounded = o.add(total, o.real(ROUND))
    fraction, rest = o.sub(total, o.sub(rounded, o.real(ROUND))), o.real(0.0)
    for term in (lost, *terms):
        fraction, lost = two_sum(o, fraction, term)
        rest, lost = two_sum(o, rest, lost)
        finest = o.add(finest, lost)
    fraction, rest = two_sum(o, fraction, o.add(rest, finest))
    r = o.mul(fraction, o.real(_HALF_PI[0]))
    low = o.fma(fraction, o.real(_HALF_PI[0]), o.neg(r))
    low = o.fma(rest, o.real(_HALF_PI[0]), o.fma(fraction, o.real(_HALF_PI[1]), low))
    r, low = two_sum(o, r, low)
    # Odd in x: reduced for |x|, the signs of remainder and quadrant follow x.
    minus = o.lt(x, o.real(0.0))
    quadrant = o.to_bits(rounded)
    r, low = (o.select(minus, o.neg(v), v) for v in (r, low))
    quadrant = o.select(minus, o.isub(o.whole(0), quadrant), quadrant)
    value = _kernel(o, r, low, o.iadd(quadrant, o.whole(shift)))
    return o.select(inside, value, o.real(math.nan))


def _sine(o: Table, x: Lanes, shift: int) -> Lanes:
    """Return ``sin(x + shift*pi/2)`` (Cody & Waite 1980, chapter 8, with the remainder in two parts)."""
    rounded, k = nearest(o, x, _TWO_OVER_PI)
    head = o.fma(k, o.real(-_HALF_PI[0]), x)
    second = o.mul(k, o.real(-_HALF_PI[1]))
    r, lost = two_sum(o, head, second)
    second_lost = o.fma(k, o.real(-_HALF_PI[1]), o.neg(second))
    low = o.add(lost, o.fma(k, o.real(-_HALF_PI[2]), second_lost))
    common = _kernel(o, r, low, o.iadd(o.to_bits(rounded), o.whole(shift)))
    small = o.lt(o.abs(x), o.real(2.0**_LARGE))
    return o.rarely(o.negate(small), common, lambda o, x: _large(o, x, shift), x)


def sin(o: Table, x: Lanes) -> Lanes:
    """The sine by quadrant: a sine or cosine polynomial of the remainder."""
    value = _sine(o, x, 0)
    return o.select(o.eq(x, o.real(0.0)), x, value)


def cos(o: Table, x: Lanes) -> Lanes:
    """The cosine: the sine of a quadrant further, of ``|x|``."""
    return _sine(o, o.abs(x), 1)
