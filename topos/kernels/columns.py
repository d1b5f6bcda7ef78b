"""Reductions over columns that lie side by side, as LLVM vector IR: rows of the matrix are read in order.

As in `reductions`, missing values are -0.0. The lanes of a strip of columns are a tile in a near cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, block_routine, completed, define, least, room, span
from topos.kernels.elements import Memory
from topos.kernels.maps.arithmetic import maximum
from topos.kernels.reductions import partial, unit_of
from topos.kernels.reference import LANES, R_BLOCK
from topos.kernels.table import Lanes

FEW = 8 * LANES
"""Fewer rows do not repay a tile that fills the second cache."""

SUM_STRIP, MAX_STRIP = (1 << 9, 1 << 12), (1 << 14, 1 << 14)
"""Bytes of results that a strip of columns has where rows are few, and where they are many.

Reads follow one another for long, and the tile of 32 lanes fits a cache: the first, the second; the running maxima
fit the first. Every level of blocks holds a tile on the stack, which threads may have little of.
"""


def _define_column_total(module: ir.Module, memory: Memory, width: int) -> ir.Function:
    """Define ``int column_total(out, values, step, n, columns)``: sums of up to `width` columns side by side.

    `out` is at compute precision, with room for whole vectors. Long columns are cut as in `_define_total`.
    """
    kind = partial(memory)
    builder = define("column_total", module, [POINTER, POINTER, I64, I64, I64], I32)
    out, values, step, n, columns = builder.function.args
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

    def take(access: Access, lane: ir.Value, addresses: Sequence[ir.Value]) -> None:
        """Add lines to a lane, one after the other."""

        def each(index: ir.Value, mask: ir.Value | None) -> None:
            value = lanes.load(lane, index)
            for address in addresses:
                value = builder.fadd(value, access.load(address, index, mask))
            lanes.store(lane, index, value)

        access.sweep(columns, each)

    def finish(access: Access, addresses: Sequence[ir.Value]) -> None:
        """Add the lanes that begin at these addresses in halves, in registers, and return."""

        def each(index: ir.Value, mask: ir.Value | None) -> None:
            def merged(lane: int, half: int) -> Lanes:
                if half == len(addresses):
                    return access.load(addresses[lane], index, mask)
                return builder.fadd(merged(lane, 2 * half), merged(lane + half, 2 * half))

            lanes.store(out, index, merged(0, 1))

        access.sweep(columns, each)
        builder.ret(I32(0))

    nothing = room(builder, ir.ArrayType(source.stored, width))
    for few in (8, LANES):
        with builder.if_then(builder.icmp_signed("<=", n, I64(few))):
            clear(source, nothing, 1)
            present = [builder.icmp_signed("<", I64(row), n) for row in range(few)]
            finish(source, [builder.select(is_row, row_at(I64(row)), nothing) for row, is_row in enumerate(present)])
    clear(lanes, tile, LANES)
    with builder.if_then(builder.icmp_signed("<=", n, I64(R_BLOCK)), likely=True):
        whole = builder.and_(n, I64(-4 * LANES))
        with span(builder, I64(0), whole, I64(4 * LANES)) as base, span(builder, I64(0), I64(LANES), I64(1)) as lane:
            group = [row_at(builder.add(builder.add(base, lane), I64(i * LANES))) for i in range(4)]
            take(source, lane_at(lane), group)
        with span(builder, whole, n, I64(1)) as row:
            take(source, lane_at(row), [row_at(row)])
        finish(lanes, [lane_at(I64(lane)) for lane in range(LANES)])
    buffer = room(builder, ir.ArrayType(lanes.stored, width))
    unit = unit_of(builder, n)
    with span(builder, I64(0), n, unit) as first:
        size = least(builder, unit, builder.sub(n, first))
        builder.call(builder.function, [buffer, row_at(first), step, size, columns])
        take(lanes, lane_at(builder.udiv(first, unit)), [buffer])
    finish(lanes, [lane_at(I64(lane)) for lane in range(LANES)])
    return builder.function


Reduce = Callable[..., None]
Reducer = Callable[[ir.IRBuilder, int], Reduce]


def _columns(name: str, memory: Memory, strip: tuple[int, int], reduce: Reducer) -> ir.Module:
    """Emit ``(out, values, step, n, columns)`` in strips; `reduce` answers what reduces one."""
    builder, (out, values, step, n, columns) = block_routine(name)
    kind = partial(memory)
    few, width = (size // kind.size for size in strip)
    reduce_strip = reduce(builder, width)
    results, lanes = Access(builder, kind), Access(builder, memory)
    buffer = room(builder, ir.ArrayType(results.stored, width))
    by = builder.select(builder.icmp_signed("<", n, I64(FEW)), I64(few), I64(width))
    with span(builder, I64(0), columns, by) as first:
        count = least(builder, by, builder.sub(columns, first))
        reduce_strip(buffer, lanes.at(values, first), step, n, count)
        target = lanes.at(out, first)
        lanes.sweep(count, lambda index, mask: lanes.store(target, index, results.load(buffer, index), mask))
    return completed(builder)


def column_sum(name: str, memory: Memory) -> ir.Module:
    """``(out, values, step, n, columns)``: ``out[j]`` is the sum of the `n` values ``i * step + j``."""

    def reduce(builder: ir.IRBuilder, width: int) -> Reduce:
        total = _define_column_total(builder.module, memory, width)
        return lambda *operands: builder.call(total, operands)

    return _columns(name, memory, SUM_STRIP, reduce)


def column_max(name: str, memory: Memory) -> ir.Module:
    """``(out, values, step, n, columns)``: ``out[j]`` is the maximum of the `n` values ``i * step + j``."""

    def reduce(builder: ir.IRBuilder, _: int) -> Reduce:
        source, best = Access(builder, memory), Access(builder, partial(memory))

        def take(buffer: ir.Value, lines: Sequence[ir.Value], count: ir.Value) -> None:
            def each(index: ir.Value, mask: ir.Value | None) -> None:
                value = best.load(buffer, index)
                for line in lines:
                    value = maximum(best.table, value, source.load(line, index, mask))
                best.store(buffer, index, value)

            source.sweep(count, each)

        def strip(buffer: ir.Value, values: ir.Value, step: ir.Value, n: ir.Value, count: ir.Value) -> None:
            source.sweep(count, lambda index, mask: best.store(buffer, index, source.load(values, index, mask)))
            whole = builder.and_(n, I64(-4))
            for start, stop, size in ((I64(0), whole, 4), (whole, n, 1)):
                with span(builder, start, stop, I64(size)) as row:
                    lines = [builder.mul(builder.add(row, I64(i)), step) for i in range(size)]
                    take(buffer, [source.at(values, line) for line in lines], count)

        return strip

    return _columns(name, memory, MAX_STRIP, reduce)
