"""A card that numba-cuda simulates: the same kernels, run by Python on the memory of this process.

The simulator has to be asked for before numba is imported, so what uses this runs in a process of its own with
``NUMBA_ENABLE_CUDASIM=1``.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from tests.kernels import interpreted
from topos.kernels import elements, runtime, target
from topos.kernels.cuda import card, kernels, values, windows
from topos.kernels.rows import Row

SHAPE = kernels.Shape(threads=2, blocks=2, lookers=2, sums=1, across=2, tiles=(1, 2), steps=4, enough=2)
"""A simulated thread is a thread of Python, and a handful of them shows what there is to see."""


class Simulated(card.Card):
    """The simulator behind the interface of a card; `copies` counts the bytes of each kind of copy."""

    shape = SHAPE

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.copies = {"up": 0, "down": 0}

    def allocate(self, size: int) -> int:
        """Return the address of bytes that hold nothing sensible."""
        block = np.full(size + 64, 0xFF, np.uint8)
        address = -(-runtime.address(block) // 64) * 64
        self.blocks[address] = block
        return address

    def release(self, address: int) -> None:
        """Give bytes back."""
        del self.blocks[address]

    def upload(self, address: int, array: Any) -> None:
        """Copy an array."""
        self.copies["up"] += array.nbytes
        ctypes.memmove(address, runtime.address(array), array.nbytes)

    def download(self, address: int, count: int) -> Any:
        """Return bytes."""
        self.copies["down"] += count
        return np.frombuffer(bytearray(ctypes.string_at(address, count)), np.uint8)

    def synchronize(self) -> None:
        """Every launch has ended already."""

    def prepared(self, row: Row, address: int) -> tuple[Any, int, int, int]:
        """Return how a row is launched, over which phases."""
        name, blocks, threads = kernels.launch(row, self.shape)
        kernel, structure = kernels.split(name)
        return (_kernel(kernel), _phases(structure)), blocks, threads, address

    def launch(self, launches: Sequence[tuple[Any, int, int, int]], banks: int) -> None:
        """Carry out rows, one block after the other."""
        for (function, phases), blocks, threads, row in launches:
            _linked[:] = [phases]
            function[blocks, threads](row, banks)

    def record(self, launches: Sequence[tuple[Any, int, int, int]], banks: int) -> Any:
        """Return what carries out rows over a table of banks."""
        return functools.partial(self.launch, launches, banks)


_lock = threading.Lock()


def _shared(self: Any, shape: int, dtype: Any, alignment: Any = None) -> Any:
    """Return a block's array of a source line, as the simulator does, but the same one to threads that ask at once."""
    caller = sys._getframe(1)
    with _lock:
        return self._allocations.setdefault((caller.f_code, caller.f_lineno), np.empty(shape, dtype))


@functools.cache
def _kernel(name: str) -> Any:
    return kernels.cuda.jit(interpreted.runnable(kernels.make(name, SHAPE)))


_engines: list[Any] = []


@functools.cache
def _phases(structure: str) -> Any:
    """Return the very IR that NVVM would be given for a chain, compiled for this CPU."""
    if not structure:
        return None
    text = values.phases(structure, ir.Module()).replace("linkonce_odr ", "")
    text = re.sub(r"(?:\[[^\]]*\]|\w+) addrspace\((\d)\)\*", r"ptr addrspace(\1)", text)  # LLVM 7 says of what
    llvm = target.binding()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target.machine())
    _engines.append(engine)
    kind = ctypes.c_float if "float @" in text else ctypes.c_double
    return ctypes.CFUNCTYPE(kind, *[ctypes.c_int64] * 5)(engine.get_function_address("topos_value"))


_linked: list[Any] = [None]
"""The phases of the kernel that runs."""

for element, kind in elements.MEMORY.items():
    table = interpreted.NumpyTable(kind.width)
    interpreted.BODIES[windows.ROUND[element]] = lambda value, *, o=table, kind=kind: (
        kind.widen(o, kind.narrow(o, np.array([value], f"f{kind.width // 8}")))[0] if kind.widen else value
    )
for width, phase in kernels.PHASE.items():
    number = np.dtype(width.replace("f32", "f4").replace("f64", "f8")).type
    interpreted.BODIES[phase] = lambda *words, number=number: number(_linked[0](*map(int, words)))


def install() -> Simulated:
    """Let this process's programs run on a simulated card, and return it."""
    from numba.cuda.simulator import kernelapi

    kernelapi.FakeCUDAShared.array = _shared
    simulated = Simulated()
    card.card = lambda: simulated
    sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other by polling
    return simulated
