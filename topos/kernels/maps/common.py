"""What the maps of both widths share: evaluation, clamping, signs, reductions."""

import functools
import math
import struct
from collections.abc import Sequence
from pathlib import Path

from topos.kernels.table import Lanes, Table


def hexes(*digits: str) -> tuple[float, ...]:
    """Return reals from their exact hexadecimal text."""
    return tuple(float.fromhex(d) for d in digits)


@functools.cache
def _tables() -> dict[str, tuple[float, ...]]:
    lines = Path(__file__).with_name("coefficients.txt").read_text(encoding="utf-8").splitlines()
    return {name: hexes(*digits) for name, *digits in map(str.split, lines) if name != "#"}


def coefficients(name: str) -> tuple[float, ...]:
    """Return the coefficients of a polynomial, lowest first; they stand in ``coefficients.txt``."""
    return _tables()[name]


def bits_of(value: float) -> int:
    """Return the bits of a 64-bit real, as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


# Adding it leaves a 64-bit real's nearest integer in the low bits of the sum.
ROUND = 1.5 * 2.0**52


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


def nearest(o: Table, x: Lanes, inverse: float) -> tuple[Lanes, Lanes]:
    """Return the integer next to ``x * inverse``, in the low bits of a sum with `ROUND`, and as a 64-bit real."""
    rounded = o.fma(x, o.real(inverse), o.real(ROUND))
    return rounded, o.sub(rounded, o.real(ROUND))


def two_sum(o: Table, a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Return ``a + b`` and what it lost (Knuth 1969)."""
    total = o.add(a, b)
    back = o.sub(total, a)
    return total, o.add(o.sub(a, o.sub(total, back)), o.sub(b, back))


def split(o: Table, x: Lanes) -> tuple[Lanes, Lanes]:
    """Return 64-bit `k` and `f` with ``x = 2**k * (1 + f)``, ``sqrt(1/2) <= 1 + f < sqrt(2)``; `x` normal.

    The exponent is offset by 2048, the sign bit, so the mantissa comes out negated.
    """
    bits = o.to_bits(x)
    offset = o.iadd(bits, o.whole((1 << 63) - bits_of(math.sqrt(0.5))))
    minus = o.from_bits(o.isub(bits, o.iand(offset, o.whole(-1 << 52))))
    k = o.sub(o.from_bits(o.ior(o.lshr(offset, 52), o.whole(bits_of(2.0**52)))), o.real(2.0**52 + 2048))
    return k, o.sub(o.real(-1.0), minus)
