"""Which CPU kernels are compiled for: the host, or the one that ``TOPOS_CPU`` and ``TOPOS_TRIPLE`` name."""

import functools
import os
import sys
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A CPU as LLVM names it, its features, its instruction family (x86, arm), operating system and triple."""

    cpu: str
    features: str
    family: str
    system: str
    triple: str


@functools.cache
def binding() -> Any:
    """Return `llvmlite.binding`, initialised (imported only when a kernel is first needed)."""
    import llvmlite.binding as llvm

    if os.environ.get("TOPOS_TRIPLE"):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
    return llvm


@functools.cache
def target() -> Target:
    """Return the CPU to compile for. ``TOPOS_CPU`` is ``host`` (default) or a name such as ``x86-64-v3``.

    ``TOPOS_TRIPLE`` names another instruction family or system: what is compiled for it cannot be loaded here.
    """
    llvm = binding()
    name = os.environ.get("TOPOS_CPU", "host")
    triple = os.environ.get("TOPOS_TRIPLE") or llvm.get_process_triple()
    family = "arm" if triple.startswith(("aarch64", "arm64")) else "x86"
    system = "darwin" if "darwin" in triple else "linux" if "linux" in triple else sys.platform
    if name == "host":
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        return Target(cpu, features, family, system, triple)
    return Target(name, "", family, system, triple)


@functools.cache
def machine() -> Any:
    """Return the LLVM target machine that emits and loads objects for `target`."""
    chosen = target()
    kind = binding().Target.from_triple(chosen.triple)
    return kind.create_target_machine(cpu=chosen.cpu, features=chosen.features, opt=3, jit=True)


def assemble(text: str) -> bytes:
    """Return the object code of a module of LLVM IR, optimised."""
    llvm = binding()
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    parsed.triple = target().triple
    parsed.data_layout = str(machine().target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine(), tuning)
    builder.getModulePassManager().run(parsed, builder)
    return bytes(machine().emit_object(parsed))
