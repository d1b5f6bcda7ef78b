"""What kernels are made of on a card: the functions of `memory` and element functions as instructions of NVVM.

NVVM is told to contract nothing: additions and products come out as ``add.rn`` and ``mul.rn``, which no later compiler
joins, and a fused one stands where it is written. Nothing is flushed to zero. Addresses are those of the card's global memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda.compiler import compile_cuda, kernel_fixup
from numba.cuda.cudadrv import nvvm
from numba.cuda.extending import intrinsic

from topos.kernels import elements, memory
from topos.kernels.cuda.kernels import Shape, make
from topos.kernels.library import routine_of
from topos.kernels.policy import NUMBER, link, primitive
from topos.kernels.table import Lanes
from topos.kernels.vector import REAL, VectorTable

_I32, _I64 = ir.IntType(32), ir.IntType(64)
# Address spaces.
_GLOBAL, _CONSTANT = 1, 4

# The compute capabilities that the tests compile for.
CAPABILITIES = (8, 0), (9, 0)


class NvvmTable(VectorTable):
    """Emit an element function for one value, in the LLVM 7 that NVVM speaks."""

    def __init__(self, builder: ir.IRBuilder, width: int, lanes: int = 1) -> None:
        super().__init__(builder, width, lanes)
        self.reals, self.wholes, self.kind = REAL[width], ir.IntType(width), f"f{width}"

    def spread(self, scalar: ir.Constant) -> Lanes:
        return scalar

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        return self.builder.load(self.builder.gep(self.stored(table, _CONSTANT), [_I32(0), index]))


def _at(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(address, ir.PointerType(kind, _GLOBAL)), [index])


def read(builder: Any, kind: elements.Memory, address: Any, index: Any) -> Any:
    """Emit the load of a value, widened to the compute precision."""
    if kind.widen is None:
        return builder.load(_at(builder, address, index, REAL[kind.width]))
    bits = builder.load(_at(builder, address, index, ir.IntType(8 * kind.size)))
    return kind.widen(NvvmTable(builder, kind.width), builder.zext(bits, ir.IntType(kind.width)))


def write(builder: Any, kind: elements.Memory, address: Any, index: Any, value: Any) -> None:
    """Emit the store of a value, rounded once."""
    stored: Any = REAL[kind.width]
    if kind.narrow is not None:
        stored = ir.IntType(8 * kind.size)
        value = builder.trunc(kind.narrow(NvvmTable(builder, kind.width), value), stored)
    builder.store(value, _at(builder, address, index, stored))


def _move(builder: Any, target: Any, source: Any, size: Any) -> None:
    """Copy one value of 2, 4 or 8 bytes."""
    for width in (2, 4, 8):
        with builder.if_then(builder.icmp_signed("==", size, _I64(width))):
            value = builder.load(_at(builder, source, _I64(0), ir.IntType(8 * width)))
            builder.store(value, _at(builder, target, _I64(0), ir.IntType(8 * width)))


ROUTINE = ir.FunctionType(ir.VoidType(), [_I64] * 4)


def _apply(builder: Any, routine: Any, *operands: Any) -> None:
    """Call the routine that the kernel is linked with: of a card's kernel there is one for each."""
    module = builder.module
    function = module.globals.get("topos_routine") or ir.Function(module, ROUTINE, "topos_routine")
    builder.call(function, operands[:4])


_TENSOR = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"


def _rounded(builder: Any, value: Any) -> Any:
    kind = ir.FunctionType(_I32, [REAL[32]])
    return builder.bitcast(builder.asm(kind, "cvt.rna.tf32.f32 $0, $1;", "=r,f", [value], False), REAL[32])


def _tensor(builder: Any, *values: Any) -> Any:
    """Multiply on the tensor cores: all threads of a warp have to get here together."""
    operands = [*(builder.bitcast(value, _I32) for value in values[:6]), *values[6:]]
    kind = ir.FunctionType(ir.LiteralStructType([REAL[32]] * 4), [operand.type for operand in operands])
    found = builder.asm(kind, _TENSOR, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", operands, True)
    found.attributes.add("convergent")
    packed = ir.Constant(ir.ArrayType(REAL[32], 4), ir.Undefined)
    for i in range(4):
        packed = builder.insert_value(packed, builder.extract_value(found, i), i)
    return packed


def routine(name: str, like: ir.Module) -> str:
    """Return the IR of a routine of the library, for one value, for the target of a module."""
    function, arity, source, target = routine_of(*name.split("."))
    module = ir.Module(name)
    module.triple, module.data_layout = like.triple, like.data_layout
    nvvm.add_ir_version(module)
    builder = ir.IRBuilder(ir.Function(module, ROUTINE, "topos_routine").append_basic_block("entry"))
    out, *operands = builder.function.args
    values = [read(builder, source, operand, _I64(0)) for operand in operands[:arity]]
    write(builder, target, out, _I64(0), function(NvvmTable(builder, source.width), *values))
    builder.ret_void()
    return str(module)


@functools.cache
def _primitives() -> dict[Any, Any]:
    word, define = types.int64, functools.partial(primitive, intrinsic)
    lowered = {
        memory.load: define(word, [word, word], lambda b, p, i: b.load(_at(b, p, i, _I64))),
        memory.apply: define(types.void, [word] * 6, _apply),
        memory.move: define(types.void, [word] * 3, _move),
        memory.store: define(types.void, [word] * 3, lambda b, p, i, v: b.store(v, _at(b, p, i, _I64)) and None),
        memory.rounded_to_tf32: define(types.float32, [types.float32], _rounded),
        memory.tensor_product: define(types.UniTuple(types.float32, 4), [types.float32] * 10, _tensor),
    }
    for width, fused in ((32, memory.fma_f32), (64, memory.fma_f64)):
        number = NUMBER[width]
        lowered[fused] = define(number, [number] * 3, lambda b, *v, w=width: NvvmTable(b, w).fma(*v))
    for name, kind in elements.MEMORY.items():
        number = NUMBER[kind.width]
        lowered[memory.READ[name]] = define(number, [word, word], lambda b, *v, k=kind: read(b, k, *v))
        lowered[memory.WRITE[name]] = define(types.void, [word, word, number], lambda b, *v, k=kind: write(b, k, *v))
    return lowered


@functools.cache
def _helper(function: Callable[..., Any]) -> Any:
    """Return a function of topos as a kernel calls it: instructions, or text that is inlined."""
    lowered = _primitives().get(function)
    return cuda.jit(device=True, inline="always")(link(function, _helper)) if lowered is None else lowered


@functools.cache
def _compiled(name: str) -> Any:
    """Return the library of a kernel, which is the same for all capabilities, and the symbol of its entry."""
    word = types.int64
    kernel = link(make(name, Shape()), _helper)
    made = compile_cuda(kernel, types.void, (word, word), cc=CAPABILITIES[0], nvvm_options={"opt": 3})
    symbol = made.fndesc.llvm_func_name
    kernel_fixup(made.library.get_function(symbol), False)
    return made.library, symbol


def ptx(name: str, major: int, minor: int) -> tuple[str, bytes]:
    """Return the symbol of a kernel and its text in the assembly of a compute capability; no device is needed."""
    family, _, applied = name.partition(".")
    library, symbol = _compiled(family if family == "elementwise" else name)
    texts = [*library.llvm_strs, *([routine(applied, library.modules[0])] if family == "elementwise" else [])]
    return symbol, nvvm.compile_ir(texts, arch=f"compute_{major}{minor}", opt=3, fma=False, ftz=False)
