"""Reductions over contiguous rows as LLVM vector IR, with the bits of the loops in `reference`.

A block's 32 lanes are vectors. A lane starts from -0.0 instead of its first value, and where a value is missing
-0.0 is added: ``x + -0.0`` is `x`, with every bit, so nothing has to be skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, block_routine, completed, define, least, picks, room, span
from topos.kernels.elements import MEMORY, Memory
from topos.kernels.maps import FUNCTIONS
from topos.kernels.maps.arithmetic import finite_or_zero, log_difference
from topos.kernels.reference import LANES, LEVELS, R_BLOCK
from topos.kernels.table import Lanes, Table
from topos.kernels.vector import REAL

Term = Callable[[Table, Lanes, Lanes], Lanes]
"""What is summed: a function of a value and of one real that belongs to the whole row."""


def partial(memory: Memory) -> Memory:
    """Return the memory of results at compute precision."""
    return MEMORY[f"f{memory.width}"]


def _halved(builder: ir.IRBuilder, vectors: Sequence[Lanes], combine: Callable[[Lanes, Lanes], Lanes]) -> ir.Value:
    """Combine lane i with lane i + half for half = 16, 8, ..., 1, and return lane 0."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [combine(low, high) for low, high in zip(vectors[:half], vectors[half:], strict=True)]
    vector = vectors[0]
    count = vector.type.count
    while count > 1:
        count //= 2
        low, high = (builder.shuffle_vector(vector, vector, picks(range(start, start + count))) for start in (0, count))
        vector = combine(low, high)
    return builder.extract_element(vector, I32(0))


