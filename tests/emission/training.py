"""Two small models whose whole training step is recorded: forward, gradients, and Adam's formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topos import Adam, Network, Parameters, Plan, Symbol, Tape, Trace, Value, conv2d, cross_entropy, max_pool

RATE = 0.01


@dataclass(frozen=True)
class Model:
    """Parameters, inputs (as shapes), the loss over both, and a batch for a step."""

    parameters: dict[str, tuple[int, ...]]
    inputs: dict[str, tuple[int, ...]]
    loss: Callable[[dict[str, Any]], Value]
    batch: Callable[[np.random.Generator], dict[str, Any]]


def _conv_loss(v: dict[str, Any]) -> Value:
    hidden = max_pool(conv2d(v["x"], v["kernel"], v["bias"], 1, 1).relu(), 2)
    flat = hidden.reshape([hidden.shape[0], 64])
    logits = flat @ v["weights"] + v["offset"].broadcast_along(0, flat.shape[0])
    return cross_entropy(logits, v["t"])


def _one_hot(positions: Any, count: int) -> Any:
    return np.eye(count)[positions]


CONV = Model(
    {"kernel": (4, 2, 3, 3), "bias": (4,), "weights": (64, 5), "offset": (5,)},
    {"x": (8, 2, 8, 8), "t": (8, 5)},
    _conv_loss,
    lambda g: {"x": g.normal(size=(8, 2, 8, 8)), "t": _one_hot(g.integers(0, 5, 8), 5)},
)

TOKENS, WIDTH, HEADS, WORDS = 8, 16, 2, 11


def _normed(x: Any) -> Any:
    centred = x - x.mean_along(1).broadcast_along(1, WIDTH)
    deviation = ((centred * centred).mean_along(1) + 1e-5).sqrt()
    return centred / deviation.broadcast_along(1, WIDTH)


def _block_loss(v: dict[str, Any]) -> Value:
    x = v["embedding"].gather(v["tokens"]) + v["places"]
    normed, each = _normed(x), WIDTH // HEADS
    query, key, value = (
        (normed @ v[name]).reshape([TOKENS, HEADS, each]).permute([1, 0, 2]) for name in ("q", "k", "v")
    )
    scores = query @ key.permute([0, 2, 1]) / each**0.5 + v["mask"].broadcast_along(0, HEADS)
    mixed = (scores.softmax(2) @ value).permute([1, 0, 2]).reshape([TOKENS, WIDTH])
    x = x + mixed @ v["o"]
    x = x + (_normed(x) @ v["up"]).gelu() @ v["down"]
    return cross_entropy(_normed(x) @ v["embedding"].permute([1, 0]), v["t"])


def _block_batch(g: np.random.Generator) -> dict[str, Any]:
    tokens = g.integers(0, WORDS, TOKENS)
    mask = np.where(np.tri(TOKENS) > 0, 0.0, -np.inf)
    following = _one_hot((tokens * 3 + 1) % WORDS, WORDS)
    return {"tokens": _one_hot(tokens, WORDS), "mask": mask, "t": following}


_SQUARES = dict.fromkeys("qkvo", (WIDTH, WIDTH))
BLOCK = Model(
    {
        "embedding": (WORDS, WIDTH),
        "places": (TOKENS, WIDTH),
        **_SQUARES,
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    },
    {"tokens": (TOKENS, WORDS), "mask": (TOKENS, TOKENS), "t": (TOKENS, WORDS)},
    _block_loss,
    _block_batch,
)


@dataclass(frozen=True)
class Step:
    """A recorded training step: what is fed, and what it gives back."""

    network: Network
    inputs: dict[str, Symbol]
    loss: Symbol
    gradients: list[Symbol]
    moments: list[Symbol]
    powers: list[Symbol]
    updated: list[Symbol]

    def plan(self) -> Plan:
        """Return the plan of loss, parameters and moments after the step."""
        return self.network.entry([self.loss, *self.updated]).lower()


def step_of(model: Model, element: str) -> Step:
    """Record a model's step. The moments are inputs; the parameters that follow, and theirs, are results."""
    adam, generator = Adam(), np.random.default_rng(1)

    def build(tape: Tape) -> Any:
        values: dict[str, Any] = {}
        for name, shape in model.parameters.items():
            drawn = generator.normal(size=shape).astype(np.float32) * np.float32(0.3)
            values[name] = tape.parameter(drawn.astype(np.float64) if element == "f64" else drawn, name=name)
        parameters = list(values.values())
        inputs = {n: tape.input(np.zeros(shape), name=n) for n, shape in model.inputs.items()}
        loss = model.loss(values | inputs)
        adjoints = tape.differentiate(loss, parameters)
        powers = [tape.input(1.0, name=f"power{i}") for i in (1, 2)]
        moments, updated = [], []
        for parameter, gradient in zip(parameters, adjoints.gradients, strict=True):
            own = [tape.input(np.zeros(tuple(parameter.shape))) for _ in range(2)]
            spread = [Trace(power.broadcast(parameter.shape)) for power in powers]
            state = (*map(Trace, own), *spread)
            rate, like = Trace(parameter).constant_like(1) * RATE, Trace(parameter)
            g = Trace(tape.resolve(gradient))
            result, after = adam.formula(like, g, rate, state, like.constant_like(0))
            moments += own
            updated += [result.value, after[0].value, after[1].value]
        return inputs, loss, list(adjoints.gradients), moments, powers, updated

    network, parts = Tape.record(build, element=element)
    return Step(network, *parts)


def losses(step: Step, model: Model, forward: Callable[..., Any], steps: int) -> Iterator[float]:
    """Train with a function like `Plan.forward`; yield the loss of every step."""
    generator = np.random.default_rng(2)
    parameters: Parameters = step.network.parameters()
    state = {symbol: np.zeros(tuple(step.network.node(symbol).shape)) for symbol in step.moments}
    for number in range(1, steps + 1):
        powers = dict(zip(step.powers, (0.9**number, 0.999**number), strict=True))
        batch = model.batch(generator)
        feeds = {step.inputs[name]: np.asarray(array, np.float32) for name, array in batch.items()}
        element = step.network.element
        feeds = {s: np.asarray(a, element.dtype) for s, a in {**feeds, **state, **powers}.items()}
        run = forward(parameters, feeds)
        after = [run.of(symbol).numpy() for symbol in step.updated]
        parameters = parameters.with_payloads(dict(zip(parameters.symbols(), after[::3], strict=True)))
        given = [moment for pair in zip(after[1::3], after[2::3], strict=True) for moment in pair]
        state = dict(zip(step.moments, given, strict=True))
        yield float(run.of(step.loss).scalar())
