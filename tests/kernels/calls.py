"""What the tests of the kernels share: compiled routines, rows in memory, both ways to run a kernel."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.kernels.interpreted import raw_of, release, runnable
from topos.kernels import elements, library, loops, store
from topos.kernels.access import routine
from topos.kernels.rows import CODE, Row
from topos.kernels.target import assemble

ROOT = Path(__file__).resolve().parents[2]

_serial = itertools.count()
_ROUTINE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


def call_routine(address: int, out: Any, *operands: Any, count: int | None = None) -> None:
    """Run a block routine over the first `count` values of contiguous arrays."""
    places = [operand.ctypes.data for operand in operands] + [0] * (3 - len(operands))
    _ROUTINE(address)(out.ctypes.data, *places, out.size if count is None else count)


def call_row_routine(address: int, out: Any, values: Any, b: int, c: int, n: int) -> None:
    """Run a routine of `reductions` or `moves`, whose last operands are integers."""
    _ROUTINE(address)(out.ctypes.data, values.ctypes.data, b, c, n)


def compiled(
    function: Callable[..., Any],
    arity: int,
    width: int,
    source: elements.Memory | None = None,
    target: elements.Memory | None = None,
) -> Callable[..., np.ndarray]:
    """Return an element function compiled for this CPU, over contiguous arrays."""
    name = f"tested_{next(_serial)}"
    plain = elements.MEMORY[f"f{width}"]
    address = store._load(name, assemble(str(routine(function, arity, name, source or plain, target or plain))))
    kind = np.dtype(f"f{width // 8}") if target is None or target.narrow is None else raw_of(target)

    def call(*arrays: np.ndarray) -> np.ndarray:
        out = np.empty(arrays[0].size, kind)
        call_routine(address, out, *arrays)
        return out

    return call


def row_words(row: Row, node: int = 0) -> np.ndarray:
    """Return a row with its header, as the executor reads it."""
    words = list(row.words)
    for position, name in row.routines.items():
        words[position] = store.address(name)
    head = [store.address(CODE.get(row.kernel, row.kernel)), loops.HEADER + len(words), row.work, node]
    return np.array([*head, *words], np.int64)


def kernel_text(name: str) -> Callable[[int, int, int, int], None]:
    """Return a kernel as it is written."""
    family, _, element = name.partition(".")
    return loops.TYPED[family](element) if element else library.SHARED[family]


def interpret(name: str, row: Any, banks: Any, task: int, tasks: int) -> None:
    """Run one task of a kernel as Python text."""
    with np.errstate(all="ignore"):
        runnable(kernel_text(name))(row.ctypes.data, banks.ctypes.data, task, tasks)
    release()


def compute(name: str, row: Any, banks: Any, task: int, tasks: int) -> None:
    """Run one task of a compiled kernel."""
    _KERNEL(store.address(name))(row.ctypes.data, banks.ctypes.data, task, tasks)


def child_environment(**more: str) -> dict[str, str]:
    """Return an environment for a process that is not measured; of our settings it keeps the store's place."""
    ours = ("TOPOS_NUM_THREADS", "TOPOS_CPU", "COVERAGE_PROCESS_", "COV_CORE_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return kept | {"PYTHONPATH": str(ROOT), "TOPOS_SHIPPED": "off"} | more


def start_python(text: str, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> Any:
    """Start a Python process that runs `text`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *arguments],
        env=dict(environment),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: Any, limit: float = 120) -> str:
    """Return what a process printed; it has to end well, without a word on the error stream."""
    out, error = process.communicate(timeout=limit)
    assert process.returncode == 0, error
    assert error == ""
    return str(out).strip()


def run_python(text: str, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> str:
    """Run a Python text in a process of its own and return what it printed."""
    return finished(start_python(text, environment, arguments))
