"""Tasks: one job of a formula as data, offered to implementers and to the reference kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topos.errors import ShapeError


@dataclass(frozen=True)
class GemmTask:
    """One product ``[m, k] @ [k, n]``: element (i, j) of `a` lies at ``i*a_strides[0] + j*a_strides[1]``.

    Arguments:
        a: the left elements, flat.
        a_strides: strides of its rows and columns, in elements.
        b: the right elements, flat.
        b_strides: strides of its rows and columns.
        m: rows of the product.
        k: the inner extent.
        n: columns of the product, which is contiguous row-major.

    Raises:
        ShapeError: an extent is not positive, a stride negative, or an operand is too short for its span.
    """

    a: Any
    a_strides: tuple[int, int]
    b: Any
    b_strides: tuple[int, int]
    m: int
    k: int
    n: int

    def __post_init__(self) -> None:
        if min(self.m, self.k, self.n) < 1:
            raise ShapeError(f"GemmTask of {self.m} x {self.k} x {self.n}: extents are positive")
        for name, data, strides, rows, columns in (
            ("a", self.a, self.a_strides, self.m, self.k),
            ("b", self.b, self.b_strides, self.k, self.n),
        ):
            if min(strides) < 0:
                raise ShapeError(f"GemmTask: operand {name} has strides {tuple(strides)}: none is negative")
            span = (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1
            if len(data) < span:
                raise ShapeError(
                    f"GemmTask: operand {name} holds {len(data)} elements, its strides span {span}"
                )
