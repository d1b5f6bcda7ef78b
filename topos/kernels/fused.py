"""Loops of arithmetic that chains are given while they run: operands and results in memory, all between in registers.

Where a sum of rows ends such arithmetic, the loop adds up as it goes.
"""

import ast

from llvmlite import ir

from topos.kernels.access import I64, POINTER, Access, block_routine, completed, kept, span, word
from topos.kernels.chains import LOOP_OF
from topos.kernels.elements import MEMORY
from topos.kernels.maps import FUNCTIONS
from topos.kernels.reductions import halved, parts
from topos.kernels.reference import LANES
from topos.kernels.target import assemble


def made(text: str, name: str) -> tuple[str, bytes]:
    """Return the symbol and the object code of a loop."""
    return name, assemble(str(loop(text, name)))


def loop(text: str, symbol: str) -> ir.Module:
    """Return a module with ``void symbol(addresses, numbers, lines, 0, n)``: a text over lines of `n` contiguous values.

    After `LOOP_OF` it holds (element, whether the last output is summed, how many inputs are one value per line, inputs,
    (family, operands) of each step, outputs); values count from the inputs on, then come those of the steps. The addresses
    are a chain's; the numbers say which of them are the inputs, those per line first, then the outputs. An output may lie
    where an input does; what is summed is so per line, of up to R_BLOCK values. Every step rounds as its routine does.
    """
    element, sums, repeated, inputs, steps, outputs = ast.literal_eval(text.removeprefix(LOOP_OF))
    builder, (addresses, numbers, lines, _, n) = block_routine(symbol)
    lines, n = (lines, n) if repeated or sums else (I64(1), builder.mul(lines, n))
    access, single = (Access(builder, MEMORY[element], lanes) for lanes in (None, 1))
    o, stored = access.table, outputs[: len(outputs) - sums]

    def place(position: int) -> ir.Value:
        return builder.inttoptr(word(builder, addresses, word(builder, numbers, I64(position))), POINTER)

    places = [place(position) for position in range(inputs + len(outputs))]
    with span(builder, I64(0), lines, I64(1)) as line:
        first = builder.mul(line, n)
        bases = [access.at(base, line if at < repeated else first) for at, base in enumerate(places)]
        same = [access.real(access.splat(builder.load(base, typ=access.stored))) for base in bases[:repeated]]
        slots = [kept(builder, o.real(-0.0)) for _ in range(LANES // access.lanes)]

        def each(part: int, index: ir.Value, mask: ir.Value | None) -> None:
            values = same + [access.load(base, index, mask, o.real(1.0)) for base in bases[repeated:inputs]]
            for family, sources in steps:
                value = FUNCTIONS[family].at(access.memory.width)(o, *(values[source] for source in sources))
                values.append(access.real(access.stored_as(value)))
            for base, output in zip(bases[inputs:], stored, strict=False):
                access.store(base, index, values[output], mask)
            if sums:
                value = values[outputs[-1]] if mask is None else o.select(mask, values[outputs[-1]], o.real(-0.0))
                builder.store(o.add(builder.load(slots[part], typ=o.reals), value), slots[part])

        if sums:
            parts(access, n, each)
            total = halved(builder, [builder.load(slot, typ=o.reals) for slot in slots], builder.fadd)
            single.store(places[-1], line, single.splat(total))
        else:
            access.sweep(n, lambda index, mask: each(0, index, mask))
    return completed(builder)