def _parts(access: Access, n: ir.Value, short: bool, body: Callable[[int, ir.Value, ir.Value | None], None]) -> None:
    """Emit ``body(part, index, mask)`` for the vectors of all groups of 32 values; those of the last are masked."""
    builder, lanes = access.builder, access.lanes
    whole = I64(0) if short else builder.and_(n, I64(-LANES))
    if short:
        builder.function.attributes.add("alwaysinline")
    else:
        with span(builder, I64(0), whole, I64(LANES)) as index:
            for part in range(LANES // lanes):
                body(part, builder.add(index, I64(part * lanes)), None)
    for part in range(LANES // lanes):
        index = builder.add(whole, I64(part * lanes))
        with builder.if_then(builder.icmp_signed("<", index, n)):
            body(part, index, access.first(builder.sub(n, index)))


def unit_of(builder: ir.IRBuilder, n: ir.Value) -> ir.Value:
    """Return the largest power of R_BLOCK that is less than `n`."""
    unit: ir.Value = I64(R_BLOCK)
    for power in range(2, LEVELS - 1):
        more = builder.icmp_signed(">", n, I64(R_BLOCK**power))
        unit = builder.select(more, I64(R_BLOCK**power), unit)
    return unit


def _define_total(module: ir.Module, memory: Memory, term: Term, short: bool) -> ir.Function:
    """Define ``real total(values, n, given)``: the sum of ``term(x, given)``; a `short` one takes up to 32 values.

    Beyond R_BLOCK values it calls itself for blocks of the largest power of R_BLOCK that is less than `n`.
    """
    real = REAL[memory.width]
    builder = define(f"total_{short}", module, [POINTER, I64, real], real)
    values, n, given = builder.function.args
    access = Access(builder, memory)
    o = access.table
    nothing = o.real(-0.0)
    slots = [room(builder, o.reals) for _ in range(LANES // access.lanes)]
    for slot in slots:
        builder.store(nothing, slot)

    def take(part: int, index: ir.Value, mask: ir.Value | None) -> None:
        spread = access.splat(given)
        value = term(o, access.load(values, index, mask, spread), spread)
        if mask is not None:
            value = builder.select(mask, value, nothing)
        builder.store(o.add(builder.load(slots[part], typ=o.reals), value), slots[part])

    def sum_of(vectors: list[Lanes]) -> ir.Value:
        return _halved(builder, vectors, builder.fadd)

    with builder.if_then(builder.icmp_signed("<=", n, I64(R_BLOCK)), likely=True):
        _parts(access, n, short, take)
        builder.ret(sum_of([builder.load(slot, typ=o.reals) for slot in slots]))
    if short:
        builder.unreachable()
        return builder.function
    lanes = Access(builder, partial(memory))
    table = room(builder, ir.ArrayType(real, LANES))
    positions = [I64(first) for first in range(0, LANES, lanes.lanes)]
    for position in positions:
        lanes.store(table, position, nothing)
    unit = unit_of(builder, n)
    with span(builder, I64(0), n, unit) as first:
        size = least(builder, unit, builder.sub(n, first))
        value = builder.call(builder.function, [access.at(values, first), size, given])
        slot = lanes.at(table, builder.and_(builder.udiv(first, unit), I64(LANES - 1)))
        builder.store(builder.fadd(builder.load(slot, typ=real), value), slot)
    builder.ret(sum_of([lanes.load(table, position) for position in positions]))
    return builder.function


def _define_greatest(module: ir.Module, memory: Memory, short: bool) -> ir.Function:
    """Define ``real greatest(values, n)``. Order shows in one case alone: the earliest of several zeros wins."""
    real = REAL[memory.width]
    builder = define(f"greatest_{short}", module, [POINTER, I64], real)
    values, n = builder.function.args
    access = Access(builder, memory)
    o = access.table
    lowest, none = o.real(float("-inf")), ir.Constant(ir.VectorType(ir.IntType(1), access.lanes), None)
    slots = [room(builder, o.reals) for _ in range(LANES // access.lanes)]
    undefined = room(builder, none.type)
    for slot in slots:
        builder.store(lowest, slot)
    builder.store(none, undefined)

    def larger(a: Lanes, b: Lanes) -> Lanes:
        return builder.select(builder.fcmp_ordered(">", b, a), b, a)

    def take(part: int, index: ir.Value, mask: ir.Value | None) -> None:
        value = access.load(values, index, mask, lowest)
        builder.store(builder.or_(builder.load(undefined, typ=none.type), o.is_nan(value)), undefined)
        builder.store(larger(builder.load(slots[part], typ=o.reals), value), slots[part])

    _parts(access, n, short, take)
    best = _halved(builder, [builder.load(slot, typ=o.reals) for slot in slots], larger)
    bits = builder.bitcast(builder.load(undefined, typ=none.type), ir.IntType(access.lanes))
    with builder.if_then(builder.icmp_unsigned("!=", bits, bits.type(0)), likely=False):
        builder.ret(real(float("nan")))
    with builder.if_then(builder.fcmp_unordered("!=", best, real(0.0)), likely=True):
        builder.ret(best)
    single = Access(builder, memory, 1)
    with span(builder, I64(0), n, I64(1)) as index:
        value = builder.extract_element(single.load(values, index), I32(0))
        with builder.if_then(builder.fcmp_ordered("==", value, real(0.0))):
            builder.ret(value)
    builder.unreachable()
    return builder.function


class _Rows:
    """A routine ``(out, values, rows, step, n)`` under construction, inside the loop over its rows."""

    def __init__(self, name: str, memory: Memory) -> None:
        self.builder, (self.out, self.values, self.rows, self.step, self.n) = block_routine(name)
        self.memory = memory
        self.single = Access(self.builder, memory, 1)

    def emit(self, body: Callable[[ir.Value, ir.Value, bool], None]) -> ir.Module:
        """Emit ``body(row, address of its values, is short)`` for every row and return the module."""
        builder = self.builder
        with builder.if_else(builder.icmp_signed("<=", self.n, I64(LANES))) as branches:
            for branch, short in zip(branches, (True, False), strict=True):
                with branch, span(builder, I64(0), self.rows, I64(1)) as row:
                    body(row, self.single.at(self.values, builder.mul(row, self.step)), short)
        return completed(builder)

    def put(self, row: ir.Value, scalar: ir.Value) -> None:
        """Write the one result of a row."""
        self.single.store(self.out, row, self.single.splat(scalar))


def _itself(o: Table, x: Lanes, given: Lanes) -> Lanes:
    return x


def row_sum(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, step, n)``: ``out[r]`` is the sum of the `n` values from ``r * step`` on."""
    rows = _Rows(name, memory)
    total = [_define_total(rows.builder.module, memory, _itself, short) for short in (False, True)]
    zero = REAL[memory.width](0.0)
    return rows.emit(lambda row, at, short: rows.put(row, rows.builder.call(total[short], [at, rows.n, zero])))


def row_max(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, step, n)``: ``out[r]`` is the maximum of the `n` values from ``r * step`` on."""
    rows = _Rows(name, memory)
    greatest = [_define_greatest(rows.builder.module, memory, short) for short in (False, True)]
    return rows.emit(lambda row, at, short: rows.put(row, rows.builder.call(greatest[short], [at, rows.n])))


Finish = Callable[[_Rows, ir.Value, ir.Value, Lanes, Lanes], None]


def _log_rows(name: str, memory: Memory, finish: Finish) -> ir.Module:
    """Emit ``finish(rows, row, address, shift, log)`` per row: log is ln(sum(exp(x - shift)))."""
    rows = _Rows(name, memory)
    builder, module, o = rows.builder, rows.builder.module, rows.single.table
    exp, ln = (FUNCTIONS[map_].at(memory.width) for map_ in ("exp", "ln"))
    lengths = (False, True)
    greatest = [_define_greatest(module, memory, short) for short in lengths]
    total = [_define_total(module, memory, lambda o, x, shift: exp(o, o.sub(x, shift)), short) for short in lengths]

    def body(row: ir.Value, at: ir.Value, short: bool) -> None:
        shift = finite_or_zero(o, rows.single.splat(builder.call(greatest[short], [at, rows.n])))
        given = builder.extract_element(shift, I32(0))
        log = ln(o, rows.single.splat(builder.call(total[short], [at, rows.n, given])))
        finish(rows, row, at, shift, log)

    return rows.emit(body)


def logsumexp(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, step, n)``: one result per row, computed at compute precision and rounded once."""

    def finish(rows: _Rows, row: ir.Value, _: ir.Value, shift: Lanes, log: Lanes) -> None:
        rows.single.store(rows.out, row, rows.single.table.add(shift, log))

    return _log_rows(name, memory, finish)


def log_softmax(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, step, n)``: dense rows of results; `out` may be `values` where `step` is `n`."""

    def finish(rows: _Rows, row: ir.Value, at: ir.Value, shift: Lanes, log: Lanes) -> None:
        access = Access(rows.builder, memory)
        o = access.table
        below, scale = (access.splat(rows.builder.extract_element(x, I32(0))) for x in (shift, log))
        start = access.at(rows.out, rows.builder.mul(row, rows.n))

        def write(index: ir.Value, mask: ir.Value | None) -> None:
            value = log_difference(o, o.sub(access.load(at, index, mask), below), scale)
            access.store(start, index, value, mask)

        access.sweep(rows.n, write)

    return _log_rows(name, memory, finish)
