"""The element functions of float32 that are not one IEEE 754 operation, each within 1 ulp everywhere.

Most work in 64-bit lanes and round once: no compensation, no care for subnormals. `exp`, `ln`, `tanh` and `erf`,
which are used most, work at 32 bits in half the time: sums that matter are in two parts, or end in a term that
dwarfs the others, and arguments out of the ordinary are left to 64 bits. The polynomials are minimax fits made
for these intervals (Remez exchange at 40 digits, or linear programs that round one coefficient after the other;
relative error of the function); a comment gives each one's error. Every function keeps the sign of zero, and a NaN gives a NaN.
"""

import math
from collections.abc import Sequence

from topos.kernels.maps.cases import exp_cases, log_cases, power_cases
from topos.kernels.maps.common import ROUND, at_most, bits_of, clamp, coefficients, nearest, polynomial, signed, split
from topos.kernels.maps.constants import LN2, LOG2E, TWO_OVER_ROOT_PI, inverse_pi_table
from topos.kernels.table import Lanes, Table

_SIGN = 1 << 31
_ROUND_SHORT = 1.5 * 2.0**23  # `ROUND` for a 32-bit real
_TWO_THIRDS_BITS = 0x3F2AAAAB  # of a 32-bit real
_LN2_HEAD = float.fromhex("0x1.62e4p-1")  # 15 bits: its multiples by an exponent are exact at 32 bits
_LN2_TAIL = float.fromhex("0x1.7f7d1cp-20")

# exp(r) on |r| <= ln(2)/2, to 2**-29.0
_EXP = coefficients("single.exp")
# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2, in 32-bit coefficients, to 2**-28.1 of exp(r)
_EXP_SHORT = coefficients("single.exp_short")
# (expm1(r) - r) / r**2 on |r| <= ln(2)/2, to 2**-32.0 of expm1(r)
_EXPM1 = coefficients("single.expm1")
# (tanh(x)/x - 1) / x**2 in x**2 on |x| <= 1, in 32-bit coefficients, to 2**-27.9 of tanh(x)
_TANH_NEAR = coefficients("single.tanh_near")
# (log1p(f) - f) / f**2 on sqrt(1/2) <= 1 + f <= sqrt(2), to 2**-30.4 of log1p(f)
_LOG = coefficients("single.log")
# the same on 2/3 <= 1 + f <= 4/3, in 32-bit coefficients, to 2**-29.9
_LOG_SHORT = coefficients("single.log_short")
# as _LOG to 2**-35.7, for a logarithm that a power multiplies by up to 104
_LOG_FINE = coefficients("single.log_fine")
# (sin(r)/r - 1) / r**2 in r**2 on |r| <= pi/2, to 2**-35.3 of sin(r)
_SINE = coefficients("single.sine")
# (erf(x)/x - 1) in x**2 on |x| <= 1, in 32-bit coefficients, to 2**-29.6 of erf(x)
_ERF_NEAR = coefficients("single.erf_near")
# erf(x) in x - _ERF_CENTRE on 1 <= x <= 3.96, in 32-bit coefficients, to 2**-26.8
_ERF_FAR = coefficients("single.erf_far")
_ERF_CENTRE = float.fromhex("0x1.37264cp+1")  # where a 32-bit real is erf to 2**-36


# ---- exponentials --------------------------------------------------------------------------------------


def _reduced(o: Table, x: Lanes) -> tuple[Lanes, Lanes]:
    """Return 64-bit ``r = x - k*ln(2)``, ``|r| <= ln(2)/2``, and `k` shifted to an exponent's place."""
    rounded, k = nearest(o, x, LOG2E)
    return o.fma(k, o.real(-LN2), x), o.shl(o.to_bits(rounded), 52)


def _exp(o: Table, x: Lanes, factor: float = 1.0) -> Lanes:
    """64-bit ``factor * exp(x)``, ``|x| < 700``, to 2**-29."""
    r, exponent = _reduced(o, x)
    mantissa = polynomial(o, r, [factor * c for c in _EXP])
    return o.from_bits(o.iadd(o.to_bits(mantissa), exponent))


