"""Loops of arithmetic: the bits of the routines one by one, and where they come from and when."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import ELEMENTS, same_bits, special
from tests.kernels.calls import call_routine, call_row_routine, child_environment, run_python
from topos import Element, Shape, Tensor
from topos.kernels import beside, chains, rows, store
from topos.kernels.maps import FUNCTIONS
from topos.payload.layout import Layout

ARITHMETIC = sorted(set(FUNCTIONS) - set(rows.COST))

LENGTHS = (1, 7, 16, 33, 100)


def address_of(text: str) -> int:
    """Return the address of a loop, once it is there."""
    code = np.zeros(1, np.int64)
    beside.later(text, code, 0)
    beside.settle()
    return int(code[0])


def drawn_loop(seed: int, element: Element) -> tuple[int, list[tuple[str, list[int]]], list[int]]:
    """Return the inputs, the steps and the outputs of some arithmetic: every family, and results of results."""
    chosen, inputs = random.Random(seed), 3
    families = [*ARITHMETIC, *chosen.choices(ARITHMETIC, k=6)]
    chosen.shuffle(families)
    steps = []
    for at, family in enumerate(families[:12]):
        steps.append((family, [chosen.randrange(inputs + at) for _ in range(FUNCTIONS[family].arity)]))
    outputs = sorted(chosen.sample(range(inputs, inputs + len(steps)), 3))
    return inputs, steps, outputs


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(("repeated", "sums"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_a_loop_has_the_bits_of_its_routines(seed: int, repeated: int, sums: int, element: Element) -> None:
    """Every step rounds as its routine does; outputs lie apart or over inputs, and nothing is written behind them.

    The first input may be one value per line, and the last output the sums of the lines.
    """
    name, count = str(element.kernel), 4
    inputs, steps, outputs = drawn_loop(seed, element)
    address = address_of(f"{chains.LOOP_OF}{(name, sums, repeated, inputs, steps, outputs)}")
    for n in LENGTHS:
        sizes = [count if at < repeated else count * n for at in range(inputs)]
        given = [special((size,), element, 10 * n + at).dense_buffer().copy() for at, size in enumerate(sizes)]
        values = [np.repeat(value, n) if at < repeated else value for at, value in enumerate(given)]
        memory = [np.concatenate([value, np.full(40, 7, value.dtype)]) for value in given]
        for family, sources in steps:
            out = np.empty_like(values[-1])
            call_routine(store.address(f"{family}.{name}"), out, *(values[source] for source in sources))
            values.append(out)
        wanted = [values[output] for output in outputs]
        if sums:
            wanted[-1] = np.empty(count, out.dtype)
            call_row_routine(store.address(f"row_sum.{name}"), wanted[-1], values[outputs[-1]], count, n, n)
        for over in (False, True) if not repeated else (False,):
            found = memory if over else [np.full(count * n + 40, 7, out.dtype) for _ in outputs]
            numbers = np.array([4, 0, 2, *range(5, 8)], np.int64)
            table = np.zeros(8, np.int64)
            table[[4, 0, 2]] = [array.ctypes.data for array in memory]
            table[5:] = [array.ctypes.data for array in found]
            call_row_routine(address, table, numbers, count, 0, n)
            for array, expected in zip(found, wanted, strict=True):
                size, layout = len(expected), Layout.dense(Shape((len(expected),)))
                assert same_bits(*(Tensor.of_buffer(element, part, layout) for part in (array[:size], expected)))
                assert over or (array[size:] == 7).all()
                assert (array[count * n :] == 7).all()


def test_equal_texts_are_one_loop() -> None:
    """A loop is made once per process, whoever asks; it is handed over to all."""
    text = f"{chains.LOOP_OF}{('f32', 0, 0, 2, [('add', [0, 1]), ('mul', [2, 0])], [3])}"
    assert address_of(text) == address_of(text)
    code = np.zeros(4, np.int64)
    askers = [threading.Thread(target=beside.later, args=(text, code, asker)) for asker in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    beside.settle()
    assert set(code.tolist()) == {address_of(text)}


def test_a_loop_that_cannot_be_made_is_missed_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is said in the log, and those after it are made; a program that is gone by then is passed over."""
    bad, good = (f"{chains.LOOP_OF}{('f32', 0, 0, 1, [(family, [0, 0])], [1])}" for family in ("nothing", "maximum"))
    code = np.zeros(2, np.int64)
    beside.later(bad, code, 0)
    beside.later(good, code, 1)
    gone = f"{chains.LOOP_OF}{('f32', 0, 0, 1, [('step', [0, 0])], [1])}"
    with beside._working:
        beside.later(gone, np.zeros(1, np.int64), 0)
    beside.settle()
    assert code[0] == 0 != code[1]
    assert "no loop was made" in caplog.text
    assert store.known(good) == code[1]
    assert store.known(gone) is None


