"""The smallest chain rule: ``-((a + b) * c) + a * c`` at a = 2, b = 3, c = 4 is -12, by 0, -4 and -3."""

from __future__ import annotations

from topos import Tape


def main() -> None:
    """Record eight nodes, print them, run them, and differentiate."""

    def build(tape: Tape) -> tuple:
        a, b, c = tape.parameter(2.0, name="a"), tape.parameter(3.0, name="b"), tape.parameter(4.0, name="c")
        return a, b, c, (-((a + b) * c) + a * c).named("out")

    network, (a, b, c, out) = Tape.record(build, element="f64")
    print(network.describe())
    run = network.forward(network.parameters())
    gradients = run.backward(out)
    print("value:", run.of(out))
    print("gradients:", *(gradients.of(symbol) for symbol in (a, b, c)))
    assert run.of(out).scalar() == -12.0
    assert [gradients.of(symbol).scalar() for symbol in (a, b, c)] == [0.0, -4.0, -3.0]


if __name__ == "__main__":
    main()
