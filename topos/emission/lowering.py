"""Each kind of opcode as operations of StableHLO, with the meaning that topos gives it.

Sums and maps of a 16-bit element are computed in f32 and rounded once, as the accumulation type says.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from topos import ops
from topos.backend.tasks import MapOperation
from topos.emission.writer import Term, Writer

# Windows, or taps, up to which windows are slices; beyond, positions are computed and gathered.
UNROLLED = 16

Lowering = Callable[..., Term]


# ---- elementwise


# Operations that StableHLO has with the same meaning.
PLAIN = {ops.Add: "add", ops.Sub: "subtract", ops.Mul: "multiply", ops.Div: "divide", ops.Neg: "negate"}


def _is_zero(w: Writer, a: Term, direction: str = "EQ") -> Term:
    return w.compare(direction, a, w.zero(a.shape, a.kind))


def _maximum(w: Writer, opcode: ops.Maximum, a: Term, b: Term) -> Term:
    # stablehlo.maximum makes +0 of -0 and +0, here the left one stays: as long as that is no -0, it is the same.
    if a.name in w.unsigned:
        return w.elementwise("maximum", a, b)
    taken = w.elementwise("or", w.compare("GE", a, b), w.compare("NE", a, a))
    return w.select(taken, a, b)


def _unless(w: Writer, silent: Term, a: Term) -> Term:
    """Append the choice of 0 where a mask is set, else `a`."""
    return w.select(silent, w.zero(a.shape, a.kind), a)


def _scale(w: Writer, opcode: ops.Scale, a: Term, b: Term) -> Term:
    silent = w.elementwise("or", _is_zero(w, a), _is_zero(w, b))
    return _unless(w, silent, w.elementwise("multiply", a, b))


# Maps that StableHLO has.
MAPS = {
    MapOperation.EXP: "exponential", MapOperation.LN: "log", MapOperation.SQRT: "sqrt", MapOperation.TANH: "tanh",
    MapOperation.SIN: "sine", MapOperation.COS: "cosine", MapOperation.LOG1P: "log_plus_one",
    MapOperation.EXPM1: "exponential_minus_one",
}  # fmt: skip


def _map(w: Writer, opcode: ops.Map, a: Term) -> Term:
    x = w.widened(a)
    if opcode.operation is MapOperation.ERF:  # an operation of CHLO, the client dialect
        out = w.append(f"chlo.erf {x.name} : {x.type} -> {{type}}", x.shape, x.kind)
    elif opcode.operation is MapOperation.ERF_DERIVATIVE:
        power = w.elementwise("exponential", w.elementwise("negate", w.elementwise("multiply", x, x)))
        out = w.elementwise("multiply", power, w.real(2 / math.sqrt(math.pi), x.shape, x.kind))
    else:
        out = w.elementwise(MAPS[opcode.operation], x)
    return w.narrowed(out)


# ---- sums and products


def _matmul(w: Writer, opcode: ops.MatMul, a: Term, b: Term) -> Term:
    rank = len(a.shape)
    lead = list(range(rank - 2))
    batch = f"batching_dims = {lead} x {lead}, " if lead else ""
    detail = f", {batch}contracting_dims = [{rank - 1}] x [{rank - 2}], precision = [HIGHEST, HIGHEST]"
    wide = w.element.accumulation or a.kind
    return w.narrowed(w.operation("dot_general", [a, b], (*a.shape[:-1], b.shape[-1]), wide, detail))


def _along(w: Writer, reduced: Term, shape: Sequence[int], axis: int) -> Term:
    """Append copies along an axis, which `shape` has more."""
    return w.spread(reduced, shape, [i for i in range(len(shape)) if i != axis])


def _shifted(w: Writer, a: Term, axis: int) -> tuple[Term, Term, Term]:
    """Return (x - m, m, ln(sum(exp(x - m)))): m is the row's maximum, or 0 where that is infinite."""
    x = w.widened(a)
    peak = w.reduce("maximum", x, [axis], w.real(-math.inf, (), x.kind))
    size = w.elementwise("abs", peak)
    infinite = w.compare("EQ", size, w.real(math.inf, peak.shape, peak.kind))
    shift = _unless(w, infinite, peak)
    shifted = w.elementwise("subtract", x, _along(w, shift, x.shape, axis))
    total = w.total(w.elementwise("exponential", shifted), [axis])
    return shifted, shift, w.elementwise("log", total)


def _log_softmax(w: Writer, opcode: ops.LogSoftmax, a: Term) -> Term:
    shifted, _, log = _shifted(w, a, opcode.axis)
    lowest = w.real(-math.inf, shifted.shape, shifted.kind)
    difference = w.elementwise("subtract", shifted, _along(w, log, shifted.shape, opcode.axis))
    return w.narrowed(w.select(w.compare("EQ", shifted, lowest), lowest, difference))


def _logsumexp(w: Writer, opcode: ops.LogSumExp, a: Term) -> Term:
    _, shift, log = _shifted(w, a, opcode.axis)
    return w.narrowed(w.elementwise("add", shift, log))


# ---- movement


def _broadcast(w: Writer, opcode: ops.Broadcast, a: Term) -> Term:
    return w.spread(w.reshape(a, ()), opcode.shape, []) if opcode.shape else w.reshape(a, ())


def _broadcast_along(w: Writer, opcode: ops.BroadcastAlong, a: Term) -> Term:
    return _along(w, a, (*a.shape[: opcode.axis], opcode.extent, *a.shape[opcode.axis :]), opcode.axis)


def _permute(w: Writer, opcode: ops.Permute, a: Term) -> Term:
    shape = [a.shape[axis] for axis in opcode.order]
    return w.operation("transpose", [a], shape, a.kind, f", dims = {list(opcode.order)}")


