"""Learning-rate schedules: functions of the step, from 0, to a rate. Their bits are the same on every machine."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from topos.errors import UsageError
from topos.payload import Tensor

Schedule: TypeAlias = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """Return the same rate for every step.

    >>> schedules.constant(0.1)(1000)
    0.1
    """
    return lambda _: rate


def linear(first: float, last: float, steps: int) -> Schedule:
    """Return a straight line from `first` at step 0 to `last` at step `steps`, and `last` after it.

    >>> [schedules.linear(1.0, 0.0, 4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    _positive(steps)
    return lambda step: first + (last - first) * (min(step, steps) / steps)


def piecewise(rates: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """Return ``rates[i]`` from step ``boundaries[i - 1]`` on.

    Raises:
        UsageError: there is not one rate more than boundaries.

    >>> [schedules.piecewise([0.1, 0.01], [100])(step) for step in (99, 100)]
    [0.1, 0.01]
    """
    if len(rates) != len(boundaries) + 1:
        raise UsageError(f"piecewise: {len(boundaries)} boundaries need one rate more, not {len(rates)}")
    return lambda step: rates[sum(step >= boundary for boundary in boundaries)]


def exponential(first: float, factor: float, every: int = 1) -> Schedule:
    """Return ``first * factor ** (step // every)``.

    >>> [schedules.exponential(1.0, 0.5, 10)(step) for step in (0, 9, 10, 20)]
    [1.0, 1.0, 0.5, 0.25]
    """
    _positive(every)

    def rate(step: int) -> float:
        result, base, power = first, factor, step // every
        while power:  # by squaring: multiplications only
            result, base, power = result * base if power & 1 else result, base * base, power >> 1
        return result

    return rate


def cosine(first: float, steps: int, last: float = 0.0) -> Schedule:
    """Return half a cosine from `first` at step 0 down to `last` at `steps` (Loshchilov & Hutter, 2017).

    >>> [round(schedules.cosine(1.0, 4)(step), 3) for step in (0, 1, 2, 4)]
    [1.0, 0.854, 0.5, 0.0]
    """
    _positive(steps)

    def rate(step: int) -> float:
        angle = Tensor(math.pi * (min(step, steps) / steps), element="f64")
        return last + (first - last) * (1 + float(angle.cos().scalar())) / 2

    return rate


def warmup(steps: int, then: Schedule) -> Schedule:
    """Return a line from ``then(0) / steps`` up to ``then(0)`` in `steps` steps, then the schedule itself.

    >>> [schedules.warmup(2, schedules.constant(1.0))(step) for step in range(3)]
    [0.5, 1.0, 1.0]
    """
    _positive(steps)
    return lambda step: then(0) * ((step + 1) / steps) if step < steps else then(step - steps)


def rates(schedule: Schedule, steps: int, first: int = 0) -> np.ndarray:
    """Return the rates of `steps` steps from `first` on, as ``plan.steps`` takes them.

    >>> schedules.rates(schedules.linear(1.0, 0.0, 4), 3)
    array([1.  , 0.75, 0.5 ])
    """
    return np.array([schedule(step) for step in range(first, first + steps)])


def _positive(steps: int) -> None:
    if steps < 1:
        raise UsageError(f"a schedule over {steps} steps: needs at least one")
