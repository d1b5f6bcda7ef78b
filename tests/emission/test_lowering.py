"""Every kind of opcode and every element, on the reference interpreter and on XLA, within an f64 run's envelope."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emission.envelope import FACTOR, UNIT, difference, excess, fed, is_subnormal, report, walks
from tests.emission.graphs import GRAPHS, recorded
from tests.helpers import ELEMENTS, SPECIAL, bits
from topos import Element, Symbol, Tape, Tensor
from topos.emission.lowering import LOWERINGS, PLAIN
from topos.ops import Map, Opcode
from topos.payload.recordable import OPCODES

pytest.importorskip("jax", reason="the extra stablehlo is not installed")

from topos import stablehlo

RUNNERS = ["interpreter", "xla"]


def run(runner: str, text: str, arrays: list) -> list:
    """Run text one way."""
    return stablehlo.interpret(text, arrays) if runner == "interpreter" else stablehlo.compile(text)(*arrays)


def test_every_kind_has_a_graph_and_a_lowering() -> None:
    """The closed set is covered: each kind with operands has a lowering and is in a graph."""
    kinds = {kind for kind in OPCODES.values() if isinstance(kind, type) and issubclass(kind, Opcode)}
    with_operands = {kind for kind in kinds if kind.arity and "__module__" in vars(kind)} - {None}
    concrete = {kind for kind in with_operands if not kind.__subclasses__()}
    assert {*LOWERINGS, *PLAIN} == concrete
    network, _ = recorded(ELEMENTS[0])
    drawn_kinds = {node.name for node in network.nodes()}
    assert drawn_kinds >= {kind.__name__ for kind in concrete if kind is not Map}
    assert drawn_kinds >= {name for name in OPCODES if isinstance(OPCODES[name], type) is False}


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_opcode(element: Element) -> None:
    """Each graph's result is within the envelope; the largest error over the envelope is printed per graph."""
    network, results = recorded(element)
    plan = network.entry(list(results.values())).lower()
    text, arrays = plan.emit_stablehlo(), fed(plan, network.parameters(), {})
    stablehlo.validate(text)
    ours, runs = network.forward(network.parameters()), walks(network, {})
    assert FACTOR <= 100
    for runner in RUNNERS:
        found = dict(zip(plan.results, run(runner, text, arrays), strict=True))
        for name in GRAPHS:
            symbol = results[name]
            assert found[symbol].dtype == element.dtype
            here, exact = ours.of(symbol).numpy(), [walked[symbol].numpy() for walked in runs]
            envelope = FACTOR * difference(here, exact, UNIT[element.name])
            ratio = excess(found[symbol], here, envelope)
            report(f"{element!r:<5} {runner:<12} {name:<24} {ratio:.4f} of its envelope {envelope:.3g}")
            assert ratio <= 1, (runner, name, here, found[symbol])


GIVEN = [number for number in SPECIAL if number == 0 or not np.isfinite(number) or 1e-30 <= abs(number) < 1e5]


def pairs(element: Element) -> list[Tensor]:
    """Return special numbers, each beside each, without subnormals (case 32)."""
    numbers = [n for n in GIVEN if not is_subnormal([Tensor(n, element=element)], element.name)]
    a, b = np.meshgrid(numbers, numbers)
    return [Tensor(a.ravel(), element=element), Tensor(b.ravel(), element=element)]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_special_numbers(element: Element) -> None:
    """Where no map takes part, zeros, infinities and NaN give our bits; maps have them there too."""
    a, b = pairs(element)

    def build(tape: Tape) -> dict:
        x, y = tape.parameter(a), tape.parameter(b)
        exact = {
            "maximum": x.maximum(y),
            "relu": x.relu(),
            "step": x.step(y),
            "select": x.select(y, x),
            "scale": x.scale(y),
            "ratio": x.ratio(y),
            "neg": -x,
            "sum": x.reshape([a.shape[0], 1]).sum_along(1),
            "gather": x.gather(tape.leaf(Tensor.selection([3, 1], a.shape[0], element=element))),
        }
        near = {name: getattr(x, name)() for name in ("exp", "ln", "sqrt", "tanh", "log1p", "expm1", "erf")}
        rows = tape.parameter([[-np.inf, -np.inf], [0.5, -np.inf], [np.inf, 1], [np.nan, 1]])
        near |= {"powf": x.powf(y), "log_softmax": rows.log_softmax(1), "logsumexp": rows.logsumexp(1)}
        return {"exact": exact, "near": near}

    network, found = Tape.record(build, element=element)
    results: dict[str, Symbol] = {**found["exact"], **found["near"]}
    plan = network.entry(list(results.values())).lower()
    text, arrays = plan.emit_stablehlo(), fed(plan, network.parameters(), {})
    ours = plan.forward(network.parameters())
    for runner in RUNNERS:
        given = dict(zip(plan.results, run(runner, text, arrays), strict=True))
        for name, symbol in results.items():
            here, there = ours.of(symbol).numpy(), given[symbol]
            if name in found["exact"]:
                assert (bits(here) == bits(there)).all(), (runner, name, here, there)
            with np.errstate(invalid="ignore", over="ignore"):
                wrong = ~((here == there) | ((here != here) & (there != there)))
                wrong &= ~(np.abs(here.astype(float) - there.astype(float)) <= 64 * UNIT[element.name] * abs(here))
            assert not wrong.any(), (runner, name, a.numpy()[wrong], b.numpy()[wrong], here[wrong], there[wrong])


def test_narrow_products_accumulate_in_f32() -> None:
    """Case 31: the text of a bf16 product says f32, and 2048 ones added to 1 are 2049, rounded once."""
    one = Tensor(np.ones((1, 2049)), element="bf16")
    network, total = Tape.record(lambda tape: tape.parameter(one) @ tape.leaf(one).T, element="bf16")
    plan = network.entry(total).lower()
    text = plan.emit_stablehlo()
    assert "(tensor<1x2049xbf16>, tensor<2049x1xbf16>) -> tensor<1x1xf32>" in text
    for runner in RUNNERS:
        (found,) = run(runner, text, fed(plan, network.parameters(), {}))
        assert found == plan.forward(network.parameters()).of(total).numpy() == 2048
