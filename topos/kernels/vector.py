"""`VectorTable`: element functions as LLVM vector IR.

The IR holds fixed vector widths and no CPU intrinsic, so one text serves every target: LLVM splits the
vectors to what the CPU has, and calls the C library's ``fma`` where there is no such instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from topos.kernels.table import Lanes, Table

# Lanes of a vector by width in bits: two AVX2 registers, so that two dependency chains are in flight.
LANES = {32: 16, 64: 8}

_I32 = ir.IntType(32)
REAL = {32: ir.FloatType(), 64: ir.DoubleType()}


def intrinsic(builder: ir.IRBuilder, name: str, result: ir.Type, *operands: ir.Value) -> ir.Value:
    """Call an intrinsic of LLVM, which is declared where the module lacks it."""
    function = builder.module.globals.get(f"llvm.{name}")
    if function is None:
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        function = ir.Function(builder.module, kind, f"llvm.{name}")
    return builder.call(function, operands)


def _instructions(*calls: str) -> Iterator[Callable[..., Lanes]]:
    """Return operations that are one instruction of the builder each; a call may fix a first operand.

    An operand that is an int (the count of a shift) is in every lane.
    """
    for call in calls:

        def emit(self: VectorTable, *operands: Lanes, call: str = call) -> Lanes:
            name, *fixed = call.split()
            lanes = [self.whole(operand) if isinstance(operand, int) else operand for operand in operands]
            return getattr(self.builder, name)(*fixed, *lanes)

        yield emit


class VectorTable(Table):
    """Emit an element function at the builder's position."""

    add, sub, mul, div = _instructions("fadd", "fsub", "fmul", "fdiv")
    lt, le, eq = _instructions("fcmp_ordered <", "fcmp_ordered <=", "fcmp_ordered ==")
    ilt, ieq = _instructions("icmp_signed <", "icmp_signed ==")
    both, either, negate, select = _instructions("and_", "or_", "not_", "select")
    iadd, isub = _instructions("add", "sub")
    iand, ior, ixor = _instructions("and_", "or_", "xor")
    shl, lshr, ashr = _instructions("shl", "lshr", "ashr")

    def __init__(self, builder: ir.IRBuilder, width: int, lanes: int) -> None:
        self.builder, self.width, self.lanes, self.kind = builder, width, lanes, f"v{lanes}f{width}"
        self.reals = ir.VectorType(REAL[width], lanes)
        self.wholes = ir.VectorType(ir.IntType(width), lanes)

    def real(self, value: float) -> Lanes:
        rounded = float(np.dtype(f"f{self.width // 8}").type(value))
        return self.spread(REAL[self.width](rounded))

    def whole(self, value: int) -> Lanes:
        return self.spread(self._word(value))

    def _word(self, value: int) -> ir.Constant:
        half = 1 << (self.width - 1)
        return ir.IntType(self.width)((value + half) % (1 << self.width) - half)

    def spread(self, scalar: ir.Constant) -> Lanes:
        """Return a constant in every lane."""
        return ir.Constant(ir.VectorType(scalar.type, self.lanes), [scalar] * self.lanes)

    def fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        return intrinsic(self.builder, f"fma.{self.kind}", self.reals, a, b, c)

    def sqrt(self, a: Lanes) -> Lanes:
        return intrinsic(self.builder, f"sqrt.{self.kind}", self.reals, a)

    def is_nan(self, a: Lanes) -> Lanes:
        return self.builder.fcmp_unordered("uno", a, a)

    def to_bits(self, a: Lanes) -> Lanes:
        return self.builder.bitcast(a, self.wholes)

    def from_bits(self, i: Lanes) -> Lanes:
        return self.builder.bitcast(i, self.reals)

    def to_real(self, i: Lanes) -> Lanes:
        return self.builder.sitofp(i, self.reals)

    def double(self, body: Callable[..., Lanes], *reals: Lanes) -> Lanes:
        wide = type(self)(self.builder, 64, self.lanes)
        result = body(wide, *(self.builder.fpext(x, wide.reals) for x in reals))
        return self.builder.fptrunc(result, self.reals)

    def branch(self, m: Lanes, some: Callable[..., Lanes], none: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        builder, results = self.builder, []
        mask = builder.bitcast(m, ir.IntType(self.lanes))
        with builder.if_else(builder.icmp_unsigned("!=", mask, mask.type(0)), likely=False) as sides:
            for side, body in zip(sides, (some, none), strict=True):
                with side:
                    results.append((body(self, *lanes), builder.block))
        joined = builder.phi(results[0][0].type)
        for result in results:
            joined.add_incoming(*result)
        return joined

    def stored(self, table: Sequence[int], space: int = 0) -> ir.GlobalVariable:
        """Return memory of an address space that holds a table."""
        module, array = self.builder.module, ir.ArrayType(ir.IntType(self.width), len(table))
        storage = ir.GlobalVariable(module, array, module.get_unique_name("table"), space)
        storage.global_constant, storage.linkage = True, "internal"
        storage.initializer = ir.Constant(array, [self._word(value) for value in table])
        return storage

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        builder, kind, storage = self.builder, ir.IntType(self.width), self.stored(table)
        result: Any = ir.Constant(self.wholes, ir.Undefined)
        for lane in range(self.lanes):
            position = builder.extract_element(index, _I32(lane))
            pointer = builder.gep(storage, [_I32(0), position], source_etype=storage.value_type)
            result = builder.insert_element(result, builder.load(pointer, typ=kind), _I32(lane))
        return result
