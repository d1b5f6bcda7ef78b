"""Tiles: a block of results in registers, each one FMA chain over ascending k, as LLVM vector IR.

A tile is `rows` by ``vectors * lanes`` results. Its chains start from -0.0, so that the first step is the plain
rounded product, its zero's sign included. As many chains are in flight as the CPU has registers for; their
count and order change no bit (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).
"""

from __future__ import annotations

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, completed, define, room, span
from topos.kernels.elements import MEMORY
from topos.kernels.matmul.shape import tile_of
from topos.kernels.vector import intrinsic


def prefetch(builder: ir.IRBuilder, address: ir.Value, write: bool) -> None:
    """Ask for a cache line that will be read or written."""
    intrinsic(builder, "prefetch.p0", ir.VoidType(), address, I32(int(write)), I32(3), I32(1))


def tile(name: str, width: int, rows: int, packed: bool) -> ir.Module:
    """``(k, a, a_row, a_step, b, b_step, c, c_row, columns, first)``: C (+)= A B for one tile of `rows` rows.

    Strides count values. `packed` A lies in panels of the full tile's rows, so that its strides are known. Rows of
    B are read whole; `columns` says how many of C are written. `first` is 1 where C is stored, 0 where the
    chains' results are added to it.
    """
    shape = tile_of(width)
    builder = define(name, ir.Module(name=name), [I64, POINTER, I64, I64, POINTER, I64, POINTER, I64, I64, I64])
    k, a, a_row, a_step, b, b_step, c, c_row, columns, first = builder.function.args
    access = Access(builder, MEMORY[f"f{width}"], shape.lanes)
    if packed:
        a_row, a_step = I64(1), I64(shape.rows)
    at = access.at
    starts = [at(a, builder.mul(a_row, I64(row))) for row in range(rows)]
    targets = [at(c, builder.mul(c_row, I64(row))) for row in range(rows)]
    for out in targets:
        prefetch(builder, out, write=True)
        prefetch(builder, at(out, I64(shape.columns - 1)), write=True)

    cells = [(row, vector) for row in range(rows) for vector in range(shape.vectors)]
    slots = {cell: room(builder, access.vector) for cell in cells}
    for slot in slots.values():
        builder.store(access.table.real(-0.0), slot)
    with span(builder, I64(0), k, I64(1)) as step:
        line = at(b, builder.mul(step, b_step))
        lines = [access.load(line, I64(vector * shape.lanes)) for vector in range(shape.vectors)]
        for row in range(rows):
            value = builder.load(at(starts[row], builder.mul(step, a_step)), typ=access.stored)
            factor = access.splat(value)
            for vector in range(shape.vectors):
                slot = slots[row, vector]
                chain = builder.load(slot, typ=access.vector)
                builder.store(access.table.fma(factor, lines[vector], chain), slot)
    longer = {cell: builder.load(slot, typ=access.vector) for cell, slot in slots.items()}

    is_first = builder.icmp_signed("!=", first, I64(0))
    whole = builder.icmp_signed(">=", columns, I64(shape.columns))

    def write(masks: list[ir.Value | None], add: bool) -> None:
        for row, vector in cells:
            place, value = I64(vector * shape.lanes), longer[row, vector]
            if add:
                value = access.table.add(access.load(targets[row], place, masks[vector]), value)
            access.store(targets[row], place, value, masks[vector])

    for edge in (False, True):
        condition = builder.not_(whole) if edge else whole
        with builder.if_then(condition):
            masks = [
                access.first(builder.sub(columns, I64(v * shape.lanes))) if edge else None for v in range(shape.vectors)
            ]
            with builder.if_else(is_first) as (store, add):
                with store:
                    write(masks, add=False)
                with add:
                    write(masks, add=True)
    return completed(builder)
