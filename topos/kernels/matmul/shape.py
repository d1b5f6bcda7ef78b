"""The shape of a tile: what fills the registers of the CPU that kernels are compiled for."""

import functools
from typing import NamedTuple

from topos.kernels.shipped import V3, V4
from topos.kernels.target import target


class Tile(NamedTuple):
    """The shape of a full tile: rows of A, and vectors of `lanes` columns of B."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of a full tile."""
        return self.vectors * self.lanes


@functools.cache
def tile_of(width: int) -> Tile:
    """Return the tile that fills this CPU's registers, for values of `width` bits.

    32 registers of 512 bits (AVX-512), 16 of 256 (AVX2), 32 of 128 (Arm), 16 of 128 (base x86-64).
    """
    chosen = target()
    if chosen.family == "arm":
        return Tile(8, 2, 128 // width)
    # By the levels of the objects that the package carries: they run on such a machine, and have its tiles.
    features = {name[1:] for name in chosen.features.split(",") if name.startswith("+")}
    if features >= V4 or chosen.cpu == "x86-64-v4":
        return Tile(12, 2, 512 // width)
    if features >= V3 or chosen.cpu == "x86-64-v3":
        return Tile(6, 2, 256 // width)
    return Tile(4, 2, 128 // width)
