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
from numba.cuda.simulator import kernel, kernelapi

from tests.kernels import interpreted
from topos.kernels import elements, memory, runtime, target
from topos.kernels.cuda import card, kernels, values, windows
from topos.kernels.rows import Row

SHAPE = kernels.Shape(threads=2, blocks=2, lookers=2, sums=1, across=2, tiles=(1, 2), steps=4, enough=2)
"""A simulated thread is a thread of Python, and a handful of them shows what there is to see."""


WARPS = kernels.Shape(threads=2, blocks=2, lookers=2, sums=1, across=8, tiles=(2, 4), steps=8, enough=2)
"""Two whole warps: the least that a product on the tensor cores takes."""


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
        made, structure = kernels.split(name)
        return (_kernel(made, self.shape), _phases(structure)), blocks, threads, address

    def launch(self, launches: Sequence[tuple[Any, int, int, int]], banks: int) -> None:
        """Carry out rows, one block after the other."""
        for (function, phases), blocks, threads, row in launches:
            _linked[:] = [phases]
            function[blocks, threads](row, banks)

    def record(self, launches: Sequence[tuple[Any, int, int, int]], banks: int) -> Any:
        """Return what carries out rows over a table of banks."""
        return functools.partial(self.launch, launches, banks)


def _shared(self: Any, shape: int, dtype: Any, alignment: Any = None) -> Any:
    """Return a block's array of a source line, as the simulator does, without reading the source."""
    caller = sys._getframe(1)
    return self._allocations.setdefault((caller.f_code, caller.f_lineno), np.empty(shape, dtype))


class Thread(kernel.BlockThread):
    """A thread that runs until the next barrier whenever it is its turn."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.turn, self.stopped, self.ended, self.products = threading.Semaphore(0), threading.Semaphore(0), False, 0

    def run(self) -> None:
        """Run to the end."""
        super().run()
        self.ended = True
        self.stopped.release()

    def syncthreads(self) -> None:
        """Let others run up to this barrier."""
        self.stopped.release()
        self.turn.acquire()
        if self.abort:
            raise RuntimeError("another thread has failed")


def _run(self: Any, grid_point: Any, *arguments: Any) -> None:
    """Run a block's threads one at a time from barrier to barrier, in one order and then in the other.

    So a barrier that is missing shows, whichever side of it runs first; the simulator polls threads that take turns as
    they please, which takes ten times as long.
    """
    body, self.exchanged = functools.partial(self._f, *arguments), {}
    live = [Thread(body, self, grid_point, point, False) for point in np.ndindex(*self._block_dim)]
    go = kernel.BlockThread.start
    while live:
        for thread in live:
            go(thread)
            thread.stopped.acquire()
            if thread.exception:
                for other in live:
                    other.abort = True
                    other.turn.release()
                raise thread.exception[0].with_traceback(thread.exception[1])
        live = [thread for thread in reversed(live) if not thread.ended]
        go = _go_on


def _go_on(thread: Thread) -> None:
    thread.turn.release()


def rounded_to_tf32(value: Any) -> Any:
    """Return a number with 11 bits, ties away from zero: as the instruction of the same name rounds."""
    bits = np.asarray(value, np.float32).view(np.uint32)
    kept = np.where(np.isfinite(value), (bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000), bits)
    return kept.astype(np.uint32).view(np.float32)[()]


def tensor_product(*numbers: Any) -> Any:
    """Gather the numbers of a warp's 32 threads as PTX places them, multiply, and return this thread's four sums."""
    thread: Any = threading.current_thread()
    warp, lane = divmod(thread.threadIdx.x, 32)
    thread.products += 1
    held = thread._manager.exchanged.setdefault((warp, thread.products), [None] * 32)
    held[lane] = numbers
    thread.syncthreads()
    if len(held) == 32:  # the first to come multiplies for all
        left, right, total = (np.empty(shape, np.float32) for shape in ((16, 8), (8, 8), (16, 8)))
        for place, given in enumerate(held):
            group, member = divmod(place, 4)
            rows, columns = [group, group, group + 8, group + 8], [2 * member, 2 * member + 1] * 2
            left[[group, group + 8] * 2, [member, member, member + 4, member + 4]] = given[:4]
            right[[member, member + 4], group] = given[4:6]
            total[rows, columns] = given[6:]
        for operand in (left, right):
            assert np.array_equal(operand, rounded_to_tf32(operand), equal_nan=True)
        held.append(total + left @ right)
    group, member = divmod(lane, 4)
    return held[32][[group, group, group + 8, group + 8], [2 * member, 2 * member + 1] * 2]


@functools.cache
def _kernel(name: str, shape: kernels.Shape) -> Any:
    return kernels.cuda.jit(interpreted.runnable(kernels.make(name, shape)))


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
    kernelapi.FakeCUDAShared.array, kernel.BlockManager.run = _shared, _run
    interpreted.BODIES[memory.rounded_to_tf32] = rounded_to_tf32
    interpreted.BODIES[memory.tensor_product] = tensor_product
    simulated = Simulated()
    card.card = lambda: simulated
    return simulated
