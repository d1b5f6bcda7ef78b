"""Reductions over contiguous rows as LLVM vector IR, with the bits of the loops in `reference`.

A block's 32 lanes are vectors. A lane starts from -0.0 instead of its first value, and where a value is missing
-0.0 is added: ``x + -0.0`` is `x`, with every bit, so nothing has to be skipped.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, block_routine, completed, define, kept, least, picks, span
from topos.kernels.elements import MEMORY, Memory
from topos.kernels.maps import FUNCTIONS
from topos.kernels.maps.arithmetic import finite_or_zero, log_difference
from topos.kernels.reference import LANES, LEVELS, R_BLOCK
from topos.kernels.table import Lanes, Table
from topos.kernels.vector import REAL

# What is summed: a function of a value and of one real that belongs to the whole row.
Term = Callable[[Table, Lanes, Lanes], Lanes]


def partial(memory: Memory) -> Memory:
    """Return the memory of results at compute precision."""
    return MEMORY[f"f{memory.width}"]


def halved(builder: ir.IRBuilder, vectors: Sequence[Lanes], combine: Callable[[Lanes, Lanes], Lanes]) -> ir.Value:
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


def parts(access: Access, n: ir.Value, body: Callable[[int, ir.Value, ir.Value | None], None]) -> None:
    """Emit ``body(part, index, mask)`` for the vectors of all groups of 32 values; those of the last are masked."""
    builder, lanes = access.builder, access.lanes
    whole = builder.and_(n, I64(-LANES))
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


def _define_total(module: ir.Module, memory: Memory, term: Term = lambda _, x, __: x) -> ir.Function:
    """Define ``real total(values, n, given)``: the sum of ``term(x, given)``.

    Beyond R_BLOCK values another function calls it for blocks of the largest power of R_BLOCK that is less than `n`.
    """
    real = REAL[memory.width]
    builder, longer = (define(name, module, [POINTER, I64, real], real) for name in ("total", "total_of_blocks"))
    total = builder.function
    total.attributes.add("alwaysinline")
    values, n, given = total.args
    access = Access(builder, memory)
    o = access.table
    nothing = o.real(-0.0)
    slots = [kept(builder, nothing) for _ in range(LANES // access.lanes)]

    def take(part: int, index: ir.Value, mask: ir.Value | None) -> None:
        spread = access.splat(given)
        value = term(o, access.load(values, index, mask, spread), spread)
        if mask is not None:
            value = builder.select(mask, value, nothing)
        builder.store(o.add(builder.load(slots[part], typ=o.reals), value), slots[part])

    with builder.if_then(builder.icmp_signed(">", n, I64(R_BLOCK)), likely=False):
        builder.ret(builder.call(longer.function, total.args))
    parts(access, n, take)
    builder.ret(halved(builder, [builder.load(slot, typ=o.reals) for slot in slots], builder.fadd))
    builder, (values, n, given) = longer, longer.function.args
    access, lanes = Access(builder, memory), Access(builder, partial(memory))
    table = kept(builder, ir.Constant(ir.ArrayType(real, LANES), [real(-0.0)] * LANES))
    unit = unit_of(builder, n)
    with span(builder, I64(0), n, unit) as first:
        size = least(builder, unit, builder.sub(n, first))
        value = builder.call(total, [access.at(values, first), size, given])
        slot = lanes.at(table, builder.and_(builder.udiv(first, unit), I64(LANES - 1)))
        builder.store(builder.fadd(builder.load(slot, typ=real), value), slot)
    sums = [lanes.load(table, I64(first)) for first in range(0, LANES, lanes.lanes)]
    builder.ret(halved(builder, sums, builder.fadd))
    return total


def _define_greatest(module: ir.Module, memory: Memory) -> ir.Function:
    """Define ``real greatest(values, n)``. Order shows in one case alone: the earliest of several zeros wins."""
    real = REAL[memory.width]
    builder = define("greatest", module, [POINTER, I64], real)
    values, n = builder.function.args
    access = Access(builder, memory)
    o = access.table
    lowest, none = o.real(float("-inf")), ir.Constant(ir.VectorType(ir.IntType(1), access.lanes), None)
    slots, undefined = [kept(builder, lowest) for _ in range(LANES // access.lanes)], kept(builder, none)

    def larger(a: Lanes, b: Lanes) -> Lanes:
        return builder.select(builder.fcmp_ordered(">", b, a), b, a)

    def take(part: int, index: ir.Value, mask: ir.Value | None) -> None:
        value = access.load(values, index, mask, lowest)
        builder.store(builder.or_(builder.load(undefined, typ=none.type), o.is_nan(value)), undefined)
        builder.store(larger(builder.load(slots[part], typ=o.reals), value), slots[part])

    parts(access, n, take)
    best = halved(builder, [builder.load(slot, typ=o.reals) for slot in slots], larger)
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


def _per_row(name: str, memory: Memory, define: Callable[..., ir.Function], *given: ir.Value) -> ir.Module:
    """Emit ``(out, values, rows, step, n)``: what the function that `define` defines makes of each row."""
    builder, (out, values, rows, step, n) = block_routine(name)
    function, single = define(builder.module, memory), Access(builder, memory, 1)
    with span(builder, I64(0), rows, I64(1)) as row:
        value = builder.call(function, [single.at(values, builder.mul(row, step)), n, *given])
        single.store(out, row, single.splat(value))
    return completed(builder)


def row_sum(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, step, n)``: ``out[r]`` is the sum of the `n` values from ``r * step`` on."""
    return _per_row(name, memory, _define_total, REAL[memory.width](0.0))