# ---- windows


def _window_positions(w: Writer, count: int, opcode: ops.Unfold | ops.Fold) -> Term:
    """Append ``window * step + tap * dilation`` for all windows and taps."""
    shape = (count, opcode.size)
    apart = w.constant(str(opcode.step), shape, "i32"), w.constant(str(opcode.dilation), shape, "i32")
    terms = [w.elementwise("multiply", w.iota(shape, axis), factor) for axis, factor in enumerate(apart)]
    return w.elementwise("add", *terms)


def _unfold(w: Writer, opcode: ops.Unfold, a: Term) -> Term:
    axis, size, step, dilation = opcode.axis, opcode.size, opcode.step, opcode.dilation
    count = (a.shape[axis] - dilation * (size - 1) - 1) // step + 1
    lead, tail = a.shape[:axis], a.shape[axis + 1 :]
    shape = (*lead, count, size, *tail)
    if (step, dilation) == (size, 1):
        return w.reshape(w.slice(a, axis, 0, count * size), shape)
    if min(count, size) > UNROLLED:
        return w.gather(a, _window_positions(w, count, opcode), axis)
    # One slice per tap, or per window, whichever are fewer.
    at, parts, extent, first, apart = axis, count, size, step, dilation
    if size <= count:
        at, parts, extent, first, apart = axis + 1, size, count, dilation, step
    one = [*shape]
    one[at] = 1
    slices = [w.reshape(w.slice(a, axis, i * first, extent, apart), one) for i in range(parts)]
    return w.operation("concatenate", slices, shape, a.kind, f", dim = {at}") if parts > 1 else slices[0]


def _fold(w: Writer, opcode: ops.Fold, a: Term) -> Term:
    axis, size, step, dilation = opcode.axis, opcode.size, opcode.step, opcode.dilation
    count, extent = a.shape[axis], opcode.extent
    lead, tail = a.shape[:axis], a.shape[axis + 2 :]
    if (step, dilation) == (size, 1):
        return w.pad(w.reshape(a, (*lead, count * size, *tail)), axis, 0, extent)
    wide = w.widened(a)
    if min(count, size) > UNROLLED:
        return w.narrowed(w.scatter(wide, _window_positions(w, count, opcode), axis, extent))
    at, order, length, first, apart = axis, range(count), size, step, dilation
    if size <= count:  # ascending windows: at one position the last tap belongs to the first of them
        at, order, length, first, apart = axis + 1, range(size)[::-1], count, dilation, step
    parts = [w.reshape(w.slice(wide, at, i, 1), (*lead, length, *tail)) for i in order]
    placed = [w.pad(part, axis, i * first, extent, apart - 1) for i, part in zip(order, parts, strict=True)]
    return w.narrowed(functools.reduce(lambda total, part: w.elementwise("add", total, part), placed))


# ---- rows


def _positions(w: Writer, selection: Term) -> Term:
    """Return the index that each row of a one-hot selection holds."""
    if selection.name not in w.positions:
        hot = _is_zero(w, selection, "NE")
        places = w.select(hot, w.iota(selection.shape, 1), w.constant("0", selection.shape, "i32"))
        w.positions[selection.name] = w.reduce("maximum", places, [1], w.constant("0", (), "i32"))
    return w.positions[selection.name]


def _scatter(w: Writer, opcode: ops.Scatter, rows: Term, selection: Term) -> Term:
    return w.narrowed(w.scatter(w.widened(rows), _positions(w, selection), 0, selection.shape[1]))


# Kinds with a meaning of their own in StableHLO; what is one operation there is said here.
LOWERINGS: dict[type[ops.Opcode], Lowering] = {
    ops.Maximum: _maximum,
    ops.Step: lambda w, opcode, x, threshold: w.convert(w.compare("GE", x, threshold), x.kind),
    ops.Select: lambda w, opcode, mask, a, b: w.select(_is_zero(w, mask, "NE"), a, b),
    ops.Scale: _scale,
    ops.Ratio: lambda w, opcode, g, d: _unless(w, _is_zero(w, g), w.elementwise("divide", g, d)),
    ops.Powf: lambda w, opcode, a, b: w.narrowed(w.elementwise("power", w.widened(a), w.widened(b))),
    ops.Map: _map,
    ops.MatMul: _matmul,
    ops.Sum: lambda w, opcode, a: w.narrowed(w.total(a, range(len(a.shape)))) if a.shape else a,
    ops.SumAlong: lambda w, opcode, a: w.narrowed(w.total(a, [opcode.axis])),
    ops.LogSoftmax: _log_softmax,
    ops.LogSumExp: _logsumexp,
    ops.Broadcast: _broadcast,
    ops.BroadcastAlong: _broadcast_along,
    ops.Reshape: lambda w, opcode, a: w.reshape(a, opcode.shape),
    ops.Permute: _permute,
    ops.Narrow: lambda w, opcode, a: w.slice(a, opcode.axis, opcode.start, opcode.length),
    ops.Pad: lambda w, opcode, a: w.pad(a, opcode.axis, opcode.start, opcode.full_extent),
    ops.Unfold: _unfold,
    ops.Fold: _fold,
    ops.Gather: lambda w, opcode, table, selection: w.gather(table, _positions(w, selection), 0),
    ops.Scatter: _scatter,
}


def lower(w: Writer, opcode: Any, operands: list[Term]) -> Term:
    """Append what computes an opcode."""
    kind = type(opcode)
    return w.elementwise(PLAIN[kind], *operands) if kind in PLAIN else LOWERINGS[kind](w, opcode, *operands)
