"""Train on topos, serve on XLA and on IREE: one plan, written as StableHLO, and three machines that run it.

Two interleaved half-circles are learned with `plan.steps`. The trained scores are then asked for at home, on XLA
(`pip install '.[stablehlo]'` in the checkout) and on IREE (`'.[iree]'`, which brings JAX too); a compiler that is not
here says so.
"""

import itertools

import numpy as np

from topos import Adam, BackendUnavailable, Tape, cross_entropy

STEPS, BATCH, HIDDEN = 300, 64, 32


def moons(generator, count):
    """Return points of two half-circles, with noise, and which of the two each is on, one-hot."""
    side = generator.integers(0, 2, count)
    angle = generator.uniform(0, np.pi, count)
    x = np.where(side, 1 - np.cos(angle), np.cos(angle))
    y = np.where(side, 0.5 - np.sin(angle), np.sin(angle))
    noise = generator.normal(size=(count, 2)) * 0.1
    return (np.stack([x, y], 1) + noise).astype(np.float32), np.eye(2, dtype=np.float32)[side]


def build(tape):
    generator = np.random.default_rng(0)
    x = tape.input(np.zeros((BATCH, 2)), name="points")
    t = tape.input(np.zeros((BATCH, 2)), name="sides")
    sizes = [2, HIDDEN, HIDDEN, 2]
    hidden, parameters = x, []
    for layer, (before, after) in enumerate(itertools.pairwise(sizes)):
        w = tape.parameter(generator.normal(size=(before, after)) / before**0.5, name=f"w{layer}")
        b = tape.parameter(np.zeros(after), name=f"b{layer}")
        parameters += [w, b]
        hidden = hidden @ w + b.broadcast_along(0, BATCH)
        hidden = hidden.tanh() if after > 2 else hidden
    loss = cross_entropy(hidden, t)
    return x, t, hidden.log_softmax(1), tape.differentiate(loss, parameters)


def main():
    network, (x, t, scores, adjoints) = Tape.record(build)
    generator = np.random.default_rng(1)
    points, sides = (np.stack(a) for a in zip(*(moons(generator, BATCH) for _ in range(STEPS)), strict=True))
    training = network.entry(adjoints.roots).lower()
    losses, parameters = training.steps(network.parameters(), {x: points, t: sides}, Adam(), 0.01)
    print(f"trained on topos: loss {losses.numpy()[0]:.3f} -> {losses.numpy()[-1]:.3f}")

    serving = network.entry(scores).lower()
    text = serving.emit_stablehlo()
    operations = [line for line in text.splitlines() if " = " in line]
    print(f"the plan as text: {len(operations)} operations, for example\n{operations[0].strip()}")

    fed, wanted = moons(generator, BATCH)
    here = serving.forward(parameters, {x: fed}).of(scores).numpy()
    print(f"topos: {np.mean(here.argmax(1) == wanted.argmax(1)):.0%} of {BATCH} new points right")
    apart = {}
    for name, compiled in (("XLA", serving.on_xla), ("IREE", serving.on_iree)):
        try:
            served = compiled()
        except BackendUnavailable as reason:
            print(f"{name}: skipped, {reason}")
            continue
        there = served.forward(parameters, {x: fed}).of(scores).numpy()
        apart[name] = float(np.abs(there - here).max())
        print(f"{name}: largest difference of a log-probability {apart[name]:.1e}")
    return apart


if __name__ == "__main__":
    main()
