"""The table of operations that element functions are written over, and its two interpretations.

An element function (a map such as ``tanh``, or an arithmetic such as ``maximum``) is an ordinary Python
function ``f(o, x, ...)`` whose first argument is a table of operations. Run over `VectorTable` it emits
LLVM vector IR, over `NumpyTable` it computes on NumPy arrays: the same text, so the same bits. Every
operation is IEEE 754, round to nearest even; nothing contracts, reorders or flushes.

Lanes are of three kinds: reals of ``o.width`` bits (32 or 64), integers of the same width (two's
complement, wrapping), and masks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

Lanes = Any
"""Lanes of one table: an ``ir.Value`` in `VectorTable`, a NumPy array in `NumpyTable`."""


class Table(Protocol):
    """The operations that an element function may use."""

    width: int

    # ---- constants
    def real(self, value: float) -> Lanes:
        """Return `value` (rounded once to the width) in every lane."""

    def whole(self, value: int) -> Lanes:
        """Return the integer `value`, taken modulo ``2**width``, in every lane."""

    # ---- reals
    def add(self, a: Lanes, b: Lanes) -> Lanes: ...
    def sub(self, a: Lanes, b: Lanes) -> Lanes: ...
    def mul(self, a: Lanes, b: Lanes) -> Lanes: ...
    def div(self, a: Lanes, b: Lanes) -> Lanes: ...
    def neg(self, a: Lanes) -> Lanes:
        """Flip the sign bit, also of a NaN."""
        return self.from_bits(self.ixor(self.to_bits(a), self.whole(1 << (self.width - 1))))

    def fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """Return ``a*b + c`` rounded once."""

    def sqrt(self, a: Lanes) -> Lanes: ...
    def abs(self, a: Lanes) -> Lanes:
        """Clear the sign bit."""
        return self.from_bits(self.iand(self.to_bits(a), self.whole((1 << (self.width - 1)) - 1)))

    # ---- masks: every comparison with a NaN is false
    def lt(self, a: Lanes, b: Lanes) -> Lanes: ...
    def le(self, a: Lanes, b: Lanes) -> Lanes: ...
    def eq(self, a: Lanes, b: Lanes) -> Lanes: ...
    def is_nan(self, a: Lanes) -> Lanes: ...
    def both(self, m: Lanes, n: Lanes) -> Lanes: ...
    def either(self, m: Lanes, n: Lanes) -> Lanes: ...
    def negate(self, m: Lanes) -> Lanes:
        """Return the mask that holds where `m` does not."""

    def select(self, m: Lanes, a: Lanes, b: Lanes) -> Lanes:
        """Return `a`'s bits where `m` holds, else `b`'s; `a` and `b` are reals or integers."""

    def gt(self, a: Lanes, b: Lanes) -> Lanes:
        return self.lt(b, a)

    def ge(self, a: Lanes, b: Lanes) -> Lanes:
        return self.le(b, a)

    # ---- integers
    def to_bits(self, a: Lanes) -> Lanes:
        """Reinterpret reals as integers."""

    def from_bits(self, i: Lanes) -> Lanes:
        """Reinterpret integers as reals."""

    def to_real(self, i: Lanes) -> Lanes:
        """Convert signed integers to reals, rounded to nearest even (slow at 64 bits on AVX2)."""

    def iadd(self, i: Lanes, j: Lanes) -> Lanes: ...
    def isub(self, i: Lanes, j: Lanes) -> Lanes: ...
    def imul(self, i: Lanes, j: Lanes) -> Lanes: ...
    def iand(self, i: Lanes, j: Lanes) -> Lanes: ...
    def ior(self, i: Lanes, j: Lanes) -> Lanes: ...
    def ixor(self, i: Lanes, j: Lanes) -> Lanes: ...
    def shl(self, i: Lanes, count: int) -> Lanes: ...
    def lshr(self, i: Lanes, count: int) -> Lanes: ...
    def ashr(self, i: Lanes, count: int) -> Lanes:
        """Shift right keeping the sign (slow at 64 bits on AVX2)."""

    def ilt(self, i: Lanes, j: Lanes) -> Lanes:
        """Compare signed integers."""

    def ieq(self, i: Lanes, j: Lanes) -> Lanes: ...

    # ---- between widths
    def double(self, body: Callable[..., Lanes], *reals: Lanes) -> Lanes:
        """Widen 32-bit `reals` exactly, run ``body(o64, *reals)`` at 64 bits, round its result once."""

    # ---- rarely
    def rarely(self, m: Lanes, common: Lanes, body: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        """Return ``body(o, *lanes)`` where `m` holds, else `common`; `body` runs only if a lane needs it.

        `body` has to be defined (no trap, no table index out of range) for every lane, also unmasked ones.
        """

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        """Return ``table[index]`` as integers, lane by lane: slow, so inside `rarely` alone."""


# ---- NumPy: the oracle of the emitted IR --------------------------------------------------------------


def exact_fma(a: float, b: float, c: float) -> float:
    """Return ``a*b + c`` rounded once to 64 bits, in exact rational arithmetic."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        with np.errstate(all="ignore"):
            return float(np.float64(a) * np.float64(b) + np.float64(c))
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # of zeros, or of opposites: exact in floating point too, which knows the sign
        return a * b + c
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = math.inf
    return math.copysign(rounded, 1.0 if exact > 0 else -1.0)


