"""Deterministic initializers: stateful functions from a shape to a tensor, the same bits on every machine.

The generator is splitmix64 (Steele et al., 2014); all mathematics is in f64, rounded once to the element.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np

from topos.errors import PositionError, ShapeError, UsageError
from topos.payload import Shape, Tensor

Initializer: TypeAlias = Callable[[Any], Tensor]

_GAMMA = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


@runtime_checkable
class Sample(Protocol):
    """A number class that says how an f64 sample becomes one; others are called with the sample.

    >>> class Cents(int):
    ...     @classmethod
    ...     def from_sample(cls, sample):
    ...         return cls(round(100 * sample))
    >>> isinstance(Cents, init.Sample)
    True
    """

    def from_sample(self, sample: float, /) -> Self:
        """Return the number nearest to a sample (a class method)."""


class Generator:
    """A splitmix64 generator.

    >>> init.Generator(7).units(2).round(3)
    array([0.39 , 0.017])
    """

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def units(self, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return numbers in [0, 1), multiples of 2**-53."""
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
        z = np.uint64(self.state) + steps
        self.state = (self.state + count * _GAMMA) & _MASK
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return (z >> np.uint64(11)).astype(np.float64) / 2.0**53

    def normals(self, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return standard normal numbers: sqrt(-2 ln(1 - u)) cos(2 pi v), two draws each (Box & Muller, 1958)."""
        if count == 0:
            return np.empty(0)
        pairs = self.units(2 * count).reshape(-1, 2)
        radius = (Tensor(1.0 - pairs[:, 0], element="f64").ln() * -2.0).sqrt()
        angle = Tensor(2.0 * math.pi * pairs[:, 1], element="f64")
        return np.array((radius * angle.cos()).numpy())

    def permutation(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return 0 .. count - 1 shuffled (Fisher & Yates, from the end)."""
        order = np.arange(count)
        for index, unit in zip(range(count - 1, 0, -1), self.units(max(count - 1, 0)), strict=True):
            other = int(unit * (index + 1))
            order[[index, other]] = order[[other, index]]
        return order

    def draw(self, probabilities: Sequence[float]) -> int:
        """Return a position drawn by its probability: one draw.

        Raises:
            PositionError: there are no probabilities.
        """
        if len(probabilities) == 0:
            raise PositionError("Generator.draw: there are no probabilities")
        unit = float(self.units(1)[0])
        for position, probability in enumerate(probabilities):
            unit -= float(probability)
            if unit < 0:
                return position
        return len(probabilities) - 1


def _drawer(seed: int, element: Any, samples: Callable[[Generator, Shape], Any]) -> Initializer:
    """Return an initializer: ``samples(generator, shape)`` gives its numbers, None for zeros."""
    generator = Generator(seed)
    hook = getattr(getattr(element, "kind", None) or element, "from_sample", None)

    def draw(shape: Any) -> Tensor:
        extents = Shape(shape)
        numbers = samples(generator, extents)
        if numbers is None:
            return Tensor.counted(extents, 0, element=element)
        if hook is not None:
            numbers = np.fromiter((hook(float(number)) for number in numbers), object, numbers.size)
        return Tensor(numbers.reshape(extents), element=element)

    return draw


def _by_fans(name: str, seed: int, element: Any, samples: Callable[[Generator, int, int, int], Any]) -> Initializer:
    """Return an initializer of ``[in, out]`` matrices; vectors are zeros and consume no draw."""

    def of_matrix(generator: Generator, shape: Shape) -> Any:
        if shape.rank == 1:
            return None
        if shape.rank != 2:
            remedy = "for kernels give init.normal(seed, deviation) a deviation, e.g. sqrt(2 / taps)"
            raise ShapeError(f"init.{name} of shape {shape}: takes [in, out] or [out]; {remedy}")
        return samples(generator, shape.volume, *shape)

    return _drawer(seed, element, of_matrix)


def uniform(seed: int, scale: float, element: Any = "f32") -> Initializer:
    """Return an initializer of numbers in [-scale, scale).

    >>> print(init.uniform(7, 1.0)([2]))
    [-0.2203405, -0.9664234]
    """
    return _drawer(seed, element, lambda g, shape: (2.0 * g.units(shape.volume) - 1.0) * scale)


def normal(seed: int, deviation: float, element: Any = "f32") -> Initializer:
    """Return an initializer of normal numbers with mean 0.

    >>> print(init.normal(7, 2.0)([1]))
    [1.9769486]
    """
    return _drawer(seed, element, lambda g, shape: g.normals(shape.volume) * deviation)


def xavier(seed: int, element: Any = "f32") -> Initializer:
    """Return an initializer of ``[in, out]`` within sqrt(6 / (in + out)); vectors are 0 (Glorot & Bengio, 2010).

    The initializer raises `ShapeError` for other ranks.

    >>> draw = init.xavier(7)
    >>> draw([2, 2]).shape, print(draw([2]))
    [0.0, 0.0]
    ([2, 2], None)
    """
    return _by_fans("xavier", seed, element, lambda g, count, m, n: (2 * g.units(count) - 1) * math.sqrt(6 / (m + n)))


def kaiming(seed: int, element: Any = "f32") -> Initializer:
    """Return an initializer of normal ``[in, out]`` with deviation sqrt(2 / in); vectors are 0 (He et al., 2015).

    The initializer raises `ShapeError` for other ranks.

    >>> init.kaiming(7)([2, 2]).shape
    [2, 2]
    """
    return _by_fans("kaiming", seed, element, lambda g, count, m, _: g.normals(count) * math.sqrt(2.0 / m))


def scaled(seed: int, gain: float, element: Any = "f32") -> Initializer:
    """Return an initializer of normal ``[in, out]`` with deviation gain / sqrt(in); vectors are 0.

    The initializer raises `ShapeError` for other ranks.

    >>> init.scaled(7, Activation.TANH.gain())([2, 2]).shape
    [2, 2]
    """
    return _by_fans("scaled", seed, element, lambda g, count, m, _: g.normals(count) * (gain / math.sqrt(m)))


def dropout(seed: int, keep: float, element: Any = "f32") -> Initializer:
    """Return a drawer of masks: 1 / keep with probability `keep`, else 0.

    Raises:
        UsageError: `keep` is not in (0, 1].

    >>> print(init.dropout(7, 0.5)([4]))
    [2.0, 2.0, 0.0, 0.0]
    """
    if not 0 < keep <= 1:
        raise UsageError(f"init.dropout(keep={keep}): the probability of keeping is in (0, 1]")
    return _drawer(seed, element, lambda g, shape: np.where(g.units(shape.volume) < keep, 1.0 / keep, 0.0))
