"""Native entries, the control word, the thread team, and forks, on the graphs of `digest_program`."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
import types
import weakref
from typing import Any

import numpy as np
import pytest

import topos
from tests.helpers import native_entries
from tests.kernels import digest_program
from tests.kernels.calls import child_environment, run_python
from tests.kernels.digest_program import control, set_control
from topos import Tape, UsageError
from topos.kernels import native, rows, runtime, store

pytestmark = pytest.mark.usefixtures("settings")


def recorded() -> tuple[Any, Any, Any]:
    """Return (network, parameter, loss) whose values, gradient and sums are subnormal in part."""

    def build(tape: Tape) -> Any:
        x = tape.parameter(np.linspace(-3e-38, 3e-38, 3000).astype(np.float32).reshape(60, 50))
        product = (x * 0.25) @ tape.leaf(np.full((50, 3), 0.125))
        return x.symbol, ((product * 0.5).sum_along(0) * 1e-30).sum().symbol

    network, (x, loss) = Tape.record(build)
    return network, x, loss


def outcome(network: Any, x: Any, loss: Any) -> bytes:
    """Return the bytes of every value and of the parameter's gradient."""
    run = network.forward(network.parameters())
    gradient = run.backward(loss).of(x)
    return b"".join(run.of(node.symbol).numpy().tobytes() for node in network.nodes()) + gradient.numpy().tobytes()


# ---- entries


def test_a_run_is_one_native_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first run, `forward` enters native code once and `backward` once, for graphs of any size."""
    entered = native_entries(monkeypatch)
    graphs = [(*recorded()[::2], {}), *digest_program.recorded(range(3))]
    for network, loss, feeds in graphs:
        network.forward(network.parameters(), feeds).backward(loss)
    entered.clear()
    for network, loss, feeds in graphs:
        run = network.forward(network.parameters(), feeds)
        assert len(entered) == 1
        gradients = run.backward(loss)
        assert len(entered) == 2
        for node in network.nodes():
            run.of(node.symbol).numpy()
            gradients.of(node.symbol).numpy()
        assert len(entered) == 2
        entered.clear()


# ---- the control word


def test_subnormals_are_real_in_these_tests() -> None:
    """The graph has subnormal values and gradients, and the switch does flush them outside a run."""
    network, *_ = recorded()
    run = network.forward(network.parameters())
    tiny = np.finfo(np.float32).tiny
    subnormal = 0
    for node in network.nodes():
        values = np.abs(run.of(node.symbol).numpy())
        subnormal += int(((values > 0) & (values < tiny)).sum())
    assert subnormal > 1000
    a = np.full(64, 1e-40, np.float32)
    with digest_program.flush_to_zero():
        flushed = (a * np.float32(1.0)).view(np.uint32).tolist()
    assert set(flushed) == {0}
    assert (a * np.float32(1.0)).view(np.uint32).tolist() == a.view(np.uint32).tolist()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_keeps_subnormals_where_another_library_flushes(threads: int) -> None:
    """Flush-to-zero is on, also while the team starts: the bits of a clean run, and the word is put back."""
    network, x, loss = recorded()
    runtime.set_num_threads(1)
    clean = outcome(network, x, loss)
    runtime.set_grain(0)
    before = control()
    with digest_program.flush_to_zero():
        word = control()
        assert word != before
        runtime.set_num_threads(4)
        outcome(network, x, loss)  # a team that starts flushed
        runtime.set_num_threads(threads)
        assert outcome(network, x, loss) == clean
        assert control() == word
    assert control() == before


def test_the_word_of_a_clean_process_is_put_back() -> None:
    """A rounding mode that the caller chose holds again after a run, and did not reach the run."""
    network, x, loss = recorded()
    clean = outcome(network, x, loss)
    before = control()
    upward = before | (0x4000 if before == 0x1F80 else 1 << 22)
    run = network.forward(network.parameters())
    set_control(upward)
    try:
        run = network.forward(network.parameters())
        gradients = run.backward(loss)
        after = control()
    finally:
        set_control(before)
    assert after == upward
    values = b"".join(run.of(node.symbol).numpy().tobytes() for node in network.nodes())
    assert values + gradients.of(x).numpy().tobytes() == clean


# ---- threads


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """Every row of graphs over all kernels and elements is shared by 1, 2, 3 and 5 threads: one digest."""
    graphs = digest_program.recorded(range(4))
    runtime.set_grain(0)
    found = set()
    for threads in (1, 2, 3, 5):
        runtime.set_num_threads(threads)
        found |= {digest_program.digest(graphs) for _ in range(2)}
    assert len(found) == 1


def test_python_threads_share_the_team() -> None:
    """Eight threads run one network at once; whoever finds the team busy runs alone, and all are right."""
    network, x, loss = recorded()
    clean = outcome(network, x, loss)
    runtime.set_num_threads(3)
    runtime.set_grain(0)
    start = threading.Barrier(8)
    wrong: list[int] = []
    done: list[int] = []

    def hammer() -> None:
        start.wait()
        wrong.extend(turn for turn in range(40) if outcome(network, x, loss) != clean)
        done.append(1)

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 8
    assert wrong == []


TEAMS = """
import faulthandler, threading
import numpy as np
import topos
from topos.kernels import runtime
faulthandler.dump_traceback_later(100, exit=True)
def build(tape):
    return (tape.parameter(np.linspace(-1, 1, 1600).reshape(40, 40)) * 2.0).sum_along(0).sum().symbol
