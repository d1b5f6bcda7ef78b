"""Two moons, told apart by a perceptron; the decision boundary is drawn as a picture.

python examples/moons.py [--steps N] [--seed N] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import common
import numpy as np
from rich.progress import track
from sklearn.datasets import make_moons

import topos
from topos import Activation, Adam, Mlp, Network, Parameters, Tape

COUNT, STEPS, RATE = 200, 1500, 0.02


def train(
    points: np.ndarray, sides: np.ndarray, steps: int, seed: int = 0, quiet: bool = False
) -> tuple[Network, Mlp, Parameters, list[float]]:
    """Return the network, the model, the learned parameters and the loss of every step."""

    def build(tape: Tape) -> tuple:
        net = Mlp(tape, [2, 16, 16, 1], Activation.TANH, topos.init.xavier(seed))
        x, y = tape.input(points), tape.input(sides)
        loss = topos.binary_cross_entropy(net.express(x), y)
        return net, loss, tape.differentiate(loss, topos.parameters(net))

    network, (net, loss, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    parameters, optimizer, losses = network.parameters(), Adam(), []
    for _ in track(range(steps), "training", disable=quiet):
        run, parameters = plan.step(parameters, {}, optimizer, RATE)
        losses.append(float(run.of(loss).scalar()))
    return network, net, parameters, losses


def sides_of(network: Network, net: Mlp, parameters: Parameters, points: np.ndarray) -> tuple[Network, np.ndarray]:
    """Return the logit of each point, above 0 on the second moon, and the network that goes on."""
    network, x, logits = topos.expressed(network, net, points.shape)
    run = network.entry(logits).lower().forward(parameters, {x: points})
    return network, run.of(logits).numpy()[:, 0]


def picture(network: Network, net: Mlp, parameters: Parameters, points: np.ndarray, y: np.ndarray, path: str) -> None:
    """Draw the points over the side that the model gives to every place."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    low, high = points.min(axis=0) - 0.5, points.max(axis=0) + 0.5
    across, up = np.meshgrid(np.linspace(low[0], high[0], 160), np.linspace(low[1], high[1], 120))
    grid = np.stack([across.ravel(), up.ravel()], 1).astype(np.float32)
    level = sides_of(network, net, parameters, grid)[1].reshape(across.shape)
    figure, axes = plt.subplots(figsize=(6, 4.5))
    axes.contourf(across, up, 1 / (1 + np.exp(-level)), levels=20, cmap="RdBu", alpha=0.7)
    axes.contour(across, up, level, levels=[0], colors="black", linewidths=1)
    axes.scatter(*points.T, c=y[:, 0], cmap="RdBu", edgecolors="black", s=18, linewidths=0.5)
    axes.set(title="Two moons, and the boundary that was learned")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Train, draw, and return how many of the points lie on their side."""
    options = common.options("Tell two moons apart.", arguments, STEPS, "moons.png")
    points, labels = make_moons(COUNT, noise=0.1, random_state=options.seed)
    points, sides = points.astype(np.float32), labels[:, None].astype(np.float32)
    network, net, parameters, losses = train(points, sides, options.steps, options.seed)
    network, logits = sides_of(network, net, parameters, points)
    right = int(((logits > 0) == labels).sum())
    print(f"final loss: {losses[-1]:.4f}")
    print(f"on their side: {right} of {COUNT}")
    print(f"digest: {common.digest(parameters)}")
    if not options.no_plot:
        picture(network, net, parameters, points, sides, options.plot)
        print(f"picture: {options.plot}")
    return right


if __name__ == "__main__":
    main()
