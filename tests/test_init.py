"""Initializers: the pinned bits, and what they refuse."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from topos import PositionError, ShapeError, Tensor, UsageError, init

GOLDEN: dict[str, tuple[Any, list[int], str]] = {
    "uniform": (
        lambda e: init.uniform(7, 1.0, e),
        [4],
        "bfcc341e1ba6cdf8 bfeeecf0ca02f0e8 3fe9a610202eac4a 3fc53aeb70673e28",
    ),
    "xavier": (
        lambda e: init.xavier(7, e),
        [2, 2],
        "bfd14566a85c9c0a bff2f01dbe7ab6a2 3fef69c081567c5c 3fca0063d7a5b7aa",
    ),
    "normal": (
        lambda e: init.normal(7, 2.0, e),
        [4],
        "3fffa194ec47d228 c00dd3fde5949e97 3f800ea29c8645d8 bff0efc91ba890b4",
    ),
    "kaiming": (
        lambda e: init.kaiming(7, e),
        [2, 2],
        "3fefa194ec47d228 bffdd3fde5949e97 3f700ea29c8645d8 bfe0efc91ba890b4",
    ),
    "scaled": (
        lambda e: init.scaled(7, 5 / 3, e),
        [2, 2],
        "3ff2a38bb927146b c001938d22a458b8 3f72ec6e174489ba bfe3f5c5b5e8aead",
    ),
    "dropout": (
        lambda e: init.dropout(7, 0.8, e),
        [4],
        "3ff4000000000000 3ff4000000000000 0000000000000000 3ff4000000000000",
    ),
}


def words(tensor: Tensor) -> str:
    """Return f64 bits in hexadecimal."""
    return " ".join(f"{int(word):016x}" for word in np.asarray(tensor.numpy()).reshape(-1).view(np.uint64))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bits(name: str) -> None:
    """Seed 7: the bits of f64, and every other element is one rounding away."""
    make, shape, golden = GOLDEN[name]
    drawn = make("f64")(shape)
    assert words(drawn) == golden
    for element in ("f32", "bf16", "f16"):
        assert make(element)(shape) == drawn.convert(element)


def test_draws_go_on() -> None:
    """A factory is stateful: two draws are the halves of one; vectors of the fan initializers take none."""
    together = init.uniform(3, 1.0)([4]).to_list()
    draw = init.uniform(3, 1.0)
    assert draw([2]).to_list() + draw([2]).to_list() == together
    for make in (init.xavier, init.kaiming, lambda seed: init.scaled(seed, 2.0)):
        first, second = make(5), make(5)
        assert first([3]).to_list() == [0.0] * 3
        assert first([2, 3]) == second([2, 3])
        for shape in ([], [2, 2, 2], [8, 3, 3, 3]):
            with pytest.raises(ShapeError, match=r"takes \[in, out\] or \[out\].*init.normal"):
                first(shape)


def test_moments() -> None:
    """Normal samples have their mean and deviation; xavier stays within its bound."""
    samples = np.array(init.normal(11, 2.0, "f64")([20000]).numpy())
    assert abs(samples.mean()) < 0.05
    assert abs(samples.std() - 2) < 0.05
    assert np.abs(init.xavier(1)([40, 60]).numpy()).max() <= np.sqrt(6 / 100)
    assert abs(np.array(init.kaiming(1)([50, 60]).numpy()).std() - 0.2) < 0.01


def test_dropout() -> None:
    """Masks hold 1 / keep or 0; keep is a probability above 0."""
    mask = np.array(init.dropout(2, 0.25)([4000]).numpy())
    assert set(mask) == {0.0, 4.0}
    assert abs((mask > 0).mean() - 0.25) < 0.03
    assert (init.dropout(2, 1.0)([100]).numpy() == 1).all()
    for keep in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="keep"):
            init.dropout(1, keep)


def test_a_number_class() -> None:
    """A class with `from_sample` says how; another is called with the sample."""

    class Thirds(Fraction):
        """Samples in thirds."""

        @classmethod
        def from_sample(cls, sample: float) -> Thirds:
            """Return the nearest third."""
            return cls(round(3 * sample), 3)

    assert isinstance(Thirds, init.Sample)
    drawn = init.uniform(7, 9.0, Thirds)([3]).to_list()
    assert all(isinstance(x, Thirds) and x.denominator in (1, 3) for x in drawn)
    plain = init.uniform(7, 1.0, Fraction)([2]).to_list()
    assert plain == [Fraction(x) for x in init.uniform(7, 1.0, "f64")([2]).to_list()]


def test_generator() -> None:
    """Shuffles and draws from the same stream, deterministic and fair."""
    generator = init.Generator(1)
    order = generator.permutation(100)
    assert sorted(order) == list(range(100))
    assert order.tolist() == init.Generator(1).permutation(100).tolist() != list(range(100))
    assert generator.permutation(1).tolist() == [0]
    counts = np.bincount([generator.draw([0.5, 0.25, 0.25]) for _ in range(4000)]) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.25], atol=0.03)
    assert generator.draw([0.0]) == 0
    with pytest.raises(PositionError):
        generator.draw([])
    assert init.Generator(-1).units(1) == init.Generator(2**64 - 1).units(1)
