"""`Group`: what a matcher answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate

from topos.backend.formula import Formula
from topos.ops.emit import Emitter, Operand

Lower = Callable[Concatenate[Emitter, ...], Operand]


@dataclass(frozen=True)
class Group:
    """Nodes that one lowering stands for: the value of the root, from the values of `reads` alone.

    `interiors` need not exist for it; they may be shared with other groups. Where one that is `owned` is computed
    for others anyway, the group saves nothing.
    """

    formula: Formula
    root: int
    reads: tuple[int, ...]
    interiors: tuple[int, ...]
    owned: tuple[int, ...]
    lower: Lower
