"""What a thread of a card does with single values, as LLVM IR: element functions, and the phases of a chain.

The IR is what NVVM speaks, LLVM 7; it names no instruction of a card, so the tests also run it on a CPU.
"""

import ast
import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from topos.kernels import elements
from topos.kernels.library import routine_of
from topos.kernels.loops import HEADER
from topos.kernels.table import Lanes
from topos.kernels.vector import REAL, VectorTable

_I32, _I64 = ir.IntType(32), ir.IntType(64)
# Address spaces.
_GLOBAL, _CONSTANT = 1, 4

# The function that a kernel of `rows.positions` is linked with: ``topos_value(phase, row, banks, line, at)``, by width.
VALUE = {width: ir.FunctionType(real, [_I64] * 5) for width, real in REAL.items()}


class NvvmTable(VectorTable):
    """Emit an element function for one value, in the LLVM 7 that NVVM speaks."""

    def __init__(self, builder: ir.IRBuilder, width: int, lanes: int = 1) -> None:
        super().__init__(builder, width, lanes)
        self.reals, self.wholes, self.kind = REAL[width], ir.IntType(width), f"f{width}"

    def spread(self, scalar: ir.Constant) -> Lanes:
        return scalar

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        return self.builder.load(self.builder.gep(self.stored(table, _CONSTANT), [_I32(0), index]))


def at(builder: Any, address: Any, index: Any, kind: Any = _I64) -> Any:
    """Return a pointer to a value of global memory."""
    return builder.gep(builder.inttoptr(address, ir.PointerType(kind, _GLOBAL)), [index])


def read(builder: Any, kind: elements.Memory, address: Any, index: Any) -> Any:
    """Emit the load of a value, widened to the compute precision."""
    if kind.widen is None:
        return builder.load(at(builder, address, index, REAL[kind.width]))
    bits = builder.load(at(builder, address, index, ir.IntType(8 * kind.size)))
    return kind.widen(NvvmTable(builder, kind.width), builder.zext(bits, ir.IntType(kind.width)))


def write(builder: Any, kind: elements.Memory, address: Any, index: Any, value: Any) -> None:
    """Emit the store of a value, rounded once."""
    stored: Any = REAL[kind.width]
    if kind.narrow is not None:
        stored = ir.IntType(8 * kind.size)
        value = builder.trunc(kind.narrow(NvvmTable(builder, kind.width), value), stored)
    builder.store(value, at(builder, address, index, stored))


def phases(structure: str, module: ir.Module) -> str:
    """Write the phases of a structure, as `rows.positions` names it, into a module, and return its text.

    A phase loads what it takes of one position, works in registers, and stores what others read; the value that a line
    combines is returned. Every step rounds to its element.
    """
    rank, places, parts = ast.literal_eval(structure)
    kinds = [elements.MEMORY[place] for place in places]
    function = ir.Function(module, VALUE[kinds[0].width], "topos_value")
    function.attributes.add("alwaysinline")
    function.linkage = "linkonce_odr"  # what is inlined is gone
    phase, row, banks, line, step = function.args
    builder, fixed = ir.IRBuilder(function.append_basic_block("entry")), module.add_metadata([])
    blocks = [function.append_basic_block(f"phase{number}") for number in range(len(parts))]
    chosen = builder.switch(phase, blocks[-1])
    extents = HEADER + 4 + 3 * len(parts)

    def word(number: Any, table: Any = row) -> Any:
        """Load what no kernel writes: once, where a loop asks for it."""
        loaded = builder.load(at(builder, table, number))
        loaded.set_metadata("invariant.load", fixed)
        return loaded

    def where(place: int, digits: Sequence[Any]) -> tuple[Any, Any]:
        """Return where a place starts, and how far in a position is."""
        first = extents + rank + place * (3 + rank)
        base = builder.add(word(word(_I64(first)), banks), word(_I64(first + 1)))
        walks = [builder.mul(digit, word(_I64(first + 2 + axis))) for axis, digit in enumerate(digits)]
        return base, functools.reduce(builder.add, walks)

    for number, (block, (steps, stores, combined)) in enumerate(zip(blocks, parts, strict=True)):
        chosen.add_case(_I64(number), block)
        builder.position_at_end(block)
        digits, rest = [step], line
        for axis in range(rank - 1, 0, -1):
            extent = word(_I64(extents + axis))
            digits.insert(0, builder.urem(rest, extent))
            rest = builder.udiv(rest, extent)
        digits.insert(0, rest)
        taken = {source for _, sources in steps for source in sources} | {*combined[:1]}
        values = {place: read(builder, kinds[place], *where(place, digits)) for place in sorted(taken) if place >= 0}
        for number, (name, sources) in enumerate(steps):
            routine, _, _, target = routine_of(*name.split("."))
            table = NvvmTable(builder, target.width)
            values[~number] = target.rounded(table, routine(table, *(values[source] for source in sources)))
        for value, place in stores:
            goal = where(place, digits)
            if value < 0:
                write(builder, kinds[place], *goal, values[value])
            else:  # a copy keeps all bits
                whole = ir.IntType(8 * kinds[place].size)
                builder.store(builder.load(at(builder, *where(value, digits), whole)), at(builder, *goal, whole))
        builder.ret(values[combined[0]] if combined else function.return_value.type(0.0))
    return str(module)
