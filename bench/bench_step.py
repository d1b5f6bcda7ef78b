"""Training steps of small models: forward, gradients, update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from topos import Adam, Sgd, Tape, cross_entropy


@pytest.mark.parametrize("system", ["topos.steps", "topos.step", "torch", "jax"])
def bench_line_fit(system: str, timed: Any, request: Any) -> None:
    """The front-page line fit; ``topos.steps`` is the time of one of 1,000 steps in one call."""
    if system.startswith("topos"):

        def build(tape: Tape) -> tuple:
            w, x, y = tape.parameter(0.0), tape.input(0.0), tape.input(0.0)
            error = w * x - y
            loss = error * error
            return x, y, tape.differentiate(loss, [w])

        network, (x, y, adjoints) = Tape.record(build)
        plan = network.entry(adjoints.roots).lower()
        optimizer, state = Sgd(), network.parameters()
        if system == "topos.step":
            timed(system, lambda: plan.step(state, {x: 1.5, y: 3.0}, optimizer, 0.02))
            return
        feeds = {x: np.full(1000, 1.5, np.float32), y: np.full(1000, 3.0, np.float32)}
        timed(system, lambda: plan.steps(state, feeds, optimizer, 0.02), per=1000)
    elif system == "torch":
        torch = request.getfixturevalue("torch")
        w = torch.tensor(0.0, requires_grad=True)
        x, y = torch.tensor(1.5), torch.tensor(3.0)

        def step() -> None:
            error = w * x - y
            (error * error).backward()
            with torch.no_grad():
                w.sub_(w.grad * 0.02)
            w.grad = None

        timed(system, step)
    else:
        jax = request.getfixturevalue("jax")
        gradient = jax.grad(lambda w, x, y: (w * x - y) ** 2)
        compiled = jax.jit(lambda w, x, y: w - gradient(w, x, y) * 0.02)
        w = jax.numpy.float32(0.0)
        timed(system, lambda: compiled(w, 1.5, 3.0).block_until_ready())


@pytest.mark.parametrize("system", ["topos", "torch", "jax"])
def bench_mlp(system: str, timed: Any, request: Any) -> None:
    """784-128-10, batch 64, Adam, f32."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 784)).astype(np.float32)
    labels = rng.integers(0, 10, 64)
    targets = np.eye(10, dtype=np.float32)[labels]
    weights = [
        (rng.normal(size=shape) * 0.05).astype(np.float32) for shape in ((784, 128), (128,), (128, 10), (10,))
    ]
    if system == "topos":

        def build(tape: Tape) -> tuple:
            x, t = tape.input(data), tape.input(targets)
            w1, b1, w2, b2 = map(tape.parameter, weights)
            hidden = (x @ w1 + b1.broadcast_along(0, 64)).relu()
            loss = cross_entropy(hidden @ w2 + b2.broadcast_along(0, 64), t)
            return x, t, tape.differentiate(loss, [w1, b1, w2, b2])

        network, (x, t, adjoints) = Tape.record(build)
        plan = network.entry(adjoints.roots).lower()
        optimizer, state = Adam(), network.parameters()
        timed(system, lambda: plan.step(state, {x: data, t: targets}, optimizer, 1e-3))
    elif system == "torch":
        torch = request.getfixturevalue("torch")
        parameters = [torch.tensor(w, requires_grad=True) for w in weights]
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        x, t = torch.from_numpy(data), torch.from_numpy(labels)

        def step() -> None:
            optimizer.zero_grad()
            hidden = (x @ parameters[0] + parameters[1]).relu()
            torch.nn.functional.cross_entropy(hidden @ parameters[2] + parameters[3], t).backward()
            optimizer.step()

        timed(system, step)
    else:
        jax = request.getfixturevalue("jax")
        timed(system, _jax_mlp(jax, weights, data, targets))


def _jax_mlp(jax: Any, weights: list[np.ndarray], data: np.ndarray, targets: np.ndarray) -> Any:
    """Return a compiled Adam step of the same network."""
    jnp = jax.numpy

    def loss(p: list) -> Any:
        hidden = jax.nn.relu(data @ p[0] + p[1])
        return -(targets * jax.nn.log_softmax(hidden @ p[2] + p[3])).sum() / 64

    def update(p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * (m / 0.1) / (jnp.sqrt(v / 0.001) + 1e-8), m, v

    step = jax.jit(lambda p, m, v: [update(*each) for each in zip(p, jax.grad(loss)(p), m, v, strict=True)])
    state = [jnp.asarray(w) for w in weights]
    zeros = [jnp.zeros_like(w) for w in state]
    return lambda: jax.block_until_ready(step(state, zeros, zeros))
