"""Sums, and the two log-domain reductions."""

from __future__ import annotations

from typing import Any

from topos.ops.emit import Emitter, Operand
from topos.ops.movement import Reshape
from topos.ops.opcode import OUT, Cotangents, Opcode, Typed
from topos.payload.shape import Shape


class Sum(Opcode):
    """All elements, row-major, to rank 0."""

    def infer(self, *shapes: Shape) -> Shape:
        return Shape.scalar()

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.broadcast(operands[0].shape),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        line = Reshape(Shape((a.layout.shape.volume,)))
        return emitter.reduce("sum", line.lower(emitter, a), 0)


class Along(Typed):
    """A kind that works along one axis."""

    axis: int

    def infer(self, *shapes: Shape) -> Shape:
        self.check_axis(self.axis, shapes[0].rank, *shapes)
        return shapes[0].without_axis(self.axis)

    def spread(self, reduced: Any, like: Any) -> Any:
        """Return a reduced value repeated along the axis again."""
        return reduced.broadcast_along(self.axis, like.shape[self.axis])


class SumAlong(Along):
    """The sums along an axis, which is removed."""

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: self.spread(g, operands[0]),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return emitter.reduce("sum", operands[0], self.axis)


class MaxAlong(Along):
    """The maxima along an axis, which is removed. Of tensors alone: a recording states it with `Maximum`."""

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return emitter.reduce("max", operands[0], self.axis)


def _shifted(emitter: Emitter, a: Operand, axis: int) -> tuple[Operand, Operand, Operand]:
    """Return (x - m, m, ln(sum(exp(x - m)))): m is the row's maximum, or 0 where that is infinite."""
    wide = emitter.widened(a)
    shift = emitter.elementwise("finite_or_zero", emitter.reduce("max", wide, axis))
    extent = a.layout.shape[axis]
    shifted = emitter.elementwise("sub", wide, shift.view(shift.layout.broadcast_along(axis, extent)))
    total = emitter.reduce("sum", emitter.elementwise("exp", shifted), axis)
    return shifted, shift, emitter.elementwise("ln", total)


def _dead(out: Any) -> Any:
    """Return the mask of outputs that are -inf: such a row carries no gradient."""
    return out.constant_like(None).step(out)


class LogSoftmax(Along):
    """x - logsumexp(x) along an axis; -inf where x is -inf."""

    reads = frozenset({OUT})

    def infer(self, *shapes: Shape) -> Shape:
        self.check_axis(self.axis, shapes[0].rank, *shapes)
        return shapes[0]

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        def cotangent() -> Any:
            total = self.spread(g.sum_along(self.axis), out)
            return _dead(out).select(g.zero_like(), g - total.scale(out.exp()))

        return (cotangent,)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        if not emitter.reference:
            return emitter.log_rows("log_softmax", a, self.axis)
        shifted, _, log = _shifted(emitter, a, self.axis)
        spread = log.view(log.layout.broadcast_along(self.axis, a.layout.shape[self.axis]))
        return emitter.narrowed(emitter.elementwise("log_difference", shifted, spread), a.element)


class LogSumExp(Along):
    """ln(sum(exp(x))) along an axis, which is removed: finite wherever the row's maximum is."""

    reads = frozenset({0})

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        # Shares from log_softmax, not from exp(a - out): the rounding of a large `out` would scale them all.
        (a,) = operands
        return (lambda: self.spread(g, a).scale(a.log_softmax(self.axis).exp()),)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        (a,) = operands
        if not emitter.reference:
            return emitter.log_rows("logsumexp", a, self.axis)
        _, shift, log = _shifted(emitter, a, self.axis)
        return emitter.narrowed(emitter.elementwise("add", shift, log), a.element)
