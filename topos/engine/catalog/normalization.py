"""Batch norm over ``[batch, features]`` as its formula records it. Chains carry it out; emission may raise it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topos.backend.formula import Formula
from topos.backend.tasks import MapOperation
from topos.graph.columns import Columns
from topos.ops import Add, Broadcast, BroadcastAlong, Div, Leaf, Mul, Sub, SumAlong
from topos.ops.maps import Map


@dataclass(frozen=True)
class BatchNorm:
    """A batch norm: its statistics, and the nodes between what it reads and the root.

    In training the statistics are computed by it (`named`), else they are given.
    """

    formula: Formula
    mean: int
    variance: int
    interiors: tuple[int, ...]

    @property
    def named(self) -> tuple[int, ...]:
        """The interiors that may be read outside."""
        return (self.mean, self.variance) if self.formula is Formula.BATCH_NORM_TRAINING else ()


class _Walk:
    """Steps down a formula; each gives the operands of a node of a kind, or ends the walk."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.seen: list[int] = []

    def at(self, node: int, kind: Any) -> tuple[int, ...]:
        """Return the operands of a node that has to be of the kind (a map by its operation)."""
        opcode = self.columns.opcodes[node]
        is_kind = opcode.operation is kind if isinstance(opcode, Map) else type(opcode) is kind
        if not is_kind or getattr(opcode, "axis", 0) != 0:
            raise LookupError
        self.seen.append(node)
        return self.columns.operands[node]

    def mean(self, node: int, batch: int) -> int:
        """Return what a node is the mean of, over axis 0."""
        total, count = self.at(node, Div)
        payload = self.columns.payloads[count]
        is_count = isinstance(self.columns.opcodes[count], Leaf)
        if not is_count or not payload.is_counted(self.columns.shapes[count], batch):
            raise LookupError
        self.seen.append(count)
        (of,) = self.at(total, SumAlong)
        return of


def batch_norm(columns: Columns, root: int) -> BatchNorm | None:
    """Recognise ``(x - mean) / sqrt(variance + epsilon) * scale + shift`` over columns; statistics batch or given."""
    if columns.shapes[root].rank != 2:
        return None
    down = _Walk(columns)
    try:
        scaled, shifts = down.at(root, Add)
        normal, scales = down.at(scaled, Mul)
        centered, deviations = down.at(normal, Div)
        _, _, (deviation,) = (down.at(n, BroadcastAlong) for n in (shifts, scales, deviations))
        (added,) = down.at(deviation, MapOperation.SQRT)
        variance, epsilons = down.at(added, Add)
        (epsilon,) = down.at(epsilons, Broadcast)
        source, means = down.at(centered, Sub)
        (mean,) = down.at(means, BroadcastAlong)
    except LookupError:
        return None
    if not isinstance(columns.opcodes[epsilon], Leaf):
        return None
    formula = Formula.BATCH_NORM_INFERENCE
    before = len(down.seen)
    try:
        batch = columns.shapes[root][0]
        squares = down.mean(variance, batch)
        if down.mean(mean, batch) == source and down.at(squares, Mul) == (centered, centered):
            formula = Formula.BATCH_NORM_TRAINING
    except LookupError:
        pass
    seen = down.seen if formula is Formula.BATCH_NORM_TRAINING else down.seen[:before]
    interiors = tuple(sorted(set(seen) - {root}))
    return BatchNorm(formula, mean, variance, interiors)
