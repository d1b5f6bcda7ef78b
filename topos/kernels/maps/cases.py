"""What maps of both widths are where the ordinary formula does not hold: of an exponential, a logarithm, a power."""

import math
from collections.abc import Callable

from topos.kernels.table import Lanes, Table

Map = Callable[[Table, Lanes], Lanes]


def exp_cases(o: Table, x: Lanes, ordinary: Map, bound: float, least: float, extreme: Map) -> Lanes:
    """``exp(x)`` that is ``ordinary(o, x)`` where ``|x| < bound``, +0 up to `least`, and ``extreme(o, x)`` elsewhere.

    Where all lanes vanish nothing is computed: half of the scores under a causal mask are -inf.
    """
    is_ordinary, vanishes = o.lt(o.abs(x), o.real(bound)), o.le(x, o.real(least))

    def mixed(o: Table, x: Lanes) -> Lanes:
        value = o.select(vanishes, o.real(0.0), ordinary(o, x))
        return o.rarely(o.negate(o.either(is_ordinary, vanishes)), value, extreme, x)

    def beyond(o: Table, x: Lanes) -> Lanes:
        return o.branch(o.negate(vanishes), mixed, lambda o, _: o.real(0.0), x)

    return o.branch(o.negate(is_ordinary), beyond, ordinary, x)


def log_cases(o: Table, x: Lanes, pole: float, common: Lanes) -> Lanes:
    """The logarithm of what `common` does not cover: -inf at the pole, NaN below it, and inf."""
    infinity = o.real(math.inf)
    value = o.select(o.eq(x, infinity), x, o.select(o.gt(x, o.real(pole)), common, o.real(math.nan)))
    return o.select(o.eq(x, o.real(pole)), o.neg(infinity), value)


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
