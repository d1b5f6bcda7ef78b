"""An element of your own: intervals that contain every rounding error run the whole stack, gradients included.

The class below is all there is to it. topos knows nothing of it, and it knows nothing of tensors: arithmetic, a few
maps, and what 0 means. The same record runs in f32; its results have to lie inside the intervals, and do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from topos import F32, Element, Network, Tape, Tensor, Value


def down(x: float) -> float:
    """Return the next f64 below."""
    return math.nextafter(x, -math.inf)


def up(x: float) -> float:
    """Return the next f64 above."""
    return math.nextafter(x, math.inf)


@dataclass(frozen=True)
class Interval:
    """All reals between two floats, the ends included. Every operation rounds outwards."""

    low: float
    high: float

    @classmethod
    def from_count(cls, n: float) -> Interval:
        """Return a number as an interval without width."""
        return cls(float(n), float(n))

    def is_zero(self) -> bool:
        """Whether this is the additive identity."""
        return self.low == self.high == 0.0

    def __add__(self, other: Interval) -> Interval:
        return Interval(down(self.low + other.low), up(self.high + other.high))

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(down(min(ends)), up(max(ends)))

    def __truediv__(self, other: Interval) -> Interval:
        if other.low <= 0.0 <= other.high:
            raise ZeroDivisionError(f"{other} contains 0")
        return self * Interval(down(1.0 / other.high), up(1.0 / other.low))

    def tanh(self) -> Interval:
        """Return bounds of tanh, which grows: of the ends. The C library errs by less than 4 units."""
        low, high = math.tanh(self.low), math.tanh(self.high)
        for _ in range(4):
            low, high = down(low), up(high)
        return Interval(max(-1.0, low), min(1.0, high))

    def around(self, relative: float) -> Interval:
        """Return this widened by a relative error at each end."""
        return Interval(self.low - abs(self.low) * relative, self.high + abs(self.high) * relative)

    def __contains__(self, x: float) -> bool:
        return self.low <= x <= self.high


def record(element: Any, weights: Any, x: Any) -> tuple[Network, Any]:
    """Record a small network and its gradient over an element."""

    def build(tape: Tape) -> tuple[Value, Any]:
        w = tape.parameter(weights, name="w")
        loss = (tape.leaf(x) @ w).tanh()
        loss = (loss * loss).sum()
        return loss, tape.differentiate(loss, [w])

    return Tape.record(build, element=element)


def main() -> float:
    """Run the record over both elements, check the containment, and return the widest gradient interval."""
    rng = np.random.default_rng(3)
    weights, x = rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)

    def intervals(array: np.ndarray) -> Tensor:
        return Tensor([[Interval.from_count(value) for value in row] for row in array.tolist()])

    bounds: dict[str, Any] = {}
    for name, element, given in (("f32", F32, (weights, x)), ("interval", Interval, None)):
        chosen: Element | type = element
        network, (loss, adjoints) = record(chosen, *(given or (intervals(weights), intervals(x))))
        run = network.entry(adjoints.roots).lower().forward(network.parameters())
        bounds[name] = (run.of(loss).numpy(), run.of(adjoints.gradients[0]).numpy())
    for single, wide in zip(bounds["f32"], bounds["interval"], strict=True):
        for value, interval in zip(np.ravel(single), np.ravel(wide), strict=True):
            # Intervals hold the real result; f32 may be off by its own rounding, some 2**-20 here.
            assert float(value) in interval.around(2.0**-20), (value, interval)
    loss, gradient = bounds["interval"]
    widest = max(interval.high - interval.low for interval in np.ravel(gradient))
    print(f"loss: f32 {float(bounds['f32'][0]):.9f}, proven to lie in [{loss.item().low!r}, {loss.item().high!r}]")
    print(f"widest gradient interval: {widest:.1e}")
    return float(widest)


if __name__ == "__main__":
    main()
