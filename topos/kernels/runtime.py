"""Running programs: the native entry, the thread team, how many threads there are, the error word."""

import atexit
import ctypes
import functools
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from topos.errors import UsageError
from topos.kernels import native, store

# Work (element operations) of a row for which the thread team is woken.
#
# Waking a worker that sleeps costs 25 to 165 us, so they stay awake for a while after a run (`native.LINGER`). Handing a
# row to one that is awake costs 0.6 us: beside such a row, those of a quarter of its work are shared too (`native.ll`).
GRAIN = 1 << 16

# Threads that a run may have: more than there are cores anywhere, and fewer than a ticket of `native.ll` counts tasks.
MOST = 1024

_threads: int | None = None
_team_lock = threading.RLock()  # a signal may be handled, by code that runs a plan, while this thread makes a team


def num_threads() -> int:
    """Return how many threads a run may use: all cores, ``TOPOS_NUM_THREADS``, or `set_num_threads`.

    >>> num_threads() >= 1
    True
    """
    return _threads or _default()


@functools.cache
def _default() -> int:
    """Return how many threads there are where nobody set it (kept apart, so that it never replaces what somebody sets)."""
    text = os.environ.get("TOPOS_NUM_THREADS", "")
    return min(max(1, int(text) if text.isdecimal() else store.cores()), MOST)


def set_num_threads(count: int) -> None:
    """Let runs use `count` threads from now on; the bits of no result depend on it.

    Raises:
        UsageError: the count is no int.
        ValueError: it is below 1, or above `MOST`.

    >>> before = num_threads()
    >>> set_num_threads(2)
    >>> num_threads()
    2
    >>> set_num_threads(before)
    """
    global _threads
    try:
        wanted = operator.index(count)
    except TypeError:
        raise UsageError(f"set_num_threads({count!r}): a count of threads is an int") from None
    if not 1 <= wanted <= MOST:
        raise ValueError(f"set_num_threads({count}): a run has 1 to {MOST} threads")
    _threads = wanted
    _told[1] = 0  # after the count: see `_tell`


def set_grain(work: int = GRAIN) -> None:
    """Wake the threads for rows of at least `work` element operations (tests force 0)."""
    _told[0] = int(work)


def grain() -> int:
    """Return the work of a row for which the threads are woken."""
    return int(_told[0])


class _Team:
    """Worker threads of this process, parked in emitted code between runs."""

    def __init__(self, workers: int) -> None:
        self.workers, self.process = workers, os.getpid()
        # Aligned by hand: words that several threads write must not share a cache line with others.
        words = store.forever(np.zeros(native.TEAM_WORDS + 8, np.int64))  # a worker may look once more
        self.address = (words.ctypes.data + 63) // 64 * 64
        team = (ctypes.c_int64 * native.TEAM_WORDS).from_address(self.address)
        team[native.FAN] = store.address("fan")
        body = ctypes.CFUNCTYPE(None, ctypes.c_int64)(store.address("worker"))
        worker = functools.partial(threading.Thread, target=body, args=(self.address,), daemon=True)
        self.threads = [worker(name=f"topos-{1 + i}") for i in range(workers)]
        try:
            for thread in self.threads:
                thread.start()
        except RuntimeError:
            # The system gives no more threads: those that run leave.
            self.threads = [thread for thread in self.threads if thread.ident is not None]
            self.quit()
            raise

    def quit(self) -> None:
        """End the workers; they leave at their next look at the team."""
        if self.process == os.getpid():
            ctypes.CFUNCTYPE(None, ctypes.c_int64)(store.address("quit"))(self.address)
            for thread in self.threads:
                thread.join(1.0)


def _team_of(threads: int) -> _Team:
    """Return the team of `threads` - 1 workers; a forked child gets a new one. Who asks holds the lock."""
    global _team
    if _team is not None and (_team.workers != threads - 1 or _team.process != os.getpid()):
        _team.quit()
        _team = None
    if _team is None:
        _team = _Team(threads - 1)
    return _team


_team: _Team | None = None


def _after_fork() -> None:
    """A child has no worker threads, and may hold a lock that another thread of its parent held."""
    global _team, _team_lock
    _told[1] = 0
    _team, _team_lock = None, threading.RLock()


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
    definition = store.forever(_definitions.setdefault(part, made))
    return make(ctypes.addressof(definition), held, None)  # type: ignore[no-any-return]