network, loss = topos.Tape.record(build)
table = network.parameters()
runtime.set_grain(0)
"""


def test_a_team_serves_from_its_first_row() -> None:
    """Teams begin and end 200 times, each asked to work while its threads are still starting."""
    text = (
        TEAMS
        + """
expected = network.forward(table).of(loss).scalar()
for turn in range(200):
    runtime.set_num_threads(2 + turn % 3)
    assert network.forward(table).of(loss).scalar() == expected
print("done", len([t for t in threading.enumerate() if t.name.startswith("topos-")]) <= 3)
"""
    )
    assert run_python(text, child_environment()) == "done True"


def test_the_thread_count_may_change_while_others_run() -> None:
    """A team that ends waits for the run that holds it: no run loses its workers halfway."""
    text = (
        TEAMS
        + """
expected = network.forward(table).of(loss).scalar()
wrong, stop = [], []
def work():
    while not stop:
        if network.forward(table).of(loss).scalar() != expected:
            wrong.append(1)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for turn in range(150):
    runtime.set_num_threads(1 + turn % 4)
    network.forward(table)
stop.append(1)
for thread in threads:
    thread.join()
print("done", wrong)
"""
    )
    assert run_python(text, child_environment()) == "done []"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere workers poll and never sleep")
def test_workers_linger_then_sleep_then_wake() -> None:
    """Runs that follow one another, or come after a pause in which every worker sleeps: the same bits."""
    network, x, loss = recorded()
    runtime.set_num_threads(1)
    expected = outcome(network, x, loss)
    runtime.set_num_threads(3)
    runtime.set_grain(0)
    for _ in range(5):
        for _ in range(20):
            assert outcome(network, x, loss) == expected
        team = (ctypes.c_int64 * native.TEAM_WORDS).from_address(runtime._team_of(3).address)
        deadline = time.monotonic() + 60
        while team[native.SLEEPING] != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert team[native.SLEEPING] == 2


def test_a_row_waits_for_no_worker_that_has_not_begun() -> None:
    """Who hands out a row does all tasks of it that nobody claims, each once."""
    store.address("native")
    words = np.zeros(native.TEAM_WORDS, np.int64)
    seen: list[tuple[int, ...]] = []
    record = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(lambda *call: seen.append(call))
    kernel = ctypes.cast(record, ctypes.c_void_p).value
    fan = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(store.address("fan"))
    for tasks in (1, 4, 3):
        seen.clear()
        fan(words.ctypes.data, kernel, 5, 6, tasks)
        assert sorted(seen) == [(5, 6, task, tasks) for task in range(tasks)]


def test_a_team_ends_completely() -> None:
    """All workers leave at once, whether they were starting, parked or spinning."""
    store.address("native")
    for _ in range(30):
        team = runtime._Team(3)
        team.quit()
        assert not any(thread.is_alive() for thread in team.threads)


def test_a_team_of_another_process_is_left_alone() -> None:
    """After a fork the parent's team is no concern of the child: quit does nothing."""
    team = runtime._Team(1)
    process, team.process = team.process, -1
    team.quit()
    assert team.threads[0].is_alive()
    team.process = process
    team.quit()
    assert not team.threads[0].is_alive()


