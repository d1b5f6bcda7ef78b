"""What other compilers make of the text: agreement with topos, plans served by symbol, and what is refused."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.drawn import drawn_graph
from tests.emission import training
from tests.emission.envelope import FACTOR, UNIT, difference, excess, fed, is_subnormal, report, walks
from tests.emission.graphs import recorded
from tests.helpers import ELEMENTS, drawn
from topos import F32, Backend, BackendUnavailable, EmitError, FeedError, Tape, UnreadableError, max_pool

pytest.importorskip("jax", reason="the extra stablehlo is not installed")

from topos import stablehlo

# ---- drawn graphs

PER_ELEMENT, TOGETHER = 125, 25

QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Options under which XLA compiles in a quarter of the time."""


class Prepared:
    """A drawn graph, the text and arguments of its loss and of every sum in it, and how far others may be from ours."""

    def __init__(self, seed: int, element: Any) -> None:
        self.graph = graph = drawn_graph(seed, element)
        # A NaN in the loss hides much of what it was made of.
        sums = [node.symbol for node in graph.network.nodes() if node.name == "Sum"]
        plan = graph.network.entry([graph.loss, *sums]).lower()
        self.text, self.arrays = plan.emit_stablehlo(), fed(plan, graph.network.parameters(), graph.feeds)
        self.run, walked = graph.run(), walks(graph.network, graph.feeds)
        self.results = []
        for symbol in plan.results:
            ours, runs = self.run.of(symbol).numpy(), [values[symbol].numpy() for values in walked]
            # Runs that agree on a zero may still have cancelled numbers near 1: logsumexp of a log_softmax.
            apart = difference(ours, runs, UNIT[graph.element.name]) or UNIT[graph.element.name]
            self.results.append((ours, FACTOR * apart))

    def ratio(self, found: Sequence[Any]) -> float:
        """Return the largest error of what was found for the results, over its envelope."""
        return max(excess(there, *ours) for there, ours in zip(found, self.results, strict=True))

    def is_beyond_xla(self) -> bool:
        """Return whether XLA on the CPU is known to differ: subnormals, and sines of large numbers (case 32)."""
        nodes = self.graph.network.nodes()
        for node in nodes:
            if node.name in ("Sin", "Cos"):
                given = self.run.of(node.operands[0]).numpy().astype(float)
                if np.any(np.abs(given) > 1e4, where=np.isfinite(given)):
                    return True
        return is_subnormal((self.run.of(node.symbol) for node in nodes), self.graph.element.name)


def together(texts: list[str]) -> str:
    """Join modules into one, whose main calls the mains of all: a compiler starts once."""
    functions, arguments, calls, results, count = [], [], [], [], 0
    for number, text in enumerate(texts):
        body = text.split("\n", 1)[1].rpartition("}")[0]
        functions.append(body.replace("func.func @main", f"func.func private @main{number}"))
        taken = re.findall(r"^    %arg\d+: (tensor<\S+?>),?  //", text, re.MULTILINE)
        (given,) = re.findall(r"^  \) -> \((.*)\) \{$", text, re.MULTILINE)
        names = [f"%a{count + i}" for i in range(len(taken))]
        count += len(taken)
        arguments += [f"{name}: {kind}" for name, kind in zip(names, taken, strict=True)]
        kinds = given.split(", ")
        results += [(f"%r{number}#{i}", kind) for i, kind in enumerate(kinds)]
        target = f"%r{number}:{len(kinds)} = call @main{number}"
        calls.append(f"{target}({', '.join(names)}) : ({', '.join(taken)}) -> ({given})")
    names, kinds = (", ".join(column) for column in zip(*results, strict=True))
    head = f"func.func @main({', '.join(arguments)}) -> ({kinds}) {{"
    return "\n".join(["module {", *functions, head, *calls, f"return {names} : {kinds}", "}", "}"])


