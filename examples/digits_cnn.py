"""A convolutional network on the UCI digits: 1,797 real scans of 8x8 pixels, 360 of them held back.

Convolutions of 16 and 32 filters, a pool, a linear head; AdamW; images are shifted by a pixel at random, so that
the network sees more than 1,437 of them.

    python examples/digits_cnn.py [--steps N] [--seed N] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import common
import digits
import numpy as np
from rich.progress import track

import topos
from topos import Activation, AdamW, Conv2d, Flatten, Linear, MaxPool, Network, Parameters, Sequential, Tape, Tensor

BATCH, STEPS, RATE = 64, 1100, 3e-3


def model(tape: Tape, seed: int) -> Sequential:
    """Return the network over ``[batch, 1, 8, 8]``, 10 logits each."""

    def filters(stage: int, count: int, channels: int) -> Conv2d:
        draw = topos.init.normal(seed + stage, (2 / (9 * channels)) ** 0.5)
        return Conv2d(tape, draw([count, channels, 3, 3]), np.zeros(count), padding=1)

    head = topos.init.kaiming(seed + 2)
    return Sequential(
        *(filters(0, 16, 1), Activation.RELU, filters(1, 32, 16), Activation.RELU, MaxPool(2)),
        *(Flatten(), Linear(tape, head([32 * 4 * 4, 10]), head([10]))),
    )


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images moved by at most a pixel each way."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = rng.integers(0, 3, 2)
    return np.ascontiguousarray(padded[:, :, rows : rows + 8, columns : columns + 8])


def train(
    data: digits.Data, steps: int, seed: int = 0, quiet: bool = False
) -> tuple[Network, Sequential, Parameters, list[float]]:
    """Return the network, the model, the learned parameters and the loss of every step."""
    images = data.train_x.reshape(-1, 1, 8, 8)

    def build(tape: Tape) -> tuple:
        net = model(tape, seed)
        x, y = tape.input(images[:BATCH]), tape.input(Tensor.selection([0] * BATCH, 10))
        loss = topos.cross_entropy(net.express(x), y)
        return net, x, y, loss, tape.differentiate(loss, topos.parameters(net))

    network, (net, x, y, loss, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    parameters, optimizer, losses = network.parameters(), AdamW(0.9, 0.999, 1e-8, 0.05), []
    rate, rng = topos.schedules.cosine(RATE, steps), np.random.default_rng(seed)
    for step, rows in enumerate(
        track(common.batches(len(images), BATCH, steps, seed), "training", steps, disable=quiet)
    ):
        feeds = {x: shifted(images[rows], rng), y: data.train_y[rows]}
        run, parameters = plan.step(parameters, feeds, optimizer, rate(step))
        losses.append(float(run.of(loss).scalar()))
    return network, net, parameters, losses


def accuracy(network: Network, net: Sequential, parameters: Parameters, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of digits that the network names right."""
    network, images, logits = topos.expressed(network, net, [len(y), 1, 8, 8])
    run = network.entry(logits).lower().forward(parameters, {images: x.reshape(-1, 1, 8, 8)})
    return float((run.of(logits).numpy().argmax(axis=1) == y).mean())


def main(arguments: list[str] | None = None) -> float:
    """Train, test, print what came out, and return the accuracy on scans that were held back."""
    options = common.options("A convolutional network on the UCI digits.", arguments, STEPS, "digits_cnn_loss.png")
    data = digits.load(options.seed)
    network, net, parameters, losses = train(data, options.steps, options.seed)
    found = accuracy(network, net, parameters, data.test_x, data.test_y)
    print(f"final loss: {np.mean(losses[-20:]):.4f}")
    print(f"test accuracy: {found:.4f}")
    common.finish(options, parameters, losses, "UCI digits, two convolutions")
    return found


if __name__ == "__main__":
    main()
