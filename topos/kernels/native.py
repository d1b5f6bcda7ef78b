"""What is LLVM IR by hand: the entries from Python and the thread team.

`entry` is a C method (``METH_FASTCALL``): it takes integers, drops the GIL, sets the floating-point
control word, walks a program with `loops.execute`, and puts everything back. `launch`, and the methods of tensors, take
tensors, and write a table of banks of their own (``native_calls.ll``); `begin` puts what a run is fed in place, and `finish`
walks (``native_runs.ll``). The team is a block of int64 words and threads parked in `worker`; `fan` hands a row to those who
are awake, task by task.
"""

import re
from pathlib import Path
from typing import Any

from topos.kernels.target import Target

# The texts that make up the module.
TEXTS = "native", "native_calls", "native_runs"

# Words of a team; each group that several threads write has a cache line (8 words) of its own.
FAN, TICKET, DONE = 0, 8, 16
KERNEL, ROW, BANKS, TASKS = 24, 25, 26, 27
RUNNING, QUIT, BUSY, SLEEPING = 32, 40, 48, 56
TEAM_WORDS = 64

# Element operations up to which a call keeps the GIL: some microseconds.
BRIEF = 2048

# Turns of the wait loop before a worker yields its core to the system.
SPINS = 256

# Times that a worker yields its core after a run before it sleeps: some 30 us, while the next run may come.
LINGER = 64


def _futex(target: Target, wake: bool) -> str:
    """On Linux, wait while the running word is 0 or wake all who do; elsewhere workers poll."""
    if target.system != "linux":
        return "" if wake else "  call i32 @usleep(i32 200)\n"
    number = 202 if target.family == "x86" else 98
    operation, value = (129, 2**31 - 1) if wake else (128, 0)
    arguments = f"i64 {number}, ptr %prunning, i64 {operation}, i64 {value}, i64 0, i64 0, i64 0"
    return f"  call i64 (i64, ...) @syscall({arguments})\n"


def module(target: Target) -> str:
    """Return the IR of `entry`, of what else Python calls, of the team, and of the control-word helpers."""
    from string import Template

    words: dict[str, Any] = {name: value for name, value in globals().items() if name.isupper()}
    words |= {"park": _futex(target, wake=False), "wake": _futex(target, wake=True)}
    text = _text(*TEXTS).replace("$control", _text(f"native_{target.family}")).replace("$wait", _text("native_wait"))
    return Template(text).substitute(words)


def parts() -> list[str]:
    """Return what the module offers."""
    return re.findall(r"^define (?!internal)\w+ @(\w+)", _text(*TEXTS), re.MULTILINE)


def _text(*names: str) -> str:
    return "".join(Path(__file__).with_name(f"{name}.ll").read_text(encoding="utf-8") for name in names)
