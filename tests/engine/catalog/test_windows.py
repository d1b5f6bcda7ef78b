"""Convolution and pooling as groups: the bits of their formulas, in a few rows of the program."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from tests.engine.catalog.plans import check, count, kernels
from tests.helpers import ELEMENTS, drawn, same_bits, special
from topos import F16, F32, Bf16, Element, Entry, Network, Symbol, Tape, conv2d, max_pool
from topos.engine.plan import Plan
from topos.kernels import runtime


def rows_at(plan: Plan, symbol: Symbol) -> int:
    """Return how many rows belong to a node."""
    assert plan.lowered is not None
    return plan.lowered.program.nodes.count(symbol.index)


def unfold_product(source: Any, kernel: Any, steps: tuple[int, int], dilations: tuple[int, int]) -> Any:
    """Record patches times a kernel ``[filters, channels, height, width]`` as planes of filters."""
    filters, channels, height, width = kernel.shape
    windows = source.unfold(2, height, steps[0], dilations[0]).unfold(4, width, steps[1], dilations[1])
    batch, rows, columns = windows.shape[0], windows.shape[2], windows.shape[4]
    taps = channels * height * width
    patches = windows.permute([0, 2, 4, 1, 3, 5]).reshape([batch * rows * columns, taps])
    product = patches.matmul(kernel.permute([1, 2, 3, 0]).reshape([taps, filters]))
    return product.reshape([batch, rows, columns, filters]).permute([0, 3, 1, 2])


def convolution(
    element: Element,
    shape: tuple[int, int, int, int],
    kernel: tuple[int, int, int],
    steps: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilations: tuple[int, int] = (1, 1),
    make: Any = drawn,
) -> tuple[Network, list[Symbol]]:
    """Record a convolution over a padded source and its gradients by both operands."""

    def build(tape: Tape) -> list[Any]:
        source = tape.input(make(shape, element, 1))
        weights = tape.parameter(make((kernel[0], shape[1], *kernel[1:]), element, 2))
        padded = source
        for axis, extra in zip((2, 3), padding, strict=True):
            if extra:
                padded = padded.pad(axis, extra, shape[axis] + 2 * extra)
        out = unfold_product(padded, weights, steps, dilations)
        seed = tape.input(make(out.shape, element, 3))
        adjoints = tape.vjp(out, seed, [source, weights])
        return [out, *adjoints.gradients]

    return Tape.record(build, element=element)


def pooling(
    element: Element, shape: tuple[int, int, int, int], size: int, stride: int, make: Any = drawn
) -> tuple[Network, list[Symbol]]:
    """Record a max pool and its gradient."""

    def build(tape: Tape) -> list[Any]:
        source = tape.input(make(shape, element, 4))
        out = max_pool(source, size, stride)
        seed = tape.input(make(out.shape, element, 5))
        return [out, *tape.vjp(out, seed, [source]).gradients]

    return Tape.record(build, element=element)


CASES = [
    ((2, 3, 6, 6), (4, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((1, 2, 16, 16), (3, 7, 7), (3, 3), (2, 2), (1, 1)),  # case 16: windows leave a rest
    ((2, 1, 8, 8), (2, 3, 3), (2, 2), (0, 0), (1, 1)),
    ((1, 2, 9, 8), (2, 3, 3), (1, 1), (2, 2), (2, 2)),
    ((2, 2, 7, 11), (3, 2, 4), (2, 3), (1, 2), (3, 1)),  # case 17: nothing is swapped
    ((3, 1, 5, 40), (1, 1, 5), (1, 1), (0, 2), (1, 1)),  # vectors with a rest
    ((1, 4, 1, 1), (5, 1, 1), (1, 1), (0, 0), (1, 1)),  # extent 1 everywhere
    (
        (2, 3, 18, 21),
        (7, 3, 3),
        (1, 1),
        (1, 1),
        (1, 1),
    ),  # read in place; the last vector of a line overlaps, blocks of k
    ((1, 44, 5, 19), (2, 3, 3), (1, 1), (1, 1), (1, 2)),  # the same with blocks of k that are added up
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_convolution_bits(element: Element, case: Any) -> None:
    """Product and both gradients have the bits of the formula, for rectangular, strided and dilated windows."""
    shape, kernel, steps, padding, dilations = case
    network, roots = convolution(element, shape, kernel, steps, padding, dilations)
    plan = check(network, roots, 1 + CASES.index(case) % 3)
    assert "fold" not in kernels(plan)
    rounding = element in (Bf16, F16) and shape[1] > 1  # a row of its own
    assert rows_at(plan, roots[0]) == 1 + rounding
    if 0 not in padding or padding == (0, 0):  # a single Narrow stays outside
        assert rows_at(plan, roots[1]) == 1


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_drawn_convolutions(element: Element) -> None:
    """Drawn extents, sizes, steps and special values: same bits."""
    draw = random.Random(17)
    for number in range(12):
        size = draw.randint(1, 4), draw.randint(1, 4)
        padding = draw.randint(0, 2), draw.randint(0, 2)
        dilations = draw.choice([(1, 1), (1, 2)])
        least = [d * (k - 1) + 1 - 2 * p for k, p, d in zip(size, padding, dilations, strict=True)]
        extents = [max(1, a) + draw.choice([0, 1, 4, 9, 17]) for a in least]
        shape = (draw.randint(1, 3), draw.randint(1, 3), *extents)
        steps = draw.choice([(1, 1), (2, 2), (1, 3)])
        make = special if number % 3 == 0 else drawn
        network, roots = convolution(element, shape, (draw.randint(1, 4), *size), steps, padding, dilations, make)
        check(network, roots, draw.randint(1, 3))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_drawn_pools(element: Element) -> None:
    """Maxima and their gradient: ties, signed zeros, infinities and NaN included; same bits."""
    draw = random.Random(18)
    for number in range(16):
        size, stride = draw.choice([(1, 1), (2, 2), (2, 2), (2, 1), (3, 2), (2, 3), (3, 3)])
        extents = [size + draw.choice([0, 1, 2, 5, 14, 33]) for _ in range(2)]
        shape = (draw.randint(1, 2), draw.randint(1, 3), *extents)
        network, roots = pooling(element, shape, size, stride, special if number % 2 else drawn)
        check(network, roots, draw.randint(1, 3))


def test_more_threads_than_a_plan_was_lowered_for() -> None:
    """The scratch memory of a pool's gradient has a place for every task, and the tasks beyond have nothing to do."""
    runtime.set_num_threads(1)
    network, roots = pooling(F32, (2, 9, 20, 21), 3, 2)
    parameters, plan = network.parameters(), Plan(network, Entry(tuple(roots)))
    wanted = plan.forward(parameters).of(roots[1])
    runtime.set_num_threads((os.cpu_count() or 1) + 3)
    for _ in range(20):
        assert same_bits(plan.forward(parameters).of(roots[1]), wanted)


