"""Training steps of small models: forward, gradients, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from topos import Adam, Optimizer, Sgd, Tape, cross_entropy

SYSTEMS = pytest.mark.parametrize("system", ["topos.steps", "topos.step", "torch", "torch_compile", "jax"])
COUNT = 1000
"""Steps of a sequence."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own


def time_topos(
    system: str, timed: Any, build: Callable[[Tape], Any], data: list[Any], optimizer: Optimizer, rate: float
) -> None:
    """Time single steps, each from the last one's table, or one of `COUNT` steps in one call.

    `build` returns the inputs, in the order of `data`, and the adjoints.
    """
    network, (inputs, adjoints) = Tape.record(build)
    plan, parameters = network.entry(adjoints.roots).lower(), [network.parameters()]
    if system == "topos.step":

        def step() -> None:
            _, parameters[0] = plan.step(parameters[0], dict(zip(inputs, data, strict=True)), optimizer, rate)

        timed(system, step)
        return
    count = COUNT if np.size(data[0]) < COUNT else COUNT // 20
    arrays = [np.repeat(np.asarray(each, np.float32)[None], count, 0) for each in data]
    many = dict(zip(inputs, arrays, strict=True))
    timed(system, lambda: plan.steps(parameters[0], many, optimizer, rate), per=count)


def time_torch(
    system: str, timed: Any, torch: Any, loss: Callable[..., Any], weights: list[Any], data: list[Any], rate: Any
) -> None:
    """Time eager or compiled steps; without a `rate` they are Adam's."""
    parameters = [torch.tensor(w, requires_grad=True) for w in weights]
    optimizer = torch.optim.Adam(parameters, lr=1e-3) if rate is None else None
    forward = torch.compile(loss) if system == "torch_compile" else loss

    def step() -> None:
        forward(parameters, *data).backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
            return
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad * rate)
                parameter.grad = None

    timed(system, step)


@SYSTEMS
def bench_line_fit(system: str, timed: Any, request: Any) -> None:
    """The front-page line fit, with plain gradient descent."""
    if system.startswith("topos"):

        def build(tape: Tape) -> tuple:
            w, x, y = tape.parameter(0.0), tape.input(0.0), tape.input(0.0)
            error = w * x - y
            return (x, y), tape.differentiate(error * error, [w])

        time_topos(system, timed, build, [1.5, 3.0], Sgd(), 0.02)
    elif system.startswith("torch"):
        torch = request.getfixturevalue("torch")
        data = [torch.tensor(1.5), torch.tensor(3.0)]
        time_torch(system, timed, torch, lambda p, x, y: (p[0] * x - y) ** 2, [0.0], data, 0.02)
    else:
        jax = request.getfixturevalue("jax")
        gradient = jax.grad(lambda w, x, y: (w * x - y) ** 2)
        compiled = jax.jit(lambda w, x, y: w - gradient(w, x, y) * 0.02)
        state = [jax.numpy.float32(0.0)]

        def step() -> None:
            state[0] = compiled(state[0], 1.5, 3.0).block_until_ready()

        timed(system, step)


