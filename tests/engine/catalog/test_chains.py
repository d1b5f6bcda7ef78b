"""Chains: one row of the program for many operations, with the bits of each."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.catalog.plans import check, count, kernels
from tests.helpers import ELEMENTS, drawn, same_bits, special
from topos import F32, Element, Network, Parameters, Symbol, Tape, cross_entropy
from topos.engine.catalog.units import Units
from topos.engine.schedule import Schedule
from topos.kernels import beside
from topos.kernels.chains import LOOP_OF
from topos.neural.optimizers import Adam, AdamW, Sgd
from topos.ops import chain, emit


def recorded(build: Callable[..., Any], *tensors: Any) -> tuple[Network, list[Symbol]]:
    """Record values of inputs; return the network and their symbols."""

    def run(tape: Tape) -> Any:
        made = build(*[tape.input(tensor) for tensor in tensors])
        return list(made) if isinstance(made, tuple) else [made]

    return Tape.record(run, element=tensors[0].element)


def gradients(build: Callable[..., Any]) -> Callable[..., Any]:
    """Record a formula, its weighted sum, and the gradients by all operands."""

    def both(*values: Any) -> Any:
        out = build(*values)
        adjoints = values[0].tape.differentiate((out * out).sum(), values)
        return (out, *[adjoints.of(value) for value in values])

    return both


def layer_norm(x: Any) -> Any:
    """Record rows less their mean over their deviation."""
    n = x.shape[1]
    off = x - x.mean_along(1).broadcast_along(1, n)
    deviation = ((off * off).mean_along(1) + 1e-5).sqrt()
    return off / deviation.broadcast_along(1, n)


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1) * 2.0,
    "logsumexp": lambda x: x.logsumexp(1) * 2.0,
    "layer norm": layer_norm,
    "rms norm": lambda x: x / ((x * x).mean_along(1) + 1e-5).sqrt().broadcast_along(1, x.shape[1]),
    "gelu": lambda x: x.gelu() * x,
    "masks": lambda x: x.relu() + (x > 0.25).select(x.exp(), x.abs()),
}


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_formulas_of_rows(formula: str, element: Element) -> None:
    """Forward and gradients, over row lengths that are short, odd and long; the forward pass is one row."""
    for shape, threads, make in (((3, 7), 1, drawn), ((33, 130), 3, drawn), ((2, 2100), 2, special)):
        x = make(shape, element, 5)
        check(*recorded(gradients(FORMULAS[formula]), x), threads)
        plan = check(*recorded(FORMULAS[formula], x), threads)
        own = ["sqrt"] if formula == "gelu" else []  # of the single number 2
        assert kernels(plan) == [*own, "chain"]


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_loops_have_the_bits_of_their_steps(element: Element, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after a plan has been given its loops, whatever else is in its chains, over whole blocks and rests.

    In some, values per row are taken as they are.
    """
    monkeypatch.setattr(emit, "LARGE", 0)
    forms = [*FORMULAS.values(), lambda x: (x * x + x).maximum(-x) / (x * 2.0 + x.T.T)]
    made = holding = 0
    for form, threads in zip(forms, (1, 2, 3) * 3, strict=False):
        monkeypatch.setattr(chain, "HOLDS", 256 if threads == 3 else 32)
        network, roots = recorded(gradients(form), special((33, 130), element, 5))
        check(network, roots, threads)
        beside.settle()
        plan = check(network, roots, threads)  # what its plans ask for is there by now
        beside.settle()
        program = plan.lowered.program
        assert all(program.code[position] for position in program.loops)
        made += len(program.loops)
        holding += sum(ast.literal_eval(text.removeprefix(LOOP_OF))[2] > 0 for text in program.loops.values())
        wanted, run = network.forward(network.parameters()), plan.forward(network.parameters())
        assert all(same_bits(run.of(root), wanted.of(root)) for root in roots)
    assert made >= len(forms)
    assert holding >= 4


def test_maps_give_no_chain_a_loop() -> None:
    """They gain nothing from one: their work does not count."""
    network, roots = recorded(
        lambda x: (x * x + x).maximum(-x).exp().tanh().sin().cos() * x + x, drawn((16, 33), F32, 5)
    )
    assert not check(network, roots, 1).lowered.program.loops


