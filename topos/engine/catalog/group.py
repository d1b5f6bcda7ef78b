"""`Group`: what a matcher answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Concatenate, NamedTuple

from topos.backend.formula import Formula
from topos.ops.emit import Emitter, Operand

Lower = Callable[Concatenate[Emitter, ...], Operand]


class TextOperation(NamedTuple):
    """What stands for a group in text, where runs have nothing for it: its name and epsilon (all are batch norms)."""

    name: str
    epsilon: float


@dataclass(frozen=True)
class Group:
    """Nodes that one lowering stands for: the value of the root, from the values of `reads` alone.

    `interiors` need not exist for it; they may be shared with other groups. Where one that is `owned` is computed
    for others anyway, the group saves nothing. What gives more values than the root's says in `made` which of its
    results each node is.
    """

    formula: Formula
    root: int
    reads: tuple[int, ...]
    interiors: tuple[int, ...]
    owned: tuple[int, ...]
    lower: Lower | TextOperation
    made: Mapping[int, int] = field(default_factory=dict)
