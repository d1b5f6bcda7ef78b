"""Convolution and pooling as the operations that StableHLO has for them, forward and gradients."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.emission.envelope import FACTOR, UNIT, difference, excess, fed, walks
from tests.helpers import ELEMENTS, drawn
from topos import F32, Element, Network, Symbol, Tape, conv2d, max_pool

pytest.importorskip("jax", reason="the extra stablehlo is not installed")

from topos import stablehlo

# input, kernel, stride, padding, and the pool's size and stride
GEOMETRIES = [
    ((2, 3, 8, 8), (4, 3, 3, 3), 1, 1, (2, 2)),
    ((2, 3, 9, 7), (4, 3, 3, 2), 2, 1, None),
    ((1, 2, 16, 16), (3, 2, 7, 7), 3, 2, None),
    ((2, 2, 8, 8), (3, 2, 3, 3), 2, 0, (2, 1)),
    ((2, 1, 6, 6), (2, 1, 1, 1), 1, 2, None),
    ((2, 2, 7, 7), (2, 2, 2, 2), 1, 0, (3, 2)),
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
            y = conv2d(x, w, b, stride, padding)
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
