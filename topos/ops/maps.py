"""Maps: the unary transcendentals, one kind parameterised by its operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topos.backend.tasks import MapOperation
from topos.ops import objects
from topos.ops.arithmetic import Elementwise
from topos.ops.opcode import OUT, Cotangents
from topos.payload.recordable import OPCODES

if TYPE_CHECKING:
    from topos.payload.element import Element


Rule = Callable[[Any, Any, Any], Any]

RULES: dict[MapOperation, Rule] = {
    MapOperation.EXP: lambda g, out, a: g.scale(out),
    MapOperation.LN: lambda g, out, a: g.ratio(a),
    MapOperation.SQRT: lambda g, out, a: g.ratio(out + out),
    MapOperation.TANH: lambda g, out, a: g.scale(out.one_like() - out * out),
    MapOperation.SIN: lambda g, out, a: g.scale(a.cos()),
    MapOperation.COS: lambda g, out, a: -g.scale(a.sin()),
    MapOperation.LOG1P: lambda g, out, a: g.ratio(a.one_like() + a),
    MapOperation.EXPM1: lambda g, out, a: g.scale(out + out.one_like()),
    MapOperation.ERF: lambda g, out, a: g.scale(a.erf_derivative()),
    MapOperation.ERF_DERIVATIVE: lambda g, out, a: -g.scale(a + a).scale(out),
}
"""The derivative of each map, times the cotangent `g`."""

READS = {
    MapOperation.EXP: frozenset({OUT}),
    MapOperation.LN: frozenset({0}),
    MapOperation.SQRT: frozenset({OUT}),
    MapOperation.TANH: frozenset({OUT}),
    MapOperation.SIN: frozenset({0}),
    MapOperation.COS: frozenset({0}),
    MapOperation.LOG1P: frozenset({0}),
    MapOperation.EXPM1: frozenset({OUT}),
    MapOperation.ERF: frozenset({0}),
    MapOperation.ERF_DERIVATIVE: frozenset({0, OUT}),
}


@dataclass(frozen=True)
class Map(Elementwise):
    """One map, elementwise."""

    arity = 1
    operation: MapOperation

    @property
    def name(self) -> str:
        return self.operation.title

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    @property
    def reads(self) -> frozenset[int]:  # type: ignore[override]
        return READS[self.operation]

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: RULES[self.operation](g, out, operands[0]),)

    @property
    def routine(self) -> str:
        return self.operation.value

    def evaluate(self, element: Element, *arrays: Any) -> Any:
        return objects.elementwise(self.operation.value, element, *arrays)


_MAPS = {operation.title: Map(operation) for operation in MapOperation}
OPCODES.update({title: (lambda one=one: one) for title, one in _MAPS.items()})
