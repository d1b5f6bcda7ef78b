"""Gather and scatter: repeated rows add up in index order, rows not chosen get exactly 0."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Self

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, drawn, positions, same_bits
from tests.ops.oracle import Eager, check, gradients
from tests.ops.refusals import m, refuses, s, v
from topos import DataError, Element, Tensor
from topos.ops import Gather, Scatter

ONE = Tensor([[1.0]])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("inner", [(), (1,), (3,), (4,), (2, 5)], ids=str)
def test_rows_of_any_width(element: Element, inner: tuple[int, ...]) -> None:
    """Rows of odd and even byte counts, of rank 1 and more, forward and back."""
    selection = positions(9, 5, element, 3)
    table, rows = drawn((5, *inner), element, 1), drawn((9, *inner), element, 2)
    assert check(Gather(), table, selection).shape == (9, *inner)
    assert check(Scatter(), rows, selection).shape == (5, *inner)
    assert same_bits(table.gather(selection.dense()), table.gather(selection))
    assert same_bits(rows.scatter(selection.dense()), rows.scatter(selection))


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_repeated_rows_accumulate(element: Any) -> None:
    """A row chosen three times gets three cotangents, one not chosen exactly 0 (case 14)."""
    table = Eager(Tensor([[1, 2], [3, 4], [5, 6]], element=element))
    selection = Eager(Tensor.selection([2, 0, 2, 2], 3, element=element))
    slope, none = gradients(table.gather(selection), [table, selection])
    assert slope.tensor.to_list() == [1, 1, 0, 0, 3, 3]
    assert none.tensor.to_list() == [0] * 12
    rows = Eager(Tensor([[1, 2], [3, 4], [5, 6], [7, 8]], element=element))
    added = rows.scatter(selection)
    assert added.tensor.to_list() == [3, 4, 0, 0, 13, 16]
    weights = Eager(Tensor([[1, 2], [3, 4], [5, 6]], element=element))
    assert gradients(added * weights, [rows])[0].tensor.to_list() == [5, 6, 1, 2, 5, 6, 5, 6]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_scatter_starts_from_positive_zero(element: Element) -> None:
    """-0.0 added into zeros is +0; a target without rows is +0 (case 15)."""
    rows = Tensor.filled([2, 3], -0.0, element=element)
    assert set(bits(rows.scatter(Tensor.selection([1, 1], 3, element=element))).ravel().tolist()) == {0}


def test_rows_are_added_in_ascending_order() -> None:
    """(1e8 + 1) - 1e8 is 0 in f32; partial sums of 16-bit elements stay in f32."""
    together = Tensor.selection([0, 0, 0], 1)
    assert Tensor([1e8, 1.0, -1e8]).scatter(together).to_list() == [0.0]
    assert Tensor([1e8, -1e8, 1.0]).scatter(together).to_list() == [1.0]
    many = Tensor.filled([600], 1.0, element="bf16")
    assert many.scatter(Tensor.selection([0] * 600, 1, element="bf16")).to_list() == [600.0]


def test_gather_and_scatter_are_adjoint_over_many_rows() -> None:
    """For more rows than one thread takes: <gather(x), y> = <x, scatter(y)>, exactly over integers."""
    generator = np.random.default_rng(1)
    hot = generator.integers(0, 300, 1000)
    selection = Tensor.selection(hot.tolist(), 300)
    x, y = generator.integers(-9, 9, (300, 40)), generator.integers(-9, 9, (1000, 40))
    left = float((x[hot] * y).sum())
    assert float((Tensor(x).gather(selection) * Tensor(y)).sum().scalar()) == left
    assert float((Tensor(x) * Tensor(y).scatter(selection)).sum().scalar()) == left


NEEDS_SELECTION = "the selection (operand 1) has to be [count, vocabulary]: Tensor.selection(ids, vocabulary) is one"


@pytest.mark.parametrize(
    ("speak", "message"),
    [
        (lambda: m.gather(v), f"Gather([2, 3], [3]): {NEEDS_SELECTION}"),
        (lambda: m.gather(m), "Gather([2, 3], [2, 3]): the table (operand 0) needs 3 rows, one per vocabulary entry"),
        (lambda: s.gather(ONE), "Gather([], [1, 1]): the table (operand 0) needs 1 rows, one per vocabulary entry"),
        (lambda: m.scatter(v), f"Scatter([2, 3], [3]): {NEEDS_SELECTION}"),
        (
            lambda: m.scatter(m.permute([1, 0])),
            "Scatter([2, 3], [3, 2]): operand 0 needs 3 rows, one per row of the selection",
        ),
        (lambda: s.scatter(ONE), "Scatter([], [1, 1]): operand 0 needs 1 rows, one per row of the selection"),
    ],
)
def test_mistakes(speak: Any, message: str) -> None:
    """Ranks and rows that do not fit are refused."""
    refuses(speak, message)


class Counter:
    """A number whose ``+=`` changes itself."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __add__(self, other: Counter) -> Counter:
        return Counter(self.value + other.value)

    def __iadd__(self, other: Counter) -> Self:
        self.value += other.value
        return self

    def __mul__(self, other: Counter) -> Counter:
        return Counter(self.value * other.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


@pytest.mark.parametrize("shape", [[3], [3, 2]], ids=str)
def test_numbers_that_add_in_place(shape: list[int]) -> None:
    """The zeros that rows are added to are no one's own: a scatter and a fold of such numbers."""
    volume = int(np.prod(shape))
    numbers = Tensor(shape, [Counter(float(1 + i)) for i in range(volume)], element=Counter)
    plain = Tensor(shape, [float(1 + i) for i in range(volume)], element="f64")
    rows = [1, 0, 1]
    found = numbers.scatter(Tensor.selection(rows, 3, element=Counter))
    assert [n.value for n in found] == plain.scatter(Tensor.selection(rows, 3, element="f64")).to_list()
    folded = numbers.unfold(0, 2, 1).fold(0, 2, 1, 1, 3)
    assert [n.value for n in folded] == plain.unfold(0, 2, 1).fold(0, 2, 1, 1, 3).to_list()


class Shy(Fraction):
    """A number that refuses NumPy's operators, as many do."""

    __array_ufunc__ = None


def test_numbers_that_refuse_arrays_are_selections() -> None:
    """A matrix of them is one-hot number by number: gather and scatter take it."""
    chosen = Tensor([[Shy(0), Shy(1)], [Shy(1), Shy(0)]])
    rows = Tensor([[Shy(2)], [Shy(3)]])
    assert rows.gather(chosen).numpy().tolist() == [[3], [2]]
    assert rows.scatter(chosen).numpy().tolist() == [[3], [2]]
    with pytest.raises(DataError, match="row 1"):
        rows.gather(Tensor([[Shy(0), Shy(1)], [Shy(1), Shy(2)]]))
