"""Reductions over columns that lie side by side, as LLVM vector IR: rows of the matrix are read in order.

As in `reductions`, missing values are -0.0. The lanes of a strip of columns are a tile in a near cache.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, block_routine, completed, define, kept, least, room, span
from topos.kernels.elements import Memory
from topos.kernels.maps import FUNCTIONS
from topos.kernels.maps.arithmetic import finite_or_zero, log_difference, maximum
from topos.kernels.reductions import Term, partial, unit_of
from topos.kernels.reference import LANES, R_BLOCK
from topos.kernels.table import Lanes
from topos.kernels.vector import intrinsic

# Fewer rows do not repay a tile that fills the second cache.
FEW = 8 * LANES

# Up to so many rows, the lanes are halved in so many groups, one after the other: some 8 rows are read side by side.
# 64 rows of 100 KB took 1.4 times as long as NumPy in the order of memory or lane by lane, and take 0.8.
GROUPS = ((LANES, 4), (2 * LANES, 8), (4 * LANES, 16), (8 * LANES, 32))

# Bytes of results that a strip of columns has: of logarithms where rows are few, of sums, of maxima.
#
# Reads follow one another for long, and the tile of 32 lanes fits a cache: the first, the second; the running maxima
# fit the first. Every level of blocks holds a tile on the stack, which threads may have little of.
FEW_STRIP, SUM_STRIP, MAX_STRIP = 1 << 9, 1 << 12, 1 << 14

# Bytes of a row that is short: the next matrix lies near, and is asked for while up to 32 rows of one are added up.
#
# 2,048 images of 28 rows of 28 took 490 us, read as GROUPS say, 370 in one pass and 230 so (PyTorch 400).
NARROW = 1 << 8

# Up to so many rows, of up to so many bytes, are read side by side.
FEW_ROWS = (8, True), (16, True), (LANES, True), (8, False), (16, False)


def _define_column_total(module: ir.Module, memory: Memory, width: int, term: Term | None = None) -> ir.Function:
    """Define ``int column_total(out, values, step, n, columns, given)``: sums of up to `width` columns side by side.

    With a `term` they are those of ``term(x, given)``, one given for each column; `out` has then room for whole vectors,
    as `given` has. `out` is at compute precision. Long columns are cut as in `_define_total`.
    """
    kind = partial(memory)
    builder = define("column_total", module, [POINTER, POINTER, I64, I64, I64, POINTER], I32)
    out, values, step, n, columns, given = builder.function.args
    source, lanes = Access(builder, memory), Access(builder, kind)
    tile = room(builder, ir.ArrayType(lanes.stored, LANES * width))
    # Lanes lie as close as columns permit: at a fixed distance they would share few sets of a cache.
    padded = builder.and_(builder.add(columns, I64(lanes.lanes - 1)), I64(-lanes.lanes))

    def row_at(row: ir.Value) -> ir.Value:
        return source.at(values, builder.mul(row, step))

    def lane_at(row: ir.Value) -> ir.Value:
        return lanes.at(tile, builder.mul(builder.and_(row, I64(LANES - 1)), padded))

    def clear(access: Access, base: ir.Value, lines: int) -> None:
        with span(builder, I64(0), builder.mul(padded, I64(lines)), I64(access.lanes)) as index:
            access.store(base, index, access.table.real(-0.0))

    def read(address: ir.Value, index: ir.Value, mask: ir.Value | None) -> Lanes:
        value = source.load(address, index, mask)
        return value if term is None else term(lanes.table, value, lanes.load(given, index))

    def take(read: Callable[..., Lanes], lane: ir.Value, addresses: Sequence[ir.Value]) -> None:
        """Add lines to a lane, one after the other."""

        def each(index: ir.Value, mask: ir.Value | None) -> None:
            value = lanes.load(lane, index)
            for address in addresses:
                value = builder.fadd(value, read(address, index, mask))
            lanes.store(lane, index, value)

        lanes.sweep(columns, each)

    def halved(part: Callable[[int], Lanes], count: int, lane: int = 0, half: int = 1) -> Lanes:
        """Add the first `count` lanes in halves, each taken as late as it can be: few are in registers at a time."""
        if half == count:
            return part(lane)
        return builder.fadd(halved(part, count, lane, 2 * half), halved(part, count, lane + half, 2 * half))

    def finish(access: Access, addresses: Sequence[ir.Value], asks: bool = False) -> None:
        """Add the lanes that begin at these addresses in halves, in registers, and return.

        It `asks` for what lies a matrix further.
        """

        def each(index: ir.Value, mask: ir.Value | None) -> None:
            for address in addresses if asks else ():
                further = access.at(address, builder.add(index, builder.mul(n, step)))
                intrinsic(builder, "prefetch.p0", ir.VoidType(), further, I32(0), I32(3), I32(1))
            value = halved(lambda lane: access.load(addresses[lane], index, mask), len(addresses))
            lanes.store(out, index, value, mask if term is None else None)

        access.sweep(columns, each)
        builder.ret(I32(0))

    def present(row: ir.Value) -> ir.Value:
        """Return the address of a row, or of -0.0 where there are not so many."""
        return builder.select(builder.icmp_signed("<", row, n), row_at(row), nothing)

    def halve(first: ir.Value, groups: int) -> None:
        """Add every lane that is `first` modulo `groups`, in halves, into the line `first` of the tile."""
        chain = [builder.add(first, I64(lane)) for lane in range(0, LANES, groups)]
        rest = builder.and_(builder.sub(n, I64(1)), I64(-LANES))
        ends = [present(builder.add(rest, lane)) for lane in chain]
        reals = source.table.reals

        def each(index: ir.Value, mask: ir.Value | None) -> None:
            sums = [kept(builder, source.table.real(-0.0)) for _ in chain]

            def add(addresses: Sequence[ir.Value]) -> None:
                for total, address in zip(sums, addresses, strict=True):
                    value = source.load(address, index, mask)
                    builder.store(builder.fadd(builder.load(total, typ=reals), value), total)

            with span(builder, I64(0), rest, I64(LANES)) as row:
                add([row_at(builder.add(row, lane)) for lane in chain])
            add(ends)
            lanes.store(lane_at(first), index, halved(lambda lane: builder.load(sums[lane], typ=reals), len(chain)))

        source.sweep(columns, each)

    nothing = room(builder, ir.ArrayType(source.stored, width))
    clear(source, nothing, 1)
    is_short = builder.icmp_signed("<=", columns, I64(NARROW // memory.size))
    for most, asks in FEW_ROWS if term is None else ():
        fits = builder.icmp_signed("<=", n, I64(most))
        with builder.if_then(builder.and_(is_short, fits) if asks else fits):
            finish(source, [present(I64(row)) for row in range(most)], asks)
    for most, groups in GROUPS if term is None else ():
        with builder.if_then(builder.icmp_signed("<=", n, I64(most))):
            with span(builder, I64(0), I64(groups), I64(1)) as first:
                halve(first, groups)
            finish(lanes, [lane_at(I64(lane)) for lane in range(groups)])
    clear(lanes, tile, LANES)
    with builder.if_then(builder.icmp_signed("<=", n, I64(R_BLOCK)), likely=True):
        whole = builder.and_(n, I64(-4 * LANES))
        with span(builder, I64(0), whole, I64(4 * LANES)) as base, span(builder, I64(0), I64(LANES), I64(1)) as lane:
            group = [row_at(builder.add(builder.add(base, lane), I64(i * LANES))) for i in range(4)]
            take(read, lane_at(lane), group)
        with span(builder, whole, n, I64(1)) as row:
            take(read, lane_at(row), [row_at(row)])
        finish(lanes, [lane_at(I64(lane)) for lane in range(LANES)])
    buffer = room(builder, ir.ArrayType(lanes.stored, width))
    unit = unit_of(builder, n)
    with span(builder, I64(0), n, unit) as first:
        size = least(builder, unit, builder.sub(n, first))
        builder.call(builder.function, [buffer, row_at(first), step, size, columns, given])
        take(lanes.load, lane_at(builder.udiv(first, unit)), [buffer])
    finish(lanes, [lane_at(I64(lane)) for lane in range(LANES)])
    return builder.function


def columns(name: str, memory: Memory, kind: str) -> ir.Module:
    """Emit ``(out, values, step, n, columns)``, strip by strip; column `j` are the `n` values ``i * step + j``.

    ``out[j]`` is its ``sum``, its ``max`` or its ``logsumexp``. The results of ``log_softmax`` lie as the values do, and may
    take their place; logarithms are as `reductions.log_rows` has them.
    """
    size = MAX_STRIP if kind == "max" else SUM_STRIP
    builder, (out, values, step, n, columns) = block_routine(name)
    source, lanes = Access(builder, memory), Access(builder, partial(memory))
    o, load, is_log, keeps = lanes.table, lanes.load, kind.startswith("log"), kind == "log_softmax"
    is_total = kind == "sum" and memory.narrow is None  # the sums are what is asked for, in its element
    few, width = ((part if is_log else size) // lanes.memory.size for part in (FEW_STRIP, size))
    exp, ln = (FUNCTIONS[map_].at(memory.width) for map_ in ("exp", "ln"))
    term = (lambda o, x, shift: exp(o, o.sub(x, shift))) if is_log else None
    total = _define_column_total(builder.module, memory, width, term)
    best, sums = (room(builder, ir.ArrayType(lanes.stored, width)) for _ in range(2))

    def fill(buffer: ir.Value, value: Callable[[ir.Value, ir.Value | None], Lanes]) -> None:
        lanes.sweep(count, lambda index, mask: lanes.store(buffer, index, value(index, mask)))

    def raise_best(lines: Sequence[ir.Value]) -> None:
        def greatest(index: ir.Value, mask: ir.Value | None) -> Lanes:
            value = load(best, index)
            for line in lines:
                value = maximum(o, value, source.load(source.at(start, line), index, mask))
            return value

        fill(best, greatest)

    def result(index: ir.Value, mask: ir.Value | None) -> Lanes:
        if not is_log:
            return load(best if kind == "max" else sums, index)
        shift, log = load(best, index), load(sums, index)
        if not keeps:
            return o.add(shift, log)
        return log_difference(o, o.sub(source.load(source.at(start, line), index, mask), shift), log)

    by = builder.select(builder.icmp_signed("<", n, I64(FEW)), I64(few), I64(width))
    with span(builder, I64(0), columns, by) as first:
        count, start = least(builder, by, builder.sub(columns, first)), source.at(values, first)
        if kind != "sum":
            fill(best, lambda index, mask: source.load(start, index, mask))
            whole = builder.and_(n, I64(-4))
            for begin, end, rows in ((I64(0), whole, 4), (whole, n, 1)):
                with span(builder, begin, end, I64(rows)) as row:
                    raise_best([builder.mul(builder.add(row, I64(i)), step) for i in range(rows)])
        if is_log:
            fill(best, lambda index, _: finite_or_zero(o, load(best, index)))
        if kind != "max":
            builder.call(total, [source.at(out, first) if is_total else sums, start, step, n, count, best])
        if is_log:
            fill(sums, lambda index, _: ln(o, load(sums, index)))
        with span(builder, I64(0), n if keeps else I64(1 - is_total), I64(1)) as row:
            line = builder.mul(row, step)
            target = source.at(out, builder.add(first, line))
            lanes.sweep(count, lambda index, mask: source.store(target, index, result(index, mask), mask))
    return completed(builder)