POOLS: list[tuple[Any, Any, Any]] = [
    ((2, 2), None, 0), (np.int64(2), np.int64(2), 0), (2, 2, (0, 0)), ((3, 2), (2, 1), 0), (3, 2, 1), ((3, 2), 2, (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_window_is_a_group(element: Element) -> None:
    """However size, stride and padding are written, a plan carries maxima and gradient out as groups."""
    for size, stride, padding in POOLS:

        def build(tape: Tape, size: Any = size, stride: Any = stride, padding: Any = padding) -> list[Any]:
            source = tape.input(special((2, 3, 7, 9), tape.element, 4))
            out = max_pool(source, size, stride, padding)
            return [out, *tape.vjp(out, drawn(out.shape, tape.element, 5), [source]).gradients]

        network, roots = Tape.record(build, element=element)
        plan = check(network, roots, 2)
        left = kernels(plan)
        sloped = [count(plan, f"{name}.{element.kernel}") for name in ("pool_slope", "pool_scatter")]
        assert left.count("pool") == sum(sloped) == 1, (size, stride, padding)
        assert not {"fold", "maximum"}.intersection(left)


@pytest.mark.parametrize("bias", [True, False])
def test_every_convolution_in_one_group_is_a_few_rows(bias: bool) -> None:
    """However stride, padding and dilation are given, product and gradients have no patches in memory."""
    for options in ({"stride": (2, 1)}, {"padding": (1, 0)}, {"dilation": 2, "padding": 2}, {"stride": np.int64(2)}):

        def build(tape: Tape, options: Any = options) -> list[Any]:
            source, kernel = tape.input(drawn((2, 3, 9, 8), F16, 1)), tape.parameter(drawn((4, 3, 3, 2), F16, 2))
            shifts = [tape.parameter(drawn((4,), F16, 3))] if bias else []
            out = conv2d(source, kernel, *shifts, **options)
            return [out, *tape.vjp(out, drawn(out.shape, F16, 4), [source, kernel, *shifts]).gradients]

        network, roots = Tape.record(build, element="f16")
        left = kernels(check(network, roots, 2))
        assert "fold" not in left, (options, left)
        assert left.count("padding") == (options.get("padding") == 2), (options, left)
        assert left.count("copy") <= 2, (
            options,
            left,
        )  # into a padding of one axis, the kernel's gradient out of columns


GROUPED: list[tuple[Any, Any, int, Any]] = [
    ((2, 4, 6, 7), (6, 3, 3), 2, {"padding": 1}),
    ((2, 3, 8, 9), (3, 3, 3), 3, {"padding": 1}),  # depthwise
    ((2, 3, 8, 40), (3, 3, 3), 3, {"padding": (0, 2), "stride": (1, 2)}),
    ((1, 2, 9, 8), (6, 2, 3), 2, {"stride": (2, 3), "dilation": (2, 1)}),  # three filters of each channel
    ((2, 2, 11, 23), (2, 5, 2), 2, {"padding": 2, "dilation": (1, 2), "stride": 2}),
    ((3, 6, 16, 16), (3, 1, 1), 3, {}),
    ((3, 2, 17, 16), (2, 3, 3), 2, {"padding": 1}),  # several blocks of k
    ((2, 5, 6, 5), (10, 3, 3), 5, {"padding": 1}),  # more filters than a vector has lanes, rows shorter than one
    ((2, 9, 6, 30), (9, 5, 5), 9, {"padding": 2}),  # more positions than chains, blocks of k that end within a row
]


@pytest.mark.parametrize("case", GROUPED, ids=str)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_grouped_convolutions_are_a_few_rows(element: Element, case: Any) -> None:
    """Groups and depthwise kernels have no patches in memory either, and the bits of their formula."""
    shape, (filters, *kernel), groups, options = case
    make = special if GROUPED.index(case) == 2 else drawn

    def build(tape: Tape) -> list[Any]:
        source = tape.input(make(shape, element, 1))
        weights = tape.parameter(make((filters, shape[1] // groups, *kernel), element, 2))
        out = conv2d(source, weights, groups=groups, **options)
        return [out, *tape.vjp(out, make(out.shape, element, 4), [source, weights]).gradients]

    network, roots = Tape.record(build, element=element)
    left = kernels(check(network, roots, 1 + GROUPED.index(case) % 3))
    assert "fold" not in left, left
    assert left.count("padding") == ("padding" in options and 0 not in np.atleast_1d(options["padding"])), left
    assert left.count("copy") <= 2, left  # into a padding of one axis, and the kernel's gradient out of its columns
    one_channel, one_filter = groups == shape[1], groups == filters
    assert left.count("window_product") == left.count("window_weights") == one_channel, left
    assert left.count("window_slope") == (one_channel and one_filter), left


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_padding_is_a_row(element: Element) -> None:
    """Planes inside zeros keep every bit, at any width and offset; a source that is not dense is copied."""
    for height, width, top, left in ((1, 1, 2, 1), (3, 7, 1, 3), (5, 8, 1, 1), (2, 19, 3, 2), (9, 40, 2, 9)):
        full = height + 2 * top - 1, width + left + 2

        def build(tape: Tape, shape: Any = (3, 2, height, width), at: Any = (top, left), full: Any = full) -> list[Any]:
            source = tape.input(special(shape, element, 6))
            turned = tape.input(special((2, 3, *shape[2:]), element, 7)).permute([1, 0, 2, 3])
            return [x.pad(2, at[0], full[0]).pad(3, at[1], full[1]) for x in (source, turned)]

        network, roots = Tape.record(build, element=element)
        left_rows = kernels(check(network, roots, 2))
        assert left_rows.count("padding") == left_rows.count("copy") == 1, left_rows


@pytest.mark.parametrize(("size", "maxima"), [(10, 99), (11, 20), ((12, 2), 23), ((12, 9), 19)], ids=str)
def test_a_large_window_goes_by_columns_then_rows(size: Any, maxima: int) -> None:
    """Beyond the largest window that is one row, few maxima are recorded; values and gradients are the same."""
    numbers = np.random.default_rng(1).normal(size=(1, 1, 12, 12))
    network, (out, gradient) = Tape.record(
        lambda tape: (x := tape.input(numbers), y := max_pool(x, size), tape.differentiate(y.sum(), x).of(x))[1:],
        element="f64",
    )
    check(network, [out, gradient], 1)
    height, width = (size, size) if isinstance(size, int) else size
    windows = np.lib.stride_tricks.sliding_window_view(numbers[0, 0], (height, width))[::height, ::width]
    found = network.forward(network.parameters())
    assert (found.of(out).numpy()[0, 0] == windows.max((2, 3))).all()
    assert (found.of(gradient).numpy()[0, 0] == np.isin(numbers[0, 0], windows.max((2, 3)))).all()
    assert sum(node.name == "Maximum" and node.symbol.index <= out.index for node in network.nodes()) == maxima


def test_ties_have_one_winner() -> None:
    """A window of equal entries sends its cotangent to the first of them (case 4), and so does one of NaN."""
    for value in (1.0, float("nan"), float("-inf")):
        network, (out, gradient) = Tape.record(lambda tape, value=value: _pool_of_equals(tape, value), element="f32")
        plan = check(network, [out, gradient], 1)
        found = plan.forward(network.parameters()).of(gradient).to_list()
        assert found == [1.0, 0.0, 0.0, 0.0]


def _pool_of_equals(tape: Tape, value: float) -> list[Any]:
    source = tape.input([[[[value] * 2] * 2]])
    out = max_pool(source, 2)
    return [out, *tape.vjp(out, tape.leaf([[[[1.0]]]]), [source]).gradients]


def small_net(tape: Tape) -> dict[str, Any]:
    """Record two convolutions with a pool between, a loss and its gradients."""
    element = tape.element
    source = tape.input(drawn((2, 2, 8, 8), element, 1))
    weights = [tape.parameter(drawn(s, element, i)) for i, s in enumerate([(3, 2, 3, 3), (4, 3, 3, 3)])]
    biases = [tape.parameter(drawn((count,), element, count)) for count in (3, 4)]
    first = conv2d(source, weights[0], biases[0], 1, 1).relu()
    pooled = max_pool(first, 2)
    second = conv2d(pooled, weights[1], biases[1], 1, 1)
    loss = (second * second).sum()
    gradients = tape.differentiate(loss, [*weights, *biases]).gradients
    return {"loss": loss, "pooled": pooled, "first": first, "gradients": gradients}


def test_a_training_step_is_a_few_rows() -> None:
    """No patches, folds or maxima are left of a small net with its gradients."""
    network, names = Tape.record(small_net)
    plan = check(network, [names["loss"], *names["gradients"]], 2)
    left = kernels(plan)
    assert "fold" not in left
    assert left.count("pool") == 1
    assert left.count("pool_slope") == 1


def test_gradients_of_second_order() -> None:
    """A Hessian-vector product through convolution and pooling has the interpreter's bits."""

    def build(tape: Tape) -> list[Any]:
        source = tape.input(drawn((1, 2, 6, 6), tape.element, 1))
        weights = tape.parameter(drawn((2, 2, 3, 3), tape.element, 2))
        out = max_pool(conv2d(source, weights, tape.leaf([0.5, -0.5]), 1, 1).tanh(), 2)
        slope = tape.differentiate((out * out).sum(), weights).of(weights)
        return list(tape.vjp(slope, drawn((2, 2, 3, 3), tape.element, 3), [weights, source]).gradients)

    network, roots = Tape.record(build, element="f64")
    check(network, roots, 2)


def test_an_observed_interior_bars() -> None:
    """Where a node between is read by the user, the group is not carried out as one; its value is right."""
    network, roots = pooling(ELEMENTS[0], (1, 1, 4, 4), 2, 2)
    maximum = next(node.symbol for node in network.nodes() if node.name == "Maximum")
    plan = check(network, [roots[0], maximum], 1)
    assert "pool" not in kernels(plan)
    network, roots = convolution(ELEMENTS[0], (1, 1, 4, 4), (1, 3, 3))
    patches = next(node.symbol for node in network.nodes() if node.name == "Reshape")
    plan = check(network, [roots[0], patches], 1)
    assert rows_at(plan, patches) > 0


def test_shared_work_is_not_done_twice() -> None:
    """A product that others read beside its planes is computed once, from windows."""
    network, _ = convolution(ELEMENTS[0], (1, 2, 4, 4), (3, 2, 2))
    product = next(node.symbol for node in network.nodes() if node.name == "MatMul")
    planes = next(
        node.symbol for node in network.nodes() if node.name == "Permute" and node.symbol.index > product.index
    )
    plan = check(network, [planes, product], 1)
    assert rows_at(plan, product) == 1
    assert rows_at(plan, planes) == 0


def test_backward_plans_fuse_nothing() -> None:
    """A plan that answers `Run.backward` keeps every node."""
    network, names = Tape.record(small_net)
    plan = network.entry([names["loss"]]).backward().lower()
    assert "pool" not in kernels(plan)