def on_xla(some: list[Prepared], options: Any) -> list[float]:
    """Return the error over its envelope of every graph, all compiled as one module."""
    program = stablehlo.compile(together([each.text for each in some]), options=options)
    found = iter(program(*[array for each in some for array in each.arrays]))
    return [each.ratio(list(itertools.islice(found, len(each.results)))) for each in some]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_drawn_graphs(element: Any) -> None:
    """125 graphs per element, 500 in all, are within their envelopes on the reference interpreter and on XLA.

    Graphs beyond XLA are interpreted, and others drawn in their place. XLA compiles quickly, several together. Where a
    graph is outside its envelope then, XLA as users run it judges: fusions of the quick way compute a value twice, in
    two ways, which a difference of two large numbers shows.
    """
    chosen: list[Prepared] = []
    worst = {"the interpreter": 0.0, "XLA": 0.0}
    seed = again = 0
    while len(chosen) < PER_ELEMENT:
        each = Prepared(seed, element)
        ratio = each.ratio(stablehlo.interpret(each.text, each.arrays))
        assert ratio <= 1, each.graph
        worst["the interpreter"] = max(worst["the interpreter"], ratio)
        chosen += [] if each.is_beyond_xla() else [each]
        seed += 1
    assert seed < 1.25 * PER_ELEMENT
    for first in range(0, PER_ELEMENT, TOGETHER):
        some = chosen[first : first + TOGETHER]
        for each, quick in zip(some, on_xla(some, QUICK), strict=True):
            ratio = quick if quick <= 1 else on_xla([each], {})[0]
            again += quick > 1
            assert ratio <= 1, each.graph
            worst["XLA"] = max(worst["XLA"], ratio)
    assert again <= PER_ELEMENT // 50
    for judge, ratio in worst.items():
        report(f"{element!r}: {seed} graphs drawn, the largest error on {judge} is {ratio:.3f} of its envelope")


# ---- training

STEPS = 20


@pytest.mark.parametrize("model", [training.CONV, training.BLOCK], ids=["conv", "block"])
def test_training_on_xla_follows_ours(model: training.Model) -> None:
    """20 steps of a convolutional net's and of a transformer block's step: the loss is within the envelope."""
    ours = training.step_of(model, "f32")
    exact = training.step_of(model, "f64")
    plan = ours.plan()
    here = list(training.losses(ours, model, plan.forward, STEPS))
    there = list(training.losses(ours, model, plan.on_xla().forward, STEPS))
    wide = list(training.losses(exact, model, exact.plan().forward, STEPS))
    assert here[-1] < 0.8 * here[0]
    largest = 0.0
    for step in range(STEPS):
        apart = difference(here[: step + 1], [wide[: step + 1]], UNIT["f32"])
        largest = max(largest, excess(there[step], here[step], FACTOR * apart))
    report(f"largest distance of the loss curves: {largest:.3f} of the envelope")
    assert largest <= 1