def test_without_a_thread_the_steps_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering a plan does not fail where no thread can be started; the next one starts it."""

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    text, code = f"{chains.LOOP_OF}{('f64', 0, 0, 1, [('ratio', [0, 0])], [1])}", np.zeros(2, np.int64)
    monkeypatch.setattr(beside, "_thread", None)
    monkeypatch.setattr(beside, "_wanted", queue.SimpleQueue())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        beside.later(text, code, 0)
        beside.settle()
    assert code.tolist() == [0, 0]
    beside.later(text, code, 1)
    beside.settle()
    assert code[0] == code[1] != 0


PROGRAM = """
import os, sys
import numpy as np
import topos
from topos.kernels import beside

def build(tape):
    x, y = tape.input(np.linspace(-1, 2, 40000)), tape.input(np.linspace(5, 7, 40000))
    return x, y, ((x * y + x) * y - x).maximum(y) * x

network, (x, y, out) = topos.Tape.record(build)
plan = network.entry(out).lower()
program = plan.lowered.program
before = topos.proof.digest(plan.forward(network.parameters()).of(out))
"""

WAITS = """
beside.settle()
assert len(program.loops) == 1 and all(program.code[position] != 0 for position in program.loops)
after = topos.proof.digest(plan.forward(network.parameters()).of(out))
print(before == after == topos.proof.digest(network.forward(network.parameters()).of(out)), "numba" in sys.modules)
"""


@pytest.mark.parametrize("place", ["folder", "off"])
def test_a_plan_is_given_its_loop_while_it_runs(place: str, tmp_path: Path) -> None:
    """Runs before and after have the same bits; where there is a store it keeps the loop, without Numba in the process."""
    kept = {} if place == "folder" else {"TOPOS_CACHE": place}
    assert run_python(PROGRAM + WAITS, child_environment(**kept)) == "True False"


def test_a_process_whose_store_has_the_loop_imports_no_maker_of_loops() -> None:
    """The second process reads it: it imports neither `fused` nor the maps, which takes 20 ms, that its end waits for too."""
    names = "print(*(name for name in sys.modules if name.startswith(('topos.kernels.fused', 'topos.kernels.maps'))))"
    for _ in range(2):
        found = run_python(f"{PROGRAM}{WAITS}{names}", child_environment()).split()
    assert found == ["True", "False"]


def test_a_process_that_ends_while_a_loop_is_made_ends_well() -> None:
    """It waits for the one that is under way, and the thread does not crash what goes down."""
    assert run_python(PROGRAM + "print('done')", child_environment(TOPOS_CACHE="off")) == "done"


def test_a_forked_process_makes_its_own_loops() -> None:
    """A child that is born while its parent makes one has none of its threads, loads kernels, and starts a thread."""
    fork = """
reader, writer = os.pipe()
if os.fork() == 0:
    other, out = topos.Tape.record(lambda tape: (lambda x: -x * x + x)(tape.input(np.linspace(-1, 2, 40000))))
    plan = other.entry(out).lower()
    beside.settle()
    ready = all(plan.lowered.program.code[position] != 0 for position in plan.lowered.program.loops)
    os.write(writer, str(ready and bool(plan.lowered.program.loops)).encode())
    os._exit(0)
os.close(writer)
os.wait()
print(os.read(reader, 100).decode())
"""
    for _ in range(3):
        assert run_python(PROGRAM + fork, child_environment(TOPOS_CACHE="off")) == "True"
