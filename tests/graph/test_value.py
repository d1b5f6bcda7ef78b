"""`Value`: identity, what it records, and the sentences with which it refuses to be a number."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from topos import ElementError, Shape, ShapeError, Tape, Tensor, UsageError, Value

WHY = "Value(n#0): a recorded value has no number until a run"


@pytest.fixture
def x() -> Value:
    """Return a value of shape [2, 3]."""
    return Tape().parameter(np.ones((2, 3)))


def test_identity(x: Value) -> None:
    """`==` and hash are those of the position; the text shows only the position; shape and tape are readable."""
    y = x + 1.0
    assert x == x.tape.resolve(x.symbol)
    assert x != y
    assert x != 1.0
    assert len({x, x.tape.resolve(x.symbol), y}) == 2
    assert repr(y) == str(y) == "Value(n#3)"
    assert x.shape == Shape([2, 3])
    assert y.index == 3
    assert x.detach() == x.symbol
    assert Tape().parameter(1.0) != x
    assert copy.copy(x) == x


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (bool, f"the truth of {WHY}; choose in the graph with topos.where(mask, on_true, on_false)"),
        (float, f"float() of {WHY}; read run.of(symbol).scalar() after network.forward(...)"),
        (int, f"int() of {WHY}; read run.of(symbol).scalar() after network.forward(...)"),
        (len, f"len() of {WHY}; read value.shape[0]"),
        (iter, f"iteration of {WHY}; take parts with value[i] or value.narrow(axis, start, length)"),
        (np.array, f"a NumPy array of {WHY}; read run.of(symbol).numpy() after network.forward(...)"),
    ],
    ids=["bool", "float", "int", "len", "iter", "array"],
)
def test_a_value_is_no_number(x: Value, use: Any, message: str) -> None:
    """One sentence that says why and what to do; also a TypeError."""
    with pytest.raises(UsageError) as caught:
        use(x)
    assert str(caught.value) == message
    assert isinstance(caught.value, TypeError)


def test_uses_that_ask_for_the_truth(x: Value) -> None:
    """`if`, `and`, `not`, chained comparison and unpacking are refused, not silently wrong."""
    attempts: list[Any] = [
        lambda: 1 if x else 2,
        lambda: x and x,
        lambda: not x,
        lambda: 0 < x < 1,
        lambda: max(x, x + 1),
        lambda: [*x],
        lambda: sum(x),
        lambda: np.asarray(x, float),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError):
            attempt()


def test_numpy_operators_record(x: Value) -> None:
    """`__array_ufunc__ = None`: NumPy scalars and arrays on the left record nodes."""
    ones = np.ones((2, 3), np.float32)
    for y, name in (
        (np.float32(2) * x, "Mul"),
        (ones + x, "Add"),
        (ones - x, "Sub"),
        (np.float64(1) / x, "Div"),
        (ones**x, "Powf"),
        (np.ones((4, 2)) @ x, "MatMul"),
        (np.float32(1) < x, "Select"),
    ):
        assert isinstance(y, Value)
        assert y.tape.node(y).name == name


def test_literals_that_do_not_fit(x: Value) -> None:
    """Text, complex numbers, ragged and empty lists, and tensors of another element beside a value."""
    before = x.tape.describe()
    with pytest.raises(ElementError, match="'abc' beside a value"):
        _ = x + "abc"
    with pytest.raises(ElementError, match="beside a value"):
        _ = x * 1j
    with pytest.raises(ShapeError, match=r"beside a value: .*the nested lists are ragged"):
        _ = x * [[1.0], [1.0, 2.0]]
    with pytest.raises(ShapeError, match="beside a value: Tensor of shape"):
        _ = x * []
    with pytest.raises(ElementError, match=r"beside a value: a tensor of f64 on a tape of f32: convert it"):
        _ = x * Tensor(np.ones((2, 3)))
    assert x.tape.describe() == before


def test_operands_of_their_own_shape(x: Value) -> None:
    """matmul, gather and scatter take arrays of another shape as leaves."""
    assert (x @ np.ones((3, 4))).shape == (2, 4)
    assert x.gather([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]).shape == (3, 3)
    assert x.scatter(Tensor.selection([3, 1], 5)).shape == (5, 3)
    with pytest.raises(ShapeError, match=r"MatMul\(\[2, 3\], \[2\]\)"):
        _ = x @ [1.0, 2.0]
