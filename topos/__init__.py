"""topos: an autodiff compiler stack. Record a graph, inspect it, differentiate it, compile it, emit it."""

from __future__ import annotations

from topos import checkpoint, debug, init, reference, stablehlo
from topos.backend.backend import Backend
from topos.backend.formula import Coverage, Dispatch, Formula, Precision
from topos.backend.numerics import Fidelity, Numerics
from topos.backend.tally import Service
from topos.backend.tasks import BatchNormTask, GemmTask, MapOperation, MapTask, Normalized
from topos.derivatives import Dual, hessian, hvp, jacobian, jvp
from topos.emission.emittable import Emittable
from topos.engine import profile as _profile  # attaches Plan.profile
from topos.engine import training as _training  # attaches Plan.step and Plan.steps
from topos.engine.catalog.pattern import PatternKind, PatternMatch
from topos.engine.entry import BoundEntry, Entry
from topos.engine.plan import Plan
from topos.engine.run import Run
from topos.errors import (
    BackendUnavailable,
    CheckpointError,
    DataError,
    ElementError,
    EmitError,
    ExportError,
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
from topos.graph import storage as _storage  # attaches Network.save and Network.load
from topos.graph.adjoints import Adjoints
from topos.graph.columns import Node
from topos.graph.field import Field, Gradients
from topos.graph.formulas import concat, cross_entropy, einsum, stack, where
from topos.graph.network import Network
from topos.graph.parameters import Parameters
from topos.graph.symbol import Symbol, detach
from topos.graph.tape import Tape
from topos.graph.trace import Trace
from topos.graph.value import Value
from topos.kernels.runtime import num_threads, set_num_threads
from topos.kernels.store import warmup
from topos.neural import schedules
from topos.neural.activations import Activation
from topos.neural.attention import MultiHeadAttention, causal_mask, rotary, scaled_dot_product
from topos.neural.convolution import Conv2d, conv2d
from topos.neural.linear import Linear, Mlp
from topos.neural.losses import binary_cross_entropy, huber, mse, nll
from topos.neural.module import (
    Module,
    Path,
    Segment,
    Visitor,
    expressed,
    inference,
    name_parameters,
    named_parameters,
    parameters,
)
from topos.neural.momentum import Lion, Momentum, Nesterov, RmsProp, clip_adjoints, clip_by_norm
from topos.neural.normalization import (
    BatchNorm,
    LayerNorm,
    Normalization,
    RmsNorm,
    RunningBatchNorm,
    statistics,
    update_statistics,
)
from topos.neural.optimizers import Adam, AdamW, Optimizer, Sgd
from topos.neural.pooling import AveragePool, MaxPool, average_pool, max_pool
from topos.neural.recurrent import GruCell, LstmCell
from topos.neural.sequential import Dropout, Embedding, Flatten, Sequential
from topos.ops import Opcode
from topos.payload.element import F16, F32, F64, Bf16, Differentiable, Element, Elementary
from topos.payload.files import load_tensors, save_tensors
from topos.payload.recordable import Recordable
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor
from topos.proof import Proof, prove

__all__ = [
    "Activation", "Adam", "AdamW", "Adjoints", "AveragePool", "Backend", "BackendUnavailable", "BatchNorm",
    "BatchNormTask", "Bf16", "BoundEntry", "CheckpointError", "Conv2d", "Coverage", "DataError",
    "Differentiable", "Dispatch", "Dropout", "Dual", "Element", "ElementError", "Elementary", "Embedding",
    "EmitError", "Emittable", "Entry", "ExportError", "F16", "F32", "F64", "FeedError", "Fidelity", "Field",
    "Flatten", "Formula", "GemmTask", "Gradients", "GruCell", "LayerNorm", "Linear", "Lion", "LstmCell",
    "MapOperation", "MapTask", "MaxPool", "Mlp", "Module", "Momentum", "MultiHeadAttention", "Nesterov",
    "Network", "Node", "Normalization", "Normalized", "Numerics", "Opcode", "Optimizer", "Parameters",
    "ParametersError", "Path", "PatternKind", "PatternMatch",
    "Plan", "PositionError", "Precision", "Proof", "Recordable", "RmsNorm",
    "RmsProp", "Run", "RunningBatchNorm", "SealedError", "Segment", "Sequential", "Service", "Sgd", "Shape",
    "ShapeError", "Symbol", "SymbolError", "Tape", "TapeError", "Tensor", "ToposError", "Trace",
    "UnreadableError", "UsageError", "Value", "Visitor", "average_pool", "binary_cross_entropy",
    "causal_mask", "checkpoint", "clip_adjoints", "clip_by_norm", "concat", "conv2d", "cross_entropy",
    "debug", "detach", "einsum", "expressed", "hessian", "huber", "hvp", "inference", "init", "jacobian",
    "jvp", "load_tensors", "max_pool", "mse", "name_parameters", "named_parameters", "nll", "num_threads",
    "parameters", "prove", "reference", "rotary", "save_tensors", "scaled_dot_product", "schedules",
    "set_num_threads", "stablehlo", "stack", "statistics", "update_statistics", "warmup", "where",
]  # fmt: skip

del _profile, _storage, _training
