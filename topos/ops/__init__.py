"""The closed set of opcodes. Importing this room gives `Tensor` its arithmetic (`eager`)."""

from topos.ops import eager as _eager  # attaches Tensor.apply
from topos.ops.arithmetic import Add, Div, Maximum, Mul, Neg, Powf, Ratio, Scale, Select, Step, Sub
from topos.ops.contraction import MatMul
from topos.ops.indexing import Gather, Scatter
from topos.ops.maps import Map
from topos.ops.movement import Broadcast, BroadcastAlong, Narrow, Pad, Permute, Reshape
from topos.ops.opcode import Opcode
from topos.ops.reduction import LogSoftmax, LogSumExp, Sum, SumAlong
from topos.ops.sources import Input, Leaf, Parameter
from topos.ops.window import Fold, Unfold
from topos.payload import OPCODES

__all__ = [
    "Add", "Broadcast", "BroadcastAlong", "Div", "Fold", "Gather", "Input", "Leaf", "LogSoftmax", "LogSumExp",
    "Map", "MatMul", "Maximum", "Mul", "Narrow", "Neg", "Opcode", "Pad", "Parameter", "Permute",
    "Powf", "Ratio", "Reshape", "Scale", "Scatter", "Select", "Step", "Sub", "Sum", "SumAlong", "Unfold",
]  # fmt: skip

OPCODES.update({name: globals()[name] for name in __all__ if name != "Opcode"})

del _eager
