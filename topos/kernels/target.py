"""Which CPU kernels are compiled for: the host, or the one that ``TOPOS_CPU`` names."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A CPU as LLVM names it, its features, its instruction family (x86, arm) and operating system."""

    cpu: str
    features: str
    family: str
    system: str


@functools.cache
def binding() -> Any:
    """Return `llvmlite.binding`, initialised (imported only when a kernel is first needed)."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


@functools.cache
def target() -> Target:
    """Return the CPU to compile for. ``TOPOS_CPU`` is ``host`` (default) or a name such as ``x86-64-v3``."""
    llvm = binding()
    name = os.environ.get("TOPOS_CPU", "host")
    family = "arm" if llvm.get_process_triple().startswith(("aarch64", "arm64")) else "x86"
    if name == "host":
        return Target(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), family, sys.platform)
    return Target(name, "", family, sys.platform)


@functools.cache
def machine() -> Any:
    """Return the LLVM target machine that emits and loads objects for `target`."""
    chosen = target()
    triple = binding().Target.from_default_triple()
    return triple.create_target_machine(cpu=chosen.cpu, features=chosen.features, opt=3, jit=True)


def assemble(text: str) -> bytes:
    """Return the object code of a module of LLVM IR, optimised."""
    llvm = binding()
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    parsed.triple = llvm.get_process_triple()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine(), tuning)
    builder.getModulePassManager().run(parsed, builder)
    return bytes(machine().emit_object(parsed))
