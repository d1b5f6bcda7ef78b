"""The model surface: write a network, train it, checkpoint it. Re-exports only."""

from topos import checkpoint, init
from topos.engine.entry import BoundEntry, Entry
from topos.engine.plan import Plan
from topos.engine.run import Run
from topos.graph import Adjoints, Field, Gradients, Network, Parameters, Symbol, Tape, Value, detach
from topos.graph.formulas import concat, einsum, stack, where
from topos.neural import schedules
from topos.neural.activations import Activation
from topos.neural.attention import MultiHeadAttention, causal_mask, rotary, scaled_dot_product
from topos.neural.convolution import Conv2d, conv2d
from topos.neural.linear import Linear, Mlp
from topos.neural.losses import binary_cross_entropy, cross_entropy, huber, mse, nll
from topos.neural.module import Module, Visitor, expressed, inference, name_parameters, named_parameters, parameters
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
from topos.neural.paths import Path, Segment
from topos.neural.pooling import AveragePool, MaxPool, average_pool, max_pool
from topos.neural.recurrent import GruCell, LstmCell
from topos.neural.sequential import Dropout, Embedding, Flatten, Sequential
from topos.payload import Shape, Tensor, load_tensors, save_tensors

__all__ = [
    "Activation", "Adam", "AdamW", "Adjoints", "AveragePool", "BatchNorm", "BoundEntry", "Conv2d",
    "Dropout", "Embedding", "Entry", "Field", "Flatten", "Gradients", "GruCell", "LayerNorm", "Linear",
    "Lion", "LstmCell", "MaxPool", "Mlp", "Module", "Momentum", "MultiHeadAttention", "Nesterov", "Network",
    "Normalization", "Optimizer", "Parameters", "Path", "Plan", "RmsNorm", "RmsProp", "Run",
    "RunningBatchNorm", "Segment", "Sequential", "Sgd", "Shape", "Symbol", "Tape", "Tensor", "Value",
    "Visitor", "average_pool", "binary_cross_entropy", "causal_mask", "checkpoint", "clip_adjoints",
    "clip_by_norm", "concat", "conv2d", "cross_entropy", "detach", "einsum", "expressed", "huber",
    "inference", "init", "load_tensors", "max_pool", "mse", "name_parameters", "named_parameters", "nll",
    "parameters", "rotary", "save_tensors", "scaled_dot_product", "schedules", "stack", "statistics",
    "update_statistics", "where",
]  # fmt: skip
