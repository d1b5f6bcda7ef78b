"""Loops (`fused`) that are made beside the runs of a program, one after the other, in a thread that nobody waits for."""

import atexit
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from topos.kernels import store

_thread: threading.Thread | None = None
_wanted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

# Held while a loop is made: a fork and the end of the process wait for that one, since LLVM is not to be left half-way.
_working = threading.RLock()


def later(text: str, code: Any, position: int) -> None:
    """Write the address of a loop into a word of a program: now where it is known, else when it is made.

    A program that is gone by then is passed over. Where no thread can be started its steps run one by one.
    """
    global _thread
    address = store.known(text)
    if address is not None:
        code[position] = address
        return
    _wanted.put(functools.partial(_make, text, weakref.ref(code), position))
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_serve, name="topos-loops", daemon=True)
        with suppress(RuntimeError):
            _thread.start()


def settle() -> None:
    """Wait until every loop that was asked for is in place."""
    done = threading.Event()
    _wanted.put(done.set)
    while _thread is not None and _thread.is_alive() and not done.wait(0.1):
        pass


def _serve() -> None:
    """Do what is wanted, for as long as the process lives; two that start at once take turns."""
    while True:
        job = _wanted.get()
        with _working:
            job()


def _make(text: str, code: Any, position: int) -> None:
    """Make a loop for a program that is still there; one that fails is said in the log, and is missed by nobody."""

    def make(name: str) -> tuple[str, bytes]:
        from topos.kernels import fused  # takes 20 ms, and the store may have the loop

        return fused.made(text, name)

    program = code()
    try:
        if program is not None:
            program[position] = store.made(text, make)
    except Exception:
        import logging

        logging.getLogger("topos").exception("no loop was made for %s", text)


def _in_child() -> None:
    """A child has none of its parent's threads, and none of what they were to do."""
    global _thread, _wanted, _working
    _thread, _wanted, _working = None, queue.SimpleQueue(), threading.RLock()


atexit.register(lambda: _working.acquire())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _working.acquire(), after_in_parent=lambda: _working.release(), after_in_child=_in_child
    )
