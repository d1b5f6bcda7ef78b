"""Forward mode and higher derivatives, as readings over the recordable vocabulary: public surface alone."""

from __future__ import annotations

import contextvars
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from topos.errors import ShapeError
from topos.graph import Trace, Value, stack
from topos.ops import Opcode
from topos.payload import Recordable, Shape, Tensor

__all__ = ["Dual", "hessian", "hvp", "jacobian", "jvp"]


def tangent(opcode: Opcode, operands: Sequence[Any], out: Any, tangents: Sequence[Any]) -> Any:
    """Return the tangent of `out` = opcode(operands) for the operands' tangents (None is zero).

    An elementwise kind has a diagonal Jacobian, so its reverse rule, seeded with a tangent, is its forward rule.
    """
    moving = [(i, t) for i, t in enumerate(tangents) if t is not None and i not in opcode.data]
    # A tangent goes the way of its value where a kind is linear in it: its rule reads no number of that operand.
    is_linear = opcode.reads <= opcode.data and opcode.arity - len(opcode.data) == 1
    if is_linear or opcode.name == "MatMul":
        parts = [opcode.express([*operands[:i], t, *operands[i + 1 :]]) for i, t in moving]
    elif opcode.name in ("LogSoftmax", "LogSumExp"):
        parts = [_log_domain(opcode, operands[0], out, t) for _, t in moving]
    else:
        parts = [opcode.vjp(list(operands), out, t)[i] for i, t in moving]
    given = [part for part in parts if part is not None]
    return functools.reduce(operator.add, given) if given else None


def _log_domain(opcode: Opcode, a: Any, out: Any, t: Any) -> Any:
    """Return the tangent of log_softmax (t - sum(t * p)) or logsumexp (sum(t * p)), p = softmax(a)."""
    axis = opcode.parameters["axis"]
    if opcode.name == "LogSumExp":
        share = opcode.vjp([a], out, out.one_like())[0]  # the softmax, 0 over a row of -inf
        return t.scale(share).sum_along(axis)
    mean = t.scale(out.exp()).sum_along(axis)
    dead = out.constant_like(None).step(out)
    return dead.select(t.zero_like(), t - mean.broadcast_along(axis, a.shape[axis]))


class Dual(Recordable):
    """A value with its tangent: forward mode over any `Recordable` (tensors compute, values record).

    Duals nest. Each has a level; beside one of a higher level, a dual is a constant that may move on its own.

    >>> x = Dual(Tensor([3.0, 4.0]), Tensor([1.0, 0.0]))
    >>> print((x * x).primal, (x * x).tangent)
    [9.0, 16.0] [6.0, 0.0]
    """

    __slots__ = ("level", "primal", "tangent")

    def __init__(self, primal: Any, tangent: Any = None, level: int | None = None) -> None:
        if tangent is not None and tangent.shape != primal.shape:
            raise ShapeError(f"Dual: the tangent has shape {tangent.shape}, the value {primal.shape}")
        self.primal, self.tangent = primal, tangent
        self.level = _level(primal) + 1 if level is None else level

    @property
    def shape(self) -> Shape:
        """The extents."""
        return cast("Shape", self.primal.shape)

    def apply(self, opcode: Any, operands: tuple[Any, ...]) -> Dual:
        """Apply an opcode to values, and its derivative to tangents."""
        top = max(operands, key=_level)
        duals = [top.operand(o) for o in operands]
        parts = [d.primal for d in duals] + [d.tangent for d in duals]
        below = max(parts, key=_level)
        if isinstance(below, Dual):
            parts = [None if part is None else below.operand(part) for part in parts]
        primals, tangents = parts[: len(duals)], parts[len(duals) :]
        out = opcode.express(primals)
        return Dual(out, tangent(opcode, primals, out, tangents), top.level)

    def constant_like(self, count: int | None) -> Dual:
        """Return a constant of this shape; its tangent is zero."""
        return Dual(self.primal.constant_like(count), None, self.level)

    def lift(self, literal: Any) -> Dual:
        """Return a literal of this shape as a dual with tangent zero."""
        if isinstance(literal, Dual):
            return literal
        own = _own(self.primal, literal)
        spreads = not isinstance(literal, Recordable) and own.shape.rank == 0 < self.shape.rank
        return Dual(own.broadcast(self.shape) if spreads else own, None, self.level)

    def operand(self, given: Any) -> Dual:
        """Return an operand of its own shape as a dual of this level, with tangent zero if it is of a lower one."""
        if isinstance(given, Dual) and given.level >= self.level:
            return given
        return Dual(_own(self.primal, given), None, self.level)

    def __repr__(self) -> str:
        return f"Dual({self.primal!r}, {self.tangent!r})"


