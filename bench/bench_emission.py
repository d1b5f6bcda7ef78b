"""An emitted training step on XLA, beside `jax.jit` of the same model, and how long a plan takes to become text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from topos import Tape, Trace, conv2d, cross_entropy, max_pool, stablehlo

SHAPES = [(8, 1, 3, 3), (8,), (16, 8, 3, 3), (16,), (784, 10), (10,)]
BATCH, RATE = 64, 0.01


@pytest.mark.parametrize("system", ["topos", "jax"])
def bench_emitted_conv_step(system: str, timed: Any, jax: Any) -> None:
    """Two convolutions with pools on 28x28 images, batch 64, forward, gradients and plain descent, f32, all on XLA."""
    rng = np.random.default_rng(0)
    weights = [(rng.normal(size=shape) * 0.05).astype(np.float32) for shape in SHAPES]
    images = rng.normal(size=(BATCH, 1, 28, 28)).astype(np.float32)
    labels = rng.integers(0, 10, BATCH)
    targets = np.eye(10, dtype=np.float32)[labels]
    if system == "topos":

        def build(tape: Tape) -> list:
            w = [tape.parameter(array) for array in weights]
            hidden = tape.input(images)
            for kernel, bias in (w[:2], w[2:4]):
                hidden = max_pool(conv2d(hidden, kernel, bias, 1, 1).relu(), 2)
            logits = hidden.reshape([BATCH, 784]) @ w[4] + w[5].broadcast_along(0, BATCH)
            loss = cross_entropy(logits, tape.input(targets))
            gradients = [tape.resolve(symbol) for symbol in tape.differentiate(loss, w).gradients]
            return [loss, *((Trace(a) - Trace(g) * RATE).value for a, g in zip(w, gradients, strict=True))]

        network, results = Tape.record(build)
        program = stablehlo.compile(network.entry(results).lower().emit_stablehlo())
        placed = [program.place(i, array) for i, array in enumerate([*weights, images, targets])]
        timed(system, lambda: program.run(placed))
        return
    lax, numpy = jax.lax, jax.numpy

    def layer(x: Any, kernel: Any, bias: Any) -> Any:
        axes = ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=axes)
        y = jax.nn.relu(y + bias[None, :, None, None])
        return lax.reduce_window(y, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss_of(w: Any, x: Any, t: Any) -> Any:
        hidden = layer(layer(x, *w[:2]), *w[2:4]).reshape(BATCH, -1)
        return -numpy.mean(numpy.sum(t * jax.nn.log_softmax(hidden @ w[4] + w[5]), 1))

    @jax.jit
    def step(w: Any, x: Any, t: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(w, x, t)
        return loss, [a - RATE * g for a, g in zip(w, gradients, strict=True)]

    given = [[numpy.asarray(a) for a in weights], numpy.asarray(images), numpy.asarray(targets)]
    timed(system, lambda: jax.block_until_ready(step(*given)))


@pytest.mark.parametrize("system", ["topos"])
def bench_emission_10000_nodes(system: str, timed: Any) -> None:
    """The text of a plan of 10,000 nodes of 5 kinds."""

    def build(tape: Tape) -> Any:
        value = tape.parameter(np.ones((2, 3)))
        for _ in range(1250):
            value = ((value * 0.5).tanh() + value).scale(value).permute([1, 0]).reshape([2, 3])
        return value

    network, result = Tape.record(build)
    plan = network.entry(result).lower()
    assert len(plan) == 10_001
    timed(system, plan.emit_stablehlo, rounds=5)
