"""Sums, and the two log-domain reductions."""

from typing import Any

from topos.kernels.reference import R_BLOCK
from topos.ops.emit import Emitter, Operand, compute_element
from topos.ops.movement import Reshape
from topos.ops.opcode import OUT, Cotangents, Opcode, Typed
from topos.payload import Shape


class Sum(Opcode):
    """All elements, row-major, to rank 0."""

    def infer(self, a: Shape) -> Shape:
        return Shape.scalar()

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: g.broadcast(a.shape),)

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        blocks, rest = divmod(a.layout.shape.volume, R_BLOCK)
        if blocks > 1 and rest == 0 and not emitter.reference and a.element == compute_element(a.element):
            # Blocks are rows, which threads share; their sums are added up as one sum adds them.
            a = emitter.reduce("sum", Reshape(Shape((blocks, R_BLOCK))).lower(emitter, a), 1)
        return emitter.reduce("sum", Reshape(Shape((a.layout.shape.volume,))).lower(emitter, a), 0)


class Along(Typed):
    """A kind that works along one axis."""

    axis: int

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank, a)
        return a.without_axis(self.axis)

    def spread(self, reduced: Any, like: Any) -> Any:
        """Return a reduced value repeated along the axis again."""
        return reduced.broadcast_along(self.axis, like.shape[self.axis])


class SumAlong(Along):
    """The sums along an axis, which is removed."""

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        return (lambda: self.spread(g, a),)

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        return emitter.reduce("sum", a, self.axis)


class MaxAlong(Along):
    """The maxima along an axis, which is removed. Of tensors alone: a recording states it with `Maximum`."""

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        return emitter.reduce("max", a, self.axis)


def _logarithms(emitter: Emitter, a: Operand, axis: int, routine: str) -> Operand:
    """Return ``log_softmax`` (x - m - l) or ``logsumexp`` (m + l), in one routine or node by node in the reference.

    m is the maximum along the axis, or 0 where that is infinite, and l is ln(sum(exp(x - m))).
    """
    if not emitter.reference:
        return emitter.log_rows(routine, a, axis)

    def spread(reduced: Operand) -> Operand:
        return reduced.view(reduced.layout.broadcast_along(axis, a.layout.shape[axis]))

    wide = emitter.widened(a)
    shift = emitter.elementwise("finite_or_zero", emitter.reduce("max", wide, axis))
    shifted = emitter.elementwise("sub", wide, spread(shift))
    log = emitter.elementwise("ln", emitter.reduce("sum", emitter.elementwise("exp", shifted), axis))
    last = ("log_difference", shifted, spread(log)) if routine == "log_softmax" else ("add", shift, log)
    return emitter.narrowed(emitter.elementwise(*last), a.element)


class LogSoftmax(Along):
    """x - logsumexp(x) along an axis; -inf where x is -inf."""

    reads = frozenset({OUT})

    def infer(self, a: Shape) -> Shape:
        self.check_axis(self.axis, a.rank, a)
        return a

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        def cotangent() -> Any:
            total = self.spread(g.sum_along(self.axis), out)
            # Where an output is -inf its row carries no gradient.
            return out.constant_like(None).step(out).select(g.zero_like(), g - total.scale(out.exp()))

        return (cotangent,)

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        return _logarithms(emitter, a, self.axis, "log_softmax")


class LogSumExp(Along):
    """ln(sum(exp(x))) along an axis, which is removed: finite wherever the row's maximum is."""

    reads = frozenset({0})

    def rule(self, g: Any, out: Any, a: Any) -> Cotangents:
        # Shares from log_softmax, not from exp(a - out): the rounding of a large `out` would scale them all.
        return (lambda: self.spread(g, a).scale(a.log_softmax(self.axis).exp()),)

    def lower(self, emitter: Emitter, a: Operand) -> Operand:
        return _logarithms(emitter, a, self.axis, "logsumexp")