def _expm1(o: Table, x: Lanes) -> Lanes:
    """64-bit ``exp(x) - 1``, ``|x| < 700``, to 2**-32 (relative, also next to 0)."""
    r, exponent = _reduced(o, x)
    power = o.from_bits(o.iadd(exponent, o.whole(bits_of(1.0))))
    tail = o.fma(o.mul(r, r), polynomial(o, r, _EXPM1), r)
    return o.fma(power, tail, o.sub(power, o.real(1.0)))


def exp(o: Table, x: Lanes) -> Lanes:
    """``2**k * P(x - k*ln(2))`` (Cody & Waite 1980, chapter 6), to 0.69 ulp.

    The sum of 1 and the reduced argument's head is in two parts (fast two-sum, Dekker 1971). Results next to
    or past the ends of the normal range come from 64 bits, but up to -103.98 they round to 0.
    """

    def ordinary(o: Table, x: Lanes) -> Lanes:
        rounded = o.fma(x, o.real(LOG2E), o.real(_ROUND_SHORT))
        k = o.sub(rounded, o.real(_ROUND_SHORT))
        head = o.fma(k, o.real(-_LN2_HEAD), x)
        r = o.fma(k, o.real(-_LN2_TAIL), head)
        total = o.add(head, o.real(1.0))
        lost = o.fma(k, o.real(-_LN2_TAIL), o.sub(head, o.sub(total, o.real(1.0))))
        mantissa = o.add(total, o.fma(o.mul(r, r), polynomial(o, r, _EXP_SHORT), lost))
        return o.from_bits(o.iadd(o.to_bits(mantissa), o.shl(o.to_bits(rounded), 23)))

    def extreme(o: Table, x: Lanes) -> Lanes:
        return o.double(_exp, clamp(o, x, -110.0, 90.0))

    return exp_cases(o, x, ordinary, 87.0, -104.0, extreme)


def expm1(o: Table, x: Lanes) -> Lanes:
    """``2**k * P(r) + (2**k - 1)`` at 64 bits, `P` being ``expm1`` on the reduced argument."""
    return signed(o, o.double(_expm1, clamp(o, x, -40.0, 90.0)), x)


def tanh(o: Table, x: Lanes) -> Lanes:
    """``|x| + |x|*x**2*P(x**2)`` up to 1, then ``1 - 2/(exp(2|x|) + 1)``, at 32 bits; 1 from 9.25 on.

    To 0.92 ulp. With ``exp(2|x|) = 2**k * (1 + r*Q(r))`` the quotient is ``2**-k / (1 + 2**-k + r*Q(r))``, whose
    divisor is rounded once.
    """
    size, one = at_most(o, o.abs(x), 9.25), o.real(1.0)
    square, double = o.mul(size, size), o.add(size, size)
    near = o.fma(o.mul(square, polynomial(o, square, _TANH_NEAR)), size, size)
    rounded = o.fma(double, o.real(LOG2E), o.real(_ROUND_SHORT))
    r = o.fma(o.sub(rounded, o.real(_ROUND_SHORT)), o.real(-LN2), double)
    power = o.from_bits(o.isub(o.to_bits(one), o.shl(o.to_bits(rounded), 23)))
    quotient = o.div(power, o.fma(r, polynomial(o, r, (1.0, *_EXP_SHORT)), o.add(power, one)))
    far = o.fma(quotient, o.real(-2.0), one)
    return signed(o, o.select(o.lt(size, one), near, far), x)