@SYSTEMS
def bench_xor(system: str, timed: Any, request: Any) -> None:
    """An MLP [2, 4, 1] over the four rows of xor, with plain gradient descent."""
    rng = np.random.default_rng(0)
    shapes = ((2, 4), (4,), (4, 1), (1,))
    weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    y = np.array([[0], [1], [1], [0]], np.float32)
    if system.startswith("topos"):

        def build(tape: Tape) -> tuple:
            inputs = tape.input(x), tape.input(y)
            w1, b1, w2, b2 = parameters = [tape.parameter(w) for w in weights]
            hidden = (inputs[0] @ w1 + b1.broadcast_along(0, 4)).tanh()
            error = hidden @ w2 + b2.broadcast_along(0, 4) - inputs[1]
            return inputs, tape.differentiate((error * error).sum(), parameters)

        time_topos(system, timed, build, [x, y], Sgd(), 0.01)
    elif system.startswith("torch"):
        torch = request.getfixturevalue("torch")

        def loss(p: list, x: Any, y: Any) -> Any:
            error = (x @ p[0] + p[1]).tanh() @ p[2] + p[3] - y
            return (error * error).sum()

        time_torch(system, timed, torch, loss, weights, [torch.from_numpy(x), torch.from_numpy(y)], 0.01)
    else:
        jax = request.getfixturevalue("jax")

        def error(p: list, x: Any, y: Any) -> Any:
            return ((jax.numpy.tanh(x @ p[0] + p[1]) @ p[2] + p[3] - y) ** 2).sum()

        gradient = jax.grad(error)
        compiled = jax.jit(lambda p, x, y: [w - g * 0.01 for w, g in zip(p, gradient(p, x, y), strict=True)])
        state = [[jax.numpy.asarray(w) for w in weights]]

        def step() -> None:
            state[0] = jax.block_until_ready(compiled(state[0], x, y))

        timed(system, step)


@SYSTEMS
def bench_mlp(system: str, timed: Any, request: Any) -> None:
    """784-128-10, batch 64, Adam, f32."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 784)).astype(np.float32)
    labels = rng.integers(0, 10, 64)
    targets = np.eye(10, dtype=np.float32)[labels]
    shapes = ((784, 128), (128,), (128, 10), (10,))
    weights = [(rng.normal(size=shape) * 0.05).astype(np.float32) for shape in shapes]
    if system.startswith("topos"):

        def build(tape: Tape) -> tuple:
            x, t = tape.input(data), tape.input(targets)
            w1, b1, w2, b2 = parameters = [tape.parameter(w) for w in weights]
            hidden = (x @ w1 + b1.broadcast_along(0, 64)).relu()
            loss = cross_entropy(hidden @ w2 + b2.broadcast_along(0, 64), t)
            return (x, t), tape.differentiate(loss, parameters)

        time_topos(system, timed, build, [data, targets], Adam(), 1e-3)
    elif system.startswith("torch"):
        torch = request.getfixturevalue("torch")

        def loss(p: list, x: Any, t: Any) -> Any:
            hidden = (x @ p[0] + p[1]).relu()
            return torch.nn.functional.cross_entropy(hidden @ p[2] + p[3], t)

        given = [torch.from_numpy(data), torch.from_numpy(labels)]
        time_torch(system, timed, torch, loss, weights, given, None)
    else:
        timed(system, _jax_mlp(request.getfixturevalue("jax"), weights, data, targets))


def _jax_mlp(jax: Any, weights: list[np.ndarray], data: np.ndarray, targets: np.ndarray) -> Any:
    """Return a compiled Adam step of the same network."""
    jnp = jax.numpy

    def loss(p: list, x: Any, t: Any) -> Any:
        hidden = jax.nn.relu(x @ p[0] + p[1])
        return -(t * jax.nn.log_softmax(hidden @ p[2] + p[3])).sum() / 64

    def update(p: Any, g: Any, m: Any, v: Any, n: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * (m / (1 - 0.9**n)) / (jnp.sqrt(v / (1 - 0.999**n)) + 1e-8), m, v

    def compiled(p: list, m: list, v: list, n: Any, x: Any, t: Any) -> Any:
        columns = zip(p, jax.grad(loss)(p, x, t), m, v, strict=True)
        return tuple(map(list, zip(*[update(*each, n) for each in columns], strict=True)))

    jitted = jax.jit(compiled)
    zeros = [jnp.zeros_like(w) for w in weights]
    state = [([jnp.asarray(w) for w in weights], zeros, zeros)]
    count = [0]

    def step() -> None:
        count[0] += 1
        state[0] = jax.block_until_ready(jitted(*state[0], jnp.float32(count[0]), data, targets))

    return step
