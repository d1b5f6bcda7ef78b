"""`Activation`: the nonlinearities between affine stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, cast

from topos.errors import UsageError
from topos.graph import Value
from topos.neural.module import Module

_GAINS = {"tanh": 5 / 3, "relu": math.sqrt(2), "sigmoid": 1.0, "leaky_relu": math.sqrt(2 / (1 + 0.01**2))}


@dataclass(frozen=True)
class Activation(Module):
    """A nonlinearity, elementwise; a module without parameters. `name` is the method of `Value`.

    >>> network, y = Tape.record(lambda tape: Activation.RELU.express(tape.input([-1.0, 2.0])))
    >>> print(network.forward(network.parameters()).of(y))
    [0.0, 2.0]
    """

    name: str

    TANH: ClassVar[Activation]
    RELU: ClassVar[Activation]
    SIGMOID: ClassVar[Activation]
    SILU: ClassVar[Activation]
    GELU: ClassVar[Activation]
    ELU: ClassVar[Activation]
    LEAKY_RELU: ClassVar[Activation]
    SOFTPLUS: ClassVar[Activation]
    ALL: ClassVar[tuple[Activation, ...]]

    def express(self, input: Value) -> Value:
        """Record the nonlinearity of a value of any shape."""
        return cast("Value", getattr(input, self.name)())

    def gain(self) -> float:
        """Return the factor for initial weights that keeps the variance (PyTorch's `calculate_gain`).

        Raises:
            UsageError: none is published.
        """
        if self.name not in _GAINS:
            raise UsageError(f"{self.name} has no published gain: give the initializer a number")
        return _GAINS[self.name]


Activation.ALL = tuple(map(Activation, ("tanh", "relu", "sigmoid", "silu", "gelu", "elu", "leaky_relu", "softplus")))
for _one in Activation.ALL:
    setattr(Activation, _one.name.upper(), _one)
