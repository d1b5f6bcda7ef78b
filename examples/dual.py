"""Forward mode, twice: as a number type of your own, and as a reading of the rules that topos has.

A dual number carries a value and its derivative along one direction. Below it is forty lines of Python that know
nothing of tensors; as an element it runs any record. `topos.jvp` gives the same derivative over a `Tensor` program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

import topos
from topos import Tape, Tensor, Value


@dataclass(frozen=True)
class DualNumber:
    """A value and its derivative: a + b*e with e*e = 0."""

    value: float
    slope: float = 0.0

    def is_zero(self) -> bool:
        """Whether both components are 0."""
        return self.value == 0.0 and self.slope == 0.0

    def __add__(self, other: DualNumber) -> DualNumber:
        return DualNumber(self.value + other.value, self.slope + other.slope)

    def __sub__(self, other: DualNumber) -> DualNumber:
        return DualNumber(self.value - other.value, self.slope - other.slope)

    def __mul__(self, other: DualNumber) -> DualNumber:
        return DualNumber(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __truediv__(self, other: DualNumber) -> DualNumber:
        quotient = self.value / other.value
        return DualNumber(quotient, (self.slope - quotient * other.slope) / other.value)

    def __neg__(self) -> DualNumber:
        return DualNumber(-self.value, -self.slope)

    def __ge__(self, other: DualNumber) -> bool:
        return self.value >= other.value

    def exp(self) -> DualNumber:
        """Return e to this."""
        return DualNumber(math.exp(self.value), self.slope * math.exp(self.value))

    def tanh(self) -> DualNumber:
        """Return the hyperbolic tangent."""
        value = math.tanh(self.value)
        return DualNumber(value, self.slope * (1.0 - value * value))

    def sin(self) -> DualNumber:
        """Return the sine."""
        return DualNumber(math.sin(self.value), self.slope * math.cos(self.value))


def formula(x: Value) -> Value:
    """Return a scalar of a vector, in operations that any element has."""
    return (x.sin() * x + x.tanh().exp() / (x * x + 1.0)).sum()


def main() -> float:
    """Differentiate along a direction three ways, and return the largest disagreement."""
    point, direction = np.array([0.3, -1.2, 2.0]), np.array([1.0, 0.5, -2.0])

    numbers = Tensor([DualNumber(*pair) for pair in zip(point.tolist(), direction.tolist(), strict=True)])
    network, symbol = Tape.record(lambda tape: formula(tape.parameter(numbers)), element=DualNumber)
    by_element = network.forward(network.parameters()).of(symbol).numpy().item().slope

    _, by_reading = topos.jvp(formula, [Tensor(point)], [Tensor(direction)])

    network, (x, loss) = Tape.record(lambda tape: ((x := tape.parameter(point)), formula(x)), element="f64")
    gradient = network.forward(network.parameters()).backward(loss).of(x).numpy()

    answers = [by_element, float(by_reading.scalar()), float(gradient @ direction)]
    for name, answer in zip(("dual element", "topos.jvp", "backward, dotted"), answers, strict=True):
        print(f"{name:<17} {answer:.15f}")
    spread = max(answers) - min(answers)
    assert spread < 1e-12
    return spread


if __name__ == "__main__":
    main()
