"""What is computed, by whom it may be: `Formula`, `Precision`, `Coverage`, `Dispatch`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from topos.backend.numerics import Fidelity


class Precision(Enum):
    """The built-in elements, as backends speak of them."""

    ALL: ClassVar[tuple[Precision, ...]]

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"


class Formula(Enum):
    """A job that an implementer may take: a product, a map, or a group of nodes that the catalog knows.

    ``formula.chain(precision)`` is who is offered a task at run time, in order: empty where nobody is asked. A
    run skips members whose `Coverage` does not meet its posture.
    """

    ALL: ClassVar[tuple[Formula, ...]]
    chain: Callable[[Precision], tuple[Any, ...]]

    GEMM = "gemm"
    MAP = "map"
    WINDOW_PRODUCT = "window product"
    REDUCE_WINDOW = "reduce window"
    CONCATENATION = "concatenation"
    ATTENTION = "attention"
    BATCH_NORM_TRAINING = "batch norm training"
    BATCH_NORM_INFERENCE = "batch norm inference"
    CHAIN = "chain"


class Dispatch(Enum):
    """When an implementer gets its work: offered at run time, elected on a plan, or translated to text."""

    OFFERED = "offered"
    ELECTED = "elected"
    TRANSLATED = "translated"


class Coverage(NamedTuple):
    """How a backend serves a formula: not at all (no precision), or with a fidelity for some precisions."""

    fidelity: Fidelity = Fidelity.ENVELOPE
    precisions: frozenset[Precision] = frozenset()

    def serves(self) -> bool:
        """Return whether the formula is served for any precision."""
        return bool(self.precisions)

    def meets(self, fidelity: Fidelity) -> bool:
        """Return whether the formula is served with bits that satisfy a requirement."""
        return self.serves() and self.fidelity.meets(fidelity)

    def admits(self, precision: Precision) -> bool:
        """Return whether the formula is served for a precision."""
        return precision in self.precisions


Precision.ALL, Formula.ALL = tuple(Precision), tuple(Formula)
