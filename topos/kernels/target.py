"""Which CPU kernels are compiled for: the host, or the one that ``TOPOS_CPU`` and ``TOPOS_TRIPLE`` name."""

import functools
import os
import sys
from typing import Any, NamedTuple

# What CPUs of these levels have.
V3 = frozenset(["avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"])
V4 = V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])


class Target(NamedTuple):
    """A CPU as LLVM names it, its features, its instruction family (x86, arm), operating system and triple."""

    cpu: str
    features: str
    family: str
    system: str
    triple: str

    @property
    def present(self) -> set[str]:
        """The names of the features that it has; of a CPU that was named, nothing but the name is known."""
        return {name[1:] for name in self.features.split(",") if name.startswith("+")}


class Tile(NamedTuple):
    """The shape of a full tile of a matrix product: rows of A, and vectors of `lanes` columns of B."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of a full tile."""
        return self.vectors * self.lanes


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
    if name != "host":
        return named(name, triple)
    return named(llvm.get_host_cpu_name(), triple, llvm.get_host_cpu_features().flatten())


def named(cpu: str, triple: str, features: str = "") -> Target:
    """Return the target of a CPU, given the triple of where it runs."""
    machine = triple.partition("-")[0]
    family = {"aarch64": "arm", "arm64": "arm", "x86_64": "x86"}.get(machine, machine)
    system = "darwin" if "darwin" in triple else "linux" if "linux" in triple else sys.platform
    return Target(cpu, features, family, system, triple)


@functools.cache
def tile_of(width: int, chosen: Target | None = None) -> Tile:
    """Return the tile that fills the registers of a CPU (by default `target`'s), for values of `width` bits.

    32 registers of 512 bits (AVX-512), 16 of 256 (AVX2), 32 of 128 (Arm), 16 of 128 (base x86-64).
    """
    chosen = chosen or target()
    if chosen.family == "arm":
        return Tile(8, 2, 128 // width)
    # By the levels of the objects that the package carries: they run on such a machine, and have its tiles.
    if chosen.present >= V4 or chosen.cpu == "x86-64-v4":
        return Tile(12, 2, 512 // width)
    if chosen.present >= V3 or chosen.cpu == "x86-64-v3":
        return Tile(6, 2, 256 // width)
    return Tile(4, 2, 128 // width)


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
