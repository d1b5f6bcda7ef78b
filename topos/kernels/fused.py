"""Loops of arithmetic that chains are given while they run: operands and results in memory, all between in registers."""

from __future__ import annotations

import hashlib

from llvmlite import ir

from topos.kernels.access import I64, POINTER, Access, block_routine, completed, word
from topos.kernels.chains import LOOPS
from topos.kernels.elements import MEMORY
from topos.kernels.maps import FUNCTIONS
from topos.kernels.target import assemble


def name_of(text: str) -> str:
    """Return what a loop is called in the store."""
    return f"{LOOPS}-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def made(text: str, name: str) -> tuple[str, bytes]:
    """Return the symbol and the object code of a loop."""
    symbol = name.replace("-", "_")
    return symbol, assemble(str(loop(text, symbol)))


def loop(text: str, symbol: str) -> ir.Module:
    """Return a module with ``void symbol(addresses, numbers, 0, 0, n)``: a text over `n` contiguous values.

    The addresses are a chain's; the numbers say which of them are the inputs, then the outputs. An output may lie where an
    input does. Every step rounds as its routine does.
    """
    _, element, count, results, *steps = text.split(" ")
    inputs, outputs = int(count), list(map(int, results.split(".")))
    builder, (addresses, numbers, _, _, n) = block_routine(symbol)
    access = Access(builder, MEMORY[element])
    one = access.table.real(1.0)

    def place(position: int) -> ir.Value:
        return builder.inttoptr(word(builder, addresses, word(builder, numbers, I64(position))), POINTER)

    places = [place(position) for position in range(inputs + len(outputs))]

    def each(index: ir.Value, mask: ir.Value | None) -> None:
        values = [access.load(base, index, mask, one) for base in places[:inputs]]
        for step in steps:
            family, *sources = step.split(".")
            function = FUNCTIONS[family].at(access.memory.width)
            value = function(access.table, *(values[int(source)] for source in sources))
            values.append(access.real(access.stored_as(value)))
        for base, output in zip(places[inputs:], outputs, strict=True):
            access.store(base, index, values[output], mask)

    access.sweep(n, each)
    return completed(builder)
