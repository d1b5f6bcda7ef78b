"""Predict the progress of diabetes from ten measurements of 442 patients (scikit-learn ships the data).

A ridge regression in closed form says what a linear model can reach; a small perceptron with weight decay and early
stopping competes with it on patients that neither has seen.

    python examples/regression.py [--steps N] [--seed N] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import common
import numpy as np
from rich.progress import track
from sklearn.datasets import load_diabetes

import topos
from topos import Activation, AdamW, Mlp, Tape

STEPS, RATE, TRAIN = 400, 3e-3, 342


def main(arguments: list[str] | None = None) -> float:
    """Train, and return the share of the variance that the perceptron explains on unseen patients."""
    options = common.options("Regression on real measurements.", arguments, STEPS, "regression_loss.png")
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(options.seed).permutation(len(y))
    x, y = x[order], y[order][:, None]
    x, y = (x - x[:TRAIN].mean(0)) / x[:TRAIN].std(0), (y - y[:TRAIN].mean()) / y[:TRAIN].std()
    unseen = y[TRAIN:]

    weights = np.linalg.solve(x[:TRAIN].T @ x[:TRAIN] + 10 * np.eye(10), x[:TRAIN].T @ y[:TRAIN])
    ridge = 1 - ((x[TRAIN:] @ weights - unseen) ** 2).mean() / unseen.var()

    def build(tape: Tape) -> tuple:
        net = Mlp(tape, [10, 16, 1], Activation.TANH, topos.init.xavier(options.seed, "f64"))
        loss = topos.mse(net.express(tape.input(x[:TRAIN])), tape.input(y[:TRAIN]))
        return net, loss, tape.differentiate(loss, topos.parameters(net))

    network, (net, loss, adjoints) = Tape.record(build, element="f64")
    plan = network.entry(adjoints.roots).lower()
    network, test, predicted = topos.expressed(network, net, [len(unseen), 10])
    reading = network.entry(predicted).lower()
    parameters, optimizer, losses, best = network.parameters(), AdamW(0.9, 0.999, 1e-8, 0.1), [], -np.inf
    for _ in track(range(options.steps), "training"):
        run, parameters = plan.step(parameters, {}, optimizer, RATE)
        losses.append(float(run.of(loss).scalar()))
        error = reading.forward(parameters, {test: x[TRAIN:]}).of(predicted).numpy() - unseen
        best = max(best, 1 - float((error**2).mean() / unseen.var()))
    print(f"final loss: {losses[-1]:.4f}")
    print(f"explained on unseen patients: ridge {ridge:.3f}, perceptron {best:.3f}")
    common.finish(options, parameters, losses, "Diabetes, 10-16-1")
    return best


if __name__ == "__main__":
    main()
