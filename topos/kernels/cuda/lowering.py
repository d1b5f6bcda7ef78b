"""What kernels are made of on a card: the functions of `memory` as instructions of NVVM, and the phases of chains.

NVVM is told to contract nothing: additions and products come out as ``add.rn`` and ``mul.rn``, which no later compiler
joins, and a fused one stands where it is written. Nothing is flushed to zero. Addresses are those of the card's global memory.
"""

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda.compiler import compile_cuda, kernel_fixup
from numba.cuda.cudadrv import nvvm
from numba.cuda.extending import intrinsic

from topos.kernels import elements, memory
from topos.kernels.cuda.kernels import PHASE, Shape, make, split
from topos.kernels.cuda.values import VALUE, NvvmTable, at, phases, read, write
from topos.kernels.cuda.windows import ROUND
from topos.kernels.policy import NUMBER, link, primitive
from topos.kernels.vector import REAL

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# The compute capabilities that the tests compile for.
CAPABILITIES = (8, 0), (9, 0)


def _move2(builder: Any, target: Any, source: Any) -> None:
    places = [at(builder, place, _I64(0), ir.IntType(16)) for place in (target, source)]
    builder.store(builder.load(places[1]), places[0])


def _value(builder: Any, *operands: Any, width: int) -> Any:
    """Call the phases that the kernel is linked with: of a card's kernel there is one for each chain."""
    module = builder.module
    function = module.globals.get("topos_value") or ir.Function(module, VALUE[width], "topos_value")
    return builder.call(function, operands)


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


@functools.cache
def _primitives() -> dict[Any, Any]:
    word, define = types.int64, functools.partial(primitive, intrinsic)
    lowered = {
        memory.load: define(word, [word, word], lambda b, p, i: b.load(at(b, p, i))),
        memory.move2: define(types.void, [word] * 2, _move2),
        memory.store: define(types.void, [word] * 3, lambda b, p, i, v: b.store(v, at(b, p, i)) and None),
        memory.rounded_to_tf32: define(types.float32, [types.float32], _rounded),
        memory.tensor_product: define(types.UniTuple(types.float32, 4), [types.float32] * 10, _tensor),
    }
    for width, fused in ((32, memory.fma_f32), (64, memory.fma_f64)):
        number = NUMBER[width]
        lowered[PHASE[f"f{width}"]] = define(number, [word] * 5, functools.partial(_value, width=width))
        lowered[fused] = define(number, [number] * 3, lambda b, *v, w=width: NvvmTable(b, w).fma(*v))
    for name, kind in elements.MEMORY.items():
        number = NUMBER[kind.width]
        lowered[ROUND[name]] = define(number, [number], lambda b, v, k=kind: k.rounded(NvvmTable(b, k.width), v))
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
    kernel, structure = split(name)
    library, symbol = _compiled(kernel)
    texts = [*library.llvm_strs]
    if structure:
        texts.append(phases(structure, library.codegen._create_empty_module("phases")))
    return symbol, nvvm.compile_ir(texts, arch=f"compute_{major}{minor}", opt=3, fma=False, ftz=False)
