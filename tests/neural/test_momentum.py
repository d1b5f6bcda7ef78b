"""Momentum, Nesterov, RMSProp, Lion and clipping: recurrences, and one native entry with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS
from topos import (
    Adam,
    Lion,
    Momentum,
    Nesterov,
    Parameters,
    RmsProp,
    Sgd,
    ShapeError,
    Tape,
    clip_adjoints,
    clip_by_norm,
)

MAKERS: list[Any] = [
    Momentum, lambda: Nesterov(0.7), lambda: RmsProp(0.9, 1e-3), lambda: Lion(0.9, 0.99, 0.1),
]  # fmt: skip


def squares(element: Any, limit: float | None = None) -> Any:
    """Return a network of a matrix and a vector with the gradients of a loss, clipped or not."""

    def build(tape: Tape) -> Any:
        w = tape.parameter(np.sin(np.arange(6.0)).reshape(2, 3))
        b = tape.parameter(np.cos(np.arange(3.0)))
        x = tape.input(np.ones((4, 2)))
        y = x.matmul(w) + b.broadcast_along(0, 4)
        adjoints = tape.differentiate((y * y).mean(), [w, b])
        return x, adjoints if limit is None else clip_adjoints(tape, adjoints, limit)

    return Tape.record(build, element=element)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_one_native_entry(make: Any, element: Any) -> None:
    """`plan.step` and `plan.steps` have the bits of the strategy over payloads."""
    network, (x, adjoints) = squares(element)
    plan, optimizer, native, many = network.entry(adjoints.roots).lower(), make(), make(), make()
    by_hand = at_once = network.parameters()
    feeds = np.random.default_rng(1).normal(size=(4, 4, 2))
    for feed in feeds:
        gradients = plan.forward(by_hand, {x: feed}).recorded_gradients(adjoints)
        by_hand = optimizer.step(by_hand, gradients, 0.05)
        _, at_once = plan.step(at_once, {x: feed}, native, 0.05)
    assert by_hand.buffer.tobytes() == at_once.buffer.tobytes()
    _, sequence = plan.steps(network.parameters(), {x: feeds}, many, 0.05)
    assert by_hand.buffer.tobytes() == sequence.buffer.tobytes()
    assert optimizer.state[0] == native.state[0] == many.state[0]


def test_lion_by_the_paper() -> None:
    """Three steps of Chen et al.'s algorithm 2 in f64: decay spares vectors, the sign of 0 is 0."""
    network, _ = squares("f64")
    parameters = network.parameters()
    p = [np.array(t.numpy()) for t in parameters.payloads()]
    m = [np.zeros_like(a) for a in p]
    optimizer, generator = Lion(0.8, 0.9, 0.5), np.random.default_rng(2)
    for _ in range(3):
        g = [generator.integers(-1, 2, a.shape).astype(float) for a in p]
        parameters = optimizer.step(
            parameters, parameters.with_payloads(zip(parameters.symbols(), g, strict=True)), 0.1
        )
        for i in range(2):
            direction = np.sign(0.8 * m[i] + (1 - 0.8) * g[i])
            p[i] = p[i] - 0.1 * (direction + (0.5 * p[i] if i == 0 else 0))
            m[i] = 0.9 * m[i] + (1 - 0.9) * g[i]
    for payload, expected in zip(parameters.payloads(), p, strict=True):
        np.testing.assert_allclose(payload.numpy(), expected, rtol=1e-12)


def test_clipped_gradients_inside_a_step() -> None:
    """A plan follows the clipped adjoints: the bits of clipping the payloads; a large limit changes none."""
    for limit, changes in ((0.5, True), (1e6, False)):
        network, (_, clipped) = squares("f32", limit)
        _, parameters = (plan := network.entry(clipped.roots).lower()).step(
            network.parameters(), {}, Sgd(), 0.1, adjoints=clipped
        )
        plain, (_, adjoints) = squares("f32")
        start = plain.parameters()
        gradients = plain.forward(start).recorded_gradients(adjoints)
        expected = Sgd().step(start, clip_by_norm(gradients, limit), 0.1)
        assert parameters.buffer.tobytes() == expected.buffer.tobytes()
        unclipped = Sgd().step(start, gradients, 0.1)
        assert (expected.buffer.tobytes() != unclipped.buffer.tobytes()) == changes
        assert len(plan.results) == 3


def test_clipping_of_little() -> None:
    """Zero gradients stay zero, no gradients stay none; several limits are refused."""
    network, (_, adjoints) = squares("f64")
    zeros: Parameters = network.parameters().map(lambda p: p.zero_like())
    assert clip_by_norm(zeros, 1.0) == zeros
    empty, _ = Tape.record(lambda tape: tape.input(1.0))
    assert clip_by_norm(empty.parameters(), 1.0).is_empty
    tape = network.into_tape()
    nothing = tape.differentiate(tape.resolve(adjoints.target), [])
    assert clip_adjoints(tape, nothing, 1.0) is nothing
    for attempt in (lambda: clip_by_norm(zeros, [1.0, 2.0]), lambda: clip_adjoints(tape, adjoints, [1.0, 2.0])):
        with pytest.raises(ShapeError, match="limit: a single value"):
            attempt()


def test_hyper_parameters() -> None:
    """Each is a single value, checked with its name; signatures tell settings apart."""
    for make, name in (
        (lambda: Momentum([0.1, 0.2]), "momentum"),
        (lambda: RmsProp([0.1, 0.2]), "decay"),
        (lambda: RmsProp(0.9, [0.1, 0.2]), "epsilon"),
        (lambda: Lion(beta2=[0.1, 0.2]), "beta2"),
    ):
        with pytest.raises(ShapeError, match=f"{name}: a single value"):
            make()
    assert Momentum(0.5).signature() == Momentum(0.5).signature() != Nesterov(0.5).signature()
    assert Adam().state is None
