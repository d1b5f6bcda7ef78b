"""`Recordable`: the vocabulary, its literals, and a new interpretation written over it."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import numpy as np
import pytest

from tests.helpers import same_bits
from topos import Dual, Recordable, Shape, ShapeError, Tensor
from topos.payload.recordable import OPCODES


class Counting(Recordable):
    """A user's interpretation: it keeps shapes and writes down which opcodes were applied."""

    def __init__(self, shape: Any, log: list[str]) -> None:
        self._shape, self.log = Shape(shape), log

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self._shape

    def apply(self, opcode: Any, operands: Any) -> Counting:
        """Note the opcode."""
        self.log.append(opcode.name)
        return Counting(opcode.infer(*(o.shape for o in operands)), self.log)

    def constant_like(self, count: int | None) -> Counting:
        """Note a constant."""
        self.log.append(f"constant {count}")
        return Counting(self.shape, self.log)

    def lift(self, literal: Any) -> Any:
        """Return a literal as an operand."""
        return literal if isinstance(literal, Counting) else Counting(self.shape, self.log)


MATRIX = Counting([2, 3], [])


@pytest.mark.parametrize(
    ("speak", "name", "shape"),
    [
        (lambda x: x + x, "Add", [2, 3]),
        (lambda x: 1 + x, "Add", [2, 3]),
        (lambda x: x - x, "Sub", [2, 3]),
        (lambda x: 1 - x, "Sub", [2, 3]),
        (lambda x: x * 2, "Mul", [2, 3]),
        (lambda x: 2 * x, "Mul", [2, 3]),
        (lambda x: x / 2, "Div", [2, 3]),
        (lambda x: 2 / x, "Div", [2, 3]),
        (lambda x: x**2, "Powf", [2, 3]),
        (lambda x: 2**x, "Powf", [2, 3]),
        (lambda x: x.powf(x), "Powf", [2, 3]),
        (lambda x: -x, "Neg", [2, 3]),
        (lambda x: x.maximum(0), "Maximum", [2, 3]),
        (lambda x: x.step(0), "Step", [2, 3]),
        (lambda x: x.select(x, 0), "Select", [2, 3]),
        (lambda x: x.scale(x), "Scale", [2, 3]),
        (lambda x: x.ratio(x), "Ratio", [2, 3]),
        (lambda x: x.exp(), "Exp", [2, 3]),
        (lambda x: x.ln(), "Ln", [2, 3]),
        (lambda x: x.sqrt(), "Sqrt", [2, 3]),
        (lambda x: x.tanh(), "Tanh", [2, 3]),
        (lambda x: x.sin(), "Sin", [2, 3]),
        (lambda x: x.cos(), "Cos", [2, 3]),
        (lambda x: x.log1p(), "Log1p", [2, 3]),
        (lambda x: x.expm1(), "Expm1", [2, 3]),
        (lambda x: x.erf(), "Erf", [2, 3]),
        (lambda x: x.erf_derivative(), "ErfDerivative", [2, 3]),
        (lambda x: x @ Counting([3, 4], x.log), "MatMul", [2, 4]),
        (lambda x: x.matmul(Counting([3, 4], x.log)), "MatMul", [2, 4]),
        (lambda x: x.sum(), "Sum", []),
        (lambda x: x.sum_along(-1), "SumAlong", [2]),
        (lambda x: x.logsumexp(0), "LogSumExp", [3]),
        (lambda x: x.log_softmax(-1), "LogSoftmax", [2, 3]),
        (lambda x: Counting([], x.log).broadcast([2, 2]), "Broadcast", [2, 2]),
        (lambda x: x.broadcast_along(-1, 5), "BroadcastAlong", [2, 3, 5]),
        (lambda x: x.reshape([6]), "Reshape", [6]),
        (lambda x: x.permute([1, 0]), "Permute", [3, 2]),
        (lambda x: x.permute([-1, 0]), "Permute", [3, 2]),
        (lambda x: x.narrow(-1, 1, 2), "Narrow", [2, 2]),
        (lambda x: x.pad(-2, 1, 5), "Pad", [5, 3]),
        (lambda x: x.unfold(-1, 2, 1), "Unfold", [2, 2, 2]),
        (lambda x: x.fold(-1, 3, 1, 1, 4), "Fold", [4]),
        (lambda x: x.gather(Counting([4, 2], x.log)), "Gather", [4, 3]),
        (lambda x: x.scatter(Counting([2, 5], x.log)), "Scatter", [5, 3]),
        (lambda x: x.zero_like(), "constant 0", [2, 3]),
        (lambda x: x.one_like(), "constant 1", [2, 3]),
    ],
)
def test_every_word_applies_one_opcode(speak: Any, name: str, shape: list[int]) -> None:
    """Each method is one opcode of the closed set; negative axes count from the end."""
    MATRIX.log.clear()
    result = speak(MATRIX)
    assert MATRIX.log == [name]
    assert result.shape == tuple(shape)


