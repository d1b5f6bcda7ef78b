"""What a kernel may do with an address, as plain Python; `policy` lowers each function to LLVM IR.

Kernels are written over these functions alone, so that their text runs twice: compiled, and interpreted
by Python on the same memory (slowly: that is how the tests cover it).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from topos.kernels import elements
from topos.kernels.table import NumpyTable, exact_fma

Number = Any
"""A compute-precision scalar: a NumPy float here, a machine register when compiled."""


def load(address: int, index: int) -> int:
    """Return the int64 at `address` + 8 * `index`."""
    return ctypes.c_int64.from_address(int(address) + 8 * int(index)).value


def store(address: int, index: int, value: int) -> None:
    """Write an int64."""
    ctypes.c_int64.from_address(int(address) + 8 * int(index)).value = int(value)


def move2(target: int, source: int) -> None:
    """Copy 2 bytes."""
    ctypes.memmove(int(target), int(source), 2)


def move4(target: int, source: int) -> None:
    """Copy 4 bytes."""
    ctypes.memmove(int(target), int(source), 4)


def move8(target: int, source: int) -> None:
    """Copy 8 bytes."""
    ctypes.memmove(int(target), int(source), 8)


def move(target: int, source: int, count: int) -> None:
    """Copy `count` bytes between places that do not overlap."""
    ctypes.memmove(int(target), int(source), int(count))


STACK = 3 * 8 * 512
"""Bytes of scratch memory of a kernel: three buffers of 512 values."""

_stacks: list[Any] = []


def stack() -> int:
    """Return the address of `STACK` bytes that live until the kernel returns (here: until `release`)."""
    _stacks.append(ctypes.create_string_buffer(STACK))
    return ctypes.addressof(_stacks[-1])


ROOM = 1 << 17
"""Bytes of scratch memory of a chain: a near cache holds what it works on, and rows may be long."""


def room() -> int:
    """Return the address of `ROOM` bytes that live until the kernel returns (here: until `release`)."""
    _stacks.append(ctypes.create_string_buffer(ROOM))
    return ctypes.addressof(_stacks[-1])


def release() -> None:
    """Drop the memory that `stack` gave out to interpreted kernels."""
    _stacks.clear()


def apply(routine: int, out: int, a: int, b: int, c: int, count: int) -> None:
    """Call a compiled block routine (`access.routine`)."""
    _enter(routine, out, a, b, c, count)


def pack(routine: int, out: int, source: int, lane_word: int, lanes: int, step_word: int, count: int) -> None:
    """Call a compiled panel routine (`matmul.panels`)."""
    _enter(routine, out, source, lane_word, lanes, step_word, count)


def line(routine: int, out: int, a: int, a_step: int, b: int, b_step: int, k: int, n: int) -> None:
    """Call a compiled line routine (`matmul.tiles.line`)."""
    _enter(routine, out, a, a_step, b, b_step, k, n)


def tile(
    routine: int, k: int, a: int, a_row: int, a_step: int, b: int, b_step: int, c: int, c_row: int,
    columns: int, first: int,
) -> None:  # fmt: skip
    """Call a compiled tile (`matmul.tiles.tile`)."""
    _enter(routine, k, a, a_row, a_step, b, b_step, c, c_row, columns, first)


def _enter(routine: int, *words: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))(int(routine))(*map(int, words))


def call(kernel: int, row: int, banks: int, task: int, tasks: int) -> None:
    """Call a compiled kernel."""
    _enter(kernel, row, banks, task, tasks)


def fan(team: int, kernel: int, row: int, banks: int, tasks: int) -> None:
    """Call a compiled kernel once per task on the thread team (here: one task after the other)."""
    for task in range(int(tasks)):
        call(kernel, row, banks, task, tasks)


def fma_f32(a: Number, b: Number, c: Number) -> Number:
    """Return ``a*b + c`` rounded once to f32."""
    return NumpyTable(32).fma(a, b, c)[0]


def fma_f64(a: Number, b: Number, c: Number) -> Number:
    """Return ``a*b + c`` rounded once to f64."""
    return np.float64(exact_fma(float(a), float(b), float(c)))


def _reader(memory: elements.Memory) -> Callable[[int, int], Number]:
    def read(address: int, index: int) -> Number:
        raw = np.frombuffer(ctypes.string_at(int(address) + memory.size * int(index), memory.size), memory.raw)
        with np.errstate(all="ignore"):
            return memory.widen(NumpyTable(memory.width), raw.astype("i4"))[0] if memory.widen else raw[0]

    return read


def _writer(memory: elements.Memory) -> Callable[[int, int, Number], None]:
    def write(address: int, index: int, value: Number) -> None:
        real = np.array([value], f"f{memory.width // 8}")
        with np.errstate(all="ignore"):
            raw = memory.narrow(NumpyTable(memory.width), real) if memory.narrow else real
        data = np.asarray(raw).astype(memory.raw).tobytes()
        ctypes.memmove(int(address) + memory.size * int(index), data, memory.size)

    return write


READ: dict[str, Callable[[int, int], Number]] = {n: _reader(m) for n, m in elements.MEMORY.items()}
"""``READ[element](address, index)``: one value, widened to the compute precision."""

WRITE: dict[str, Callable[[int, int, Number], None]] = {n: _writer(m) for n, m in elements.MEMORY.items()}
"""``WRITE[element](address, index, value)``: one value, rounded once."""

FMA: dict[str, Callable[[Number, Number, Number], Number]] = {
    name: fma_f32 if memory.width == 32 else fma_f64 for name, memory in elements.MEMORY.items()
}
"""``FMA[element](a, b, c)`` at the compute precision of the element."""
