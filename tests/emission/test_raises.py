"""Convolution, pooling and batch norm as the operations that StableHLO has for them, forward and gradients."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.emission.envelope import FACTOR, UNIT, difference, excess, fed, walks
from tests.helpers import ELEMENTS, bits, drawn
from topos import (
    F32,
    F64,
    Activation,
    BatchNorm,
    Conv2d,
    Element,
    EmitError,
    Formula,
    Network,
    RunningBatchNorm,
    Sequential,
    Symbol,
    Tape,
    Tensor,
    concat,
    conv2d,
    inference,
    max_pool,
    named_parameters,
    statistics,
)

pytest.importorskip("jax", reason="the extra stablehlo is not installed")

from topos import stablehlo

# input, kernel, stride, padding, and the pool's size and stride; fewer channels in the kernel are groups
GEOMETRIES = [
    ((2, 3, 8, 8), (4, 3, 3, 3), 1, 1, (2, 2)),
    ((2, 3, 9, 7), (4, 3, 3, 2), 2, 1, None),
    ((1, 2, 16, 16), (3, 2, 7, 7), 3, 2, None),
    ((2, 2, 8, 8), (3, 2, 3, 3), 2, 0, (2, 1)),
    ((2, 1, 6, 6), (2, 1, 1, 1), 1, 2, None),
    ((2, 2, 7, 7), (2, 2, 2, 2), 1, 0, (3, 2)),
    ((2, 4, 6, 7), (6, 2, 3, 3), (2, 1), 1, None),
    ((2, 2, 6, 6), (4, 1, 3, 2), 1, 1, None),
]


def matrix(x: Any, kernel: Any) -> Any:
    """Return a convolution as a matrix of ``[batch * windows, filters]``, dilated by 2."""
    batch, channels, *_ = x.shape
    filters, _, height, width = kernel.shape
    windows = x.unfold(2, height, 1, 2).unfold(4, width, 1, 2)
    taps = channels * height * width
    patches = windows.permute([0, 2, 4, 1, 3, 5]).reshape([batch * windows.shape[2] * windows.shape[4], taps])
    return patches @ kernel.permute([1, 2, 3, 0]).reshape([taps, filters])


def recorded(element: Element) -> tuple[Network, list[Symbol]]:
    """Record every geometry with its gradients; return all results."""

    def build(tape: Tape) -> list[Any]:
        found = []
        for image, kernel, stride, padding, pool in GEOMETRIES:
            x, w = (tape.parameter(drawn(shape, element, i)) for i, shape in enumerate((image, kernel)))
            b = tape.parameter(drawn(kernel[:1], element, 3))
            y = conv2d(x, w, b, stride, padding, groups=image[1] // kernel[1])
            y = max_pool(y, *pool) if pool else y
            seed = tape.leaf(drawn(tuple(y.shape), element, 4))
            found += [y, *tape.vjp(y, seed, [x, w, b]).gradients]
        x, w = (tape.parameter(drawn(shape, element)) for shape in ((2, 3, 7, 8), (4, 3, 2, 3)))
        y = matrix(x, w)
        seed = tape.leaf(drawn(tuple(y.shape), element, 4))
        return [*found, y, *tape.vjp(y, seed, [x, w]).gradients]

    return Tape.record(build, element=element)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_raised_convolutions_and_pools(element: Element) -> None:
    """Values and gradients of all geometries are within the envelope, on the interpreter and on XLA."""
    network, results = recorded(element)
    plan = network.entry(results).lower()
    text, arrays = plan.emit_stablehlo(), fed(plan, network.parameters(), {})
    ours, runs = plan.forward(network.parameters()), walks(network, {})
    for run in (stablehlo.interpret, lambda text, arrays: stablehlo.compile(text)(*arrays)):
        for symbol, found in zip(plan.results, run(text, arrays), strict=True):
            here, exact = ours.of(symbol).numpy(), [walked[symbol].numpy() for walked in runs]
            assert excess(found, here, FACTOR * difference(here, exact, UNIT[element.name])) <= 1, symbol


def test_no_primitive_of_a_group_is_in_the_text() -> None:
    """Convolutions stand alone: no product, window, mask or fold of their formulas is left."""
    network, results = recorded(F32)
    text = network.entry(results).lower().emit_stablehlo()
    pools = sum(pool is not None for *_, pool in GEOMETRIES)
    assert text.count("stablehlo.convolution(") == 3 * (len(GEOMETRIES) + 1)
    assert text.count('"stablehlo.reduce_window"') == text.count('"stablehlo.select_and_scatter"') == pools
    for primitive in ("dot_general", "concatenate", "gather", "stablehlo.select ", "%v.*= stablehlo.compare"):
        assert not re.search(primitive, text), primitive
    assert "(window product of [" in text


def test_an_observed_interior_keeps_the_plain_form() -> None:
    """Where the patches of a convolution are a result, its product is written as it was recorded."""

    def build(tape: Tape) -> Any:
        x, w, b = (tape.parameter(drawn(shape, F32)) for shape in ((2, 3, 8, 8), (4, 3, 3, 3), (4,)))
        return max_pool(conv2d(x, w, b, 1, 1), 2)

    network, result = Tape.record(build)
    product = next(node for node in network.nodes() if node.name == "MatMul")
    text = network.entry(result).observe(product.operands[0]).lower().emit_stablehlo()
    assert "stablehlo.convolution(" not in text
    assert "stablehlo.dot_general" in text
    assert '"stablehlo.reduce_window"' in text
    lane = next(node for node in network.nodes() if node.name == "Narrow")
    text = network.entry(result).observe(lane.symbol).lower().emit_stablehlo()
    assert '"stablehlo.reduce_window"' not in text


def test_pools_of_ties_and_nan() -> None:
    """The first of equal maxima takes the gradient, and a NaN stays and takes it, as `Maximum` has it."""
    image = np.zeros((1, 1, 4, 6), np.float32)
    image[0, 0, :2, 2:4] = [[np.nan, 5], [7, 9]]
    image[0, 0, :2, 4:] = [[3, np.nan], [4, np.nan]]
    image[0, 0, 2:, :2] = [[-np.inf, -np.inf], [-np.inf, -np.inf]]
    image[0, 0, 2:, 2:4] = [[1, 2], [2, 2]]

    def build(tape: Tape) -> Any:
        x = tape.parameter(image)
        y = max_pool(x, 2)
        return [y, tape.vjp(y, tape.leaf(drawn((1, 1, 2, 3), F32)), [x]).gradients[0]]

    network, results = Tape.record(build)
    ours = network.forward(network.parameters())
    text = network.entry(results).lower().emit_stablehlo()
    assert "select_and_scatter" in text
    for found in (stablehlo.interpret(text, [image]), stablehlo.compile(text)(image)):
        for symbol, there in zip(results, found, strict=True):
            assert np.array_equal(ours.of(symbol).numpy(), there, equal_nan=True)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_concatenation_has_an_operation(element: Element) -> None:
    """Parts are joined, not padded, and +0 is added as the recorded pads do: the same numbers, zeros with their sign."""

    def build(tape: Tape) -> Any:
        parts = [tape.input(drawn(shape, element, i)) for i, shape in enumerate([(2, 3), (2, 1), (2, 4)])]
        return concat([tape.input(np.full((2, 2), -0.0)), *parts], 1)

    network, y = Tape.record(build, element=element)
    plan = network.entry(y).lower()
    text = plan.emit_stablehlo()
    assert operations(text) == {"constant", "concatenate", "add"}
    assert "pad" in operations(plan.emit_stablehlo(plain=[Formula.CONCATENATION]))
    arrays = fed(plan, network.parameters(), {})
    ours = network.forward(network.parameters()).of(y).numpy()
    (there,) = stablehlo.interpret(text, arrays)
    assert bits(there).tolist() == bits(ours).tolist()
    assert np.array_equal(stablehlo.compile(text)(*arrays)[0], ours)


# ---- batch norm

SHAPES = [(8, 3), (4, 3, 5), (2, 3, 4, 4)]

STATISTICS = (Formula.BATCH_NORM_TRAINING, Formula.BATCH_NORM_INFERENCE)

EPSILON = 2.0**-10


def normalized(element: Element = F32, epsilon: float = EPSILON, shapes: Any = SHAPES) -> tuple[Network, list[Any]]:
    """Record a batch norm over each shape, in training with its statistics and gradients, and by given statistics."""

    def build(tape: Tape) -> list[Any]:
        found = []
        for shape in shapes:
            x = tape.parameter(drawn(shape, element, 1))
            norm = BatchNorm(tape, drawn((3,), element, 2), drawn((3,), element, 3), epsilon)
            y = norm.express(x)
            seed = tape.leaf(drawn(tuple(y.output.shape), element, 4))
            wanted = [x, tape.resolve(norm.scale), tape.resolve(norm.shift)]
            found += [*y, *tape.vjp(y.output, seed, wanted).gradients]
            mean, variance = (tape.input(drawn((3,), element, i)) for i in (5, 6))
            found.append(norm.express_with(x, mean, (variance * variance) + 0.25))
        return found

    return Tape.record(build, element=element)


def operations(text: str) -> set[str]:
    """Return which operations a text has."""
    return set(re.findall(r"stablehlo\.(\w+)", text))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_raised_batch_norms(element: Element) -> None:
    """On XLA raised, and plainly on XLA and the interpreter: values, statistics and gradients within the envelope."""
    network, results = normalized(element)
    plan, parameters = network.entry(results).lower(), network.parameters()
    text, plain = plan.emit_stablehlo(), plan.emit_stablehlo(plain=STATISTICS)
    assert text.count('"stablehlo.batch_norm_') == 3 * len(SHAPES)
    assert not any(name.startswith("batch_norm") for name in operations(plain))
    arrays = fed(plan, parameters, {})
    ours, runs = plan.forward(parameters), walks(network, {})
    for found in (
        stablehlo.compile(text)(*arrays),
        stablehlo.compile(plain)(*arrays),
        stablehlo.interpret(plain, arrays),
    ):
        for symbol, there in zip(plan.results, found, strict=True):
            here, exact = ours.of(symbol).numpy(), [walked[symbol].numpy() for walked in runs]
            assert excess(there, here, FACTOR * difference(here, exact, UNIT[element.name])) <= 1, symbol
    with pytest.raises(EmitError, match=r"no batch norm: emit its formula, with emit_stablehlo\(plain="):
        stablehlo.interpret(text, arrays)


def test_no_primitive_of_a_batch_norm_is_in_the_text() -> None:
    """Its operations stand alone, also where statistics or some of the gradients are not read."""
    for shape in SHAPES:
        network, results = normalized(shapes=[shape])
        for chosen in (results[:6], results[:1], [results[0], results[3]], results[:4]):
            text = network.entry(chosen).lower().emit_stablehlo()
            assert operations(text) <= {"constant", "reshape", "batch_norm_training", "batch_norm_grad"}
            assert "(batch norm training of [" in text
        text = network.entry(results[6:]).lower().emit_stablehlo()
        assert operations(text) - {"reshape"} == {
            "constant",
            "multiply",
            "broadcast_in_dim",
            "add",
            "batch_norm_inference",
        }
        assert text.count("stablehlo.add ") == 1  # of the variance that is given


def test_an_observed_interior_keeps_a_batch_norm_plain() -> None:
    """Observed centred values, or others of the formula: no operation. Mean and variance may be read by anyone."""
    network, results = normalized(shapes=SHAPES[:1])
    nodes = network.nodes()
    for name in ("Sub", "Sqrt", "SumAlong"):
        interior = next(node.symbol for node in nodes if node.name == name)
        text = network.entry(results[:4]).observe(interior).lower().emit_stablehlo()
        assert not any(found.startswith("batch_norm") for found in operations(text)), name
    slope = next(node.symbol for node in nodes if node.name == "Ratio")
    text = network.entry(results[:4]).observe(slope).lower().emit_stablehlo()
    assert not any(found.startswith("batch_norm") for found in operations(text))
    tape = network.into_tape()
    twice = (tape.resolve(results[1]) * tape.resolve(results[2])).symbol
    text = tape.into_network().entry([results[0], twice]).lower().emit_stablehlo()
    assert operations(text) == {"batch_norm_training", "multiply"}


@pytest.mark.parametrize("epsilon", [0.0, 1e-5])
def test_an_epsilon_that_text_cannot_state_keeps_a_batch_norm_plain(epsilon: float) -> None:
    """Text states it as a number of f32, and zero lets a constant feature meet infinities."""
    network, results = normalized(F64, epsilon, SHAPES[:1])
    assert "batch_norm" not in network.entry(results).lower().emit_stablehlo()


def test_formulas_that_no_operation_fits_stay_plain() -> None:
    """An epsilon that is fed, and statistics that are read before the scale is recorded."""

    def build(tape: Tape) -> Any:
        x, small = tape.parameter(drawn((8, 3), F32)), tape.input(EPSILON)
        found = []
        for epsilon in (small, tape.leaf(EPSILON)):
            mean = x.mean_along(0)
            scale = tape.parameter(np.ones(3)) + mean
            centred = x - mean.broadcast_along(0, 8)
            variance = (centred * centred).mean_along(0)
            normal = centred / (variance + epsilon.broadcast([3])).sqrt().broadcast_along(0, 8)
            found.append(normal * scale.broadcast_along(0, 8) + scale.broadcast_along(0, 8))
        return found

    network, results = Tape.record(build)
    assert "batch_norm" not in network.entry(results).lower().emit_stablehlo()


def test_a_net_with_batch_norms_is_raised() -> None:
    """Convolutions and running batch norms: a training step with its statistics, and the same model in inference."""

    def build(tape: Tape) -> Any:
        stages = []
        for channels, filters in ((2, 3), (3, 4)):
            weights = drawn((filters, channels, 3, 3), F32, filters)
            norm = RunningBatchNorm(tape, np.ones(filters), np.full(filters, 0.5))
            stages += [Conv2d(tape, weights, drawn((filters,), F32, 9), padding=1), norm, Activation.RELU]
        model = Sequential(*stages)
        x = tape.input(drawn((2, 2, 6, 6), F32))
        output = model.express(x)
        loss = (output * output).sum()
        # Not by the biases before the norms: these gradients are zero but for roundings.
        wanted = [symbol for path, symbol in named_parameters(model) if str(path).rpartition(".")[2] != "bias"]
        gradients = tape.differentiate(loss, [tape.resolve(symbol) for symbol in wanted]).gradients
        with inference():
            served = model.express(x)
        return [loss, *gradients, *statistics(model)], served

    network, (training, served) = Tape.record(build)
    kinds = {"batch_norm_training": 2, "batch_norm_grad": 2}, {"batch_norm_inference": 2}
    for chosen, expected in zip((training, [served]), kinds, strict=True):
        plan = network.entry(chosen).lower()
        text, arrays = plan.emit_stablehlo(), fed(plan, network.parameters(), {})
        assert {name: text.count(f'"stablehlo.{name}"') for name in expected} == expected
        assert not {"sqrt", "subtract", "divide"} & operations(text)
        ours, runs = plan.forward(network.parameters()), walks(network, {})
        for symbol, there in zip(plan.results, stablehlo.compile(text)(*arrays), strict=True):
            here, exact = ours.of(symbol).numpy(), [walked[symbol].numpy() for walked in runs]
            assert excess(there, here, FACTOR * difference(here, exact, UNIT["f32"])) <= 1, symbol


def test_plans_are_compiled_without_batch_norms_of_training() -> None:
    """A mean that is large beside the deviation costs XLA's operation its variance; `on_xla` writes the formula."""

    def build(tape: Tape) -> Any:
        norm = BatchNorm(tape, np.ones(3), np.zeros(3))
        return norm.express(tape.input(drawn((64, 3), F32) + Tensor.filled([64, 3], 3000.0)))

    network, (output, _, variance) = Tape.record(build)
    plan = network.entry([output, variance]).lower()
    ours, served = (run.forward(network.parameters()).of(variance).numpy() for run in (plan, plan.on_xla()))
    assert np.allclose(ours, served, rtol=1e-4)


def test_a_shift_by_the_very_mean() -> None:
    """What the operation would both read and make stays plain."""

    def build(tape: Tape) -> Any:
        scale, x = tape.parameter(np.ones(3)), tape.input(drawn((6, 3), F32))
        mean = x.mean_along(0)
        centered = x - mean.broadcast_along(0, 6)
        variance = (centered * centered).mean_along(0)
        deviation = (variance + tape.leaf(2.0**-10).broadcast([3])).sqrt()
        normal = centered / deviation.broadcast_along(0, 6)
        return normal * scale.broadcast_along(0, 6) + mean.broadcast_along(0, 6)

    network, output = Tape.record(build)
    text = network.entry(output).lower().emit_stablehlo()
    assert "batch_norm" not in text
