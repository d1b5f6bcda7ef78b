"""Train a two-convolution network on Fashion-MNIST: 60,000 images of 28x28 pixels, ten kinds of clothing.

Convolutions of 16 and 32 filters, pools, a linear head; Adam over minibatches of 64. Forward, recorded gradients and
update are one native entry per step. The digest is the same at every thread count and on every machine.

    python examples/fashion.py [--epochs N] [--steps N] [--data FOLDER] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import common
import data
import numpy as np
from rich.progress import track

import topos
from topos import Activation, Adam, Conv2d, Flatten, Linear, MaxPool, Parameters, Sequential, Tape, Tensor

BATCH, EPOCHS, RATE = 64, 5, 1e-3


def model(tape: Tape, seed: int) -> Sequential:
    """Return the network over ``[batch, 1, 28, 28]``, 10 logits each."""
    normal = topos.init.normal

    def filters(stage: int, count: int, channels: int) -> Conv2d:
        draw = normal(seed + stage, (2 / (9 * channels)) ** 0.5)
        return Conv2d(tape, draw([count, channels, 3, 3]), np.zeros(count), padding=1)

    head = topos.init.kaiming(seed + 2)
    return Sequential(
        *(filters(0, 16, 1), Activation.RELU, MaxPool(2)),
        *(filters(1, 32, 16), Activation.RELU, MaxPool(2)),
        *(Flatten(), Linear(tape, head([32 * 7 * 7, 10]), head([10]))),
    )


def train(
    images: np.ndarray, labels: np.ndarray, steps: int, seed: int = 0, quiet: bool = False
) -> tuple[topos.Network, Sequential, Parameters, list[float]]:
    """Return the network, the model, the learned parameters and the loss of every step."""

    def build(tape: Tape) -> tuple:
        net = model(tape, seed)
        x = tape.input(images[:BATCH])
        y = tape.input(Tensor.selection([0] * BATCH, 10))
        loss = topos.cross_entropy(net.express(x), y)
        return net, x, y, loss, tape.differentiate(loss, topos.parameters(net))

    network, (net, x, y, loss, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    parameters, optimizer, losses = network.parameters(), Adam(), []
    rate = topos.schedules.cosine(RATE, steps, RATE / 20)
    chosen = common.batches(len(labels), BATCH, steps, seed)
    for step, rows in enumerate(track(chosen, "training", steps, disable=quiet)):
        feeds = {x: images[rows], y: labels[rows]}
        run, parameters = plan.step(parameters, feeds, optimizer, rate(step))
        losses.append(float(run.of(loss).scalar()))
    return network, net, parameters, losses


def accuracy(
    network: topos.Network, net: Sequential, parameters: Parameters, images: np.ndarray, labels: np.ndarray
) -> float:
    """Return the share of images that are named right: the model expressed again, 1,000 at a time."""
    size = min(1000, len(labels))
    network, x, logits = topos.expressed(network, net, [size, *images.shape[1:]])
    plan = network.entry(logits).lower()
    named = [
        plan.forward(parameters, {x: images[at : at + size]}).of(logits).numpy().argmax(axis=1)
        for at in range(0, len(labels) - size + 1, size)
    ]
    return float((np.concatenate(named) == labels[: len(named) * size]).mean())


def main(arguments: list[str] | None = None) -> None:
    """Train, test, and print what came out."""
    options = common.options(
        "Train on Fashion-MNIST.", arguments, 0, "fashion_loss.png",
        data="the folder of the four IDX files", epochs=f"passes over the images, {EPOCHS} by default",
    )  # fmt: skip
    train_x, train_y, test_x, test_y = data.fashion(options.data)
    steps = options.steps or int(options.epochs or EPOCHS) * (len(train_y) // BATCH)
    network, net, parameters, losses = train(train_x, train_y, steps, options.seed)
    print(f"final loss: {np.mean(losses[-100:]):.4f}")
    print(f"test accuracy: {accuracy(network, net, parameters, test_x, test_y):.4f}")
    common.finish(options, parameters, losses, "Fashion-MNIST, two convolutions")


if __name__ == "__main__":
    main()
