"""Constants of the maps as doubles, in parts where one has too few digits: ln(2), and multiples of 1/pi."""

import functools
from collections.abc import Iterable
from fractions import Fraction

from topos.kernels.maps.common import bits_of, hexes

LOG2E = float.fromhex("0x1.71547652b82fep+0")
LN2, LN2_LOST = hexes("0x1.62e42fefa39efp-1", "0x1.abc9e3b39803fp-56")
# ln(2) with a head of 42 bits: its multiples by an exponent are exact.
LN2_HEAD, LN2_TAIL = hexes("0x1.62e42fefa3800p-1", "0x1.ef35793c76730p-45")

TWO_OVER_ROOT_PI = float.fromhex("0x1.20dd750429b6dp+0")


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


@functools.cache
def inverse_pi_table(shifts: Iterable[int], modulus: int, parts: int, fine: int) -> list[list[int]]:
    """Return the bits of `parts` doubles with the sum ``2**s/pi mod modulus`` for every s, of `fine` binary digits."""
    columns: list[list[int]] = [[] for _ in range(parts)]
    digits = inverse_pi(fine)
    for shift in shifts:
        rest = Fraction(digits, 1 << fine) * Fraction(2) ** shift % modulus
        for column in columns:
            part = float(rest)
            column.append(bits_of(part))
            rest -= Fraction(part)
    return columns
