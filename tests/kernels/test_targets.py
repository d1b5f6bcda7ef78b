"""The promise: the same bits on any CPU, at any thread count, whatever other libraries set."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from tests.drawn import KINDS
from tests.helpers import ELEMENTS
from tests.kernels import digest_program
from tests.kernels.calls import child_environment, finished, start_python
from tests.kernels.objects import undefined
from tests.kernels.test_library import C_LIBRARY, ENTRY
from topos import MapOperation
from topos.kernels import store
from topos.kernels.target import machine, target

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
CPUS = ["x86-64-v3", "x86-64"] if IS_X86 else ["generic"]
"""Beside the host: with AVX2 and FMA, and with neither; on Arm, the base."""

RUN = "import runpy; runpy.run_module('tests.kernels.digest_program', run_name='__main__')"


COMPILE = """
import gc, os, pathlib, sys
from topos.kernels import library, policy, store
from topos.kernels.target import machine, target, tile_of

gc.set_threshold(10_000)
share, cpus = int(sys.argv[1]), sys.argv[2:]
texts = {}
kernel_ir = policy.kernel_ir

def once(function, symbol):
    if symbol not in texts:
        texts[symbol] = kernel_ir(function, symbol)
    return texts[symbol]

policy.kernel_ir = once
for place in cpus:
    os.environ |= {"TOPOS_CPU": pathlib.Path(place).name, "TOPOS_CACHE": place}
    target.cache_clear(), machine.cache_clear(), store.key.cache_clear(), tile_of.cache_clear()
    store.compile_into(store.directory(), library.names()[share::2])
"""
"""Fills stores for several CPUs from one IR of each kernel: Numba's part costs most, and names no CPU."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A filled store for each CPU."""
    base = tmp_path_factory.mktemp("stores")
    places = {cpu: base / cpu for cpu in CPUS}
    settings = child_environment(NUMBA_OPT="0", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    given = [str(place) for place in places.values()]
    processes = [start_python(COMPILE, settings, [str(share), *given]) for share in range(2)]
    for process in processes:
        assert finished(process, 400) == ""
    return places


@pytest.fixture(scope="module")
def digests(stores: dict[str, Path]) -> dict[str, dict[str, str]]:
    """The digests that processes print, by CPU and by way of running."""
    settings = {"host": {}} | {cpu: {"TOPOS_CPU": cpu, "TOPOS_CACHE": str(stores[cpu])} for cpu in CPUS}
    processes = {cpu: start_python(RUN, child_environment(**more)) for cpu, more in settings.items()}
    return {cpu: json.loads(finished(process, 400)) for cpu, process in processes.items()}


def test_the_graphs_cover_every_opcode() -> None:
    """The digests below are those of all opcodes and all maps, in every element."""
    recorded = [network for network, _, _ in digest_program.recorded()]
    for element in ELEMENTS:
        nodes = [node for network in recorded if network.element is element for node in network.nodes()]
        kinds = {type(node.opcode).__name__ for node in nodes}
        assert kinds == {*KINDS, "Input", "Leaf", "Parameter"}, element
        maps = {getattr(node.opcode, "operation", None) for node in nodes}
        assert set(MapOperation) <= maps, element


@pytest.mark.slow
def test_every_way_of_running_gives_the_same_bits(digests: dict[str, dict[str, str]], stores: dict[str, Path]) -> None:
    """One digest: the host's CPU, older ones without FMA, 1, 2 and 3 threads, flush-to-zero on or off, this process.

    One test, so that one worker alone fills the stores.
    """
    assert len(digests) == 1 + len(CPUS)
    for found in digests.values():
        assert len(found) == 6
    assert len({found["routines"] for found in digests.values()}) == 1
    runs = {value for found in digests.values() for way, value in found.items() if way != "routines"}
    assert len(runs) == 1, digests
    assert digest_program.digest(digest_program.recorded()) == digests["host"]["1 threads"]
    if sys.platform == "linux":
        the_cpus_differ(stores)


def the_cpus_differ(stores: dict[str, Path]) -> None:
    """Check in their ELF that the comparison means something: base x86-64 calls C's fma where v3 has an instruction."""
    needed = {}
    for cpu in CPUS:
        (folder,) = stores[cpu].iterdir()  # one folder: the processes found what was compiled for them
        objects = {path.name: store._read(folder, path.name) for path in folder.iterdir()}
        needed[cpu] = {}
        for name, entry in objects.items():
            assert entry is not None
            needed[cpu][name] = undefined(entry[1])
            assert needed[cpu][name] <= (ENTRY if name == "native" else C_LIBRARY), name
    if IS_X86:
        assert "fmaf" in needed["x86-64"]["reference_matmul.f32"]
        assert "fma" in needed["x86-64"]["reference_matmul.f64"]
        assert "fmaf" not in needed["x86-64-v3"]["reference_matmul.f32"]


def test_the_target_is_the_host_or_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """TOPOS_CPU names a CPU; its features are LLVM's."""
    import llvmlite.binding as llvm

    for cached in (target, machine):
        monkeypatch.setattr(sys.modules["topos.kernels.target"], cached.__name__, cached.__wrapped__)
    here = sys.modules["topos.kernels.target"]
    monkeypatch.setenv("TOPOS_CPU", CPUS[0])
    assert (here.target().cpu, here.target().features) == (CPUS[0], "")
    assert CPUS[0] in repr(here.target())
    monkeypatch.delenv("TOPOS_CPU")
    assert here.target().cpu == llvm.get_host_cpu_name()
    assert here.target().family == ("x86" if IS_X86 else "arm")
    assert here.target().system == sys.platform
