"""The four built-in elements as the kernels see them: bytes in memory, and the width they compute at."""

from collections.abc import Callable
from typing import NamedTuple

from topos.kernels.table import Lanes, Table


class Memory(NamedTuple):
    """How one element lies in memory.

    `size` is in bytes, `width` the compute precision in bits. `widen(o, bits)` and `narrow(o, reals)`
    convert between storage bits, zero-extended to integer lanes, and reals; they are None where storage
    and compute precision agree.
    """

    size: int
    width: int
    widen: Callable[[Table, Lanes], Lanes] | None = None
    narrow: Callable[[Table, Lanes], Lanes] | None = None

    def rounded(self, o: Table, value: Lanes) -> Lanes:
        """Round reals to the element, as what is stored and read again."""
        return value if self.widen is None or self.narrow is None else self.widen(o, self.narrow(o, value))


def widen_bf16(o: Table, bits: Lanes) -> Lanes:
    """A bf16 is the top half of an f32."""
    return o.from_bits(o.shl(bits, 16))


def narrow_bf16(o: Table, x: Lanes) -> Lanes:
    """Round to nearest, ties to even, on the bits; a carry into the exponent is right, also into inf."""
    bits = o.to_bits(x)
    odd = o.iand(o.lshr(bits, 16), o.whole(1))
    rounded = o.lshr(o.iadd(bits, o.iadd(odd, o.whole(0x7FFF))), 16)
    quiet = o.ior(o.lshr(bits, 16), o.whole(0x40))
    return o.iand(o.select(o.is_nan(x), quiet, rounded), o.whole(0xFFFF))


def widen_f16(o: Table, bits: Lanes) -> Lanes:
    """Move the fields into place and multiply by 2**112, which also normalises subnormals."""
    magnitude = o.shl(o.iand(bits, o.whole(0x7FFF)), 13)
    sign = o.shl(o.iand(bits, o.whole(0x8000)), 16)
    finite = o.to_bits(o.mul(o.from_bits(magnitude), o.real(2.0**112)))
    special = o.ior(magnitude, o.whole(0x7F800000))
    is_special = o.negate(o.ilt(magnitude, o.whole(0x0F800000)))
    return o.from_bits(o.ior(o.select(is_special, special, finite), sign))


def narrow_f16(o: Table, x: Lanes) -> Lanes:
    """Round to nearest, ties to even: on the bits where the result is normal, by an add below that."""
    bits = o.to_bits(x)
    magnitude = o.iand(bits, o.whole(0x7FFFFFFF))
    sign = o.iand(o.lshr(bits, 16), o.whole(0x8000))
    odd = o.iand(o.lshr(magnitude, 13), o.whole(1))
    rebias = o.whole((15 - 127) << 23)
    normal = o.lshr(o.iadd(o.iadd(magnitude, rebias), o.iadd(odd, o.whole(0xFFF))), 13)
    # One unit in the last place of 0.5 is 2**-24, the step of the f16 subnormals.
    subnormal = o.isub(o.to_bits(o.add(o.from_bits(magnitude), o.real(0.5))), o.to_bits(o.real(0.5)))
    small = o.ilt(magnitude, o.whole((127 - 14) << 23))
    large = o.negate(o.ilt(magnitude, o.whole(0x477FF000)))
    result = o.select(small, subnormal, o.select(large, o.whole(0x7C00), normal))
    result = o.select(o.is_nan(x), o.whole(0x7E00), result)
    return o.ior(result, sign)


MEMORY = {
    "f32": Memory(4, 32),
    "f64": Memory(8, 64),
    "bf16": Memory(2, 32, widen_bf16, narrow_bf16),
    "f16": Memory(2, 32, widen_f16, narrow_f16),
}
