"""The compiler surface: inspect, lower, emit, and extend the stack. Re-exports only."""

from __future__ import annotations

from topos.backend.numerics import Fidelity, Numerics
from topos.backend.tasks import GemmTask
from topos.engine.entry import BoundEntry, Entry
from topos.engine.plan import Plan
from topos.engine.run import Run
from topos.graph.adjoints import Adjoints
from topos.graph.columns import Node
from topos.graph.network import Network
from topos.graph.parameters import Parameters
from topos.graph.symbol import Symbol, detach
from topos.graph.tape import Tape
from topos.graph.trace import Trace
from topos.ops import MapOperation, Opcode
from topos.payload.element import F16, F32, F64, Bf16, Differentiable, Element, Elementary
from topos.payload.recordable import Recordable
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor

__all__ = [
    "Adjoints", "Bf16", "BoundEntry", "Differentiable", "Element", "Elementary", "Entry", "F16", "F32", "F64",
    "Fidelity", "GemmTask", "MapOperation", "Network", "Node", "Numerics", "Opcode", "Parameters", "Plan",
    "Recordable", "Run", "Shape", "Symbol", "Tape", "Tensor", "Trace", "detach",
]  # fmt: skip
