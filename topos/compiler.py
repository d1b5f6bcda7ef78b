"""The compiler surface: inspect, lower, emit, and extend the stack. Re-exports only."""

from topos import reference
from topos.backend.backend import Backend
from topos.backend.formula import Coverage, Dispatch, Formula, Precision
from topos.backend.numerics import Fidelity, Numerics
from topos.backend.tally import Service
from topos.backend.tasks import BatchNormTask, GemmTask, MapOperation, MapTask, Normalized
from topos.emission.emittable import Emittable
from topos.engine.catalog.pattern import PatternKind, PatternMatch
from topos.errors import BackendUnavailable, EmitError
from topos.graph import Node, Trace
from topos.model import Adjoints, BoundEntry, Entry, Network, Parameters, Plan, Run, Shape, Symbol, Tape, Tensor, detach
from topos.ops import Opcode
from topos.payload import Recordable
from topos.payload.element import F16, F32, F64, Bf16, Differentiable, Element, Elementary

__all__ = [
    "Adjoints", "Backend", "BackendUnavailable", "BatchNormTask", "Bf16", "BoundEntry", "Coverage",
    "Differentiable", "Dispatch", "Element", "Elementary", "EmitError", "Emittable", "Entry", "F16", "F32",
    "F64", "Fidelity", "Formula", "GemmTask", "MapOperation", "MapTask", "Network", "Node", "Normalized",
    "Numerics", "Opcode", "Parameters", "PatternKind", "PatternMatch", "Plan", "Precision", "Recordable", "Run",
    "Service", "Shape", "Symbol", "Tape", "Tensor", "Trace", "detach", "reference",
]  # fmt: skip