def reading(parts: Sequence[str], held: tuple[Any, ...], slots: Sequence[int], *facts: int) -> list[Callable[..., Any]]:
    """Return parts as C methods that share words: how arrays are read, facts, objects, and where slots lie."""
    words = np.array([*ARRAYS, *facts, *map(id, held), *slots], np.int64)
    return [method(part, (words.ctypes.data, words, held)) for part in parts]


def walking(program: Any, guards: Sequence[tuple[Any, Any]]) -> tuple[int, ...]:
    """Return the numbers by which native code walks a program, where variables of the context have their values.

    They are the executor, the rows, their work, that of the largest, where what native code is told lies, and up to two
    pairs of `guards`.
    """
    code, pairs = program.code, [id(each) for pair in guards for each in pair]
    rows = code.ctypes.data, code.ctypes.data + code.nbytes, program.total, program.work
    return store.address("execute"), *rows, _told.ctypes.data, *pairs, *[0] * (4 - len(pairs))


@functools.cache
def _entry() -> tuple[Callable[..., int], int, int]:
    """Return the native entry over a table of banks, the executor's address, and where `_told` lies."""
    return method("native"), store.address("execute"), _told.ctypes.data


@functools.cache
def _address() -> Callable[[Any], int]:
    return reading(["buffer_address"], (), ())[0]


def address(array: Any) -> int:
    """Return where a contiguous array's memory starts (`array.ctypes.data` takes five times as long)."""
    return _address()(array)


def _tell() -> None:
    """Tell native code how many threads there are, and where their team is: of those who tell, one at a time.

    `set_num_threads` waits for nobody. What it sets while this tells is told too, or it makes native code ask again.
    """
    with _team_lock:
        threads = 0
        while threads != num_threads():
            threads = num_threads()
            _told[1:3] = threads, _team_of(threads).address if threads > 1 else 0


# What native code reads: the grain, how many threads there are (0: it has to ask), the address of their team, whom to ask.
_told = store.forever(np.array([GRAIN, 0, 0, id(store.forever(_tell))], np.int64))


def enter(code: int, end: int, banks: int, count: int = 1, stride: int = 0, work: int = ALL) -> int:
    """Walk the rows from `code` to `end`: one native entry, the GIL released, the control word set.

    `count` walks follow one another, each with a table of banks `stride` bytes further, up to the first that
    reports an error, which is returned, or -1. `work` is that of the largest row, where it is known: the team
    is woken only for a row that it will share.
    """
    entry, execute, told = _entry()
    return entry(execute, code, end, banks, told, count, stride, work)


def slots(kind: Any, *names: str) -> list[int]:
    """Return where the slots of a class lie in every object of it, in bytes: in an example, each holds another object."""
    example, held = kind.__new__(kind), [object() for _ in names]
    for name, each in zip(names, held, strict=True):
        setattr(example, name, each)
    words = list((ctypes.c_int64 * (kind.__basicsize__ // 8)).from_address(id(example)))
    return [8 * words.index(id(each)) for each in held]


def methods(kind: type, slots: Sequence[int], turned: int, axial: int, named: Mapping[str, tuple[Any, Any]]) -> None:
    """Give a class of tensors C methods, which compute what `remember` was told of at once.

    A method that is not the plain one any more stays: a user put it there, or another thread that does the same. So this
    may be done again, and left half done. A C method takes what the plain one takes: it belongs to the same class.

    Arguments:
        kind: the class.
        slots: where its element and layout, and a layout's walk, lie.
        turned: the first method whose operands are turned round.
        axial: the first method that takes axes.
        named: per method, what computes it for any arguments, and what also lets native code remember them.
    """
    calls, functions = np.zeros(9 << 10, np.int64), [function for pair in named.values() for function in pair]
    facts = object.__basicsize__, id(kind), *slots, id(int), id(float), turned, axial, calls.ctypes.data
    words = np.array([*facts, *map(id, functions)], np.int64)
    store.forever((calls, words, functions))
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(store.address("adopt"))(words.ctypes.data)
    make = ctypes.pythonapi.PyDescr_NewMethod
    make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.c_void_p]
    for i, (name, (plain, _)) in enumerate(named.items()):
        names = ", ".join(["$self", *plain.__code__.co_varnames[1 : plain.__code__.co_argcount]])
        text = f"{name}({names})\n--\n\n{plain.__doc__ or ''}".encode()
        # METH_FASTCALL | METH_KEYWORDS
        made = store.forever(_MethodDefinition(name.encode(), store.address(f"call{i}"), 0x82, text))
        owner = kind.__base__ if hasattr(kind.__base__, name) else kind
        if getattr(kind, name) is plain:
            setattr(kind, name, make(owner, ctypes.addressof(made)))
