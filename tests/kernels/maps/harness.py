"""Compile the emitted routine of an element function with llvmlite alone, for the tests of the maps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from topos.kernels.access import routine
from topos.kernels.elements import MEMORY

_SIGNATURE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
_engines: list[Any] = []


@cache
def compiled(function: Callable[..., Any], arity: int, width: int) -> Callable[..., np.ndarray]:
    """Return `function` over contiguous arrays of `width`-bit reals, compiled for this CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    kind = MEMORY[f"f{width}"]
    module = llvm.parse_assembly(str(routine(function, arity, "tested", kind, kind)))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    native = _SIGNATURE(engine.get_function_address("tested"))
    kind = np.dtype(f"f{width // 8}")

    def call(*arrays: np.ndarray) -> np.ndarray:
        operands = [np.ascontiguousarray(a, kind) for a in arrays]
        out = np.empty_like(operands[0])
        addresses = [a.ctypes.data for a in operands] + [0] * (3 - arity)
        native(out.ctypes.data, *addresses, out.size)
        return out

    return call
