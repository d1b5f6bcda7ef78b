"""Train on the UCI handwritten digits that scikit-learn ships: 1,797 real scans of 8x8 pixels.

A network 64-128-10 with relu, minibatches of 32, gradient descent with momentum. Everything runs through the
oracle: ``network.forward``, ``run.backward``, ``parameters.step``. The digest of the learned parameters is the
same on every machine and at every thread count.

    python examples/digits.py [--steps N] [--seed N] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import common
import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits

import topos
from topos import Network, Parameters, Symbol, Tape, Tensor, cross_entropy

BATCH, HIDDEN, TRAIN = 32, 128, 1437
STEPS, RATE, MOMENTUM = 1350, 0.1, 0.9


@dataclass(frozen=True)
class Data:
    """The digits, shuffled: pixels in 0..1, and labels."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load(seed: int = 0) -> Data:
    """Return the digits in a seeded order, 1,437 to train and 360 to test."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    x, y = (pixels / 16).astype(np.float32)[order], labels[order]
    return Data(x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:])


@dataclass(frozen=True)
class Model:
    """The sealed spec, and the names that it is used by."""

    network: Network
    pixels: Symbol
    targets: Symbol
    logits: Symbol
    loss: Symbol


def record(batch: int, seed: int) -> Model:
    """Record the network for batches of a size."""
    rng = np.random.default_rng(seed)

    def build(tape: Tape) -> tuple[topos.Value, ...]:
        pixels = tape.input(np.zeros((batch, 64)), name="pixels")
        targets = tape.input(Tensor.selection([0] * batch, 10), name="targets")
        w1 = tape.parameter(rng.uniform(-1, 1, (64, HIDDEN)) * math.sqrt(6 / 64), name="hidden.weights")
        b1 = tape.parameter(np.zeros(HIDDEN), name="hidden.bias")
        w2 = tape.parameter(rng.uniform(-1, 1, (HIDDEN, 10)) * math.sqrt(3 / HIDDEN), name="head.weights")
        b2 = tape.parameter(np.zeros(10), name="head.bias")
        hidden = (pixels @ w1 + b1.broadcast_along(0, batch)).relu()
        logits = hidden @ w2 + b2.broadcast_along(0, batch)
        return pixels, targets, logits, cross_entropy(logits, targets)

    network, names = Tape.record(build)
    return Model(network, *names)


def train(data: Data, steps: int, seed: int = 0, quiet: bool = False) -> tuple[Parameters, list[float]]:
    """Return the learned parameters and the loss of every step."""
    model = record(BATCH, seed)
    parameters = model.network.parameters()
    velocity = parameters.map(lambda payload: payload.zero_like())
    losses = []
    for step, chosen in enumerate(
        track(common.batches(len(data.train_y), BATCH, steps, seed), "training", steps, disable=quiet)
    ):
        rate = RATE * (1 - step / steps)
        feeds = {model.pixels: data.train_x[chosen], model.targets: Tensor.selection(data.train_y[chosen], 10)}
        run = model.network.forward(parameters, feeds)
        gradients = run.backward(model.loss).parameters(parameters)
        velocity = velocity.zip(gradients, lambda v, g: v * MOMENTUM + g)
        parameters = parameters.step(velocity, lambda p, v, rate=rate: p - v * rate)
        losses.append(float(run.of(model.loss).scalar()))
    return parameters, losses


def accuracy(parameters: Parameters, x: np.ndarray, y: np.ndarray, seed: int = 0) -> float:
    """Return the share of digits that the parameters name right."""
    model = record(len(y), seed)
    state = model.network.parameters().with_payloads(
        zip(model.network.parameters().symbols(), parameters.payloads(), strict=True)
    )
    logits = model.network.forward(state, {model.pixels: x}).of(model.logits).numpy()
    return float((logits.argmax(axis=1) == y).mean())


def main(arguments: list[str] | None = None) -> None:
    """Train, test, and print what came out."""
    options = common.options("Train a small network on the UCI digits.", arguments, STEPS, "digits_loss.png")
    data = load(options.seed)
    parameters, losses = train(data, options.steps, options.seed)
    print(f"final loss: {np.mean(losses[-20:]):.4f}")
    print(f"train accuracy: {accuracy(parameters, data.train_x, data.train_y):.4f}")
    print(f"test accuracy: {accuracy(parameters, data.test_x, data.test_y):.4f}")
    common.finish(options, parameters, losses, "UCI digits, 64-128-10")


if __name__ == "__main__":
    main()
