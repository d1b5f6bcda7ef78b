"""The second interpretation of the kernels: element functions over NumPy arrays, kernel texts as Python runs them.

`NumpyTable` is the oracle of the IR that `topos.kernels.vector` emits, and `runnable` links a kernel with plain
Python for what `topos.kernels.memory` only names: slow, on the same memory, with the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from topos.kernels import elements, memory
from topos.kernels.table import Lanes, Table


def exact_fma(a: float, b: float, c: float) -> float:
    """Return ``a*b + c`` rounded once to 64 bits, in exact rational arithmetic."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        with np.errstate(all="ignore"):
            return float(np.float64(a) * np.float64(b) + np.float64(c))
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # of zeros, or of opposites: exact in floating point too, which knows the sign
        return a * b + c
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = math.inf
    return math.copysign(rounded, 1.0 if exact > 0 else -1.0)


_fma64 = np.vectorize(exact_fma, otypes=[np.float64])


def _fma32(a: Any, b: Any, c: Any) -> Any:
    """Round ``a*b + c`` once to 32 bits: an exact 64-bit product, a sum rounded to odd, one rounding more."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + away, bits).view(np.float64).astype(np.float32)


def _plain(*functions: Callable[..., Any]) -> Iterator[Callable[..., Lanes]]:
    """Return operations that a function of arrays computes as it is."""
    for function in functions:

        def compute(self: Table, *lanes: Lanes, function: Callable[..., Any] = function) -> Lanes:
            return function(*lanes)

        yield compute


class NumpyTable(Table):
    """Run an element function on NumPy arrays of float32 or float64."""

    add, sub, mul, div = _plain(operator.add, operator.sub, operator.mul, operator.truediv)
    iadd, isub = _plain(operator.add, operator.sub)
    iand, ior, ixor = _plain(operator.and_, operator.or_, operator.xor)
    both, either, negate = _plain(operator.and_, operator.or_, operator.invert)
    lt, le, eq, ilt, ieq = _plain(operator.lt, operator.le, operator.eq, operator.lt, operator.eq)
    sqrt, is_nan, select = _plain(np.sqrt, np.isnan, np.where)

    def __init__(self, width: int) -> None:
        self.width = width
        self._real: Any = np.dtype(f"f{width // 8}").type
        self._whole: Any = np.dtype(f"i{width // 8}").type
        self._unsigned: Any = np.dtype(f"u{width // 8}").type

    def __call__(self, function: Callable[..., Lanes], *arrays: Any) -> Any:
        """Return ``function(o, *arrays)`` with arrays cast to the width and floating-point warnings off."""
        with np.errstate(all="ignore"):
            return function(self, *(np.atleast_1d(np.asarray(a, self._real)) for a in arrays))

    def real(self, value: float) -> Lanes:
        return self._real(value)

    def whole(self, value: int) -> Lanes:
        return np.array(value % (1 << self.width), self._unsigned).view(self._whole)[()]

    def fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        a, b, c = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, self._real)) for x in (a, b, c)))
        return _fma32(a, b, c) if self.width == 32 else _fma64(a, b, c)

    def to_bits(self, a: Lanes) -> Lanes:
        return np.asarray(a, self._real).view(self._whole)

    def from_bits(self, i: Lanes) -> Lanes:
        return np.asarray(i, self._whole).view(self._real)

    def to_real(self, i: Lanes) -> Lanes:
        return np.asarray(i).astype(self._real)

    def shl(self, i: Lanes, count: int) -> Lanes:
        return np.asarray(i) << self._whole(count)

    def lshr(self, i: Lanes, count: int) -> Lanes:
        return (np.asarray(i, self._whole).view(self._unsigned) >> self._unsigned(count)).view(self._whole)

    def ashr(self, i: Lanes, count: int) -> Lanes:
        return np.asarray(i) >> self._whole(count)

    def double(self, body: Callable[..., Lanes], *reals: Lanes) -> Lanes:
        wide = NumpyTable(64)
        return np.asarray(body(wide, *(np.asarray(x).astype(np.float64) for x in reals))).astype(np.float32)

    def branch(self, m: Lanes, some: Callable[..., Lanes], none: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
        result = (some if np.any(m) else none)(self, *lanes)
        return np.broadcast_to(result, np.shape(lanes[0]))  # a constant is every lane's

    def lookup(self, table: Sequence[int], index: Lanes) -> Lanes:
        entries = np.array([entry % (1 << self.width) for entry in table], self._unsigned).view(self._whole)
        return entries[index]


# ---- memory


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


_stacks: list[Any] = []


def stack() -> int:
    """Return the address of `STACK` bytes that live until the kernel returns (here: until `release`)."""
    _stacks.append(ctypes.create_string_buffer(memory.STACK))
    return ctypes.addressof(_stacks[-1])


def room() -> int:
    """Return the address of `ROOM` bytes that live until the kernel returns (here: until `release`)."""
    _stacks.append(ctypes.create_string_buffer(memory.ROOM))
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


def line(routine: int, out: int, a: int, a_step: int, b: int, b_stride: int, k: int, n: int, depth: int) -> None:
    """Call a compiled line routine (`matmul.lines`)."""
    _enter(routine, out, a, a_step, b, b_stride, k, n, depth)


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


def fma_f32(a: Any, b: Any, c: Any) -> Any:
    """Return ``a*b + c`` rounded once to f32."""
    return NumpyTable(32).fma(a, b, c)[0]


def fma_f64(a: Any, b: Any, c: Any) -> Any:
    """Return ``a*b + c`` rounded once to f64."""
    return np.float64(exact_fma(float(a), float(b), float(c)))


def raw_of(kind: elements.Memory) -> np.dtype:
    """Return how NumPy holds the values of an element as they lie in memory."""
    return np.dtype(f"f{kind.size}" if kind.widen is None else f"u{kind.size}")


def _reader(kind: elements.Memory) -> Callable[[int, int], Any]:
    def read(address: int, index: int) -> Any:
        raw = np.frombuffer(ctypes.string_at(int(address) + kind.size * int(index), kind.size), raw_of(kind))
        with np.errstate(all="ignore"):
            return kind.widen(NumpyTable(kind.width), raw.astype("i4"))[0] if kind.widen else raw[0]

    return read


def _writer(kind: elements.Memory) -> Callable[[int, int, Any], None]:
    def write(address: int, index: int, value: Any) -> None:
        real = np.array([value], f"f{kind.width // 8}")
        with np.errstate(all="ignore"):
            raw = kind.narrow(NumpyTable(kind.width), real) if kind.narrow else real
        data = np.asarray(raw).astype(raw_of(kind)).tobytes()
        ctypes.memmove(int(address) + kind.size * int(index), data, kind.size)

    return write


BODIES: dict[Any, Callable[..., Any]] = {
    getattr(memory, function.__name__): function
    for function in (
        load, store, move2, move4, move8, move, stack, room, apply, pack, line, tile, call, fan, fma_f32, fma_f64,
    )
} | {
    declared[name]: make(kind)
    for declared, make in ((memory.READ, _reader), (memory.WRITE, _writer))
    for name, kind in elements.MEMORY.items()
}  # fmt: skip
"""The Python of each function of `memory`."""


_scopes: dict[str, dict[str, Any]] = {}
"""The names of each module of kernels, with its functions as Python runs them: the simulator of CUDA exchanges some."""


@functools.cache
def runnable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the kernels as Python runs it."""
    if function in BODIES:
        return BODIES[function]
    name = function.__module__
    if name not in _scopes:
        _scopes[name] = scope = dict(vars(sys.modules[name]))
        scope.update({n: runnable(value) for n, value in scope.items() if _is_kernels(value)})
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    cells = tuple(types.CellType(runnable(value) if _is_kernels(value) else value) for value in values)
    return types.FunctionType(function.__code__, _scopes[name], function.__name__, function.__defaults__, cells)


def _is_kernels(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__.startswith("topos.kernels")