def erf(o: Table, x: Lanes) -> Lanes:
    """``|x| + |x|*P(x**2)`` up to 1, then a polynomial about a point of the middle, at 32 bits; 1 from 3.96 on.

    To 0.99 ulp: both polynomials end in a term that dwarfs the others, so only the last rounding counts.
    """
    size = at_most(o, o.abs(x), 3.96)
    near = o.fma(polynomial(o, o.mul(size, size), _ERF_NEAR), size, size)
    off = o.sub(size, o.real(_ERF_CENTRE))
    far = o.fma(polynomial(o, off, _ERF_FAR[1:]), off, o.real(_ERF_FAR[0]))
    return signed(o, o.select(o.lt(size, o.real(1.0)), near, far), x)


def erf_derivative(o: Table, x: Lanes) -> Lanes:
    """``2/sqrt(pi) * exp(-x**2)`` at 64 bits, where the square is exact."""

    def body(o: Table, x: Lanes) -> Lanes:
        return _exp(o, o.mul(o.neg(x), x), TWO_OVER_ROOT_PI)

    return o.double(body, clamp(o, x, -11.0, 11.0))


# ---- logarithms ----------------------------------------------------------------------------------------


def _log(o: Table, k: Lanes, f: Lanes, coefficients: Sequence[float]) -> Lanes:
    """64-bit ``k*ln(2) + log1p(f)`` for what `_split` returns."""
    tail = o.fma(o.mul(f, f), polynomial(o, f, coefficients), f)
    return o.fma(k, o.real(LN2), tail)


def ln(o: Table, x: Lanes) -> Lanes:
    """``k*ln(2) + P(f)``, ``x = 2**k * (1 + f)`` (Cody & Waite 1980, chapter 5), to 0.83 ulp.

    The sum of ``k*ln(2)``'s head and `f` is in two parts (fast two-sum, Dekker 1971). Subnormals come from
    64 bits.
    """
    bits = o.to_bits(x)
    offset = o.isub(bits, o.whole(_TWO_THIRDS_BITS))
    f = o.sub(o.from_bits(o.isub(bits, o.iand(offset, o.whole(-1 << 23)))), o.real(1.0))
    k = o.to_real(o.ashr(offset, 23))
    head = o.mul(k, o.real(_LN2_HEAD))
    total = o.add(head, f)
    lost = o.fma(k, o.real(_LN2_TAIL), o.add(o.sub(head, total), f))
    factor = o.fma(polynomial(o, f, _LOG_SHORT[1:]), f, o.real(_LOG_SHORT[0]))
    common = o.add(total, o.fma(o.mul(f, f), factor, lost))

    def special(o: Table, x: Lanes) -> Lanes:
        return log_cases(o, x, 0.0, o.double(lambda o, x: _log(o, *split(o, x), _LOG), x))

    normal = o.ilt(o.iadd(bits, o.whole(_SIGN - (1 << 23))), o.whole(_SIGN + (254 << 23)))
    return o.rarely(o.negate(normal), common, special, x)


def log1p(o: Table, x: Lanes) -> Lanes:
    """As `ln` of ``1 + x`` at 64 bits, with ``f = x`` itself where ``k = 0``."""

    def body(o: Table, x: Lanes) -> Lanes:
        k, f = split(o, o.add(x, o.real(1.0)))
        return _log(o, k, o.select(o.eq(k, o.real(0.0)), x, f), _LOG)

    regular = o.both(o.gt(x, o.real(-1.0)), o.lt(x, o.real(math.inf)))
    common = signed(o, o.double(body, x), x)
    return o.rarely(o.negate(regular), common, lambda o, x: log_cases(o, x, -1.0, o.real(math.nan)), x)


# ---- sine and cosine -----------------------------------------------------------------------------------

_PI = float.fromhex("0x1.921fb54442d18p+1")
_PI_TAIL = float.fromhex("0x1.1a62633145c07p-53")
_INVERSE_PI = float.fromhex("0x1.45f306dc9c883p-2")
_LARGE = 28  # from 2**28 on, arguments are reduced by the bits of 1/pi


# The bits of two doubles with the sum ``2**(s - 23)/pi mod 2``, for `s` from `_LARGE` to 127.
_LARGE_HEADS, _LARGE_TAILS = inverse_pi_table(range(_LARGE - 23, 128 - 23), 2, 2, 320)


