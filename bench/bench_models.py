"""Training steps of whole models (forward, gradients, gradient descent): two convolutional nets, a GPT block, an LSTM."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import topos
from topos import (
    Activation,
    BatchNorm,
    Conv2d,
    Flatten,
    LayerNorm,
    Linear,
    LstmCell,
    MaxPool,
    Module,
    MultiHeadAttention,
    Sequential,
    Sgd,
    Tape,
    Tensor,
    Value,
)

SYSTEMS = pytest.mark.parametrize("system", ["topos", "torch", "torch_compile", "jax"])
BATCH, RATE = 64, 0.01

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Return small random weights."""
    return (RNG.normal(size=shape) * 0.05).astype(np.float32)


def time_topos(timed: Any, build: Callable[[Tape], Any], data: list[Any]) -> None:
    """Time `plan.step`; `build` returns the inputs, the loss and the parameters."""

    def recorded(tape: Tape) -> tuple:
        inputs, loss, parameters = build(tape)
        return inputs, tape.differentiate(loss, parameters)

    network, (inputs, adjoints) = Tape.record(recorded)
    plan, state, sgd = network.entry(adjoints.roots).lower(), [network.parameters()], Sgd()
    feeds = dict(zip(inputs, data, strict=True))

    def step() -> None:
        _, state[0] = plan.step(state[0], feeds, sgd, RATE)

    timed("topos", step)


def time_torch(system: str, timed: Any, torch: Any, model: Any, loss: Callable[..., Any], data: list[Any]) -> None:
    """Time eager or compiled steps."""
    forward = torch.compile(model) if system == "torch_compile" else model
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(forward(data[0]), data[1]).backward()
        optimizer.step()

    timed(system, step)


def time_jax(timed: Any, jax: Any, loss: Callable[..., Any], parameters: Any, data: list[Any]) -> None:
    """Time jitted steps."""
    gradient = jax.grad(loss)
    compiled = jax.jit(lambda p, x, y: jax.tree.map(lambda w, g: w - RATE * g, p, gradient(p, x, y)))
    given = [jax.numpy.asarray(each) for each in data]
    state = [jax.tree.map(jax.numpy.asarray, parameters)]

    def step() -> None:
        state[0] = jax.block_until_ready(compiled(state[0], *given))

    timed("jax", step)


