"""What routines are written with: vectors of an element in memory, loops over them, and the plainest routine.

As in `vector`, the IR names no CPU: a rest that fills no vector is a masked load or store, which LLVM lowers to
what the CPU has.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from topos.kernels.elements import Memory
from topos.kernels.table import Lanes
from topos.kernels.vector import LANES, REAL, VectorTable, intrinsic

I32, I64, POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()

Body = Callable[[ir.Value, ir.Value | None], None]


@contextmanager
def span(
    builder: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: ir.Value | Callable[[], ir.Value]
) -> Iterator[ir.Value]:
    """Emit the body of a loop whose index goes from `start` by `step` while it is below `stop`.

    A step that the body finds out is a function, which is asked behind it.
    """
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(start, before)
    builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, step() if callable(step) else step), builder.block)
    builder.branch(head)
    builder.position_at_end(after)


def room(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """Reserve room for a `kind` in the entry block, so that no loop grows the stack."""
    with builder.goto_entry_block():
        slot = builder.alloca(kind)
        slot.align = 64
    slot.type = POINTER
    return slot


def kept(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Reserve room that holds a value from here on."""
    slot = room(builder, value.type)
    builder.store(value, slot)
    return slot


def word(builder: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """Return an int64 of a table."""
    return builder.load(builder.gep(table, [index], source_etype=I64), typ=I64)


def least(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the lesser of two signed integers."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def picks(order: Iterable[int]) -> ir.Constant:
    """Return a constant vector of lane numbers: what a shuffle takes."""
    numbers = list(map(I32, order))
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


def define(name: str, module: ir.Module, operands: list[ir.Type], result: ir.Type | None = None) -> ir.IRBuilder:
    """Return a builder at the start of a new function; with a `result` it is one that the module keeps to itself."""
    function = ir.Function(module, ir.FunctionType(result or ir.VoidType(), operands), name)
    if result is not None:
        function.linkage = "internal"
    return ir.IRBuilder(function.append_basic_block("entry"))


def block_routine(name: str, integers: int = 2) -> tuple[ir.IRBuilder, list[ir.Value]]:
    """Return a builder inside ``void name(out, a, b, c, n)``, and the operands, the last `integers` no addresses."""
    kinds = [*[POINTER] * (4 - integers), *[I64] * integers, I64]
    builder = define(name, ir.Module(name=name), kinds)
    return builder, list(builder.function.args)


def completed(builder: ir.IRBuilder) -> ir.Module:
    """Return from a routine without a result, and return its module."""
    builder.ret_void()
    return builder.module


class Access:
    """Vectors of `lanes` values of an element in memory, as reals of the compute precision."""

    def __init__(self, builder: ir.IRBuilder, memory: Memory, lanes: int | None = None) -> None:
        self.builder, self.memory = builder, memory
        self.lanes = lanes or LANES[memory.width]
        self.table = VectorTable(builder, memory.width, self.lanes)
        self.stored = REAL[memory.width] if memory.widen is None else ir.IntType(8 * memory.size)
        self.vector = ir.VectorType(self.stored, self.lanes)

    def at(self, base: ir.Value, index: ir.Value) -> ir.Value:
        """Return the address of a value."""
        return self.builder.gep(base, [index], source_etype=self.stored)

    def splat(self, scalar: ir.Value) -> Lanes:
        """Return a scalar in every lane."""
        kind = ir.VectorType(scalar.type, self.lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), picks([0] * self.lanes))

    def first(self, count: ir.Value) -> ir.Value:
        """Return the mask of the first `count` lanes."""
        number = self.builder.trunc(least(self.builder, count, I64(self.lanes)), I32)
        return self.builder.icmp_signed("<", picks(range(self.lanes)), self.splat(number))

    def real(self, vector: ir.Value) -> Lanes:
        """Return values as they lie in memory as reals."""
        if self.memory.widen is None:
            return vector
        return self.memory.widen(self.table, self.builder.zext(vector, self.table.wholes))

    def load(self, base: ir.Value, index: ir.Value, mask: ir.Value | None = None, filler: Lanes | None = None) -> Lanes:
        """Return a vector from `index` on; lanes that `mask` excludes are `filler` (or anything) and not read."""
        vector = self.real(self.get(base, index, mask))
        return vector if mask is None or filler is None else self.builder.select(mask, vector, filler)

    def get(self, base: ir.Value, index: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """Return a vector as it lies in memory; lanes that `mask` excludes are 0."""
        address, align = self.at(base, index), self.memory.size
        if mask is None:
            return self.builder.load(address, typ=self.vector, align=align)
        element = f"i{8 * align}" if self.memory.widen is not None else f"f{self.memory.width}"
        name = f"masked.load.v{self.lanes}{element}.p0"
        return intrinsic(self.builder, name, self.vector, address, I32(align), mask, ir.Constant(self.vector, None))

    def stored_as(self, value: Lanes) -> ir.Value:
        """Return reals as they lie in memory, rounded once."""
        if self.memory.narrow is None:
            return value
        return self.builder.trunc(self.memory.narrow(self.table, value), self.vector)

    def store(self, base: ir.Value, index: ir.Value, value: Lanes, mask: ir.Value | None = None) -> None:
        """Write a vector, rounded once; lanes that `mask` excludes are not written."""
        self.put(base, index, self.stored_as(value), mask)

    def put(self, base: ir.Value, index: ir.Value, vector: ir.Value, mask: ir.Value | None = None) -> None:
        """Write a vector of values as they lie in memory; a mask holds in lanes side by side, some, all or none.

        They go whole, in halves, quarters, ...: 10 times as fast as the masked stores of AVX2.
        """
        builder, align = self.builder, self.memory.size
        if mask is None:
            builder.store(vector, self.at(base, index), align=align)
            return
        slot = room(builder, self.vector)
        builder.store(vector, slot)
        bits = builder.bitcast(mask, ir.IntType(self.lanes))
        count = builder.zext(builder.ctpop(bits), I64)
        before = builder.zext(builder.cttz(bits, ir.IntType(1)(0)), I64)
        size = self.lanes
        while size > 0:
            offset, kind = builder.add(before, builder.and_(count, I64(-2 * size))), ir.VectorType(self.stored, size)
            with builder.if_then(builder.icmp_signed("!=", builder.and_(count, I64(size)), I64(0))):
                piece = builder.load(self.at(slot, offset), typ=kind, align=align)
                builder.store(piece, self.at(base, builder.add(index, offset)), align=align)
            size //= 2

    def sweep(self, count: ir.Value, body: Body) -> None:
        """Emit ``body(index, mask)`` for every whole vector of `count` values, and for the rest, masked."""
        builder = self.builder
        whole = builder.and_(count, I64(-self.lanes))
        with span(builder, I64(0), whole, I64(self.lanes)) as index:
            body(index, None)
        with builder.if_then(builder.icmp_signed("<", whole, count)):
            body(whole, self.first(builder.sub(count, whole)))


def routine(function: Callable[..., Lanes], arity: int, name: str, source: Memory, target: Memory) -> ir.Module:
    """Return a module with ``void name(out, a, b, c, n)``: `function` over `n` contiguous values.

    Operands lie in memory as `source` says and results as `target` does, at one compute precision; `out` may be one
    of the operands; operands past the arity are ignored. Lanes past the end compute on ones.
    """
    builder, (out, *operands, n) = block_routine(name, 0)
    read, write = Access(builder, source), Access(builder, target)
    one = read.table.real(1.0)

    def each(index: ir.Value, mask: ir.Value | None) -> None:
        values = [read.load(operand, index, mask, one) for operand in operands[:arity]]
        write.store(out, index, function(read.table, *values), mask)

    read.sweep(n, each)
    return completed(builder)