def _sine(o: Table, r: Lanes, rounded: Lanes) -> Lanes:
    """64-bit ``sin(r)``, ``|r| <= pi/2``, to 2**-35, negated where the integer in `rounded` is odd."""
    z = o.mul(r, r)
    value = o.mul(r, o.fma(z, polynomial(o, z, _SINE), o.real(1.0)))
    return o.from_bits(o.ixor(o.to_bits(value), o.shl(o.to_bits(rounded), 63)))


def _sine_large(o: Table, x: Lanes, shift: float) -> Lanes:
    """64-bit ``sin(x + shift*pi)``, ``|x| >= 2**28`` (Payne & Hanek 1983).

    An integer of 24 bits times the rest modulo 2 of ``2**e/pi``, which a table holds for every exponent.
    """
    bits = o.to_bits(x)
    index = o.isub(o.lshr(o.shl(bits, 1), 53), o.whole(1023 + _LARGE))
    inside = o.both(o.ilt(o.whole(-1), index), o.ilt(index, o.whole(len(_LARGE_HEADS))))
    index = o.select(inside, index, o.whole(0))
    head = o.from_bits(o.lookup(_LARGE_HEADS, index))
    tail = o.from_bits(o.lookup(_LARGE_TAILS, index))
    mantissa = o.from_bits(o.ior(o.iand(bits, o.whole(_SIGN << 32 | (1 << 52) - 1)), o.whole(bits_of(2.0**23))))
    rounded = o.add(o.fma(mantissa, head, o.real(shift)), o.real(ROUND))
    k = o.sub(o.sub(rounded, o.real(ROUND)), o.real(shift))
    turns = o.fma(mantissa, tail, o.fma(mantissa, head, o.neg(k)))
    return o.select(inside, _sine(o, o.mul(turns, o.real(_PI)), rounded), o.real(math.nan))


def _sine_shifted(o: Table, x: Lanes, shift: float) -> Lanes:
    """64-bit ``sin(x + shift*pi)``: `x` less a multiple of pi in two parts (Cody & Waite 1980, chapter 8)."""
    rounded = o.add(o.fma(x, o.real(_INVERSE_PI), o.real(shift)), o.real(ROUND))
    k = o.sub(o.sub(rounded, o.real(ROUND)), o.real(shift))
    r = o.fma(k, o.real(-_PI_TAIL), o.fma(k, o.real(-_PI), x))
    small = o.lt(o.abs(x), o.real(2.0**_LARGE))
    return o.rarely(o.negate(small), _sine(o, r, rounded), lambda o, x: _sine_large(o, x, shift), x)


def sin(o: Table, x: Lanes) -> Lanes:
    """``sin(x - k*pi)`` with `k`'s parity as sign, one odd polynomial at 64 bits."""
    return o.double(lambda o, x: _sine_shifted(o, x, 0.0), x)


def cos(o: Table, x: Lanes) -> Lanes:
    """``sin(|x| + pi/2)``, reduced with half-odd multiples of pi: next to a zero nothing cancels."""
    return o.double(lambda o, x: _sine_shifted(o, x, 0.5), o.abs(x))


# ---- power ---------------------------------------------------------------------------------------------


def _power(o: Table, a: Lanes, b: Lanes) -> Lanes:
    """64-bit ``|a|**b`` of 32-bit reals by ``exp(b * ln|a|)``; special cases as C has them (C17 F.10.4.4)."""
    logarithm = _log(o, *split(o, o.abs(a)), _LOG_FINE)
    common = _exp(o, clamp(o, o.mul(b, logarithm), -110.0, 90.0))

    return power_cases(o, common, a, b)


def powf(o: Table, a: Lanes, b: Lanes) -> Lanes:
    """``exp(b * ln|a|)`` at 64 bits, the logarithm to 2**-35."""
    return o.double(_power, a, b)
