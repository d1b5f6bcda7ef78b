"""topos: an autodiff compiler stack. Record a graph, inspect it, differentiate it, compile it, emit it."""

from __future__ import annotations

from topos import debug, reference, stablehlo
from topos.backend.backend import Backend
from topos.backend.formula import Coverage, Dispatch, Formula, Precision
from topos.backend.numerics import Fidelity, Numerics
from topos.backend.tally import Service
from topos.backend.tasks import BatchNormTask, GemmTask, MapOperation, MapTask, Normalized
from topos.derivatives import Dual, hessian, hvp, jacobian, jvp
from topos.emission.emittable import Emittable
from topos.engine import profile as _profile  # attaches Plan.profile
from topos.engine import training as _training  # attaches Plan.step and Plan.steps
from topos.engine.entry import BoundEntry, Entry
from topos.engine.plan import Plan
from topos.engine.run import Run
from topos.errors import (
    BackendUnavailable,
    DataError,
    ElementError,
    EmitError,
    FeedError,
    ParametersError,
    PositionError,
    SealedError,
    ShapeError,
    SymbolError,
    TapeError,
    ToposError,
    UnreadableError,
    UsageError,
)
from topos.graph.adjoints import Adjoints
from topos.graph.columns import Node
from topos.graph.field import Field, Gradients
from topos.graph.formulas import concat, conv2d, cross_entropy, einsum, max_pool, stack, where
from topos.graph.network import Network
from topos.graph.parameters import Parameters
from topos.graph.symbol import Symbol, detach
from topos.graph.tape import Tape
from topos.graph.trace import Trace
from topos.graph.value import Value
from topos.kernels.runtime import num_threads, set_num_threads
from topos.kernels.store import warmup
from topos.neural.optimizers import Adam, AdamW, Optimizer, Sgd
from topos.ops import Opcode
from topos.payload.element import F16, F32, F64, Bf16, Differentiable, Element, Elementary
from topos.payload.recordable import Recordable
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor
from topos.proof import Proof, prove

__all__ = [
    "Adam",
    "AdamW",
    "Adjoints",
    "Backend",
    "BackendUnavailable",
    "BatchNormTask",
    "Bf16",
    "BoundEntry",
    "Coverage",
    "DataError",
    "Differentiable",
    "Dispatch",
    "Dual",
    "Element",
    "ElementError",
    "Elementary",
    "EmitError",
    "Emittable",
    "Entry",
    "F16",
    "F32",
    "F64",
    "FeedError",
    "Fidelity",
    "Field",
    "Formula",
    "GemmTask",
    "Gradients",
    "MapOperation",
    "MapTask",
    "Network",
    "Node",
    "Normalized",
    "Numerics",
    "Opcode",
    "Optimizer",
    "Parameters",
    "ParametersError",
    "Plan",
    "PositionError",
    "Precision",
    "Proof",
    "Recordable",
    "Run",
    "SealedError",
    "Service",
    "Sgd",
    "Shape",
    "ShapeError",
    "Symbol",
    "SymbolError",
    "Tape",
    "TapeError",
    "Tensor",
    "ToposError",
    "Trace",
    "UnreadableError",
    "UsageError",
    "Value",
    "concat",
    "conv2d",
    "cross_entropy",
    "debug",
    "detach",
    "einsum",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "max_pool",
    "num_threads",
    "prove",
    "reference",
    "set_num_threads",
    "stablehlo",
    "stack",
    "warmup",
    "where",
]

del _profile, _training
