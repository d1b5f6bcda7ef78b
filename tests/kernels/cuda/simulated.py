"""A card that numba-cuda simulates: the same kernels, run by Python on the memory of this process.

The simulator has to be asked for before numba is imported, so what uses this runs in a process of its own with
``NUMBA_ENABLE_CUDASIM=1``.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.kernels import interpreted
from topos.kernels import runtime, store
from topos.kernels.cuda import card, kernels
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
        """Return how a row is launched; the routine that it applies is the CPU's."""
        name, blocks, threads = kernels.launch(row, self.shape)
        if row.kernel == "elementwise":
            interpreted.store(address, 4, store.address(row.routines[0]))
        return _kernel(name), blocks, threads, address

    def launch(self, launches: Sequence[tuple[Any, int, int, int]], banks: int) -> None:
        """Carry out rows, one block after the other."""
        for function, blocks, threads, row in launches:
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
    family = name.partition(".")[0]
    kernel = kernels.make(family if family == "elementwise" else name, SHAPE)
    return kernels.cuda.jit(interpreted.runnable(kernel))


def install() -> Simulated:
    """Let this process's programs run on a simulated card, and return it."""
    from numba.cuda.simulator import kernelapi

    kernelapi.FakeCUDAShared.array = _shared
    simulated = Simulated()
    card.card = lambda: simulated
    sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other by polling
    return simulated
