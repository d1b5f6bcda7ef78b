"""A user's number type: hooks where it has them, Python's operators where not, and what it has to offer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import Wrapped
from topos import ElementError, MapOperation, Tensor
from topos.ops import objects


class Dual:
    """A number and its slope: two components, so that 0 with a slope is not the additive identity."""

    def __init__(self, value: Any, slope: Any = 0) -> None:
        self.value, self.slope = Fraction(value), Fraction(slope)

    def __add__(self, other: Dual) -> Dual:
        return Dual(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other: Dual) -> Dual:
        return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __truediv__(self, other: Dual) -> Dual:
        slope = (self.slope * other.value - self.value * other.slope) / other.value**2
        return Dual(self.value / other.value, slope)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dual) and (self.value, self.slope) == (other.value, other.slope)

    __hash__ = None  # type: ignore[assignment]

    def __ge__(self, other: Dual) -> bool:
        return self.value >= other.value

    def is_zero(self) -> bool:
        """Zero in every component."""
        return self.value == 0 and self.slope == 0


def test_is_zero_asks_the_hook() -> None:
    """`Scale` and `Ratio` silence the additive identity alone; the hook says what that is."""
    moving, still, two = Dual(0, 1), Dual(0), Dual(2)
    assert (objects.is_zero(moving), objects.is_zero(still), objects.is_zero(Fraction(0))) == (False, True, True)
    result = Tensor([moving, still]).scale(Tensor([two, two])).to_list()
    assert [(x.value, x.slope) for x in result] == [(0, 2), (0, 0)]
    result = Tensor([moving, still]).ratio(Tensor([two, Dual(0)])).to_list()
    assert [(x.value, x.slope) for x in result] == [(0, Fraction(1, 2)), (0, 0)]
    chosen = Tensor([moving, still]).select(Tensor([Dual(1), Dual(1)]), Tensor([two, two])).to_list()
    assert [x.value for x in chosen] == [1, 2]


def test_comparisons_without_hooks() -> None:
    """`maximum` and `step` follow ``>=``: ties go left with all components."""
    left, right = Tensor([Dual(1, 5), Dual(0, 1)]), Tensor([Dual(1, 7), Dual(2, 2)])
    assert [(x.value, x.slope) for x in left.maximum(right)] == [(1, 5), (2, 2)]
    assert left.step(right).to_list() == [Dual(1), Dual(0)]


def test_hooks_are_preferred() -> None:
    """`fma`, `maximum`, `step` and `powf` of the class are called where it has them."""
    log: list[str] = []

    class Spy(Wrapped):
        __slots__ = ()

        def fma(self, b: Any, c: Any) -> Any:
            log.append("fma")
            return super().fma(b, c)

        def maximum(self, other: Any) -> Any:
            log.append("maximum")
            return super().maximum(other)

        def step(self, threshold: Any) -> Any:
            log.append("step")
            return Spy(super().step(threshold))

        def powf(self, exponent: Any) -> Any:
            log.append("powf")
            return Spy(self.value**exponent.value)

    row = Tensor([[2.0, 3.0]], element=Spy)
    row.matmul(row.permute([1, 0]))
    row.maximum(row.permute([0, 1]))
    row.step(row)
    row.powf(row)
    row.max_along(1)
    assert log == ["fma", "maximum", "maximum", "step", "step", "powf", "powf", "maximum"]


@pytest.mark.parametrize("operation", MapOperation, ids=lambda o: o.value)
def test_a_missing_map_is_named(operation: MapOperation) -> None:
    """A class without a map gets an error that says which method to write."""
    tensor = Tensor([Fraction(1, 2)])
    message = rf"Fraction has no map {operation.value}: give the class a method {operation.value}\(self\)"
    with pytest.raises(ElementError, match=message):
        getattr(tensor, operation.value)()


def test_the_log_domain_asks_for_minus_infinity() -> None:
    """Without the hook, logsumexp and log_softmax say what is missing."""
    for speak in (Tensor.logsumexp, Tensor.log_softmax):
        with pytest.raises(ElementError, match=r"Fraction has no negative_infinity\(\)"):
            speak(Tensor([Fraction(1, 2)]), 0)


def test_results_are_object_arrays_of_any_rank() -> None:
    """Rank 0 stays an array of its own; a tensor of objects never holds a bare NumPy number."""
    scalar = Tensor(Fraction(1, 2))
    assert (scalar + scalar).scalar() == 1
    assert (-scalar).numpy().shape == ()
    assert scalar.select(scalar, -scalar).scalar() == Fraction(1, 2)
    assert scalar.sum().scalar() == Fraction(1, 2)
    assert objects.flat(np.array([[1, 2], [3, 4]], object).T).tolist() == [1, 3, 2, 4]
    assert type((scalar * scalar).scalar()) is Fraction


def test_a_failing_hook_changes_nothing() -> None:
    """An exception in a user's method comes through, and the tensor is what it was (case 26)."""

    class Fails(Wrapped):
        __slots__ = ()

        def exp(self) -> Any:
            if self.value > 1:
                raise RuntimeError("hook")
            return self

    tensor = Tensor([0.0, 2.0], element=Fails)
    with pytest.raises(RuntimeError, match="hook"):
        tensor.exp()
    assert [float(x) for x in tensor] == [0.0, 2.0]
    assert [float(x) for x in tensor.narrow(0, 0, 1).exp()] == [0.0]
