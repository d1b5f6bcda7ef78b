"""Batch norm as its formula records it, forward and gradient. Chains carry it out; text has operations for it."""

from __future__ import annotations

import functools

import numpy as np

from topos.backend.formula import Formula
from topos.backend.tasks import MapOperation
from topos.engine.catalog.group import Group, TextOperation
from topos.engine.catalog.walk import Expected, expect, meets
from topos.graph.columns import Columns
from topos.ops import Add, Broadcast, BroadcastAlong, Div, Leaf, Map, Mul, Neg, Ratio, Scale, Sub, SumAlong
from topos.payload.shape import Shape

BEFORE = 3
"""How many nodes before the cotangent of the normalized values the gradients by shift and scale may begin."""


class _Formula:
    """What `neural.BatchNorm` and the derivative rules record over one shape, in training or by given statistics."""

    def __init__(self, shape: Shape, in_training: bool) -> None:
        self.shape, self.count = shape, float(shape.volume // shape[1])
        self.source, self.scale, self.shift, self.epsilon, self.seed = (expect() for _ in range(5))
        self.mean = self.averaged(self.source) if in_training else expect()
        centered = self.centered = expect(Sub(), self.source, self.spread(self.mean))
        self.variance = self.averaged(expect(Mul(), centered, centered)) if in_training else expect()
        small = expect(Broadcast(Shape(shape[1:2])), self.epsilon)
        self.deviation = expect(Map(MapOperation.SQRT), expect(Add(), self.variance, small))
        # Images are multiplied by one quotient per feature, rows are divided by the deviations first.
        self.quotient = expect(Div(), self.scale, self.deviation)
        self.deviations = self.spread(self.deviation)
        self.normal = expect(Div(), centered, self.deviations) if shape.rank == 2 else centered
        self.factors = self.spread(self.scale if shape.rank == 2 else self.quotient)
        self.output = expect(Add(), expect(Mul(), self.normal, self.factors), self.spread(self.shift))
        self.flow = expect(Scale(), self.seed, self.factors)
        self.shift_gradient = self.total(self.seed)
        self.scale_gradient, self.source_gradient = self.gradients()

    def spread(self, values: Expected) -> Expected:
        along = expect(BroadcastAlong(0, self.shape[0]), values)
        return along if self.shape.rank == 2 else expect(BroadcastAlong(2, self.shape[2]), along)

    def total(self, values: Expected) -> Expected:
        return expect(SumAlong(0), values if self.shape.rank == 2 else expect(SumAlong(2), values))

    def averaged(self, values: Expected) -> Expected:
        return expect(Div(), self.total(values), self.count)

    def gradients(self) -> tuple[Expected, Expected]:
        """Return what is recorded as the gradients by the scale and by the source."""
        met = self.total(expect(Scale(), self.seed, self.normal))
        if self.shape.rank == 2:
            direct, by_scale = expect(Ratio(), self.flow, self.deviations), met
            along = self.total(expect(Neg(), expect(Ratio(), expect(Scale(), self.flow, self.normal), self.deviations)))
        else:
            direct, by_scale = self.flow, expect(Ratio(), met, self.deviation)
            along = expect(Neg(), expect(Ratio(), expect(Scale(), met, self.quotient), self.deviation))
        by_variance = expect(Ratio(), along, expect(Add(), self.deviation, self.deviation))
        slopes = self.spread(expect(Ratio(), by_variance, self.count))
        # The squares have one operand twice: two shares.
        shares = [expect(Scale(), slopes, self.centered) for _ in range(2)]
        by_centered = expect(Add(), expect(Add(), direct, shares[0]), shares[1])
        by_mean = expect(Ratio(), self.total(expect(Neg(), by_centered)), self.count)
        return by_scale, expect(Add(), by_centered, self.spread(by_mean))


_formula = functools.lru_cache(_Formula)


def batch_norm(columns: Columns, root: int) -> Group | None:
    """Recognise ``(x - mean) / sqrt(variance + epsilon) * scale + shift``, statistics computed or given.

    Over ``[batch, features]``, or ``[batch, features, positions]`` as images are. Computed statistics are results too.
    """
    shape = columns.shapes[root]
    for in_training in (True, False) if shape.rank in (2, 3) else ():
        known = _formula(shape, in_training)
        found: dict[Expected, int] = {}
        if meets(columns, root, known.output, found):
            reads, statistics = (known.source, known.scale, known.shift), (known.mean, known.variance)
            if in_training:
                return _group(columns, "training", known, found, (known.output, *statistics), reads)
            return _group(columns, "inference", known, found, (known.output,), (*reads, *statistics))
    return None


def batch_norm_gradient(columns: Columns, root: int) -> Group | None:
    """Recognise the gradient of a batch norm in training by its source; those by scale and shift are results too."""
    shape = columns.shapes[root]
    found: dict[Expected, int] = {}
    known = _formula(shape, True) if shape.rank in (2, 3) else None
    if known is None or not meets(columns, root, known.source_gradient, found):
        return None
    for result in (known.scale_gradient, known.shift_gradient):
        for node in range(found[known.flow] - BEFORE, root):
            trial = dict(found)
            if meets(columns, node, result, trial):
                found = trial
                break
    results = (known.source_gradient, known.scale_gradient, known.shift_gradient)
    reads = (known.source, known.scale, known.mean, known.variance, known.seed)
    return _group(columns, "grad", known, found, results, reads)


def _group(
    columns: Columns,
    operation: str,
    known: _Formula,
    found: dict[Expected, int],
    results: tuple[Expected, ...],
    reads: tuple[Expected, ...],
) -> Group | None:
    """Return a group of the nodes that were found, unless its results are read before it can be computed.

    Text states the epsilon as a number of f32, and zeros do not meet infinities where it is positive.
    """
    leaf, operands = found[known.epsilon], tuple(found[read] for read in reads)
    if not isinstance(columns.opcodes[leaf], Leaf) or columns.element.kernel is None:
        return None
    epsilon = float(columns.payloads[leaf].numpy().item())
    root, *_ = made = {found[result]: place for place, result in enumerate(results) if result in found}
    if not 0 < epsilon == float(np.float32(epsilon)) or max(operands) > min(made):
        return None
    nodes = {node for expected, node in found.items() if expected.opcode} - {*made, *operands}
    own = {node for node in nodes if node >= found.get(known.flow, 0)}
    formula = Formula.BATCH_NORM_INFERENCE if operation == "inference" else Formula.BATCH_NORM_TRAINING
    lower = TextOperation(f"batch_norm_{operation}", epsilon)
    return Group(formula, root, operands, tuple(sorted(nodes)), tuple(own), lower, made)
