"""`across`: one row of chains over columns whose inner positions are contiguous, such as a matrix times a vector."""

from __future__ import annotations

import itertools

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, define, least, picks, room, span
from topos.kernels.elements import MEMORY
from topos.kernels.matmul.shape import tile_of
from topos.kernels.vector import intrinsic

AHEAD = 512
"""Bytes of a column that are fetched before they are read."""

LINE = 64
"""Bytes of a cache line: it is used up at once, for columns far apart push each other out of the cache."""

PAGE = 4096
"""Bytes after which addresses fall into the same set of a first-level cache."""


def across(name: str, element: str) -> ir.Module:
    """``(out, a, a_step, b, b_column, k, n)``: ``out[j]`` over ``a[p] * b[j, p]``, the p of a column side by side.

    Squares of values are transposed in registers, so that a vector holds a step of several chains.
    """
    memory = MEMORY[element]
    shape = tile_of(memory.width)
    lanes, groups = shape.lanes, shape.vectors
    builder = define(name, ir.Module(name=name), [POINTER, POINTER, I64, POINTER, I64, I64, I64])
    out, a, a_step, b, b_column, k, n = builder.function.args
    access = Access(builder, memory, lanes)
    depth = max(lanes, LINE // memory.size)
    deep = builder.and_(k, I64(-depth))

    def block(column: ir.Value, count: int, mask: ir.Value | None) -> None:
        """Write `count` vectors of columns; those past the last one repeat it and are not written."""
        last = builder.sub(n, I64(1))
        bases = []
        for lane in range(count * lanes):
            index = least(builder, builder.add(column, I64(lane)), last)
            bases.append(access.at(b, builder.mul(index, b_column)))
        chains = [room(builder, access.vector) for _ in range(count)]
        for chain in chains:
            builder.store(access.table.real(-0.0), chain)

        def extend(group: int, p: ir.Value, values: ir.Value) -> None:
            factor = builder.load(access.at(a, builder.mul(p, a_step)), typ=access.stored)
            chain = builder.load(chains[group], typ=access.vector)
            builder.store(access.table.fma(access.splat(factor), values, chain), chains[group])

        with span(builder, I64(0), deep, I64(depth)) as start:
            for base in bases if count == 1 else ():
                prefetch(builder, access.at(base, builder.add(start, I64(AHEAD // memory.size))), write=False)
            for group, part in itertools.product(range(count), range(0, depth, lanes)):
                own = [access.at(base, builder.add(start, I64(part))) for base in bases[group * lanes :][:lanes]]
                for step, values in enumerate(_square(access, own)):
                    extend(group, builder.add(start, I64(part + step)), values)
        with span(builder, deep, k, I64(1)) as p:
            for group in range(count):
                values = ir.Constant(access.vector, ir.Undefined)
                for lane, base in enumerate(bases[group * lanes :][:lanes]):
                    value = builder.load(access.at(base, p), typ=access.stored)
                    values = builder.insert_element(values, value, I32(lane))
                extend(group, p, values)
        for group, chain in enumerate(chains):
            place = builder.add(column, I64(group * lanes))
            access.store(out, place, builder.load(chain, typ=access.vector), mask)

    # Columns a page apart: few at a time, and fetched ahead.
    paged = builder.and_(builder.mul(b_column, I64(memory.size)), I64(PAGE - 1))
    whole = builder.sub(n, builder.srem(n, I64(groups * lanes)))
    whole = builder.select(builder.icmp_signed("==", paged, I64(0)), I64(0), whole)
    with span(builder, I64(0), whole, I64(groups * lanes)) as column:
        block(column, groups, None)
    with span(builder, whole, n, I64(lanes)) as column:
        left = builder.sub(n, column)
        full = builder.icmp_signed(">=", left, I64(lanes))
        with builder.if_else(full) as (is_full, is_short):
            with is_full:
                block(column, 1, None)
            with is_short:
                block(column, 1, access.first(left))
    builder.ret_void()
    return builder.module


def prefetch(builder: ir.IRBuilder, address: ir.Value, write: bool) -> None:
    """Ask for a cache line that will be read or written."""
    intrinsic(builder, "prefetch.p0", ir.VoidType(), address, I32(int(write)), I32(3), I32(1))


def _square(access: Access, rows: list[ir.Value]) -> list[ir.Value]:
    """Return the transpose of a square of values: as many as a vector holds from each of as many addresses.

    Pieces of 128 bits are loaded to where they belong; within them values interleave, an instruction a step.
    """
    builder, lanes, inner = access.builder, access.lanes, 16 // access.memory.size
    piece = ir.VectorType(access.stored, inner)
    columns = []
    for first in range(0, lanes, inner):
        square = []
        for lane in range(inner):
            pieces = [
                builder.load(access.at(row, I64(first)), typ=piece, align=access.memory.size)
                for row in rows[lane::inner]
            ]
            while len(pieces) > 1:
                both = picks(range(2 * pieces[0].type.count))
                pieces = [
                    builder.shuffle_vector(low, high, both) for low, high in zip(pieces[::2], pieces[1::2], strict=True)
                ]
            square += pieces
        unit = 1
        while unit < inner:
            _interleave(access, square, unit, inner)
            unit *= 2
        bits = inner.bit_length() - 1
        columns += [square[int(f"{step:0{bits}b}"[::-1], 2)] for step in range(inner)]
    return columns


def _interleave(access: Access, square: list[ir.Value], unit: int, inner: int) -> None:
    """Replace each pair of vectors `unit` apart by the lower and the upper halves of both, interleaved."""
    order = []
    for lane in range(access.lanes):
        start, chunk = lane // inner * inner, lane % inner // unit
        order.append(chunk % 2 * access.lanes + start + chunk // 2 * unit + lane % unit)
    for at in range(inner):
        if not at & unit:
            pair = square[at], square[at + unit]
            for place, shift in ((at, 0), (at + unit, inner // 2)):
                square[place] = access.builder.shuffle_vector(*pair, picks(lane + shift for lane in order))
