"""What the simulator runs, with the CPU's bits: in a process of its own, which `test_simulation` starts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.drawn import KINDS, drawn_graph
from tests.helpers import ELEMENTS, drawn, same_bits, special, strided
from tests.kernels.cuda import simulated
from tests.kernels.cuda.formulas import FORMULAS
from topos import (
    F32,
    Adam,
    Backend,
    DataError,
    DeviceError,
    Element,
    Formula,
    Network,
    Numerics,
    Sgd,
    Tape,
    Tensor,
    UsageError,
    Value,
    conv2d,
    cross_entropy,
    max_pool,
)  # fmt: skip
from topos.engine.device import DeviceParameters
from topos.kernels.reference import K_BLOCK, R_BLOCK
from topos.ops import windowed

CARD = simulated.install()

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a card says nothing of overflows

SEEDS = (189, 112, 9)
"""Of drawn graphs that record every kind between them."""


def compare(network: Network, results: Sequence[Any], feeds: Any = None) -> None:
    """Run a network on both and compare the bits of results."""
    plan = network.entry(results).lower(backend=Backend.CUDA)
    card, host = plan.forward(network.parameters(), feeds), network.forward(network.parameters(), feeds)
    wrong = [symbol for symbol in results if not same_bits(card.of(symbol), host.of(symbol))]
    assert not wrong, [str(network.nodes()[symbol.index]) for symbol in wrong]


def test_the_graphs_record_every_kind() -> None:
    """What follows speaks of the whole closed set."""
    kinds = set().union(*(drawn_graph(seed, steps=12).kinds for seed in SEEDS))
    assert kinds >= {*KINDS, "Leaf", "Parameter", "Input"}


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind(seed: int, element: Element) -> None:
    """Every node of a drawn graph has the interpreter's bits."""
    graph = drawn_graph(seed, element, steps=12)
    compare(graph.network, graph.symbols, graph.feeds)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_layouts(element: Element) -> None:
    """Operands of every layout: an elementwise operation, a sum along each axis, and a product read them."""
    layouts = [tensor for _, tensor in strided((3, 4), element, 5)]

    def build(tape: Tape) -> list[Value]:
        values = [tape.leaf(tensor) for tensor in layouts]
        sums = [value.sum_along(axis) for value in values for axis in (0, 1)]
        return [*(a.maximum(b) for a, b in itertools.pairwise(values)), *sums, values[0] @ values[2].T]

    network, results = Tape.record(build, element=element)
    compare(network, results)


@pytest.mark.parametrize("element", ELEMENTS[:3], ids=str)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_scatters(length: int, element: Element) -> None:
    """Rows added into targets that several threads share by columns and by bands: ascending, others are zero."""
    given, ids = special((7, length), element, length), Tensor.selection([8, 0, 3, 0, 8, 8, 0], 9, element=element)
    network, out = Tape.record(lambda tape: tape.leaf(given).scatter(tape.leaf(ids)), element=element)
    compare(network, [out])


@pytest.mark.parametrize("element", ELEMENTS[1:3], ids=str)
def test_long_sums(element: Element) -> None:
    """A sum of several blocks is the sum of their sums, along rows and along columns."""
    wide = drawn((2, R_BLOCK + 5), element, 1)
    network, results = Tape.record(
        lambda tape: [tape.leaf(wide).sum_along(1), tape.leaf(wide.T).sum_along(0)], element=element
    )
    compare(network, results)


PRODUCTS = [
    ((2, 3), (3, 1)),
    ((5, K_BLOCK + 40), (K_BLOCK + 40, 3)),  # the blocks of k are added where the result lies
    ((2, 2 * K_BLOCK + 3), (2 * K_BLOCK + 3, 1)),  # and side by side, where there are few results
    ((2, 9, 4), (2, 4, 9)),
]


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
@pytest.mark.parametrize("element", [ELEMENTS[0], ELEMENTS[2]], ids=str)
def test_products(shapes: tuple[tuple[int, ...], tuple[int, ...]], element: Element) -> None:
    """Edges of squares, blocks of k, leading axes; -0 and NaN as on a CPU."""
    left, right = (special(shape, element, seed) for seed, shape in enumerate(shapes))
    network, result = Tape.record(lambda tape: tape.leaf(left) @ tape.leaf(right), element=element)
    _, services = Backend.tallied(lambda: compare(network, [result]))
    assert (Formula.GEMM, Backend.CUDA) in [(service.formula, service.backend) for service in services]


WIDE = [((17, 9), (9, 16)), ((2, 33, 12), (2, 12, 18)), ((16, K_BLOCK + 8), (K_BLOCK + 8, 16))]


