"""The model surface: write a network, train it, checkpoint it. Re-exports only."""

from __future__ import annotations

from topos.engine.entry import BoundEntry, Entry
from topos.engine.plan import Plan
from topos.engine.run import Run
from topos.graph.adjoints import Adjoints
from topos.graph.field import Field, Gradients
from topos.graph.formulas import concat, conv2d, cross_entropy, einsum, max_pool, stack, where
from topos.graph.network import Network
from topos.graph.parameters import Parameters
from topos.graph.symbol import Symbol, detach
from topos.graph.tape import Tape
from topos.graph.value import Value
from topos.neural.optimizers import Adam, AdamW, Optimizer, Sgd
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor

__all__ = [
    "Adam", "AdamW", "Adjoints", "BoundEntry", "Entry", "Field", "Gradients", "Network", "Optimizer",
    "Parameters", "Plan", "Run", "Sgd", "Shape", "Symbol", "Tape", "Tensor", "Value", "concat", "conv2d",
    "cross_entropy", "detach", "einsum", "max_pool", "stack", "where",
]  # fmt: skip
