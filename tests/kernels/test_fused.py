"""Loops of arithmetic: the bits of the routines one by one, and where they come from and when."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import ELEMENTS, same_bits, special
from tests.kernels.calls import call_routine, child_environment, run_python
from topos import Element, Shape, Tensor
from topos.kernels import chains, rows, store
from topos.kernels.maps import FUNCTIONS
from topos.payload.layout import Layout

ARITHMETIC = sorted(set(FUNCTIONS) - set(rows.COST))

LENGTHS = (1, 7, 16, 33, 100)


def address_of(text: str) -> int:
    """Return the address of a loop, once it is there."""
    found: list[int] = []
    store.later(text, found.append)
    store.settle()
    return found[0]


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
@pytest.mark.parametrize("seed", range(3))
def test_a_loop_has_the_bits_of_its_routines(seed: int, element: Element) -> None:
    """Every step rounds as its routine does; outputs lie apart or over inputs, and nothing is written behind them."""
    name = str(element.kernel)
    inputs, steps, outputs = drawn_loop(seed, element)
    address = address_of(f"{chains.LOOP_OF}{(name, inputs, steps, outputs)}")
    for n in LENGTHS:
        values = [special((n,), element, 10 * n + i).dense_buffer().copy() for i in range(inputs)]
        held = [np.concatenate([value, np.full(40, 7, value.dtype)]) for value in values]
        for family, sources in steps:
            out = np.empty_like(values[0])
            call_routine(store.address(f"{family}.{name}"), out, *(values[source] for source in sources))
            values.append(out)
        for over in (False, True):
            found = held if over else [np.full(n + 40, 7, values[0].dtype) for _ in outputs]
            numbers = np.array([4, 0, 2, *range(5, 8)], np.int64)
            table = np.zeros(8, np.int64)
            table[[4, 0, 2]] = [array.ctypes.data for array in held]
            table[5:] = [array.ctypes.data for array in found]
            call_routine(address, table, numbers, count=n)
            for array, output in zip(found, outputs, strict=True):
                layout = Layout.dense(Shape((n,)))
                assert same_bits(*(Tensor.of_buffer(element, part, layout) for part in (array[:n], values[output])))
                assert (array[n:] == 7).all()


def test_equal_texts_are_one_loop() -> None:
    """A loop is made once per process, whoever asks; it is handed over to all."""
    text = f"{chains.LOOP_OF}{('f32', 2, [('add', [0, 1]), ('mul', [2, 0])], [3])}"
    assert address_of(text) == address_of(text)
    found: list[int] = []
    askers = [threading.Thread(target=store.later, args=(text, found.append)) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    store.settle()
    assert found == [address_of(text)] * 4


PROGRAM = """
import os, sys
import numpy as np
import topos
from topos.kernels import store

def build(tape):
    x, y = tape.input(np.linspace(-1, 2, 40000)), tape.input(np.linspace(5, 7, 40000))
    return x, y, ((x * y + x) * y - x).maximum(y) * x

network, (x, y, out) = topos.Tape.record(build)
plan = network.entry(out).lower()
program = plan.lowered.program
before = topos.proof.digest(plan.forward(network.parameters()).of(out))
"""

WAITS = """
store.settle()
assert len(program.loops) == 1 and all(program.code[position] != 0 for position in program.loops)
after = topos.proof.digest(plan.forward(network.parameters()).of(out))
print(before == after == topos.proof.digest(network.forward(network.parameters()).of(out)), "numba" in sys.modules)
"""


@pytest.mark.parametrize("place", ["folder", "off"])
def test_a_plan_is_given_its_loop_while_it_runs(place: str, tmp_path: Path) -> None:
    """Runs before and after have the same bits; where there is a store it keeps the loop, without Numba in the process."""
    kept = {} if place == "folder" else {"TOPOS_CACHE": place}
    assert run_python(PROGRAM + WAITS, child_environment(**kept)) == "True False"


def test_a_process_that_ends_while_a_loop_is_made_ends_well() -> None:
    """The thread that makes loops holds nobody up, and does not crash what goes down."""
    assert run_python(PROGRAM + "print('done')", child_environment(TOPOS_CACHE="off")) == "done"


def test_a_forked_process_makes_its_own_loops() -> None:
    """A child has none of its parent's threads, and starts one."""
    fork = """
reader, writer = os.pipe()
store.settle()
if os.fork() == 0:
    other, out = topos.Tape.record(lambda tape: (lambda x: -x * x + x)(tape.input(np.linspace(-1, 2, 40000))))
    plan = other.entry(out).lower()
    store.settle()
    ready = all(plan.lowered.program.code[position] != 0 for position in plan.lowered.program.loops)
    os.write(writer, str(ready and bool(plan.lowered.program.loops)).encode())
    os._exit(0)
os.close(writer)
os.wait()
print(os.read(reader, 100).decode())
"""
    assert run_python(PROGRAM + fork, child_environment()) == "True"
