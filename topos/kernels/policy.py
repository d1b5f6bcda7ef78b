"""The one file that knows Numba: how a kernel's Python text becomes object code.

It runs in processes of the kernel store alone (`store.compile_apart`), with Numba's optimiser off: the IR
that comes out names no CPU, and `target.assemble` optimises it for the one that is wanted.

No fastmath, no Numba runtime, no exceptions, no bounds checks, no libm: only what `memory` offers. The
functions of `memory` are lowered to a few LLVM instructions each; every other function that a kernel
names is compiled from its Python text and inlined by LLVM.
"""

import functools
import inspect
import re
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import extending, njit, types

from topos.kernels import elements, memory
from topos.kernels.access import I32, I64, POINTER, Access, room
from topos.kernels.vector import REAL, intrinsic

OPTIONS: dict[str, Any] = {"error_model": "numpy", "boundscheck": False}

BARE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

NUMBER = {32: types.float32, 64: types.float64}

Emit = Callable[..., Any]


def primitive(intrinsic: Callable[..., Any], result: Any, operands: Sequence[Any], emit: Emit) -> Any:
    """Return what a kernel calls to have ``emit(builder, *values)`` written in its place."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emitted = emit(builder, *values)
        return context.get_dummy_value() if emitted is None else emitted

    def define(context: Any, *given: Any) -> Any:
        return result(*operands), generate

    # Numba asks for the operands by position.
    places = [inspect.Parameter(f"operand{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(1 + len(operands))]
    define.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
    return intrinsic(define)


def _at(builder: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, POINTER), [index], source_etype=I64)


def _move(builder: Any, target: Any, source: Any, count: Any) -> None:
    places = [builder.inttoptr(place, POINTER) for place in (target, source)]
    intrinsic(builder, "memcpy.p0.p0.i64", ir.VoidType(), *places, count, ir.IntType(1)(0))


def _room(size: int) -> Emit:
    return lambda builder: builder.ptrtoint(room(builder, ir.ArrayType(ir.IntType(8), size)), I64)


def _call_pointer(builder: Any, address: Any, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(arguments))
    builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


def _fan(builder: Any, team: Any, *arguments: Any) -> None:
    """The team's first word is the address of its fan-out function (`native`)."""
    function = builder.load(_at(builder, team, I64(0)), typ=I64)
    _call_pointer(builder, function, team, *arguments)


def _read(builder: Any, kind: elements.Memory, address: Any, index: Any) -> Any:
    vector = Access(builder, kind, 1).load(builder.inttoptr(address, POINTER), index)
    return builder.extract_element(vector, I32(0))


def _write(builder: Any, kind: elements.Memory, address: Any, index: Any, value: Any) -> None:
    single = Access(builder, kind, 1)
    single.store(builder.inttoptr(address, POINTER), index, single.splat(value))


def _fma(width: int) -> Emit:
    return lambda builder, *operands: intrinsic(builder, f"fma.f{width}", REAL[width], *operands)


@functools.cache
def _primitives() -> dict[Any, Any]:
    """Return what stands for each function of `memory`."""
    word, define = types.int64, functools.partial(primitive, extending.intrinsic)
    lowered = {
        memory.load: define(word, [word, word], lambda b, p, i: b.load(_at(b, p, i), typ=I64, align=8)),
        memory.store: define(types.void, [word] * 3, lambda b, p, i, v: b.store(v, _at(b, p, i), align=8) and None),
        memory.move: define(types.void, [word] * 3, _move),
        memory.stack: define(word, [], _room(memory.STACK)),
        memory.room: define(word, [], _room(memory.ROOM)),
        memory.fan: define(types.void, [word] * 5, _fan),
    }
    # Rows of 16-bit elements are moved 8 bytes at a time: nothing is known of their alignment.
    for size, function in ((2, memory.move2), (4, memory.move4), (8, memory.move8)):
        lowered[function] = define(types.void, [word] * 2, lambda b, t, s, n=size: _move(b, t, s, I64(n)))
    for called in (memory.apply, memory.call, memory.pack, memory.line, memory.tile):
        lowered[called] = define(types.void, [word] * called.__code__.co_argcount, _call_pointer)
    for width, fused in ((32, memory.fma_f32), (64, memory.fma_f64)):
        lowered[fused] = define(NUMBER[width], [NUMBER[width]] * 3, _fma(width))
    for name, kind in elements.MEMORY.items():
        number = NUMBER[kind.width]
        lowered[memory.READ[name]] = define(number, [word, word], lambda b, *v, k=kind: _read(b, k, *v))
        lowered[memory.WRITE[name]] = define(types.void, [word, word, number], lambda b, *v, k=kind: _write(b, k, *v))
    return lowered


def link(function: Callable[..., Any], replaced: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return `function` with every topos function that it names as ``replaced(function)`` says."""

    def linked(value: Any) -> Any:
        is_ours = isinstance(value, python_types.FunctionType) and value.__module__.startswith("topos.kernels")
        return replaced(value) if is_ours else value

    code = function.__code__
    nested = [constant for constant in code.co_consts if isinstance(constant, python_types.CodeType)]
    names = {name for part in (code, *nested) for name in part.co_names}
    scope = {n: linked(v) for n, v in function.__globals__.items() if n in names}
    cells = tuple(python_types.CellType(linked(cell.cell_contents)) for cell in function.__closure__ or ())
    return python_types.FunctionType(code, scope, function.__name__, function.__defaults__, cells)


@functools.cache
def _helper(function: Callable[..., Any]) -> Any:
    """Return a function as kernels call it: instructions, or text that is compiled once per process."""
    lowered = _primitives().get(function)
    return njit(**OPTIONS, **BARE)(link(function, _helper)) if lowered is None else lowered


def kernel_ir(function: Callable[..., None], symbol: str) -> str:
    """Return LLVM IR of ``void symbol(int64, ...)``, for any CPU.

    Numba's own entry answers a status and an exception; kernels raise nothing, so the wrapper drops them and
    LLVM deletes what led there. Everything but the symbol is internal.
    """
    arity = function.__code__.co_argcount
    signature_ = types.void(*[types.int64] * arity)
    compiled = njit(signature_, **OPTIONS, **BARE)(link(function, _helper))
    result: Any = next(iter(compiled.overloads.values()))
    text = result.library.get_llvm_str()
    text = re.sub(r"^define (?:linkonce_odr )?", "define internal ", text, flags=re.MULTILINE)
    text = re.sub(r"= (?:common|linkonce)(?: dso_local)? global", "= internal global", text)
    parameters = ", ".join(f"i64 %a{i}" for i in range(arity))
    return f"""{text}
define void @{symbol}({parameters}) {{
  %result = alloca ptr
  %raised = alloca ptr
  %status = call i32 @"{result.fndesc.llvm_func_name}"(ptr %result, ptr %raised, {parameters})
  ret void
}}
"""