@pytest.mark.parametrize("shapes", WIDE, ids=str)
@pytest.mark.parametrize("element", [ELEMENTS[0], ELEMENTS[2], ELEMENTS[3]], ids=str)
def test_products_on_tensor_cores(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], element: Element, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under FAST, products of 16 rows and columns and more are those of operands rounded to TF32, summed in f32."""
    monkeypatch.setattr(CARD, "shape", simulated.WARPS)
    left, right = (drawn(shape, element, seed) for seed, shape in enumerate(shapes))
    turned = Tensor(left.numpy().swapaxes(-1, -2), element=element)

    def build(tape: Tape) -> list[Value]:
        a, b, flat = tape.leaf(left), tape.leaf(right), tape.leaf(turned)
        axes = (*range(turned.shape.rank - 2), turned.shape.rank - 1, turned.shape.rank - 2)
        return [a @ b, flat.permute(axes) @ b]

    network, results = Tape.record(build, element=element)
    run = network.entry(results).numerics(Numerics.FAST).lower(backend=Backend.CUDA).forward(network.parameters())
    exact = network.forward(network.parameters())
    a, b = (simulated.rounded_to_tf32(tensor.numpy().astype("f4")).astype("f8") for tensor in (left, right))
    bound = abs(a) @ abs(b) * 2.0**-20 + (0 if element is F32 else abs(a @ b) * 2.0**-8)
    for result in results:
        found = run.of(result).numpy().astype("f8")
        assert (abs(found - a @ b) <= bound).all()
        assert element is not F32 or not same_bits(run.of(result), exact.of(result))


def classifier(tape: Tape) -> tuple[Any, ...]:
    """Record a small convolutional classifier: its inputs, its loss and the derivative."""
    image, target = tape.input(drawn((2, 1, 6, 6), "f32", 1)), tape.input(Tensor.selection([1, 0], 3))
    filters = tape.parameter(drawn((2, 1, 3, 3), "f32", 2))
    bias, dense = tape.parameter([0.1, -0.2]), tape.parameter(drawn((18, 3), "f32", 3))
    hidden = max_pool(conv2d(image, filters, bias, padding=1).relu(), 2).reshape((2, 18))
    loss = cross_entropy(hidden @ dense, target)
    return image, target, loss, tape.differentiate(loss, [filters, bias, dense])


def sequence(steps: int) -> tuple[Any, Any]:
    """Return feeds for some steps of the classifier."""
    generator = np.random.default_rng(steps)
    return generator.normal(size=(steps, 2, 1, 6, 6)).astype("f4"), generator.integers(0, 3, (steps, 2))


def test_training_keeps_the_bits() -> None:
    """Losses, tables and state are the CPU's, step by step and many at once; only feeds and the error word are copied."""
    network, (image, target, loss, adjoints) = Tape.record(classifier)
    entry = network.entry([loss, *adjoints.roots])
    plan, card_plan = entry.lower(), entry.lower(backend=Backend.CUDA)
    assert card_plan.patterns() == plan.patterns()
    host, table, mine, other = network.parameters(), card_plan.to_device(network.parameters()), Adam(), Adam()
    for images, ids in zip(*sequence(4), strict=True):  # from the fourth on there is nothing new to make room for
        feeds = {image: images, target: ids}
        CARD.copies.update(up=0, down=0)
        run, host = plan.step(host, feeds, mine, 0.01)
        card_run, table = card_plan.step(table, feeds, other, 0.01)
        copies = dict(CARD.copies)
    assert copies["down"] == 16
    head = 8 * len(card_plan.latest.lowered.pool.take().words)
    assert images.nbytes <= copies["up"] <= head + images.nbytes + ids.nbytes + 256
    assert same_bits(run.of(loss), card_run.of(loss))
    rates = np.array([0.1, 0.01], np.float32)
    for rate in (rates, 0.01):
        feeds = dict(zip((image, target), sequence(2), strict=True))
        losses, host = plan.steps(host, feeds, mine, rate)
        card_losses, table = card_plan.steps(table, feeds, other, rate)
        assert same_bits(losses, card_losses)
    assert isinstance(table, DeviceParameters)
    assert host.buffer.tobytes() == table.to_host().buffer.tobytes()
    for left, right in zip(mine.state, other.state, strict=True):
        assert same_bits(left, right) if isinstance(left, Tensor) else same_bits(left.buffer, right.buffer)
    losses, host = plan.steps(table, feeds, other, 0.01)  # a CPU goes on from what a card left, and a card from that
    card_losses, table = card_plan.steps(table, feeds, mine, 0.01)
    assert same_bits(losses, card_losses)
    assert same_bits(host.buffer, table.buffer)
    run, card_run = plan.forward(host), card_plan.forward(host)
    assert same_bits(run.of(loss), card_run.of(loss))


