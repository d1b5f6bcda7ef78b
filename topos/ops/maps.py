"""Maps: the unary transcendentals, one kind parameterised by its operation."""

from collections.abc import Callable
from typing import Any

from topos.backend.tasks import MapOperation
from topos.ops.arithmetic import Elementwise
from topos.ops.opcode import OUT, Cotangents
from topos.payload import OPCODES

Rule = Callable[[Any, Any, Any], Any]

# What the derivative of each map reads, and what it is, times the cotangent `g`.
DERIVATIVES: dict[MapOperation, tuple[frozenset[int], Rule]] = {
    MapOperation.EXP: (frozenset({OUT}), lambda g, out, a: g.scale(out)),
    MapOperation.LN: (frozenset({0}), lambda g, out, a: g.ratio(a)),
    MapOperation.SQRT: (frozenset({OUT}), lambda g, out, a: g.ratio(out + out)),
    MapOperation.TANH: (frozenset({OUT}), lambda g, out, a: g.scale(out.one_like() - out * out)),
    MapOperation.SIN: (frozenset({0}), lambda g, out, a: g.scale(a.cos())),
    MapOperation.COS: (frozenset({0}), lambda g, out, a: -g.scale(a.sin())),
    MapOperation.LOG1P: (frozenset({0}), lambda g, out, a: g.ratio(a.one_like() + a)),
    MapOperation.EXPM1: (frozenset({OUT}), lambda g, out, a: g.scale(out + out.one_like())),
    MapOperation.ERF: (frozenset({0}), lambda g, out, a: g.scale(a.erf_derivative())),
    MapOperation.ERF_DERIVATIVE: (frozenset({0, OUT}), lambda g, out, a: -g.scale(a + a).scale(out)),
}


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
        return DERIVATIVES[self.operation][0]

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: DERIVATIVES[self.operation][1](g, out, operands[0]),)

    @property
    def function(self) -> str:
        return self.operation.value


OPCODES.update({one.name: (lambda one=one: one) for one in map(Map, MapOperation)})