def jax_convolutional(jax: Any, normed: bool) -> Callable[..., Any]:
    """Return the loss of a stack of convolutions, each with relu and a pool, and a linear head."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, y: Any) -> Any:
        for w, b, scale, shift in p[0]:
            x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = x + b[None, :, None, None]
            if normed:
                mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
                x = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale[None, :, None, None] + shift[
                    None, :, None, None
                ]
            window = (1, 1, 2, 2)
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, window, "VALID")
        scores = jax.nn.log_softmax(x.reshape(len(x), -1) @ p[1] + p[2])
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    return loss


class Normed(Module):
    """Batch norm whose statistics nobody keeps, as a stage."""

    def __init__(self, tape: Tape, features: int) -> None:
        self.norm = BatchNorm(tape, np.ones(features), np.zeros(features))

    def express(self, input: Value) -> Value:
        """Record the normalised images."""
        return self.norm.express(input).output


def convolutional(system: str, timed: Any, request: Any, channels: list[int], extent: int, normed: bool) -> None:
    """Time a stack of 3x3 convolutions with relu and 2x2 pools over batches of images, and a head of 10."""
    pairs = list(itertools.pairwise(channels))
    final = channels[-1] * (extent >> len(pairs)) ** 2
    x, labels = normal(BATCH, channels[0], extent, extent), RNG.integers(0, 10, BATCH)
    if system == "topos":

        def build(tape: Tape) -> tuple:
            stages: list[Module] = []
            norms: list[BatchNorm] = []
            for inputs, outputs in pairs:
                stages.append(Conv2d(tape, normal(outputs, inputs, 3, 3), normal(outputs), padding=1))
                if normed:
                    stages.append(Normed(tape, outputs))
                    norms.append(stages[-1].norm)  # type: ignore[attr-defined]
                stages += [Activation.RELU, MaxPool(2)]
            model = Sequential(*stages, Flatten(), Linear(tape, normal(final, 10), normal(10)))
            images, targets = tape.input(x), tape.input(Tensor.selection(labels, 10))
            parameters = [*topos.parameters(model), *(s for norm in norms for s in norm.parameters())]
            return (images, targets), topos.cross_entropy(model.express(images), targets), parameters

        time_topos(timed, build, [x, Tensor.selection(labels, 10)])
    elif system.startswith("torch"):
        torch = request.getfixturevalue("torch")
        nn, stages = torch.nn, []
        for inputs, outputs in pairs:
            norm = [nn.BatchNorm2d(outputs)] if normed else []
            stages += [nn.Conv2d(inputs, outputs, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]
        model = nn.Sequential(*stages, nn.Flatten(), nn.Linear(final, 10))
        data = [torch.from_numpy(x), torch.from_numpy(labels)]
        time_torch(system, timed, torch, model, nn.functional.cross_entropy, data)
    else:
        jax = request.getfixturevalue("jax")
        stack = [(normal(o, i, 3, 3), normal(o), np.ones(o, np.float32), np.zeros(o, np.float32)) for i, o in pairs]
        parameters = (stack, normal(final, 10), normal(10))
        time_jax(timed, jax, jax_convolutional(jax, normed), parameters, [x, labels])


@SYSTEMS
def bench_mnist(system: str, timed: Any, request: Any) -> None:
    """Two convolutions of 8 and 16 filters over 28x28, batch 64."""
    convolutional(system, timed, request, [1, 8, 16], 28, False)


@SYSTEMS
def bench_cifar(system: str, timed: Any, request: Any) -> None:
    """Three convolutions of 32, 64 and 64 filters with batch norm over 32x32, batch 64."""
    convolutional(system, timed, request, [3, 32, 64, 64], 32, True)


FEATURES, HEADS, LENGTH, LINES = 128, 4, 128, 8


@SYSTEMS
def bench_gpt(system: str, timed: Any, request: Any) -> None:
    """One transformer block: 128 features, 4 heads, sequence 128, batch 8; the loss is a mean square."""
    x, y = normal(LINES, LENGTH, FEATURES), normal(LINES, LENGTH, FEATURES)
    if system == "topos":

        def build(tape: Tape) -> tuple:
            def linear(inputs: int, outputs: int) -> Linear:
                return Linear(tape, normal(inputs, outputs), normal(outputs))

            norms = [LayerNorm(tape, np.ones(FEATURES), np.zeros(FEATURES)) for _ in range(2)]
            parts = [linear(FEATURES, FEATURES) for _ in range(4)]
            attention = MultiHeadAttention(tape, *parts, heads=HEADS, mask=topos.causal_mask(LENGTH))
            mlp = Sequential(linear(FEATURES, 4 * FEATURES), Activation.GELU, linear(4 * FEATURES, FEATURES))
            lines, target = tape.input(x), tape.input(y)
            mixed = lines + attention.express(norms[0].express(lines))
            out = mixed + mlp.express(norms[1].express(mixed))
            modules = [*norms, attention, mlp]
            parameters = [symbol for module in modules for symbol in topos.parameters(module)]
            return (lines, target), topos.mse(out, target), parameters

        time_topos(timed, build, [x, y])
    elif system.startswith("torch"):
        torch = request.getfixturevalue("torch")
        data = [torch.from_numpy(x), torch.from_numpy(y)]
        time_torch(system, timed, torch, torch_block(torch), torch.nn.functional.mse_loss, data)
    else:
        jax = request.getfixturevalue("jax")
        sizes = {"q": (FEATURES, 3 * FEATURES), "o": (FEATURES, FEATURES), "u": (FEATURES, 4 * FEATURES)}
        sizes["d"] = (4 * FEATURES, FEATURES)
        parameters = {name: (normal(*shape), normal(shape[1])) for name, shape in sizes.items()}
        ones, zeros = np.ones(FEATURES, np.float32), np.zeros(FEATURES, np.float32)
        time_jax(timed, jax, jax_block(jax), parameters | {"1": (ones, zeros), "2": (ones, zeros)}, [x, y])


def torch_block(torch: Any) -> Any:
    """Return the block as a PyTorch module."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
            self.joint, self.output = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
            self.up, self.down = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)
            self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1))

        def forward(self, x: Any) -> Any:
            """Return the block's features."""
            shape = (LINES, LENGTH, HEADS, FEATURES // HEADS)
            q, k, v = (t.view(shape).transpose(1, 2) for t in self.joint(self.first(x)).split(FEATURES, 2))
            odds = torch.softmax(q @ k.transpose(-1, -2) / shape[-1] ** 0.5 + self.mask, -1)
            x = x + self.output((odds @ v).transpose(1, 2).reshape(x.shape))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    return Block()


def jax_block(jax: Any) -> Callable[..., Any]:
    """Return the block's loss in JAX."""
    jnp = jax.numpy
    mask = jnp.triu(jnp.full((LENGTH, LENGTH), -jnp.inf, jnp.float32), 1)

    def norm(x: Any, p: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p[0] + p[1]

    def loss(p: Any, x: Any, y: Any) -> Any:
        shape = (LINES, LENGTH, HEADS, FEATURES // HEADS)
        joint = norm(x, p["1"]) @ p["q"][0] + p["q"][1]
        q, k, v = (t.reshape(shape).transpose(0, 2, 1, 3) for t in jnp.split(joint, 3, -1))
        odds = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / shape[-1] ** 0.5 + mask, -1)
        x = x + (odds @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"][0] + p["o"][1]
        wide = jax.nn.gelu(norm(x, p["2"]) @ p["u"][0] + p["u"][1], approximate=False)
        return ((x + wide @ p["d"][0] + p["d"][1] - y) ** 2).mean()

    return loss


STEPS, HIDDEN = 50, 64


@pytest.mark.parametrize("system", ["topos", "torch", "jax"])
def bench_lstm(system: str, timed: Any, request: Any) -> None:
    """An LSTM of 64 features over 50 steps of 32, batch 32; the loss is a mean square of all outputs."""
    x, y = normal(32, STEPS, 32), normal(32, STEPS, HIDDEN)
    weights = [normal(32, 4 * HIDDEN), normal(HIDDEN, 4 * HIDDEN), normal(4 * HIDDEN), normal(4 * HIDDEN)]
    if system == "topos":

        def build(tape: Tape) -> tuple:
            cell = LstmCell(tape, *weights)
            lines, target = tape.input(x), tape.input(y)
            return (lines, target), topos.mse(cell.express(lines), target), topos.parameters(cell)

        time_topos(timed, build, [x, y])
    elif system == "torch":
        torch = request.getfixturevalue("torch")
        model = torch.nn.LSTM(32, HIDDEN, batch_first=True)
        data = [torch.from_numpy(x), torch.from_numpy(y)]
        time_torch(system, timed, torch, model, lambda out, y: torch.nn.functional.mse_loss(out[0], y), data)
    else:
        jax = request.getfixturevalue("jax")
        time_jax(timed, jax, jax_recurrent(jax), weights, [x, y])


def jax_recurrent(jax: Any) -> Callable[..., Any]:
    """Return the loss of an LSTM in JAX."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, y: Any) -> Any:
        def step(states: Any, projected: Any) -> Any:
            hidden, cell = states
            take, keep, new, out = jnp.split(projected + hidden @ p[1] + p[3], 4, -1)
            cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zero = jnp.zeros((len(x), HIDDEN), jnp.float32)
        _, found = jax.lax.scan(step, (zero, zero), (x @ p[0] + p[2]).transpose(1, 0, 2))
        return ((found.transpose(1, 0, 2) - y) ** 2).mean()

    return loss
