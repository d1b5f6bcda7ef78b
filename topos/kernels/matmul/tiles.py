"""Tiles: a block of results in registers, each one FMA chain over ascending k, as LLVM vector IR.

A tile is `rows` by ``vectors * lanes`` results. Its chains start from -0.0, so that the first step is the plain
rounded product, its zero's sign included. As many chains are in flight as the CPU has registers for; their
count and order change no bit (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).
"""

import functools

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, completed, define, kept, span, word
from topos.kernels.elements import MEMORY
from topos.kernels.target import target, tile_of
from topos.kernels.vector import intrinsic


def tile(name: str, width: int, rows: int, is_packed: bool) -> ir.Module:
    """``(k, a, a_row, a_step, b, b_step, c, c_row, columns, first)``: C (+)= A B for one tile of `rows` rows.

    Rows of B are read whole. `first` is 1 where C is stored, 0 where the chains' results are added to it. Packed A lies
    in panels of the full tile's rows, B in rows `b_step` apart, and `columns` says how many of C are written. Otherwise
    both are read where they lie: the words of A, the step of B and `columns` are tables of offsets, the last one of (in
    B, in C, the lanes to write as bits) for each vector.
    """
    shape = tile_of(width)
    builder = define(name, ir.Module(name=name), [I64, POINTER, I64, I64, POINTER, I64, POINTER, I64, I64, I64])
    k, a, a_row, a_step, b, b_step, c, c_row, columns, first = builder.function.args
    access = Access(builder, MEMORY[f"f{width}"], shape.lanes)
    at, vectors = access.at, range(shape.vectors)

    def offset(table: ir.Value, index: ir.Value) -> ir.Value:
        return word(builder, builder.inttoptr(table, POINTER), index)

    def pinned(chain: ir.Value) -> ir.Value:
        """Let no later load go before this: LLVM would load more offsets ahead than the registers hold values for."""
        register = "w" if target().family == "arm" else "v"
        return builder.asm(ir.FunctionType(chain.type, [chain.type]), "", f"={register},0", [chain], True)

    lanes = [I64(vector * shape.lanes) for vector in vectors]
    if is_packed:
        starts, places = [at(a, I64(row)) for row in range(rows)], list(zip(lanes, lanes, strict=True))
        masks = [access.first(builder.sub(columns, lane)) for lane in lanes]
        whole = builder.icmp_signed(">=", columns, I64(shape.columns))
    else:
        starts = [at(a, offset(a_row, I64(row))) for row in range(rows)]
        places = [(offset(columns, I64(3 * vector)), offset(columns, I64(3 * vector + 1))) for vector in vectors]
        bits = [builder.trunc(offset(columns, I64(3 * v + 2)), ir.IntType(shape.lanes)) for v in vectors]
        masks = [builder.bitcast(bit, ir.VectorType(ir.IntType(1), shape.lanes)) for bit in bits]
        whole = builder.icmp_signed("==", functools.reduce(builder.and_, bits), bits[0].type(-1))
    lines = [at(b, place) for place, _ in places]
    targets = [[at(at(c, builder.mul(c_row, I64(row))), place) for _, place in places] for row in range(rows)]

    if is_packed:  # asked for ahead: what is written is far away by now
        for line_of_c in targets:
            for address in (line_of_c[0], at(line_of_c[-1], I64(shape.lanes - 1))):
                intrinsic(builder, "prefetch.p0", ir.VoidType(), address, I32(1), I32(3), I32(1))
    cells = [(row, vector) for row in range(rows) for vector in vectors]
    slots = {cell: kept(builder, access.table.real(-0.0)) for cell in cells}
    with span(builder, I64(0), k, I64(1)) as step:
        if is_packed:
            in_a, in_b = builder.mul(step, I64(shape.rows)), builder.mul(step, b_step)
        else:
            in_a, in_b = offset(a_step, step), offset(b_step, step)
        loaded = [access.load(line, in_b) for line in lines]
        for row in range(rows):
            factor = access.splat(builder.load(at(starts[row], in_a), typ=access.stored))
            for vector in vectors:
                slot = slots[row, vector]
                chain = access.table.fma(factor, loaded[vector], builder.load(slot, typ=access.vector))
                builder.store(chain if is_packed else pinned(chain), slot)
    longer = {cell: builder.load(slot, typ=access.vector) for cell, slot in slots.items()}

    is_first = builder.icmp_signed("!=", first, I64(0))

    def write(masks: list[ir.Value | None], add: bool) -> None:
        for row, vector in cells:
            target, value = targets[row][vector], longer[row, vector]
            if add:
                value = access.table.add(access.load(target, I64(0), masks[vector]), value)
            access.store(target, I64(0), value, masks[vector])

    for edge in (False, True):
        condition = builder.not_(whole) if edge else whole
        with builder.if_then(condition), builder.if_else(is_first) as branches:
            for add, branch in enumerate(branches):
                with branch:
                    write(masks if edge else [None] * len(masks), bool(add))
    return completed(builder)
