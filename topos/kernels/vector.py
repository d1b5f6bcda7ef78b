"""`VectorTable`: element functions as LLVM vector IR.

The IR holds fixed vector widths and no CPU intrinsic, so one text serves every target: LLVM splits the
vectors to what the CPU has, and calls the C library's ``fma`` where there is no such instruction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from topos.kernels.table import Lanes, Table

LANES = {32: 16, 64: 8}
"""Lanes of a vector by width in bits: two AVX2 registers, so that two dependency chains are in flight."""

_I32 = ir.IntType(32)
REAL = {32: ir.FloatType(), 64: ir.DoubleType()}


def _constant(width: int, value: float) -> ir.Constant:
    """Return a floating-point constant with the exact bits of `value` rounded once to `width`."""
    code = {32: "f", 64: "d"}[width]
    rounded = struct.unpack(code, struct.pack(code, value))[0] if abs(value) != float("inf") else value
    return ir.Constant(REAL[width], rounded)


class VectorTable(Table):
    """Emit an element function at the builder's position."""

    def __init__(self, builder: ir.IRBuilder, width: int, lanes: int) -> None:
        self.builder, self.width, self.lanes = builder, width, lanes
        self.reals = ir.VectorType(REAL[width], lanes)
        self.wholes = ir.VectorType(ir.IntType(width), lanes)

    def _call(self, name: str, *operands: ir.Value) -> ir.Value:
        kind = operands[0].type
        symbol = f"llvm.{name}.v{self.lanes}f{self.width}"
        module = self.builder.module
        function = module.globals.get(symbol)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind] * len(operands)), symbol)
        return self.builder.call(function, operands)

    def real(self, value: float) -> Lanes:
        return ir.Constant(self.reals, [_constant(self.width, value)] * self.lanes)

    def whole(self, value: int) -> Lanes:
        half = 1 << (self.width - 1)
        signed = (value + half) % (1 << self.width) - half
        return ir.Constant(self.wholes, [ir.Constant(ir.IntType(self.width), signed)] * self.lanes)

    def add(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fadd(a, b)

    def sub(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fsub(a, b)

    def mul(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fmul(a, b)

    def div(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fdiv(a, b)

    def neg(self, a: Lanes) -> Lanes:
        return self.builder.fneg(a)

    def fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        return self._call("fma", a, b, c)

    def sqrt(self, a: Lanes) -> Lanes:
        return self._call("sqrt", a)

    def abs(self, a: Lanes) -> Lanes:
        return self._call("fabs", a)

    def lt(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fcmp_ordered("<", a, b)

    def le(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fcmp_ordered("<=", a, b)

    def eq(self, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.fcmp_ordered("==", a, b)

    def is_nan(self, a: Lanes) -> Lanes:
        return self.builder.fcmp_unordered("uno", a, a)

    def both(self, m: Lanes, n: Lanes) -> Lanes:
        return self.builder.and_(m, n)

    def either(self, m: Lanes, n: Lanes) -> Lanes:
        return self.builder.or_(m, n)

    def negate(self, m: Lanes) -> Lanes:
        return self.builder.not_(m)

    def select(self, m: Lanes, a: Lanes, b: Lanes) -> Lanes:
        return self.builder.select(m, a, b)

    def to_bits(self, a: Lanes) -> Lanes:
        return self.builder.bitcast(a, self.wholes)

    def from_bits(self, i: Lanes) -> Lanes:
        return self.builder.bitcast(i, self.reals)

    def to_real(self, i: Lanes) -> Lanes:
        return self.builder.sitofp(i, self.reals)

    def iadd(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.add(i, j)

    def isub(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.sub(i, j)

    def imul(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.mul(i, j)

    def iand(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.and_(i, j)

    def ior(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.or_(i, j)

    def ixor(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.xor(i, j)

    def shl(self, i: Lanes, count: int) -> Lanes:
        return self.builder.shl(i, self.whole(count))

    def lshr(self, i: Lanes, count: int) -> Lanes:
        return self.builder.lshr(i, self.whole(count))

    def ashr(self, i: Lanes, count: int) -> Lanes:
        return self.builder.ashr(i, self.whole(count))

    def ilt(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.icmp_signed("<", i, j)

    def ieq(self, i: Lanes, j: Lanes) -> Lanes:
        return self.builder.icmp_signed("==", i, j)

    def double(self, body: Callable[..., Lanes], *reals: Lanes) -> Lanes:
        wide = VectorTable(self.builder, 64, self.lanes)
        result = body(wide, *(self.builder.fpext(x, wide.reals) for x in reals))
        return self.builder.fptrunc(result, self.reals)

    def rarely(self, m: Lanes, common: Lanes, body: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        builder = self.builder
        mask = builder.bitcast(m, ir.IntType(self.lanes))
        before = builder.block
        slow, after = builder.append_basic_block("rare"), builder.append_basic_block("join")
        branch = builder.cbranch(builder.icmp_unsigned("!=", mask, mask.type(0)), slow, after)
        branch.set_weights([1, 10_000])
        builder.position_at_end(slow)
        chosen = builder.select(m, body(self, *lanes), common)
        last = builder.block
        builder.branch(after)
        builder.position_at_end(after)
        joined = builder.phi(common.type)
        joined.add_incoming(common, before)
        joined.add_incoming(chosen, last)
        return joined

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        builder, kind = self.builder, ir.IntType(self.width)
        array = ir.ArrayType(kind, len(table))
        module = builder.module
        storage = ir.GlobalVariable(module, array, module.get_unique_name("table"))
        storage.global_constant, storage.linkage = True, "internal"
        half = 1 << (self.width - 1)
        storage.initializer = ir.Constant(array, [kind((v + half) % (2 * half) - half) for v in table])
        result: Any = ir.Constant(self.wholes, ir.Undefined)
        for lane in range(self.lanes):
            position = builder.extract_element(index, _I32(lane))
            pointer = builder.gep(storage, [_I32(0), position], source_etype=array)
            result = builder.insert_element(result, builder.load(pointer, typ=kind), _I32(lane))
        return result
