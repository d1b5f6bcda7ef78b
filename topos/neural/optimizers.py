"""Optimizers: how gradients and the current parameters become the next ones.

An optimizer is a formula over the recordable vocabulary, applied to each parameter by `Optimizer.step`,
or recorded once over the whole table by ``plan.step``: the same operations, so the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from topos.errors import ElementError, UsageError
from topos.graph import Parameters, Symbol
from topos.payload import Tensor

State: TypeAlias = tuple[Any, ...]
Stepped: TypeAlias = tuple[Any, State]
Policy: TypeAlias = Callable[[Symbol, Tensor], bool]


@dataclass(eq=False)
class Optimizer(ABC):
    """A training-step strategy. A subclass says what it remembers (`start`) and its `formula`.

    The fields of a dataclass are its numbers: single values. The state is one table per entry of the formula's
    state: like the parameters, or a rank-0 tensor.

    >>> class SignDescent(Optimizer):
    ...     def start(self, parameters):
    ...         return ()
    ...     def formula(self, parameter, gradient, rate, state, decays):
    ...         zero = parameter.zero_like()
    ...         return parameter - (gradient.step(zero) - (-gradient).step(zero)) * rate, state
    >>> network, w = Tape.record(lambda tape: tape.parameter(4.0))
    >>> parameters = network.parameters()
    >>> print(SignDescent().step(parameters, parameters, 0.25).of(w))
    3.75
    """

    def __post_init__(self) -> None:
        self.state: tuple[Any, ...] | None = None
        for field in fields(self):
            setattr(self, field.name, number(getattr(self, field.name), field.name))

    @abstractmethod
    def start(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return the state before the first step: `Parameters` tables and rank-0 tensors."""

    @abstractmethod
    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return the next parameter and state over any `Recordable`.

        Arguments:
            parameter: the current values.
            gradient: of the same shape.
            rate: the learning rate, spread to that shape.
            state: the entries that belong to this parameter; a rank-0 entry is spread to the shape.
            decays: a 0/1 mask of the shape, 1 where weight decay applies.
        """

    def decays(self, symbol: Symbol, payload: Tensor) -> bool:
        """Return whether weight decay applies to a parameter: those of rank 2 and more."""
        return payload.shape.rank >= 2

    def signature(self) -> tuple[Any, ...]:
        """Return what the formula depends on: the class, and the values it was made with.

        Raises:
            UsageError: an attribute is none of number, string, tensor, array, or hashable object.
        """
        return (type(self), *((name, _part(value)) for name, value in vars(self).items() if name != "state"))

    def advance(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the state with its rank-0 entries advanced by one step, before the formula reads them.

        Like the formula it speaks the recordable vocabulary: ``plan.step`` records it. Tables stay as they are.
        """
        return state

    def remembered(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return the state, or that before the first step.

        Raises:
            ElementError: rounded to the parameters' element, a number becomes 0 or 1, which says something else:
                Adam's epsilon of 1e-8 is 0 in f16, and a gradient of 0 would be divided by it.
        """
        if self.state is not None:
            return self.state
        one = Tensor.counted([], 1, element=parameters.slots.element)
        for field in fields(self):
            given: Any = getattr(self, field.name)
            held = Tensor.single(given, one.element, field.name)
            if held in (one, one.zero_like()) and given not in (0, 1):
                call = f"{type(self).__name__}: {field.name}={given}"
                raise ElementError(f"{call} is {held} in {one.element.name}; give another number, or train in f32")
        return self.start(parameters)

    def step(self, parameters: Parameters, gradients: Parameters, learning_rate: Any) -> Parameters:
        """Return the next parameters, and remember the next state.

        Raises:
            ShapeError: the learning rate holds more than one value.
            ElementError: at the first step, see `remembered`.
            ParametersError: the gradients, or what the optimizer remembers, are another family's.
        """
        return self.step_where(parameters, gradients, learning_rate, self.decays)

    def step_where(
        self, parameters: Parameters, gradients: Parameters, learning_rate: Any, policy: Policy
    ) -> Parameters:
        """Like `step`, with the parameters that decay chosen by ``policy(symbol, payload)``."""
        state = self.advance(self.remembered(parameters))
        element = parameters.slots.element
        rate = Tensor.single(learning_rate, element, "learning_rate")
        for entry in state:
            if isinstance(entry, Parameters):
                parameters.match(entry, "the optimizer's state")
        following: list[State] = []

        def rule(symbol: Symbol, payload: Tensor, gradient: Tensor) -> Any:
            shape = payload.shape
            entries = tuple(e.of(symbol) if isinstance(e, Parameters) else Tensor.filled(shape, e) for e in state)
            decays = Tensor.counted(shape, int(policy(symbol, payload)), element=element)
            result, after = self.formula(payload, gradient, Tensor.filled(shape, rate), entries, decays)
            following.append(after)
            return result

        stepped = parameters.step_each(gradients, rule)
        self.state = tuple(
            Parameters.of_tensors(parameters.slots, [after[i] for after in following])
            if isinstance(entry, Parameters)
            else entry
            for i, entry in enumerate(state)
        )
        return stepped


def _part(value: Any) -> Any:
    """Return a hashable that equals another one only where the values have the same bits."""
    if isinstance(value, Tensor):
        return value.element.name, value.shape, tuple(map(repr, value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return float, value.hex()
    try:
        hash(value)
    except TypeError:
        raise UsageError(f"an optimizer's attribute {value!r} has to be a number, a tensor or hashable") from None
    return type(value), value


def number(given: Any, what: str) -> Any:
    """Return the number of a single value.

    Raises:
        ShapeError: it holds more than one.
    """
    Tensor.single(given, "f64", what)
    given = given.numpy() if isinstance(given, Tensor) else given
    return np.asarray(given).reshape(())[()] if isinstance(given, (np.ndarray, list, tuple)) else given


class Sgd(Optimizer):
    """Plain gradient descent: ``p - g * rate``. It remembers nothing.

    >>> network, w = Tape.record(lambda tape: tape.parameter(1.0))
    >>> parameters = network.parameters()
    >>> print(Sgd().step(parameters, parameters, 0.25).of(w))
    0.75
    """

    def start(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return no state."""
        return ()

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return ``p - g * rate``."""
        return parameter - gradient * rate, state


@dataclass(eq=False)
class Adam(Optimizer):
    """Bias-corrected first and second moments (Kingma & Ba, 2015, algorithm 1).

    Arguments:
        beta1: decay of the first moment, a single value.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.

    >>> network, w = Tape.record(lambda tape: tape.parameter(1.0))
    >>> parameters = network.parameters()
    >>> print(Adam().step(parameters, parameters, 0.25).of(w))
    0.75
    """

    beta1: Any = 0.9
    beta2: Any = 0.999
    epsilon: Any = 1e-8

    def start(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return zero moments, and both betas to the power 0."""
        zeros = parameters.map(lambda payload: payload.zero_like())
        one = Tensor.counted([], 1, element=parameters.slots.element)
        return zeros, zeros, one, one

    def advance(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the state with the powers of the betas one higher."""
        first, second, power1, power2 = state
        return first, second, power1 * self.beta1, power2 * self.beta2

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return the step along ``(m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + epsilon)``."""
        first, second, power1, power2 = state
        one = parameter.one_like()
        first = first * self.beta1 + gradient * (one - self.beta1)
        second = second * self.beta2 + gradient * gradient * (one - self.beta2)
        direction = (first / (one - power1)) / ((second / (one - power2)).sqrt() + self.epsilon)
        return parameter - direction * rate, (first, second, power1, power2)


@dataclass(eq=False)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019): ``p * decay * rate`` is subtracted too.

    Arguments:
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        decay: the weight decay, for parameters of rank 2 and more (or those that `step_where` selects).

    >>> network, w = Tape.record(lambda tape: tape.parameter([[1.0]]))
    >>> parameters = network.parameters()
    >>> print(AdamW(decay=1.0).step(parameters, parameters, 0.25).of(w))
    [[0.5]]
    """

    decay: Any = 0.01

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: State, decays: Any) -> Stepped:
        """Return Adam's step less ``p * decay * rate`` where the mask is set."""
        stepped, after = super().formula(parameter, gradient, rate, state, decays)
        decayed = stepped - parameter * self.decay * rate
        return decays.select(decayed, stepped), after