def row_max(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, step, n)``: ``out[r]`` is the maximum of the `n` values from ``r * step`` on."""
    return _per_row(name, memory, _define_greatest)


# Bytes of the rows whose logarithms are taken together, in the lanes of one vector: the nearest cache keeps them.
GROUP = 1 << 14


def log_rows(name: str, memory: Memory, keeps: bool) -> ir.Module:
    """Emit ``(out, values, rows, step, n)``: logsumexp, or log_softmax, which `keeps` the row.

    With log being ``ln(sum(exp(x - shift)))`` one result per row, ``shift + log``, is computed at compute precision and
    rounded once; or rows of ``x - shift - log`` are dense, and `out` may be `values` where `step` is `n`.
    """
    builder, (out, values, rows, step, n) = block_routine(name)
    exp, ln = (FUNCTIONS[map_].at(memory.width) for map_ in ("exp", "ln"))
    greatest = _define_greatest(builder.module, memory)
    total = _define_total(builder.module, memory, lambda o, x, shift: exp(o, o.sub(x, shift)))
    access, group = Access(builder, memory), Access(builder, partial(memory))
    shifts, logs = parts = [kept(builder, group.table.real(1.0)) for _ in range(2)]

    def each(body: Callable[[ir.Value, list[ir.Value]], None]) -> None:
        """Emit ``body(row, (where its shift is, where its log is))`` for the rows of a group."""
        with span(builder, first, end, I64(1)) as row:
            body(row, [group.at(part, builder.sub(row, first)) for part in parts])

    def measure(part: ir.Value, function: ir.Function, of: Callable[..., Lanes]) -> None:
        """Reduce the rows of a group, one after the other, and map the results, all at once."""

        def put(row: ir.Value, places: list[ir.Value]) -> None:
            given = [builder.load(places[0], typ=group.stored)] if function is total else []
            value = builder.call(function, [access.at(values, builder.mul(row, step)), n, *given])
            builder.store(value, places[parts.index(part)])

        each(put)
        group.store(part, I64(0), of(group.table, group.load(part, I64(0))))

    def subtract(row: ir.Value, places: list[ir.Value]) -> None:
        at, to = access.at(values, builder.mul(row, step)), access.at(out, builder.mul(row, n))
        shift, log = (access.splat(builder.load(place, typ=group.stored)) for place in places)
        o = access.table

        def write(index: ir.Value, mask: ir.Value | None) -> None:
            access.store(to, index, log_difference(o, o.sub(access.load(at, index, mask), shift), log), mask)

        access.sweep(n, write)

    most = least(builder, I64(group.lanes), builder.add(builder.udiv(I64(GROUP // memory.size), n), I64(1)))
    with span(builder, I64(0), rows, most) as first:
        end = least(builder, builder.add(first, most), rows)
        measure(shifts, greatest, finite_or_zero)
        measure(logs, total, ln)
        if keeps:
            each(subtract)
        else:
            value = group.table.add(*(group.load(part, I64(0)) for part in parts))
            access.store(out, first, value, access.first(builder.sub(end, first)))
    return completed(builder)
