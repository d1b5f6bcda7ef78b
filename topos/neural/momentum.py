"""Optimizers beside `Sgd`, `Adam` and `AdamW`, and clipping by norm."""

from dataclasses import dataclass
from typing import Any

from topos.graph import Adjoints, Parameters, Tape
from topos.neural.optimizers import Optimizer, State, Stepped, number


class _OneTable(Optimizer):
    """An optimizer whose state is one table that starts at zero."""

    def start(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return a table of zeros."""
        return (parameters.map(lambda payload: payload.zero_like()),)


@dataclass(eq=False)
class Momentum(_OneTable):
    """Gradient descent with momentum (Polyak, 1964): ``v = v * momentum + g``, ``p - v * rate``.

    >>> network, w = Tape.record(lambda tape: tape.parameter(1.0))
    >>> parameters = network.parameters()
    >>> print(Momentum(0.5).step(parameters, parameters, 0.25).of(w))
    0.75
    """

    momentum: Any = 0.9

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return the step along the velocity."""
        velocity = state[0] * self.momentum + gradient
        return parameter - velocity * rate, (velocity,)


class Nesterov(Momentum):
    """Momentum that looks ahead (Sutskever et al., 2013): ``p - (g + v * momentum) * rate``.

    >>> network, w = Tape.record(lambda tape: tape.parameter(1.0))
    >>> parameters = network.parameters()
    >>> print(Nesterov(0.5).step(parameters, parameters, 0.25).of(w))
    0.625
    """

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return the step along the gradient and the velocity after it."""
        velocity = state[0] * self.momentum + gradient
        return parameter - (gradient + velocity * self.momentum) * rate, (velocity,)


@dataclass(eq=False)
class RmsProp(_OneTable):
    """Steps divided by a running root mean square of the gradient (Tieleman & Hinton, 2012).

    Arguments:
        decay: of the mean square.
        epsilon: added to its root.

    >>> network, w = Tape.record(lambda tape: tape.parameter(1.0))
    >>> parameters = network.parameters()
    >>> print(RmsProp(0.75, 0.0).step(parameters, parameters, 0.25).of(w))
    0.5
    """

    decay: Any = 0.99
    epsilon: Any = 1e-8

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return ``p - g / (sqrt(s) + epsilon) * rate``, s = s * decay + g**2 * (1 - decay)."""
        square = state[0] * self.decay + gradient * gradient * (parameter.one_like() - self.decay)
        return parameter - gradient / (square.sqrt() + self.epsilon) * rate, (square,)


@dataclass(eq=False)
class Lion(_OneTable):
    """Steps of the sign of an interpolated momentum, with decoupled decay (Chen et al., 2023).

    Arguments:
        beta1: weight of the momentum in the step's direction.
        beta2: decay of the momentum.
        decay: the weight decay, for parameters of rank 2 and more (or those that `step_where` selects).

    >>> network, w = Tape.record(lambda tape: tape.parameter([1.0, -3.0]))
    >>> parameters = network.parameters()
    >>> print(Lion().step(parameters, parameters, 0.25).of(w))
    [0.75, -2.75]
    """

    beta1: Any = 0.9
    beta2: Any = 0.99
    decay: Any = 0.0

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return ``p - sign(m * beta1 + g * (1 - beta1)) * rate``, decayed; the sign of 0 is 0."""
        (momentum,) = state
        zero, one = parameter.zero_like(), parameter.one_like()
        blend = momentum * self.beta1 + gradient * (one - self.beta1)
        stepped = parameter - (blend.step(zero) - (-blend).step(zero)) * rate
        decayed = stepped - parameter * self.decay * rate
        return decays.select(decayed, stepped), (momentum * self.beta2 + gradient * (one - self.beta2),)


# ---- clipping
def _factor(gradients: list[Any], limit: Any) -> Any:
    """Return min(1, limit / (norm + 1e-6)) over any `Recordable`, rank 0; the norm is that of all together."""
    total: Any = None
    for gradient in gradients:
        square = (gradient * gradient).sum()
        total = square if total is None else total + square
    ratio = limit / (total.sqrt() + 1e-6)
    return -((-ratio).maximum(-ratio.one_like()))


def clip_by_norm(gradients: Parameters, limit: Any) -> Parameters:
    """Return gradients scaled so that their joint Euclidean norm is at most `limit` (Pascanu et al., 2013).

    Raises:
        ShapeError: the limit holds more than one value.

    >>> network, w = Tape.record(lambda tape: tape.parameter([3.0, 4.0]))
    >>> print(clip_by_norm(network.parameters(), 10.0).of(w))
    [3.0, 4.0]
    """
    limit = number(limit, "limit")
    if gradients.is_empty:
        return gradients
    factor = _factor(gradients.payloads(), limit)
    return gradients.map(lambda gradient: gradient * factor.broadcast(gradient.shape))


def clip_adjoints(tape: Tape, adjoints: Adjoints, limit: Any) -> Adjoints:
    """Record what `clip_by_norm` does to recorded gradients, and return the adjoints of the clipped ones.

    Lower ``network.entry(clipped.roots)`` and follow them with ``plan.step(..., adjoints=clipped)``.

    Raises:
        ShapeError: the limit holds more than one value.

    >>> tape = Tape()
    >>> w = tape.parameter([3.0, 4.0])
    >>> adjoints = tape.differentiate((w * w).sum(), w)
    >>> clip_adjoints(tape, adjoints, 1.0).of(w) == adjoints.of(w)
    False
    """
    limit = number(limit, "limit")
    if not adjoints.gradients:
        return adjoints
    with tape.transaction():
        values = [tape.resolve(symbol) for symbol in adjoints.gradients]
        factor = _factor(values, limit)
        clipped = iter([value * factor.broadcast(value.shape) for value in values])
        return adjoints.map_gradients(lambda _: next(clipped))
