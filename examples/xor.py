"""XOR by a perceptron of 2, 4 and 1 units: recorded gradients, a lowered plan, training steps in one native loop."""

from __future__ import annotations

import numpy as np

from topos import Sgd, Tape, Value

SAMPLES = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float64)
LABELS = np.array([[0], [1], [1], [0]], np.float64)


def main(steps: int = 4000) -> float:
    """Train, print what was learned, and return the final loss."""
    rng = np.random.default_rng(1)

    def build(tape: Tape) -> tuple:
        x, y = tape.input(SAMPLES[:2], name="x"), tape.input(LABELS[:2], name="y")
        w1, b1 = tape.parameter(rng.normal(size=(2, 4))), tape.parameter(np.zeros(4))
        w2, b2 = tape.parameter(rng.normal(size=(4, 1))), tape.parameter(np.zeros(1))

        def affine(value: Value, weights: Value, bias: Value) -> Value:
            return value @ weights + bias.broadcast_along(0, 2)

        output = affine(affine(x, w1, b1).tanh(), w2, b2).named("output")
        error = output - y
        loss = (error * error).sum().named("loss")
        return x, y, output, tape.differentiate(loss, [w1, b1, w2, b2])

    network, (x, y, output, adjoints) = Tape.record(build, element="f64")
    plan = network.entry(adjoints.roots).lower()
    chosen = np.stack([rng.permutation(4)[:2] for _ in range(steps)])
    losses, parameters = plan.steps(network.parameters(), {x: SAMPLES[chosen], y: LABELS[chosen]}, Sgd(), 0.05)
    reading = network.entry(output).lower()
    for half in (slice(0, 2), slice(2, 4)):
        run = reading.forward(parameters, {x: SAMPLES[half]})
        for sample, answer in zip(SAMPLES[half], run.of(output).numpy(), strict=True):
            print(f"{sample[0]:.0f} xor {sample[1]:.0f} = {answer[0]:+.6f}")
    final = float(losses.numpy()[-50:].mean())
    print(f"nodes: {len(network)}, mean loss of the last 50 steps: {final:.2e}")
    assert final < 1e-6
    return final


if __name__ == "__main__":
    main()
