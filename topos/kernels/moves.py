"""Routines that repeat, add up and transpose runs of values, as LLVM vector IR."""

from __future__ import annotations

from llvmlite import ir

from topos.kernels.access import I64, Access, block_routine, span
from topos.kernels.elements import MEMORY, Memory


def spread(name: str, memory: Memory) -> ir.Module:
    """``(out, values, rows, 0, n)``: ``out[r * n + j]`` is ``values[r]``, every bit of it."""
    builder, (out, values, rows, _, n) = block_routine(name)
    access = Access(builder, memory)
    with span(builder, I64(0), rows, I64(1)) as row:
        vector = access.splat(builder.load(access.at(values, row), typ=access.stored))
        target = access.at(out, builder.mul(row, n))
        access.sweep(n, lambda index, mask: access.put(target, index, vector, mask))
    builder.ret_void()
    return builder.module


def accumulate(name: str, memory: Memory) -> ir.Module:
    """``(out, values, 0, 0, n)``: ``out[j] += values[j]``; `out` is at compute precision."""
    builder, (out, values, _, _, n) = block_routine(name)
    source, target = Access(builder, memory), Access(builder, MEMORY[f"f{memory.width}"])

    def each(index: ir.Value, mask: ir.Value | None) -> None:
        value = target.table.add(target.load(out, index, mask), source.load(values, index, mask))
        target.store(out, index, value, mask)

    source.sweep(n, each)
    builder.ret_void()
    return builder.module