def test_two_devices_give_the_result_of_one() -> None:
    """One emitted step on two virtual devices: the batch is cut, sums are added over devices, results agree."""
    script = Path(__file__).parent / "emission" / "two_devices.py"
    found = subprocess.run(
        [sys.executable, str(script)],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "2 devices, largest difference" in found.stdout


# ---- serving


def small(element: Any = F32) -> tuple[Any, dict]:
    """Return a network with a parameter and an input that has a payload of its own."""

    def build(tape: Tape) -> dict:
        w, x = tape.parameter(drawn((3, 2), element)), tape.input(drawn((4, 3), element, 1))
        loss = (x @ w).tanh().sum()
        return {"w": w, "x": x, "loss": loss, "gradient": tape.differentiate(loss, [w]).gradients[0]}

    return Tape.record(build, element=element)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_plan_is_served_by_symbol(element: Any) -> None:
    """Feeds and parameters are given by symbol, as at home; results are read as from a run."""
    network, s = small(element)
    plan = network.entry([s["loss"], s["gradient"]]).lower()
    served = plan.on_xla()
    parameters = network.parameters()
    for given in (parameters, parameters, parameters.scale(0.5)):
        for feeds in ({}, {s["x"]: drawn((4, 3), element, 7)}):
            ours, theirs = plan.forward(given, feeds), served.forward(given, feeds)
            for symbol in plan.results:
                here, there = ours.of(symbol), theirs.of(symbol)
                assert here.element is there.element
                assert np.allclose(*(np.asarray(t, float) for t in (here, there)), rtol=32 * UNIT[element.name])
    with pytest.raises(UnreadableError, match="declare it"):
        theirs.of(s["x"])
    with pytest.raises(UnreadableError, match=r"record the gradients with tape\.differentiate"):
        theirs.backward(s["loss"])
    with pytest.raises(FeedError, match=r"shape \[4, 3\]"):
        served.forward(parameters, {s["x"]: np.zeros((5, 3))})


def test_iree_runs_every_opcode() -> None:
    """IREE compiles the graphs of all kinds in f32, and a plan by symbol."""
    pytest.importorskip("iree.compiler", reason="the extra iree is not installed")
    network, results = recorded(F32)
    plan = network.entry(list(results.values())).lower()
    ours, theirs = plan.forward(network.parameters()), plan.on_iree().forward(network.parameters())
    runs = walks(network, {})
    for name, symbol in results.items():
        here = ours.of(symbol).numpy()
        apart = difference(here, [walked[symbol].numpy() for walked in runs], UNIT["f32"])
        assert excess(theirs.of(symbol).numpy(), here, FACTOR * apart) <= 1, name


def test_iree_pools_windows_that_overlap() -> None:
    """IREE has no operation for the gradient of such a pool: the plan's text holds the formula instead."""
    pytest.importorskip("iree.compiler", reason="the extra iree is not installed")

    def build(tape: Tape) -> Any:
        x = tape.input(np.random.default_rng(0).normal(size=(1, 2, 7, 6)))
        y = max_pool(x, (3, 2), 2, 1)
        return y, tape.differentiate((y * y).sum(), x).of(x)

    network, results = Tape.record(build)
    plan = network.entry(results).lower()
    ours, theirs = plan.forward(network.parameters()), plan.on_iree().forward(network.parameters())
    for symbol in results:
        np.testing.assert_allclose(theirs.of(symbol).numpy(), ours.of(symbol).numpy(), rtol=1e-6)


# ---- refusals


def test_invalid_text_is_refused() -> None:
    """What does not parse, verify, or name a main is an EmitError with the parser's words."""
    with pytest.raises(EmitError, match="no valid StableHLO"):
        stablehlo.validate("module {")
    with pytest.raises(EmitError, match="no function @main"):
        stablehlo.validate("module { func.func @other() { return } }")
    wrong = "module { func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> { return %a : tensor<2xf32> } }"
    with pytest.raises(EmitError, match="no valid StableHLO"):
        stablehlo.compile(wrong)
    right = "module { func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> } }"
    with pytest.raises(EmitError, match=r"XLA refuses the module: .*xla_no_such"):
        stablehlo.compile(right, options={"xla_no_such": 1})
    with pytest.raises(EmitError, match="the compilers are xla, iree, not 'tvm'"):
        stablehlo.compile(wrong, "tvm")


def test_arguments_that_do_not_fit() -> None:
    """Too few arguments, or one of another shape, are named."""
    network, s = small()
    text = network.entry(s["loss"]).lower().emit_stablehlo()
    with pytest.raises(FeedError, match="takes 2 arguments, 1 given"):
        stablehlo.interpret(text, [np.zeros((3, 2))])
    with pytest.raises(FeedError, match=r"argument 1 of main has shape \[4, 3\], not \[3\]"):
        stablehlo.compile(text)(np.zeros((3, 2)), np.zeros(3))


def test_missing_devices_and_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """BackendUnavailable says what is missing and how to get it."""
    network, s = small()
    plan = network.entry(s["loss"]).lower()
    with pytest.raises(BackendUnavailable, match=r"for 4 devices.*host_platform_device_count=4"):
        plan.on_xla({s["x"]: 0}, devices=4)
    assert Backend.STABLEHLO.status() is None
    monkeypatch.setitem(sys.modules, "iree.compiler", None)
    with pytest.raises(BackendUnavailable, match=r"needs iree\.compiler: pip install '\.\[iree\]' in a checkout"):
        plan.on_iree()
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(BackendUnavailable, match=r"needs jax: pip install '\.\[stablehlo\]' in a checkout"):
        plan.on_xla()