@pytest.mark.parametrize(("steps", "loops"), [(1, 0), (20, 20)])
def test_equal_chains_share_a_loop(steps: int, loops: int) -> None:
    """A loop pays when all chains of a program that it stands for have the work: small ones that come again and again too."""

    def build(x: Any) -> Any:
        for _ in range(steps):
            x = ((x * x + x) * x - x).maximum(-x) * 0.5
            x = x.reshape((32, 20)).permute((1, 0)).reshape((640,)).exp()  # a chain ends here
        return x

    network, roots = recorded(build, drawn((640,), F32, 5))
    plan = check(network, roots, 1)
    beside.settle()
    assert len(plan.lowered.program.loops) == loops
    assert len({*plan.lowered.program.loops.values()}) == min(loops, 1)
    check(network, roots, 2)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_values_per_row_in_loops(element: Element, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop takes them as they are, and repeats them in memory where a reduction or another operation asks."""
    monkeypatch.setattr(emit, "LARGE", 0)
    x, rows = drawn((5, 300), element, 3), drawn((5,), element, 4)
    for form in (
        lambda x, r: r.broadcast_along(1, 300) - x * r.broadcast_along(1, 300),
        lambda x, r: (r.broadcast_along(1, 300) * r.exp().broadcast_along(1, 300) + x).sum_along(1),
        lambda x, r: x.step(x * x).select(r.broadcast_along(1, 300), x),
        lambda x, r: x.sum_along(1).broadcast_along(1, 300).sum_along(1) * r,
        lambda x, r: ((-r).broadcast_along(1, 300) * x, (-r).broadcast_along(1, 300).exp() + x),
    ):
        network, roots = recorded(form, x, rows)
        check(network, roots, 2)
        beside.settle()
        program = check(network, roots, 2).lowered.program
        assert all(ast.literal_eval(text.removeprefix(LOOP_OF))[2] > 0 for text in program.loops.values())


def test_values_per_row_that_lie_in_another_order() -> None:
    """One value per channel is collected once per row, not repeated along it, as batch norms of images ask for."""
    scale, shift = drawn((4,), F32, 4), drawn((4,), F32, 5)

    def build(x: Any, *channels: Any) -> Any:
        a, b = (value.broadcast_along(0, 5).broadcast_along(2, x.shape[2]) for value in channels)
        return x * a + b

    plan = check(*recorded(build, drawn((5, 4, 300), F32, 3), scale, shift), 2)
    assert count(plan, "spread.f32") == 2


def test_rows_that_no_buffer_holds() -> None:
    """Rows beyond the buffers are summed as before, with the elementwise operations beside them in chains."""
    x = drawn((2, 9000), F32, 1)
    plan = check(*recorded(FORMULAS["softmax"], x))
    assert "chain" not in kernels(plan)
    check(*recorded(gradients(layer_norm), x), 2)


def test_operands_of_every_layout() -> None:
    """Columns, rows, single values, transposed and cut operands, and what no block changes, computed once."""
    wide, tall = drawn((40, 70), F32, 1), drawn((70, 40), F32, 2)
    column, row, single = drawn((70,), F32, 3), drawn((40,), F32, 4), drawn((), F32, 5)

    def build(a: Any, b: Any, c: Any, r: Any, s: Any) -> Any:
        columns = c.exp().broadcast_along(0, 40) * s.broadcast([40, 70])
        once = (c.broadcast_along(0, 40) + 1.0).tanh() * 3.0
        rows = r.broadcast_along(1, 70)
        x = (a * columns + rows) * b.permute([1, 0]) - once
        cut = x.narrow(1, 3, 50).exp() * a.narrow(1, 20, 50)
        return x, cut, (a.permute([1, 0]) * 2.0).exp() + b, once

    for threads in (1, 4):
        check(*recorded(build, wide, tall, column, row, single), threads)


def test_a_layout_that_all_operands_share() -> None:
    """Transposed operands are computed on as they lie: nothing is collected, and the result lies like them."""
    a, b = drawn((30, 50), F32, 1), drawn((30, 50), F32, 2)
    network, roots = recorded(lambda x, y: (x.permute([1, 0]) * y.permute([1, 0])).exp(), a, b)
    plan = check(network, roots)
    assert plan.lowered is not None
    operand = plan.lowered.operands[roots[0].index]
    assert operand is not None
    assert operand.layout.strides == (1, 50)


def test_chains_do_not_wait_for_each_other() -> None:
    """Two chains of one graph, each feeding the other's second half through a product: they are cut there."""
    a, b = drawn((8, 8), F32, 1), drawn((8, 8), F32, 2)

    def build(x: Any, y: Any) -> Any:
        first, second = x.exp() * x, y.tanh() + y
        crossed = (first.matmul(y), second.matmul(x))
        return (first * crossed[1]).exp() + crossed[0], second * crossed[0] - crossed[1], first - second

    network, roots = recorded(build, a, b)
    plan = check(network, roots, 2)
    assert kernels(plan).count("matmul") == 2


def test_drawn_graphs_of_rows() -> None:
    """Any graph of elementwise operations, row reductions, repeats and barriers: the interpreter's bits."""
    for seed in range(60):
        rng = random.Random(seed)
        element = ELEMENTS[seed % 4]
        shape = (rng.choice((1, 2, 5, 16)), rng.choice((1, 3, 16, 45)))

        def build(x: Any, v: Any, rng: random.Random = rng) -> Any:
            rows, n = x.shape
            full, lines, columns = [x, x * 0.5], [x.sum_along(1)], [v]
            for _ in range(25):
                pick = rng.randrange(9)
                a, b = rng.choice(full), rng.choice(full)
                r = rng.choice(lines)
                if pick < 3:
                    full.append(rng.choice((a + b, a * b, a - b, a.maximum(b), a.tanh(), a.step(b).select(a, b))))
                elif pick == 3:
                    full.append(a - r.broadcast_along(1, n))
                elif pick == 4:
                    full.append(rng.choice((a.log_softmax(1), a + rng.choice(columns).broadcast_along(0, rows))))
                elif pick == 5:
                    lines.append(rng.choice((a.sum_along(1), a.logsumexp(1))).tanh())
                elif pick == 6:
                    lines.append(r * rng.choice(lines))
                elif pick == 7:
                    columns.append((a.sum_along(0) + rng.choice(columns)).tanh())
                else:
                    full.append(a.permute([1, 0]).reshape([rows, n]) * 0.25)
            return (*rng.sample(full + lines + columns, 4), full[-1])

        x, v = drawn(shape, element, seed), drawn(shape[1:], element, seed + 1)
        check(*recorded(build, x, v), 1 + seed % 3)


def test_what_is_read_elsewhere_is_written() -> None:
    """A chain writes what is observed or read outside, and no more; in place where an operand dies."""
    x = drawn((64, 64), F32, 1)

    def build(value: Any) -> Any:
        inner = (value * 2.0).exp()
        outer = (inner + 1.0).tanh() * inner
        return outer.matmul(value), inner, outer

    network, (product, inner, outer) = recorded(build, x)
    plan = check(network, [product])
    assert kernels(plan) == ["chain", "matmul"]
    lowered = plan.lowered
    assert lowered is not None
    assert lowered.operands[inner.index] is None
    assert lowered.operands[outer.index] is not None
    seen = check(network, [product, inner]).lowered
    assert seen is not None
    assert seen.operands[inner.index] is not None


def test_a_loss_and_its_gradient() -> None:
    """Cross-entropy over a linear layer, with the gradients by weights and bias: a chain each way."""
    x, w, b = drawn((32, 20), F32, 1), drawn((20, 10), F32, 2), drawn((10,), F32, 3)
    t = drawn((32, 10), F32, 4)

    def build(given: Any, weights: Any, bias: Any, targets: Any) -> Any:
        logits = given.matmul(weights) + bias.broadcast_along(0, 32)
        loss = cross_entropy(logits, targets * targets)
        adjoints = given.tape.differentiate(loss, [weights, bias])
        return loss, adjoints.of(weights), adjoints.of(bias)

    plan = check(*recorded(build, x, w, b, t), 2)
    assert "log_softmax" not in kernels(plan)


@pytest.mark.parametrize("optimizer", [Sgd, Adam, AdamW])
def test_an_optimizer_is_one_row(optimizer: Any) -> None:
    """The update of all parameters is a single chain that writes the next tables where they belong."""

    def build(tape: Tape) -> Any:
        w = tape.parameter(drawn((20, 30), F32, 1))
        v = tape.parameter(drawn((30, 1), F32, 2))
        loss = (w.matmul(v) * w.matmul(v)).sum()
        return loss, tape.differentiate(loss, [w, v])

    network, (loss, adjoints) = Tape.record(build)
    plan = network.entry([loss, *adjoints.roots]).lower()
    parameters: Parameters = network.parameters()
    before = len(kernels(plan))
    plan.step(parameters, None, optimizer(), 0.1)
    (training,) = plan.trainings.values()
    names = [name.partition(".")[0] for name in training.lowered.program.row_kernels]
    # Copies gather the gradients and the loss; Adam's powers of beta are single numbers.
    assert [name for name in names[before:] if name not in ("copy", "mul")] == ["chain"]


def test_units_are_linear_in_the_nodes() -> None:
    """A chain has a bounded length: a graph of one long line is cut into several, in order."""
    x = drawn((4,), F32, 1)

    def build(value: Any) -> Any:
        for _ in range(300):
            value = value * 1.01 + 0.5
        return value

    network, roots = recorded(build, x)
    plan = check(network, roots)
    assert set(kernels(plan)) == {"chain"}
    units = Units(network.columns, Schedule(network.columns, [roots[0].index], False))
    place = {unit: at for at, unit in enumerate(units.nodes)}
    for unit in units.nodes:
        for read in units.reads(unit):
            chain = units.chains.get(read)
            assert place[read if chain is None else chain.root] < place[unit]


def test_a_chain_in_single_rows_overwrites_nothing_that_it_reads_later() -> None:
    """Where buffers do not fit, its steps run one by one: an operand that dies in the chain lives until its end."""

    def build(left: Any, right: Any) -> Any:
        product = left.matmul(right)  # of the arena, and read first and last
        held = [product.tanh()]
        for _ in range(15):
            held.append(held[-1].sin())
        total = held[0]
        for value in held[1:]:
            total = total + value
        result = (total * 0.001).sum_along(1).broadcast_along(1, 2047)
        for value in held:  # all of them live at once
            result = result * value
        return result + product

    network, roots = recorded(build, drawn((2, 3), F32, 1), drawn((3, 2047), F32, 2))
    plan = check(network, roots)
    assert "chain" not in kernels(plan)
    assert len(plan.patterns()) == 1


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("name", ["log_softmax", "logsumexp", "softmax"])
def test_logarithms_along_every_axis_of_every_layout(name: str, element: Element) -> None:
    """Rows and columns side by side are taken as they lie; what lies otherwise, or in few columns, is copied once."""
    moved = {(3, 40, 9): (0, 0, 0), (5, 33, 2): (0, 1, 0), (1, 7, 16): (0, 0, 0), (70, 8, 1): (0, 0, 0)}
    for shape, copies in moved.items():
        for axis, copied in enumerate(copies):
            network, y = Tape.record(
                lambda tape, s=shape, a=axis: getattr(tape.input(drawn(s, element, 1)), name)(a), element=element
            )
            for threads in (1, 3):
                names = kernels(check(network, [y], threads))
                assert names.count("copy") + names.count("transpose") == copied, (shape, axis)
    for view in (lambda x: x.permute([2, 0, 1]), lambda x: x[:, 1:7], lambda x: x.broadcast_along(1, 9)):
        for axis in range(3):
            network, y = Tape.record(
                lambda tape, v=view, a=axis: getattr(v(tape.input(drawn((4, 9, 11), element, 2))), name)(a),
                element=element,
            )
            check(network, [y])