def test_bad_data_is_an_error_of_its_run() -> None:
    """The run or the step is named, nothing has changed, and later runs are good ones."""

    def build(tape: Tape) -> tuple[Any, ...]:
        chosen, table = tape.input(Tensor.selection([1, 0], 3)), tape.parameter(drawn((3, 2), "f32"))
        loss = table.gather(chosen * 1.0).sum()
        return chosen, loss, tape.differentiate(loss, [table])

    network, (chosen, loss, adjoints) = Tape.record(build)
    plan, good = network.entry([loss, *adjoints.roots]).lower(backend=Backend.CUDA), np.eye(3, dtype=np.float32)[:2]
    parameters, optimizer = network.parameters(), Sgd()
    for run in (plan.forward, lambda *given: plan.step(*given, optimizer, 0.1)):
        with pytest.raises(DataError, match="row 1 of the selection is not one-hot"):
            run(parameters, {chosen: [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]})
        run(parameters, {chosen: good})
    with pytest.raises(DataError, match="step 1: "):
        plan.steps(parameters, {chosen: np.stack([good, good * 2])}, optimizer, 0.1)
    compare(network, [loss])


def test_what_a_card_does_not_do() -> None:
    """The reverse scan of a run, user's number types and the profile are refused, with what to do instead."""
    network, total = Tape.record(lambda tape: tape.parameter([1.0, 2.0]).sum())
    with pytest.raises(UsageError, match="differentiate"):
        network.entry(total, backward=True).lower(backend=Backend.CUDA)
    with pytest.raises(UsageError, match="nsys"):
        network.entry(total).lower(backend=Backend.CUDA).profile(network.parameters())


def test_a_failed_device_leaves_the_process_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the card is a `DeviceError`; the same entry runs on the CPU afterwards."""
    network, total = Tape.record(lambda tape: tape.parameter([1.0, 2.0]).sum())
    plan = network.entry(total).lower(backend=Backend.CUDA)

    def fail(*arguments: Any) -> Any:
        raise DeviceError("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(CARD, "download", fail)
    with pytest.raises(DeviceError):
        plan.forward(network.parameters()).of(total)
    assert network.entry(total).lower().forward(network.parameters()).of(total).scalar() == 3.0


def families(plan: Any) -> list[str]:
    """Return the families of the kernels that a plan launches, products of every size as one."""
    return [name.partition(".")[0].removeprefix("small_") for name in plan.lowered.program.row_kernels]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_groups(name: str, element: Element) -> None:
    """A card elects what a CPU does, and carries it out with kernels of its own."""
    formula, kernels = FORMULAS[name]
    network, results = Tape.record(lambda tape: formula(tape, element, 1), element=element)
    plan, host = (network.entry(results).lower(**given) for given in ({"backend": Backend.CUDA}, {}))
    assert plan.patterns() == host.patterns()
    # A product of 16 bits is rounded when it is whole.
    assert {*families(plan)} - ({"elementwise"} - kernels) == kernels or element.raw.itemsize == 2
    compare(network, results)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_single_launches(element: Element) -> None:
    """An elementwise chain, rows with what reduces them, and each part of a concatenation, are a launch each."""
    for name, results_read, expected in (
        ("chain", 2, ["elementwise"]),
        ("rows", 4, ["lines"]),
        ("concatenation", 2, ["elementwise"] * 6),
    ):
        formula, _ = FORMULAS[name]
        network, results = Tape.record(lambda tape, formula=formula: formula(tape, element, 1), element=element)
        assert families(network.entry(results[:results_read]).lower(backend=Backend.CUDA)) == expected


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_drawn_chains(seed: int, element: Element) -> None:
    """A drawn graph whose loss alone is read: all that may be fused is."""
    graph = drawn_graph(seed, element, steps=16)
    compare(graph.network, [graph.loss], graph.feeds)


def test_long_rows_run_step_by_step() -> None:
    """A chain whose lines are longer than a block of a sum is no launch of its own."""
    given = drawn((2, R_BLOCK + 3), ELEMENTS[0], 1)
    network, result = Tape.record(lambda tape: (tape.leaf(given) * 2.0).log_softmax(1).exp())
    assert len(families(network.entry(result).lower(backend=Backend.CUDA))) > 3
    compare(network, [result])


def test_some_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The taps of an input's gradient take bounded memory: what does not fit comes in turns."""
    formula, _ = FORMULAS["convolution"]
    network, results = Tape.record(lambda tape: formula(tape, ELEMENTS[0], 1), element=ELEMENTS[0])
    whole = network.entry(results).lower(backend=Backend.CUDA)
    monkeypatch.setattr(windowed, "AT_ONCE", 150)
    turns = network.entry(results).lower(backend=Backend.CUDA)
    assert (families(whole).count("window_sum"), families(turns).count("window_sum")) == (1, 2)
    compare(network, results)