def test_the_set_is_closed_and_spoken() -> None:
    """All opcodes but the sources have a word."""
    kinds = set(OPCODES) - {"Elementwise", "Along", "Windowed", "Map", "Leaf", "Parameter", "Input"}
    assert len(kinds) == 26 + 10  # and Map, parameterised by ten operations: 30 with the three sources
    for name in kinds:
        assert OPCODES[name]


BOTH = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("operation", BOTH, ids=lambda f: f.__name__)
def test_a_number_spreads(operation: Any) -> None:
    """Beside a tensor, a number of Python or NumPy spreads over its shape, on either side, in its element."""
    tensor = Tensor([[1.0, 2.0], [3.0, 0.5]], element="bf16")
    filled = Tensor.filled([2, 2], 3, element="bf16")
    for number in (3, 3.0, np.float32(3), np.float64(3), np.int64(3), np.array(3.0)):
        assert same_bits(operation(tensor, number), operation(tensor, filled))
        assert same_bits(operation(number, tensor), operation(filled, tensor))


@pytest.mark.parametrize("operation", BOTH, ids=lambda f: f.__name__)
def test_an_array_is_an_operand(operation: Any) -> None:
    """A NumPy array or nested list of the same shape is an operand on either side; the result is a tensor."""
    tensor, other = Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]])
    for given in (other.numpy(), other.numpy().astype(np.float64), [[3, 4]]):
        assert same_bits(operation(tensor, given), operation(tensor, other))
        assert same_bits(operation(given, tensor), operation(other, tensor))


def test_matmul_takes_arrays() -> None:
    """`@` on either side multiplies with an array of its own shape."""
    left, right = Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])
    assert (left @ right.numpy()).to_list() == (left.numpy() @ right).to_list() == [11.0]
    assert (left @ [[3], [4]]).to_list() == [11.0]
    assert left.gather([[1.0]]).to_list() == [1.0, 2.0]


def test_nothing_else_broadcasts() -> None:
    """A tensor of rank 0, or an array of another shape, does not spread."""
    with pytest.raises(ShapeError, match="nothing broadcasts by itself"):
        Tensor([1.0, 2.0]) + Tensor(1.0)
    with pytest.raises(ShapeError, match="nothing broadcasts by itself"):
        Tensor([[1.0, 2.0]]) * [1.0, 2.0]


def test_a_remedy_can_be_followed() -> None:
    """What an error about shapes recommends exists wherever it is raised: tensors, duals, values."""
    row, table = Tensor([1.0, 2.0]), Tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ShapeError, match=r"write b\.broadcast_to\(\[2, 2\]\)"):
        table + row
    assert (table + row.broadcast_to([2, 2])).to_list() == [2.0, 4.0, 4.0, 6.0]
    assert row.broadcast_to([2]) is row
    assert row.broadcast_along_like(0, table).to_list() == row.broadcast_to([2, 2]).to_list()
    assert Tensor(3.0).broadcast_like(table).to_list() == [3.0] * 4
    assert Dual(row, row).broadcast_to([3, 2]).tangent.to_list() == [1.0, 2.0] * 3
    with pytest.raises(ShapeError, match=r"broadcast_to\(\[2, 3\]\) of \[2\]: aligned from the last axis"):
        row.broadcast_to([2, 3])


def test_numpy_functions_take_tensors() -> None:
    """A ufunc reads a tensor as the array that it is."""
    assert np.add(Tensor([1.0]), np.float32(1)).tolist() == [2.0]


def test_numbers_that_change_are_read_each_time() -> None:
    """A parameter may be a number of another library, whose value changes while its identity stays."""

    class Cell:
        value = 0

        def __index__(self) -> int:
            return self.value

    cell, x = Cell(), Tensor([1.0, 2.0, 3.0])
    for cell.value in range(3):
        assert x.narrow(0, cell, 1).to_list() == [cell.value + 1]
    for cell.value in range(3):
        assert x.narrow(0, 0, 1).pad(0, cell, 3).to_list()[cell.value] == 1


def test_methods_have_their_names() -> None:
    """Methods that a function made are pickled, and shown, like others."""
    for method in (Tensor.exp, Tensor.sum, Tensor.__add__, Tensor.__rsub__, Tensor([1.0]).tanh):
        assert pickle.loads(pickle.dumps(method)).__name__ == method.__name__
    assert Tensor.exp.__qualname__ in ("Recordable.exp", "Tensor.exp")
    assert Tensor.__neg__.__name__ == "__neg__"
