"""Routines that repeat, add up and transpose runs of values, as LLVM vector IR."""

from __future__ import annotations

from llvmlite import ir

from topos.kernels.access import I32, I64, Access, block_routine, span
from topos.kernels.elements import MEMORY, Memory
from topos.kernels.rows import TRANSPOSED


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


def transpose(name: str, memory: Memory) -> ir.Module:
    """``(out, values, out_step, step, n)``: ``out[i * out_step + j] = values[j * step + i]`` for a block of j.

    A square of vectors is transposed by interleaving the halves of the list of its lines, once per bit of an index.
    """
    builder, (out, values, out_step, step, n) = block_routine(name)
    block = TRANSPOSED[memory.size][0]
    access, single = Access(builder, memory, block), Access(builder, memory, 1)
    whole = builder.and_(n, I64(-block))
    lines = [access.at(values, builder.mul(step, I64(j))) for j in range(block)]
    halves = [[I32(i // 2 + i % 2 * block + start) for i in range(block)] for start in (0, block // 2)]
    with span(builder, I64(0), whole, I64(block)) as index:
        vectors = [
            builder.load(access.at(line, index), typ=access.vector, align=memory.size) for line in lines
        ]
        for _ in range(block.bit_length() - 1):
            pairs = zip(vectors[: block // 2], vectors[block // 2 :], strict=True)
            masks = [ir.Constant(ir.VectorType(I32, block), half) for half in halves]
            vectors = [builder.shuffle_vector(low, high, mask) for low, high in pairs for mask in masks]
        for i, vector in enumerate(vectors):
            access.put(out, builder.mul(builder.add(index, I64(i)), out_step), vector)
    with span(builder, whole, n, I64(1)) as index:
        target = access.at(out, builder.mul(index, out_step))
        for j, line in enumerate(lines):
            value = builder.load(single.at(line, index), typ=single.vector, align=memory.size)
            single.put(target, I64(j), value)
    builder.ret_void()
    return builder.module
