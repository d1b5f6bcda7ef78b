"""The two pieces that are LLVM IR by hand (``native.ll``): the entries from Python, and the thread team.

`entry` is a C method (``METH_FASTCALL``): it takes integers, drops the GIL, sets the floating-point
control word, walks a program with `loops.execute`, and puts everything back. `launch` takes tensors, and writes a
table of banks of its own (``native_calls.ll``); `begin` puts what a run is fed in place, and `finish` walks
(``native_runs.ll``). The team is a block of int64 words and threads
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
METHODS = 32
CALLS = tuple(f"call{i}" for i in range(METHODS))
PYTHON = "launch", "remember", "adopt", "buffer_address", "idle", "begin", "finish"
PARTS = (*PYTHON, "worker", "fan", "quit", "control_read", "control_write", *CALLS)

# The words of methods that precede their functions (``native_calls.ll``).
FACTS = 8

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

    call = """define ptr @{0}(ptr %self, ptr %arguments, i64 %count, ptr %names) {{
  %made = tail call ptr @call(ptr %self, ptr %arguments, i64 %count, ptr %names, i64 {1})
  ret ptr %made
}}"""
    words = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}
    text = "".join(map(_text, ("native", "native_calls", "native_runs")))
    return Template(text).substitute(
        words,
        control=_text(f"native_{target.family}"),
        three=_integers(3),
        walked=_words("class head execute code end work largest told variable value second other"),
        frames=_words(
            "class head none float dict take address_at alone_at memory_at table_at fed_at held_at tensors_at"
        ),
        runs=_words(
            "bank none tables bound ran buffer_at address_at held_at tensors_at "
            "lowered_at parameters_at fed_at frame_at source_at schedule_at",
            12,
        ),
        facts=_words("head tensor element_at layout_at walk_at integer axial calls"),
        methods="\n".join(call.format(name, i) for i, name in enumerate(CALLS)),
        made=_words(
            "size allocate asked none tensor result kept element_at buffer_at layout_at selection_at offset_at", 12
        ),
        nine=_integers(9),
        wait=_WAIT,
        park=_futex(target, wake=False),
        wake=_futex(target, wake=True),
    )


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.ll").read_text(encoding="utf-8")
