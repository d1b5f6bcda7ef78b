"""The two pieces that are LLVM IR by hand (``native.ll``): the entries from Python, and the thread team.

`entry` is a C method (``METH_FASTCALL``): it takes integers, drops the GIL, sets the floating-point
control word, walks a program with `loops.execute`, and puts everything back. `launch` takes arrays, and writes a
table of banks of its own; `fit` puts what a run is fed in place. The team is a block of int64 words and threads
parked in `worker`; `fan` hands a row to those who are awake, task by task.
"""

from pathlib import Path

from topos.kernels.target import Target

# Words of a team; each group that several threads write has a cache line (8 words) of its own.
FAN, TICKET, DONE = 0, 8, 16
KERNEL, ROW, BANKS, TASKS = 24, 25, 26, 27
RUNNING, QUIT, BUSY, SLEEPING = 32, 40, 48, 56
TEAM_WORDS = 64

# What the module offers beside `entry`.
PARTS = ("launch", "fit", "buffer_address", "worker", "fan", "quit", "control_read", "control_write")

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


def _integers(count: int) -> str:
    """Read Python integers: %a0, %a1, ... from the arguments of a METH_FASTCALL method."""
    read = """  %q{0} = getelementptr ptr, ptr %arguments, i64 {0}
  %o{0} = load ptr, ptr %q{0}
  %a{0} = call i64 @PyLong_AsLongLong(ptr %o{0})"""
    return "\n".join(read.format(i) for i in range(count))


def _words(names: str, first: int = 0) -> str:
    """Read words that lie behind one another, the `first` of %words and on: a value for each name."""
    read = "  %p{1} = getelementptr i64, ptr %words, i64 {0}\n  %{1} = load i64, ptr %p{1}"
    return "\n".join(read.format(*pair) for pair in enumerate(names.split(), first))


# The blocks that count a turn of a wait loop and go back to its ``spin``.
_WAIT = f"""wait:
  call void @pause()
  %next = add i64 %turn, 1
  %long = icmp sgt i64 %next, {SPINS}
  br i1 %long, label %yield, label %again
yield:
  %yielded = call i32 @sched_yield()
  br label %again
again:
  br label %spin
"""


def module(target: Target) -> str:
    """Return the IR of `entry`, of what else Python calls, of the team, and of the control-word helpers."""
    from string import Template

    words = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}
    return Template(_text("native")).substitute(
        words,
        control=_text(f"native_{target.family}"),
        five=_integers(5),
        three=_integers(3),
        program=_words("class head execute code end work size"),
        made=_words("allocate asked none tensor result element_at buffer_at layout_at selection_at offset_at", 7),
        nine=_integers(9),
        wait=_WAIT,
        park=_futex(target, wake=False),
        wake=_futex(target, wake=True),
    )


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.ll").read_text(encoding="utf-8")
