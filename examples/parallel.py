"""Data parallelism by averaged gradients: each worker takes a shard of the batch, and all take the same step.

Any number of Python threads may run one plan. The gradients of the shards are added in the order of the shards, not
in the order in which threads finish, so the result has one digest whatever the scheduler does.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from rich.progress import track

from topos import Parameters, Sgd, Tape, Value

SHARDS, SHARD, FEATURES = 4, 32, 8
STEPS, RATE = 300, 0.05


def main(steps: int = STEPS, quiet: bool = False) -> str:
    """Fit a linear model on four shards in parallel; print its error, and return the digest of its parameters."""
    rng = np.random.default_rng(5)
    truth = rng.normal(size=(FEATURES, 1))
    inputs = rng.normal(size=(steps, SHARDS, SHARD, FEATURES)).astype(np.float32)
    targets = (inputs @ truth + 0.01 * rng.normal(size=(steps, SHARDS, SHARD, 1))).astype(np.float32)

    def build(tape: Tape) -> tuple:
        x, y = tape.input(inputs[0, 0], name="x"), tape.input(targets[0, 0], name="y")
        w = tape.parameter(np.zeros((FEATURES, 1)), name="w")
        error: Value = x @ w - y
        loss = (error * error).sum() / SHARD
        return x, y, loss, w, tape.differentiate(loss, [w])

    network, (x, y, loss, w, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    parameters, optimizer = network.parameters(), Sgd()

    def gradient(step: int, shard: int) -> tuple[float, Parameters]:
        run = plan.forward(parameters, {x: inputs[step, shard], y: targets[step, shard]})
        return float(run.of(loss).scalar()), run.recorded_gradients(adjoints)

    with ThreadPoolExecutor(SHARDS) as workers:
        for step in track(range(steps), "training", disable=quiet):
            answers = list(workers.map(gradient, [step] * SHARDS, range(SHARDS)))
            total = answers[0][1]
            for _, each in answers[1:]:
                total = total + each
            parameters = optimizer.step(parameters, total.scale(1 / SHARDS), RATE)
    learned = parameters.of(w).numpy()
    print(f"loss: {np.mean([loss for loss, _ in answers]):.2e}")
    print(f"largest error of a weight: {np.abs(learned - truth).max():.4f}")
    assert np.abs(learned - truth).max() < 0.01 or steps < STEPS
    return learned.tobytes().hex()


if __name__ == "__main__":
    main()
