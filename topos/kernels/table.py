"""The table of operations that element functions are written over.

An element function (a map such as ``tanh``, or an arithmetic such as ``maximum``) is an ordinary Python
function ``f(o, x, ...)`` whose first argument is a table of operations. Run over `VectorTable` it emits
LLVM vector IR; the tests run the same text over NumPy arrays (`tests.kernels.interpreted`), for the same bits.
Every operation is IEEE 754, round to nearest even; nothing contracts, reorders or flushes.

Lanes are of three kinds: reals of ``o.width`` bits (32 or 64), integers of the same width (two's
complement, wrapping), and masks.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

# Lanes of one table: an ``ir.Value`` in `VectorTable`.
Lanes = Any


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
    def branch(self, m: Lanes, some: Callable[..., Lanes], none: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        """Return ``some(o, *lanes)`` if `m` holds in any lane, which is rare, else ``none(o, *lanes)``; one of them runs.

        It has to be defined (no trap, no table index out of range) for every lane, also unmasked ones.
        """

    def rarely(self, m: Lanes, common: Lanes, body: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        """Return ``body(o, *lanes)`` where `m` holds, else `common`; `body` runs only if a lane needs it (`branch`)."""
        return self.branch(m, lambda o, *lanes: o.select(m, body(o, *lanes), common), lambda *_: common, *lanes)

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        """Return ``table[index]`` as integers, lane by lane: slow, so inside `rarely` alone."""