def test_the_child_of_a_fork_starts_its_own_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in a child after a fork forgets the team and its lock; the next run makes another."""
    network, x, loss = recorded()
    runtime.set_num_threads(2)
    runtime.set_grain(0)
    clean = outcome(network, x, loss)
    team, lock = runtime._team, runtime._team_lock
    assert team is not None
    runtime._after_fork()
    assert runtime._team is None
    assert runtime._team_lock is not lock
    assert outcome(network, x, loss) == clean
    assert runtime._team is not team
    team.quit()


FORKED = (
    TEAMS
    + """
import os, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
runtime.set_num_threads(3)
expected = network.forward(table).of(loss).scalar()
stop = []
def work():
    while not stop:
        network.forward(table)
thread = threading.Thread(target=work)
thread.start()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        right = all(network.forward(table).of(loss).scalar() == expected for _ in range(20))
        os._exit(0 if right else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.append(1)
thread.join()
assert network.forward(table).of(loss).scalar() == expected
print(codes)
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_runs() -> None:
    """Children forked while the parent's team works run on teams of their own, right; so does the parent."""
    assert run_python(FORKED, child_environment()) == "[0, 0, 0, 0, 0]"


def test_a_process_that_used_the_team_ends_well() -> None:
    """Exit code 0, nothing on the error stream, with the team parked and with a thread in a run."""
    text = (
        TEAMS
        + """
runtime.set_num_threads(3)
def work():
    while True:
        network.forward(table)
network.forward(table)
threading.Thread(target=work, daemon=True).start()
network.forward(table)
print("end")
"""
    )
    assert run_python(text, child_environment()) == "end"


# ---- settings


def test_the_thread_count() -> None:
    """All cores, or what is set; less than one is an error, and changes nothing."""
    topos.set_num_threads(5)
    assert topos.num_threads() == 5
    for count in (0, -1, 1025, 10**9):
        with pytest.raises(ValueError, match=rf"set_num_threads\({count}\): a run has 1 to 1024 threads"):
            topos.set_num_threads(count)
    for number in (1.5, 2.0, "2", None):
        with pytest.raises(UsageError, match=rf"set_num_threads\({number!r}\): a count of threads is an int"):
            topos.set_num_threads(number)  # type: ignore[arg-type]
    assert topos.num_threads() == 5
    topos.set_num_threads(np.int64(3))  # type: ignore[arg-type]
    assert topos.num_threads() == 3


def tell_meanwhile(act: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with two threads, and once, between the count that native code is told and the telling, do something."""
    network, x, loss = recorded()
    real, acts = runtime._team_of, [act]

    def team_of(threads: int) -> Any:
        team = real(threads)
        if acts:
            acts.pop()()
        return team

    runtime.set_grain(0)
    runtime.set_num_threads(2)
    monkeypatch.setattr(runtime, "_team_of", team_of)
    outcome(network, x, loss)
    assert not acts


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_thread_count_that_is_set_while_native_code_is_told_one_holds(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, with its own team, or asked for."""
    tell_meanwhile(lambda: runtime.set_num_threads(count), monkeypatch)
    told = runtime._told.tolist()
    assert told[1] in (0, count)
    assert told[1] < 2 or (runtime._team is not None and told[2] == runtime._team.address)


def test_threads_that_tell_at_once_tell_of_the_team_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that began earlier does not name a team that has ended meanwhile."""
    network, x, loss = recorded()
    others: list[threading.Thread] = []

    def act() -> None:
        runtime.set_num_threads(3)
        others.append(threading.Thread(target=outcome, args=(network, x, loss)))
        others[0].start()
        others[0].join(0.3)

    tell_meanwhile(act, monkeypatch)
    others[0].join()
    assert runtime._team is not None
    assert runtime._told[1:3].tolist() == [3, runtime._team.address]
    assert runtime._team.workers == 2


def test_a_thread_count_that_is_set_while_the_first_is_read_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says never replaces it."""
    monkeypatch.setattr(runtime, "_threads", None)
    runtime._default.cache_clear()
    monkeypatch.setenv("TOPOS_NUM_THREADS", "")
    monkeypatch.setattr(store, "cores", lambda: (runtime.set_num_threads(5), 2)[1])
    runtime.num_threads()
    runtime._default.cache_clear()
    assert runtime.num_threads() == 5


def test_the_address_of_an_array() -> None:
    """Where its memory starts, read-only or not; what has no memory of one piece is refused."""
    array = np.arange(12.0).reshape(3, 4)
    assert runtime.address(array) == array.ctypes.data
    assert runtime.address(array[1:]) == array.ctypes.data + 32
    array.flags.writeable = False
    assert runtime.address(array) == array.ctypes.data
    with pytest.raises(ValueError, match="contiguous"):
        runtime.address(array[:, 1])
    with pytest.raises(TypeError, match="bytes-like"):
        runtime.address(3)


def test_walks_stop_at_the_first_error() -> None:
    """The walk that reported one is named; those after it are not run."""
    values = np.array([1.0, 2.0, 0.0, 0.0, 5.0])
    row = rows.nonzero("f64", (1, 0))
    code = np.array([store.address(row.kernel), 4 + len(row.words), row.work, 9, *row.words], np.int64)
    errors = np.array([-1, 0], np.int64)
    banks = np.array([[errors.ctypes.data, value.ctypes.data] for value in values.reshape(5, 1)], np.int64)
    start = code.ctypes.data
    assert runtime.enter(start, start + code.nbytes, banks.ctypes.data, 2, 16) == -1
    assert runtime.enter(start, start + code.nbytes, banks.ctypes.data, 5, 16) == 2
    assert errors.tolist() == [9, 0]


class Slotted:
    """What a launch reads and makes: slots alone."""

    __slots__ = ("__weakref__", "array", "element", "more", "offset", "walk")


def slotted(array: Any, offset: int = 0) -> Slotted:
    """Return an operand: elements of an array from an offset on; its walk is a `Slotted` too."""
    made, walk = Slotted(), Slotted()
    made.array, made.element, made.walk, made.more, walk.offset = array, "element", walk, None, offset
    return made


def adder() -> Any:
    """Return the launch that adds 8 numbers of f64."""
    row = rows.elementwise("add.f64", (8,), ((1, 0), 8), [((3 + i, 0), 8, True, (1,)) for i in range(2)])
    words = list(row.words)
    for position, name in row.routines.items():
        words[position] = store.address(name)
    code = np.array([store.address(row.kernel), 4 + len(words), row.work, 9, *words], np.int64)
    slots = *runtime.slots(Slotted, "element", "array", "walk", "more"), *runtime.slots(Slotted, "offset")
    program = types.SimpleNamespace(code=code, total=row.work, work=row.work)
    made = np.empty, (8, np.dtype(np.float64)), None, Slotted, "walk", program
    return runtime.reading(["launch"], made, slots, *runtime.walking(program, []), 8)[0]


def test_a_launch_reads_slots_and_makes_an_object() -> None:
    """Operands start at their offsets; what comes back holds new memory, the element of the first, a walk, and None."""
    numbers = np.arange(24.0)
    launch = adder()
    for threads in (1, 2):
        runtime.set_grain(0 if threads == 2 else 1 << 40)
        found = launch(slotted(numbers), slotted(numbers[8:], 3))
        assert type(found) is Slotted
        assert found.array.tolist() == [i + i + 11 for i in range(8)]
        assert (found.element, found.walk, found.more) == ("element", "walk", None)
        assert not hasattr(found, "offset")


def test_a_launch_keeps_the_counts_of_references() -> None:
    """What it made dies with its last holder; what it was given, and what it holds, is left as it was."""
    numbers, launch = slotted(np.arange(8.0)), adder()
    held = [numbers, numbers.array, numbers.walk, numbers.element, Slotted, None, np.empty]
    first = weakref.ref(launch(numbers, numbers).array)
    assert first() is None
    gc.collect()  # what other tests left behind holds None too
    before = [sys.getrefcount(each) for each in held]
    for _ in range(1000):
        launch(numbers, numbers)
    many = [launch(numbers, numbers) for _ in range(1000)]
    assert sys.getrefcount(many[0].walk) >= 1000
    del many
    gc.collect()
    assert all(abs(sys.getrefcount(each) - was) < 200 for each, was in zip(held, before, strict=True))


def test_a_launch_refuses_what_has_no_memory() -> None:
    """What is no array is asked for its memory, which has to be of one piece; what was allocated is given back."""
    numbers, launch = slotted(np.arange(8.0)), adder()
    packed = launch(numbers, slotted(bytearray(np.arange(8.0).tobytes())))
    assert packed.array.tolist() == [2.0 * i for i in range(8)]
    for wrong, error in ((None, TypeError), (3, TypeError), (np.zeros((8, 2))[:, 1], ValueError)):
        with pytest.raises(error):
            launch(numbers, slotted(wrong))
    with pytest.raises(SystemError):
        launch()

    class Elsewhere(Slotted):
        __slots__ = ()

    other = Elsewhere()
    other.array, other.element, other.walk = numbers.array, "element", numbers.walk
    with pytest.raises(TypeError, match="NoneType"):
        launch(numbers, other)


def test_the_thread_count_of_the_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """TOPOS_NUM_THREADS decides until `set_num_threads` does; what is no number is all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    monkeypatch.setattr(runtime, "_threads", None)
    request.addfinalizer(runtime._default.cache_clear)
    for text, expected in (("7", 7), ("0", 1), ("", cores), ("many", cores), ("20000", 1024)):
        monkeypatch.setenv("TOPOS_NUM_THREADS", text)
        runtime._default.cache_clear()
        assert topos.num_threads() == expected
    monkeypatch.delenv("TOPOS_NUM_THREADS")
    runtime._default.cache_clear()
    assert topos.num_threads() == cores


def test_the_grain() -> None:
    """Rows of less work than the grain wake no thread; beside one that does, those of a quarter are shared too."""
    runtime.set_num_threads(2)
    runtime.set_grain(10_000)
    assert runtime.grain() == 10_000

    def handed_out(*sizes: int) -> int:
        def build(tape: Tape) -> None:
            for size in sizes:
                tape.parameter(np.ones(size)) * 2.0

        network, _ = Tape.record(build)
        table = network.parameters()
        network.forward(table)
        team = runtime._team_of(2)
        ticket = (ctypes.c_int64 * native.TEAM_WORDS).from_address(team.address)
        before = ticket[native.TICKET] >> 16
        network.forward(table)
        return (ticket[native.TICKET] >> 16) - before

    assert handed_out(9_999, 5_000) == 0
    assert handed_out(10_000, 9_999, 2_500, 2_499, 1) == 3
    runtime.set_grain()
    assert runtime.grain() == runtime.GRAIN


def test_a_system_without_threads_is_an_error_that_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second worker cannot start, the first one leaves."""
    started = []

    def start(self: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    real = threading.Thread.start
    monkeypatch.setattr(runtime.threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        runtime._Team(2)
    started[0].join(5)
    assert not started[0].is_alive()


ENDING = """
import gc, sys
import numpy as np
import topos
from topos.kernels import runtime

class Late:
    def __del__(self):
        # Modules are cleared by now: what is called may be refused, as anything in Python then, and crashes nothing.
        try:
            self.out.append((self.a @ self.a + self.a).sum().scalar())
            self.out.append(self.run(self.table, {self.x: self.a}).of(self.y).scalar())
            assert self.out == [12.0, 8.0], self.out
        except (TypeError, AttributeError, ImportError):
            pass

runtime.set_grain(0)
late = Late()
late.out, late.a = [], topos.Tensor(np.ones((2, 2), np.float32))
network, (late.x, late.y) = topos.Tape.record(lambda tape: (lambda x: (x, (x * 2.0).sum()))(tape.input(np.ones((2, 2)))))
late.table, late.run = network.parameters(), network.entry(late.y).lower().forward
late.run(late.table, {late.x: late.a}).of(late.y)
topos.set_num_threads(3)
print((late.a @ late.a + late.a).sum().scalar())
sys.modules["kept until the end"] = late
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fills freed memory by a setting of glibc")
def test_the_end_of_a_process_frees_nothing_that_native_code_points_to() -> None:
    """Modules are cleared in any order: definitions of C methods, words, code and teams stay, and freed memory is filled."""
    environment = child_environment() | {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "2"}
    for text in ("import topos\nprint(topos.Tensor([6.0, 6.0]).sum().scalar())", ENDING):
        assert float(run_python(text, environment)) == 12.0
