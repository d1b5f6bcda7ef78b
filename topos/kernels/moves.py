"""Routines that repeat, add up and transpose runs of values, as LLVM vector IR."""

import itertools

from llvmlite import ir

from topos.kernels.access import I64, Access, block_routine, completed, kept, least, picks, span
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
    return completed(builder)


def accumulate(name: str, memory: Memory) -> ir.Module:
    """``(out, values, 0, 0, n)``: ``out[j] += values[j]``; `out` is at compute precision."""
    builder, (out, values, _, _, n) = block_routine(name)
    source, target = Access(builder, memory), Access(builder, MEMORY[f"f{memory.width}"])

    def each(index: ir.Value, mask: ir.Value | None) -> None:
        value = target.table.add(target.load(out, index, mask), source.load(values, index, mask))
        target.store(out, index, value, mask)

    source.sweep(n, each)
    return completed(builder)


def ascend(name: str, memory: Memory) -> ir.Module:
    """``(out, values, step, terms, n)``: ``out[j]`` is +0, then the terms ``values[i * step + j]`` added in order."""
    builder, (out, values, step, terms, n) = block_routine(name)
    access = Access(builder, memory)
    o = access.table

    def each(index: ir.Value, mask: ir.Value | None) -> None:
        slot = kept(builder, o.real(0.0))
        with span(builder, I64(0), terms, I64(1)) as term:
            value = access.load(values, builder.add(builder.mul(term, step), index), mask)
            builder.store(o.add(builder.load(slot, typ=o.reals), value), slot)
        access.store(out, index, builder.load(slot, typ=o.reals), mask)

    access.sweep(n, each)
    return completed(builder)


def transpose(name: str, memory: Memory) -> ir.Module:
    """``(out, values, out_step, step, n)``: ``out[i * out_step + j] = values[j * step + i]``.

    `n` holds the extents: that of i, and from bit 32 on that of j, both at least a square's side. Squares at the
    edges overlap. A square of vectors is transposed by interleaving the halves of the list of its lines, once per
    bit of an index; four squares make whole cache lines.
    """
    builder, (out, values, out_step, step, n) = block_routine(name)
    side = TRANSPOSED[memory.size][0]
    access = Access(builder, memory, side)
    columns, lines = builder.and_(n, I64(2**32 - 1)), builder.lshr(n, I64(32))
    masks = [picks(i // 2 + i % 2 * side + start for i in range(side)) for start in (0, side // 2)]

    def square(i: ir.Value, j: ir.Value) -> None:
        line = [access.at(values, builder.mul(builder.add(j, I64(k)), step)) for k in range(side)]
        vectors = [builder.load(access.at(at, i), typ=access.vector, align=memory.size) for at in line]
        for _ in range(side.bit_length() - 1):
            pairs = zip(vectors[: side // 2], vectors[side // 2 :], strict=True)
            vectors = [builder.shuffle_vector(low, high, mask) for low, high in pairs for mask in masks]
        for k, vector in enumerate(vectors):
            access.put(access.at(out, builder.mul(builder.add(i, I64(k)), out_step)), j, vector)

    for edge in (2 * side, side):
        # The longer extent is walked within the shorter: streams are few, and as long as can be.
        is_tall = builder.icmp_signed("<=", columns, lines)
        shorter, longer = (builder.select(is_tall, *pair) for pair in ((columns, lines), (lines, columns)))
        with builder.if_then(builder.icmp_signed(">=", shorter, I64(edge))):
            with span(builder, I64(0), shorter, I64(edge)) as outer, span(builder, I64(0), longer, I64(edge)) as inner:
                i, j = (builder.select(is_tall, *pair) for pair in ((outer, inner), (inner, outer)))
                first = least(builder, i, builder.sub(columns, I64(edge)))
                second = least(builder, j, builder.sub(lines, I64(edge)))
                for to, at in itertools.product(range(0, edge, side), repeat=2):
                    square(builder.add(first, I64(at)), builder.add(second, I64(to)))
            builder.ret_void()
    return completed(builder)
