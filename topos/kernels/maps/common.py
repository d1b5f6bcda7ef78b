"""What the maps of both widths share: evaluation, clamping, signs, the bits of pi, the cases of a power."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from topos.kernels.table import Lanes, Table


def hexes(*digits: str) -> tuple[float, ...]:
    """Return reals from their exact hexadecimal text."""
    return tuple(float.fromhex(d) for d in digits)


def bits_of(value: float) -> int:
    """Return the bits of a 64-bit real, as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def polynomial(o: Table, x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Horner's rule, lowest coefficient first; a long one as two, of even and odd powers, side by side."""
    if len(coefficients) > 7:
        square = o.mul(x, x)
        odd = polynomial(o, square, coefficients[1::2])
        return o.fma(odd, x, polynomial(o, square, coefficients[::2]))
    total = o.real(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = o.fma(total, x, o.real(coefficient))
    return total


def at_most(o: Table, x: Lanes, high: float) -> Lanes:
    """The lesser of `x` and `high`; a NaN stays."""
    return o.select(o.gt(x, o.real(high)), o.real(high), x)


def clamp(o: Table, x: Lanes, low: float, high: float) -> Lanes:
    """Bring `x` into range; a NaN stays."""
    x = at_most(o, x, high)
    return o.select(o.lt(x, o.real(low)), o.real(low), x)


def signed(o: Table, magnitude: Lanes, x: Lanes) -> Lanes:
    """Give `magnitude`, positive or of `x`'s sign, the sign of `x`."""
    sign = o.iand(o.to_bits(x), o.whole(1 << (o.width - 1)))
    return o.from_bits(o.ior(o.to_bits(magnitude), sign))


def split(o: Table, x: Lanes) -> tuple[Lanes, Lanes]:
    """Return 64-bit `k` and `f` with ``x = 2**k * (1 + f)``, ``sqrt(1/2) <= 1 + f < sqrt(2)``; `x` normal.

    The exponent is offset by 2048, the sign bit, so the mantissa comes out negated.
    """
    bits = o.to_bits(x)
    offset = o.iadd(bits, o.whole((1 << 63) - bits_of(math.sqrt(0.5))))
    minus = o.from_bits(o.isub(bits, o.iand(offset, o.whole(-1 << 52))))
    k = o.sub(o.from_bits(o.ior(o.lshr(offset, 52), o.whole(bits_of(2.0**52)))), o.real(2.0**52 + 2048))
    return k, o.sub(o.real(-1.0), minus)


def inverse_pi(bits: int) -> int:
    """Return the integer part of ``2**bits / pi``, by Machin's formula."""
    guard = bits + 64

    def arctangent(inverse: int) -> int:
        term, total, n = (1 << guard) // inverse, 0, 0
        while term:
            total += (-1) ** n * (term // (2 * n + 1))
            term, n = term // inverse**2, n + 1
        return total

    return (1 << (guard + bits)) // (4 * (4 * arctangent(5) - arctangent(239)))


def power_cases(o: Table, common: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """``a**b`` where `common` is ``|a|**b`` for the ordinary: special cases as C has them (C17 F.10.4.4).

    At 64 bits; `common` has to be right for positive finite `a` other than 1 and finite `b`.
    """
    zero, one, infinity = o.real(0.0), o.real(1.0), o.real(math.inf)

    def integral(o: Table, x: Lanes) -> Lanes:
        whole = o.real(2.0**52)
        return o.either(o.ge(x, whole), o.eq(o.sub(o.add(x, whole), whole), x))

    def special(o: Table, common: Lanes, a: Lanes, b: Lanes) -> Lanes:
        size, extent = o.abs(a), o.abs(b)
        grows = o.either(o.both(o.gt(size, one), o.gt(b, zero)), o.both(o.lt(size, one), o.lt(b, zero)))
        extreme = o.either(o.either(o.eq(size, zero), o.eq(size, infinity)), o.eq(extent, infinity))
        value = o.select(extreme, o.select(grows, infinity, zero), common)
        value = o.select(o.both(o.eq(size, one), o.eq(extent, infinity)), one, value)
        is_integer = integral(o, extent)
        odd = o.both(is_integer, o.negate(integral(o, o.mul(extent, o.real(0.5)))))
        negative = o.ilt(o.to_bits(a), o.whole(0))
        value = o.select(o.both(odd, negative), o.neg(value), value)
        undefined = o.both(o.both(o.lt(a, zero), o.gt(a, o.neg(infinity))), o.negate(is_integer))
        undefined = o.either(o.either(o.is_nan(a), o.is_nan(b)), undefined)
        value = o.select(undefined, o.real(math.nan), value)
        return o.select(o.either(o.eq(b, zero), o.eq(a, one)), one, value)

    regular = o.both(o.both(o.gt(a, zero), o.lt(a, infinity)), o.lt(o.abs(b), infinity))
    return o.rarely(o.negate(regular), common, special, common, a, b)
