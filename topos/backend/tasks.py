"""Tasks: one job of a formula as data, offered to implementers and to the reference kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

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
        sides = ("a", self.a, self.a_strides, self.m, self.k), ("b", self.b, self.b_strides, self.k, self.n)
        for name, data, strides, rows, columns in sides:
            if min(strides) < 0:
                raise ShapeError(f"GemmTask: operand {name} has strides {tuple(strides)}: none is negative")
            span = (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1
            if len(data) < span:
                raise ShapeError(f"GemmTask: operand {name} holds {len(data)} elements, its strides span {span}")


class MapOperation(Enum):
    """The closed set of maps; the value is the name of the element function."""

    EXP = "exp"
    LN = "ln"
    SQRT = "sqrt"
    TANH = "tanh"
    SIN = "sin"
    COS = "cos"
    LOG1P = "log1p"
    EXPM1 = "expm1"
    ERF = "erf"
    ERF_DERIVATIVE = "erf_derivative"

    @property
    def title(self) -> str:
        """The name that ``describe`` prints."""
        return "".join(part.capitalize() for part in self.value.split("_"))


@dataclass(frozen=True)
class MapTask:
    """One map over elements: the answer is a list of as many.

    Arguments:
        operation: which map.
        elements: its inputs, at least one.

    Raises:
        ShapeError: there is no element.
    """

    operation: MapOperation
    elements: Sequence[Any]

    def __post_init__(self) -> None:
        if len(self.elements) == 0:
            raise ShapeError(f"MapTask of {self.operation.value}: a task holds at least one element")


@dataclass(frozen=True)
class BatchNormTask:
    """Normalise ``[batch, features]`` over the batch: (x - mean) / sqrt(variance + epsilon) * scale + shift.

    Arguments:
        input: ``batch * features`` elements, row-major.
        scale: one factor per feature.
        shift: one summand per feature.
        epsilon: what is added to the variance.
        batch: rows.
        features: columns.

    Raises:
        ShapeError: an extent is not positive, or a length disagrees.
    """

    input: Sequence[Any]
    scale: Sequence[Any]
    shift: Sequence[Any]
    epsilon: Any
    batch: int
    features: int

    def __post_init__(self) -> None:
        what = f"BatchNormTask of {self.batch} x {self.features}"
        if min(self.batch, self.features) < 1:
            raise ShapeError(f"{what}: extents are positive")
        wanted = {"input": self.batch * self.features, "scale": self.features, "shift": self.features}
        for name, length in wanted.items():
            held = len(getattr(self, name))
            if held != length:
                raise ShapeError(f"{what}: {name} holds {held} elements, {length} are needed")


class Normalized(NamedTuple):
    """What a `BatchNormTask` answers.

    Arguments:
        output: ``batch * features`` elements, row-major.
        mean: one per feature.
        variance: one per feature, biased.
    """

    output: Sequence[Any]
    mean: Sequence[Any]
    variance: Sequence[Any]
