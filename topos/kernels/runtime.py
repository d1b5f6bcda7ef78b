"""Running programs: the native entry, the thread team, how many threads there are, the error word."""

from __future__ import annotations

import atexit
import ctypes
import functools
import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topos.errors import UsageError
from topos.kernels import native, store

# Work (element operations) from which on a row is shared by the thread team.
#
# Handing a row to a spinning worker costs 0.6 us, waking one that sleeps 25 to 165 us: workers stay awake for a
# while after a run (`native.LINGER`).
GRAIN = 1 << 16

_grain = GRAIN
_threads: int | None = None
_team_lock = threading.Lock()
_team: _Team | None = None


def num_threads() -> int:
    """Return how many threads a run may use: all cores, ``TOPOS_NUM_THREADS``, or `set_num_threads`."""
    global _threads
    if _threads is None:
        text = os.environ.get("TOPOS_NUM_THREADS", "")
        _threads = max(1, int(text)) if text.isdigit() else store.cores()
    return _threads


def set_num_threads(count: int) -> None:
    """Let runs use `count` threads from now on; the bits of no result depend on it."""
    global _threads
    try:
        wanted = operator.index(count)
    except TypeError:
        raise UsageError(f"set_num_threads({count!r}): a count of threads is an int") from None
    if wanted < 1:
        raise ValueError(f"set_num_threads({count}): a run needs at least 1 thread")
    _threads = wanted


def set_grain(work: int = GRAIN) -> None:
    """Share rows of at least `work` element operations among the threads (tests force 0)."""
    global _grain
    _grain = int(work)


def grain() -> int:
    """Return the work from which on a row is shared."""
    return _grain


class _Team:
    """Worker threads of this process, parked in emitted code between runs."""

    def __init__(self, workers: int) -> None:
        self.workers, self.process = workers, os.getpid()
        # Aligned by hand: words that several threads write must not share a cache line with others.
        self.words = np.zeros(native.TEAM_WORDS + 8, np.int64)
        self.address = (self.words.ctypes.data + 63) // 64 * 64
        team = (ctypes.c_int64 * native.TEAM_WORDS).from_address(self.address)
        team[native.FAN] = store.address("fan")
        body = ctypes.CFUNCTYPE(None, ctypes.c_int64)(store.address("worker"))
        worker = functools.partial(threading.Thread, target=body, args=(self.address,), daemon=True)
        self.threads = [worker(name=f"topos-{1 + i}") for i in range(workers)]
        try:
            for thread in self.threads:
                thread.start()
        except RuntimeError:
            # The system gives no more threads: those that run go on reading these words until they leave.
            self.threads = [thread for thread in self.threads if thread.ident is not None]
            _retired.append(self)
            self.quit()
            raise

    def quit(self) -> None:
        """End the workers; they leave at their next look at the team."""
        if self.process == os.getpid():
            ctypes.CFUNCTYPE(None, ctypes.c_int64)(store.address("quit"))(self.address)
            for thread in self.threads:
                thread.join(1.0)


def _team_of(threads: int) -> _Team:
    """Return a team of at least `threads` - 1 workers; a forked child gets a new one."""
    global _team
    team = _team
    if team is None or team.workers != threads - 1 or team.process != os.getpid():
        with _team_lock:
            if _team is not None and (_team.workers != threads - 1 or _team.process != os.getpid()):
                _retired.append(_team)
                _team.quit()
                _team = None
            if _team is None:
                _team = _Team(threads - 1)
            team = _team
    return team


# Teams that ended: their words stay in memory, in case a worker looks once more.
_retired: list[_Team] = []


def _after_fork() -> None:
    """A child has no worker threads, and may hold a lock that another thread of its parent held."""
    global _team, _team_lock
    _team, _team_lock = None, threading.Lock()


def _at_exit() -> None:
    if _team is not None:
        _team.quit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


class _MethodDefinition(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (("name", ctypes.c_char_p), ("body", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


# NumPy's class, and the bytes of an object's head: native code reads where an array lies as NumPy's extensions do.
ARRAYS = id(np.ndarray), object.__basicsize__

# Work that is not known: any row may be worth a team.
ALL = 1 << 62


# What the C methods of each part point to: the first that a thread made stays.
_definitions: dict[str, _MethodDefinition] = {}


def method(part: str, held: tuple[Any, ...] | None = None) -> Callable[..., Any]:
    """Return a part of the native module as a C method (0.1 us a call; ctypes takes 1.5) of what it holds."""
    store.address("native")
    made = _MethodDefinition(part.encode(), store.address(part), 0x80, None)  # METH_FASTCALL
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make(ctypes.addressof(_definitions.setdefault(part, made)), held, None)  # type: ignore[no-any-return]


@functools.cache
def _entry() -> tuple[Callable[..., int], int]:
    """Return the native entry over a table of banks, and the executor's address."""
    return method("native"), store.address("execute")


@functools.cache
def _address() -> Callable[[Any], int]:
    words = np.array(ARRAYS, np.int64)
    return method("buffer_address", (words.ctypes.data, words))


def address(array: Any) -> int:
    """Return where a contiguous array's memory starts (`array.ctypes.data` takes five times as long)."""
    return _address()(array)


def shared(work: int) -> tuple[int, int, int]:
    """Return the address of the team for rows of up to that work, how many threads it makes, and the grain.

    The team is woken only for a row that it will share.
    """
    if work < _grain:
        return 0, 1, 0
    threads = num_threads()
    return (_team_of(threads).address if threads > 1 else 0), threads, _grain


def enter(code: int, end: int, banks: int, count: int = 1, stride: int = 0, work: int = ALL) -> int:
    """Walk the rows from `code` to `end`: one native entry, the GIL released, the control word set.

    `count` walks follow one another, each with a table of banks `stride` bytes further, up to the first that
    reports an error, which is returned, or -1. `work` is that of the largest row, where it is known: the team
    is woken only for a row that it will share.
    """
    entry, execute = _entry()
    if work < _grain:
        return entry(execute, code, end, banks, 0, 1, 0, count, stride)
    return entry(execute, code, end, banks, *shared(work), count, stride)


def slots(example: Any, *names: str) -> list[int]:
    """Return where these slots lie in every object of a class, in bytes: in the example, each holds another object."""
    words = list((ctypes.c_int64 * (type(example).__basicsize__ // 8)).from_address(id(example)))
    return [8 * words.index(id(getattr(example, name))) for name in names]


def launcher(code: Any, work: int, size: int, made: tuple[Any, ...], slots: Sequence[int]) -> Callable[..., Any]:
    """Return the C method that computes a tensor of tensors: ``launch(*shared(work), operands)`` walks the rows in `code`.

    The banks are the operands', which are of `size` bytes an element. `made` and `slots` say what comes back, in the
    order of ``native.ll``. `work` is that of all rows.
    """
    facts = *ARRAYS, store.address("execute"), code.ctypes.data, code.ctypes.data + code.nbytes, work, size
    words = np.array([*facts, *map(id, made), *slots], np.int64)
    return method("launch", (words.ctypes.data, words, code, made))
