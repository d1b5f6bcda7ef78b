"""Batch norm as its formula records it, forward and gradient. Chains carry it out; text has operations for it."""

import functools
from typing import NamedTuple

import numpy as np

from topos.backend.formula import Formula
from topos.backend.tasks import MapOperation
from topos.engine.catalog.group import Group, TextOperation
from topos.engine.catalog.walk import Expected, UnmatchedError, meets, require
from topos.graph.columns import Columns
from topos.ops import Add, Broadcast, BroadcastAlong, Div, Leaf, Map, Mul, Neg, Ratio, Scale, Sub, SumAlong
from topos.payload.shape import Shape

# How many nodes before the cotangent of the normalized values the gradients by shift and scale may begin.
BEFORE = 3


class _Form(NamedTuple):
    """What text makes of a part of the formula: an operation, its results (the root first), and what it reads."""

    operation: str
    results: tuple[Expected, ...]
    reads: tuple[Expected, ...]


class _Formula:
    """What `neural.BatchNorm` and the derivative rules record over one shape, in training or by given statistics."""

    def __init__(self, shape: Shape, in_training: bool) -> None:
        self.shape, self.in_training, self.count = shape, in_training, float(shape.volume // shape[1])
        self.source, self.scale, self.shift, self.epsilon, self.seed = (Expected() for _ in range(5))
        self.mean = self.averaged(self.source) if in_training else Expected()
        centered = self.centered = Expected(Sub(), self.source, self.spread(self.mean))
        self.variance = self.averaged(Expected(Mul(), centered, centered)) if in_training else Expected()
        small = Expected(Broadcast(Shape(shape[1:2])), self.epsilon)
        self.deviation = Expected(Map(MapOperation.SQRT), Expected(Add(), self.variance, small))
        # Images are multiplied by one quotient per feature, rows are divided by the deviations first.
        self.quotient = Expected(Div(), self.scale, self.deviation)
        self.deviations = self.spread(self.deviation)
        self.normal = Expected(Div(), centered, self.deviations) if shape.rank == 2 else centered
        self.factors = self.spread(self.scale if shape.rank == 2 else self.quotient)
        output = Expected(Add(), Expected(Mul(), self.normal, self.factors), self.spread(self.shift))
        self.flow = Expected(Scale(), self.seed, self.factors)
        statistics, reads = (self.mean, self.variance), (self.source, self.scale, self.shift)
        self.forms = [_Form("batch_norm_inference", (output,), (*reads, *statistics))]
        if in_training:
            gradients = (*self.gradients(), self.total(self.seed))
            training = _Form("batch_norm_training", (output, *statistics), reads)
            self.forms = [training, _Form("batch_norm_grad", gradients, (*reads[:2], *statistics, self.seed))]

    def spread(self, values: Expected) -> Expected:
        along = Expected(BroadcastAlong(0, self.shape[0]), values)
        return along if self.shape.rank == 2 else Expected(BroadcastAlong(2, self.shape[2]), along)

    def total(self, values: Expected) -> Expected:
        return Expected(SumAlong(0), values if self.shape.rank == 2 else Expected(SumAlong(2), values))

    def averaged(self, values: Expected) -> Expected:
        return Expected(Div(), self.total(values), self.count)

    def gradients(self) -> tuple[Expected, Expected]:
        """Return what is recorded as the gradients by the source and by the scale."""
        met = self.total(Expected(Scale(), self.seed, self.normal))
        if self.shape.rank == 2:
            direct, by_scale = Expected(Ratio(), self.flow, self.deviations), met
            share = Expected(Ratio(), Expected(Scale(), self.flow, self.normal), self.deviations)
            along = self.total(Expected(Neg(), share))
        else:
            direct, by_scale = self.flow, Expected(Ratio(), met, self.deviation)
            along = Expected(Neg(), Expected(Ratio(), Expected(Scale(), met, self.quotient), self.deviation))
        by_variance = Expected(Ratio(), along, Expected(Add(), self.deviation, self.deviation))
        slopes = self.spread(Expected(Ratio(), by_variance, self.count))
        # The squares have one operand twice: two shares.
        shares = [Expected(Scale(), slopes, self.centered) for _ in range(2)]
        by_centered = Expected(Add(), Expected(Add(), direct, shares[0]), shares[1])
        by_mean = Expected(Ratio(), self.total(Expected(Neg(), by_centered)), self.count)
        return Expected(Add(), by_centered, self.spread(by_mean)), by_scale


_formula = functools.lru_cache(_Formula)


def batch_norm(columns: Columns, root: int) -> Group:
    """Recognise ``(x - mean) / sqrt(variance + epsilon) * scale + shift``, or its gradient by x.

    Over ``[batch, features]``, or ``[batch, features, positions]`` as images are. Statistics that it computes are
    results too, and of the gradient those by scale and shift. The epsilon has to be positive, so that zeros do not meet
    infinities, and a number of f32, as text states it.

    Raises:
        UnmatchedError: it is neither.
    """
    shape = columns.shapes[root]
    require(shape.rank in (2, 3) and isinstance(columns.opcodes[columns.operands[root][1]], BroadcastAlong))
    for known in (_formula(shape, True), _formula(shape, False)):
        for form in known.forms:
            found: dict[Expected, int] = {}
            if meets(columns, root, form.results[0], found):
                return _group(columns, root, known, form, found)
    raise UnmatchedError


def _group(columns: Columns, root: int, known: _Formula, form: _Form, found: dict[Expected, int]) -> Group:
    """Return the group of a root that was found, unless a result comes before what the operation reads."""
    first = found.get(known.flow, 0)
    for result in form.results:  # the gradients by scale and shift are recorded beside that of the source
        for node in range(first - BEFORE, root) if result not in found else ():
            trial = dict(found)
            if meets(columns, node, result, trial):
                found = trial
                break
    reads = tuple(found[read] for read in form.reads)
    made = {found[result]: place for place, result in enumerate(form.results) if result in found}
    leaf = found[known.epsilon]
    is_leaf = isinstance(columns.opcodes[leaf], Leaf) and columns.element.kernel is not None
    epsilon = float(columns.payloads[leaf].numpy().item()) if is_leaf else 0.0
    require(0 < epsilon == float(np.float32(epsilon)) and max(reads) < min(made))
    interiors = {node for expected, node in found.items() if expected.opcode} - {*made, *reads}
    owned = tuple(node for node in interiors if node >= first)
    formula = Formula.BATCH_NORM_TRAINING if known.in_training else Formula.BATCH_NORM_INFERENCE
    return Group(formula, root, reads, tuple(interiors), owned, TextOperation(form.operation, epsilon), made)
