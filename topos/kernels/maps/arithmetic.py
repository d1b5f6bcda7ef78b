"""The element functions that are no maps: one line each, over the table of operations (decisions 2)."""

from collections.abc import Callable

from topos.kernels.table import Lanes, Table


def _operation(name: str) -> Callable[..., Lanes]:
    """Return the function that is one operation of the table."""
    return lambda o, *lanes: getattr(o, name)(*lanes)


add, sub, mul, div, neg, sqrt = map(_operation, ("add", "sub", "mul", "div", "neg", "sqrt"))


def maximum(o: Table, a: Lanes, b: Lanes) -> Lanes:
    """`a`'s bits where ``a >= b`` or `a` is NaN, else `b`'s: ties go left, NaN propagates."""
    return o.select(o.is_nan(a), a, o.select(o.ge(a, b), a, b))


def step(o: Table, x: Lanes, threshold: Lanes) -> Lanes:
    """1 where ``x >= threshold``, else 0; NaN gives 0."""
    return o.select(o.ge(x, threshold), o.real(1.0), o.real(0.0))


def select(o: Table, mask: Lanes, on_true: Lanes, on_false: Lanes) -> Lanes:
    """`on_true`'s bits where `mask` is not 0 (a NaN is not 0), else `on_false`'s."""
    return o.select(o.eq(mask, o.real(0.0)), on_false, on_true)


def scale(o: Table, a: Lanes, b: Lanes) -> Lanes:
    """+0 where either operand is 0, else ``a*b``."""
    zero = o.real(0.0)
    return o.select(o.either(o.eq(a, zero), o.eq(b, zero)), zero, o.mul(a, b))


def ratio(o: Table, g: Lanes, d: Lanes) -> Lanes:
    """+0 where `g` is 0, else ``g/d``."""
    zero = o.real(0.0)
    return o.select(o.eq(g, zero), zero, o.div(g, d))


def finite_or_zero(o: Table, x: Lanes) -> Lanes:
    """0 where `x` is infinite, else `x`: the shift of a row whose maximum is `x`."""
    return o.select(o.eq(o.abs(x), o.real(float("inf"))), o.real(0.0), x)


def positive_zero(o: Table, x: Lanes) -> Lanes:
    """+0 where `x` is a zero, else `x`: what a sum with +0 is."""
    return o.add(x, o.real(0.0))


def log_difference(o: Table, x: Lanes, y: Lanes) -> Lanes:
    """``x - y``, but -inf where `x` is -inf: log-probabilities of a row that may hold nothing else."""
    lowest = o.real(float("-inf"))
    return o.select(o.eq(x, lowest), lowest, o.sub(x, y))