_fma64 = np.vectorize(exact_fma, otypes=[np.float64])


def _fma32(a: Any, b: Any, c: Any) -> Any:
    """Round ``a*b + c`` once to 32 bits: an exact 64-bit product, a sum rounded to odd, one rounding more."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + away, bits).view(np.float64).astype(np.float32)


def _plain(*functions: Callable[..., Any]) -> Iterator[Callable[..., Lanes]]:
    """Return operations that a function of arrays computes as it is."""
    for function in functions:

        def compute(self: Table, *lanes: Lanes, function: Callable[..., Any] = function) -> Lanes:
            return function(*lanes)

        yield compute


class NumpyTable(Table):
    """Run an element function on NumPy arrays of float32 or float64."""

    add, sub, mul, div = _plain(operator.add, operator.sub, operator.mul, operator.truediv)
    iadd, isub, imul = _plain(operator.add, operator.sub, operator.mul)
    iand, ior, ixor = _plain(operator.and_, operator.or_, operator.xor)
    both, either, negate = _plain(operator.and_, operator.or_, operator.invert)
    lt, le, eq, ilt, ieq = _plain(operator.lt, operator.le, operator.eq, operator.lt, operator.eq)
    sqrt, is_nan, select = _plain(np.sqrt, np.isnan, np.where)

    def __init__(self, width: int) -> None:
        self.width = width
        self._real: Any = np.dtype(f"f{width // 8}").type
        self._whole: Any = np.dtype(f"i{width // 8}").type
        self._unsigned: Any = np.dtype(f"u{width // 8}").type

    def __call__(self, function: Callable[..., Lanes], *arrays: Any) -> Any:
        """Return ``function(o, *arrays)`` with arrays cast to the width and floating-point warnings off."""
        with np.errstate(all="ignore"):
            return function(self, *(np.atleast_1d(np.asarray(a, self._real)) for a in arrays))

    def real(self, value: float) -> Lanes:
        return self._real(value)

    def whole(self, value: int) -> Lanes:
        return np.array(value % (1 << self.width), self._unsigned).view(self._whole)[()]

    def fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        a, b, c = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, self._real)) for x in (a, b, c)))
        return _fma32(a, b, c) if self.width == 32 else _fma64(a, b, c)

    def to_bits(self, a: Lanes) -> Lanes:
        return np.asarray(a, self._real).view(self._whole)

    def from_bits(self, i: Lanes) -> Lanes:
        return np.asarray(i, self._whole).view(self._real)

    def to_real(self, i: Lanes) -> Lanes:
        return np.asarray(i).astype(self._real)

    def shl(self, i: Lanes, count: int) -> Lanes:
        return np.asarray(i) << self._whole(count)

    def lshr(self, i: Lanes, count: int) -> Lanes:
        return (np.asarray(i, self._whole).view(self._unsigned) >> self._unsigned(count)).view(self._whole)

    def ashr(self, i: Lanes, count: int) -> Lanes:
        return np.asarray(i) >> self._whole(count)

    def double(self, body: Callable[..., Lanes], *reals: Lanes) -> Lanes:
        wide = NumpyTable(64)
        return np.asarray(body(wide, *(np.asarray(x).astype(np.float64) for x in reals))).astype(np.float32)

    def rarely(self, m: Lanes, common: Lanes, body: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        return np.where(m, body(self, *lanes), common) if np.any(m) else common

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        entries = np.array([entry % (1 << self.width) for entry in table], self._unsigned).view(self._whole)
        return entries[index]
