"""The closed set of opcodes. Importing this room gives `Tensor` its arithmetic (`eager`)."""

from __future__ import annotations

from topos.ops import arithmetic, contraction, eager, indexing, maps, movement, reduction, sources, window
from topos.ops.arithmetic import Add, Div, Maximum, Mul, Neg, Powf, Ratio, Scale, Select, Step, Sub
from topos.ops.contraction import MatMul
from topos.ops.indexing import Gather, Scatter
from topos.ops.maps import Map, MapOperation
from topos.ops.movement import Broadcast, BroadcastAlong, Narrow, Pad, Permute, Reshape
from topos.ops.opcode import Opcode
from topos.ops.reduction import LogSoftmax, LogSumExp, Sum, SumAlong
from topos.ops.sources import Input, Leaf, Parameter
from topos.ops.window import Fold, Unfold