def _level(given: Any) -> int:
    return given.level if isinstance(given, Dual) else 0


def _own(like: Any, given: Any) -> Any:
    """Return `given` as an operand beside `like`: on its tape where that records."""
    if isinstance(like, Trace):
        return given if isinstance(given, (Trace, Dual)) else Trace(_own(like.value, given))
    if isinstance(like, Value):
        return given if isinstance(given, (Value, Dual)) else like.tape.leaf(given)
    return given if isinstance(given, Recordable) else like.operand(given)


# The level of the innermost jvp around this code: its perturbation is kept apart from those around it.
_active: contextvars.ContextVar[int] = contextvars.ContextVar("topos_jvp", default=0)


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return (value, tangent) of ``function(*primals)``, a function over `Recordable`.

    Over tensors it computes, over values it records forward mode as ordinary nodes. Calls nest.

    Raises:
        ShapeError: a tangent's shape differs from its primal's.

    >>> value, slope = jvp(lambda w: (w * w).sum(), [Tensor([1.0, 2.0])], [Tensor([1.0, 0.0])])
    >>> print(value, slope)
    5.0 2.0
    """
    if len(primals) != len(tangents):
        raise ShapeError(f"jvp: {len(primals)} primals and {len(tangents)} tangents: give one each")
    level = 1 + max([_active.get(), *map(_level, primals)])
    duals = [Dual(p, None if t is None else _own(p, t), level) for p, t in zip(primals, tangents, strict=True)]
    token = _active.set(level)
    try:
        result = function(*duals)
    finally:
        _active.reset(token)
    if _level(result) < level:  # it does not depend on the primals
        return result, result.zero_like()
    return result.primal, result.primal.zero_like() if result.tangent is None else result.tangent


def hvp(loss: Value, x: Value, vector: Any) -> Value:
    """Record the product of the Hessian of a rank-0 `loss` in `x` with a vector of x's shape.

    >>> def build(tape):
    ...     x = tape.parameter([1.0, 2.0])
    ...     return hvp((x * x * x).sum(), x, [1.0, 0.0])
    >>> network, product = Tape.record(build)
    >>> print(network.forward(network.parameters()).of(product))
    [6.0, 0.0]
    """
    tape = loss.tape
    with tape.transaction():
        gradient = tape.differentiate(loss, [x]).of(x)
        return tape.resolve(tape.vjp(gradient, vector, [x]).of(x))


def jacobian(y: Value, x: Value) -> Value:
    """Record the Jacobian of `y` by `x`, of shape ``[*y.shape, *x.shape]``: one reverse scan per element of y.

    >>> def build(tape):
    ...     x = tape.parameter([1.0, 2.0])
    ...     return jacobian(x * x, x)
    >>> network, slopes = Tape.record(build)
    >>> print(network.forward(network.parameters()).of(slopes))
    [[2.0, 0.0], [0.0, 4.0]]
    """
    tape = y.tape
    units = np.eye(y.shape.volume).reshape([-1, *y.shape])
    with tape.transaction():
        rows = [tape.vjp(y, Tensor(unit, element=tape.element), [x]).of(x) for unit in units]
        return stack([tape.resolve(row) for row in rows], 0).reshape([*y.shape, *x.shape])


def hessian(loss: Value, x: Value) -> Value:
    """Record the Hessian of a rank-0 `loss` by `x`, of shape ``[*x.shape, *x.shape]``.

    >>> def build(tape):
    ...     x = tape.parameter([1.0, 2.0])
    ...     return hessian((x * x * x).sum(), x)
    >>> network, curvature = Tape.record(build)
    >>> print(network.forward(network.parameters()).of(curvature))
    [[6.0, 0.0], [0.0, 12.0]]
    """
    tape = loss.tape
    with tape.transaction():
        return jacobian(tape.resolve(tape.differentiate(loss, [x]).of(x)), x)
