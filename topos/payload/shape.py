"""`Shape`: the extents of a payload, outermost first."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Self, TypeAlias

from topos.errors import ShapeError

# Axes that a payload may have.
MAX_RANK = 32

# Elements that a payload may have: the bytes of the widest fit 64 bits.
LARGEST = (2**63 - 1) // 8

# What a shape is given as: a `Shape` or a sequence of ints.
ShapeLike: TypeAlias = "Shape | Sequence[int]"


class Shape(tuple[int, ...]):
    """Extents, outermost first: a tuple of non-negative ints that prints as ``[2, 3]``.

    Raises:
        ShapeError: an extent is negative or no integer, or there are more than `MAX_RANK` axes.

    >>> Shape([2, 3]).volume, Shape.scalar().rank
    (6, 0)
    """

    __slots__ = ()

    def __new__(cls, axes: Iterable[int] = ()) -> Self:
        """Return the shape; a shape itself as it is."""
        if isinstance(axes, cls):
            return axes
        try:
            extents = tuple(map(operator.index, axes))
        except TypeError:
            raise ShapeError(f"Shape({axes!r}): a shape is a sequence of ints, e.g. [2, 3]") from None
        if extents and min(extents) < 0:
            raise ShapeError(f"Shape({list(extents)}): extents are not negative")
        if len(extents) > MAX_RANK:
            raise ShapeError(f"Shape({list(extents)}): at most {MAX_RANK} axes")
        return super().__new__(cls, extents)

    @classmethod
    def scalar(cls) -> Self:
        """Return the shape of rank 0."""
        return cls(())

    @property
    def axes(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self)

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self)

    @property
    def volume(self) -> int:
        """How many elements a payload of this shape holds (1 at rank 0).

        Raises:
            ShapeError: that many elements do not fit an address space of 64 bits.
        """
        product = math.prod(self)
        if product > LARGEST:
            raise ShapeError(f"{self} holds {product} elements: their bytes do not fit 64 bits")
        return product

    def without_axis(self, axis: int) -> Shape:
        """Return the shape without one axis.

        Raises:
            ShapeError: the axis is outside the rank.
        """
        if not 0 <= axis < len(self):
            bound = f"axes run from 0 to {len(self) - 1}" if self else "rank 0 has no axes"
            raise ShapeError(f"without_axis({axis}) of {self}: {bound}")
        return Shape(self[:axis] + self[axis + 1 :])

    def __repr__(self) -> str:
        return str(list(self))

    __str__ = __repr__

    def __getnewargs__(self) -> tuple[tuple[int, ...]]:
        return (tuple(self),)
