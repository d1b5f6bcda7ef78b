"""One graph, read five ways: spec, values, cotangents, the rules recording themselves, and a schedule."""

from __future__ import annotations

import topos
from topos import Tape, Tensor


def main() -> None:
    """Record ``sum((tanh(x w) - y)**2)`` and print its readings, one after the other."""

    def build(tape: Tape) -> tuple:
        w = tape.parameter([[0.5], [-0.25]], name="w")
        x = tape.input([[1.0, 2.0], [3.0, 4.0]], name="x")
        y = tape.input([[0.0], [1.0]], name="y")
        error = ((x @ w).tanh() - y).named("error")
        loss = (error * error).sum().named("loss")
        return w, loss

    network, (w, loss) = Tape.record(build, element="f64")
    print("1. spec: what was recorded\n" + network.describe())

    parameters = network.parameters()
    run = network.forward(parameters)
    print("\n2. value: the interpreter, every node")
    for node in network.nodes():
        print(f"{node.symbol.index:4}  {node.name:<10} {run.of(node.symbol)}")

    gradients = run.backward(loss)
    print("\n3. cotangent: the engine's reverse scan\n      loss by w:", gradients.of(w))

    tape = network.into_tape()
    before = len(tape)
    adjoints = tape.differentiate(loss, [w])
    network = tape.into_network()
    print("\n4. trace: the same rules, recording themselves")
    print("\n".join(network.describe().splitlines()[before:]))
    recorded = network.forward(parameters).recorded_gradients(adjoints)
    assert recorded.of(w) == gradients.of(w), "the two derivatives have the same bits"

    plan = network.entry(adjoints.roots).lower()
    print("\n5. schedule: what the loss and its gradient need\n" + plan.describe())
    planned = plan.forward(parameters).recorded_gradients(adjoints)
    assert planned.of(w) == gradients.of(w), "and so has the plan"

    proof = topos.prove(network, adjoints.roots, parameters)
    assert proof.holds
    print("\nproof: every reading, at 1, 2 and 3 threads\n" + str(proof).splitlines()[-1])

    moved = Tensor([[1.0], [1.0]], element="f64")
    value, slope = topos.jvp(lambda v: (Tensor([[1.0, 2.0]], element="f64") @ v).tanh(), [parameters.of(w)], [moved])
    print("forward mode over tensors:", value, slope)


if __name__ == "__main__":
    main()
