"""The matrix product: chains, blocks, signs of zero, and the shapes that it refuses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, drawn, same_bits, special, whole
from tests.ops.oracle import Wrapped, check, floats
from tests.ops.refusals import c, m, refuses, v
from topos import Element, Tensor
from topos.kernels import reference
from topos.ops import MatMul


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 2, 130), (3, 17, 65), (2, 384, 2), (2, 385, 3), (1, 1000, 2)], ids=str
)
def test_chains_and_blocks(element: Element, shape: tuple[int, int, int]) -> None:
    """Ascending chains of fma, cut into balanced blocks of at most 384; the columns may be tiled."""
    rows, k, columns = shape
    check(MatMul(), drawn([rows, k], element, 1), drawn([k, columns], element, 2))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("k", [1, 2, 5, 400])
def test_negative_zeros_stay(element: Element, k: int) -> None:
    """A product whose terms are all -0.0 is -0.0: no chain starts from +0."""
    a = Tensor.filled([2, k], -0.0, element=element)
    b = Tensor.filled([k, 3], 2.0, element=element)
    minus = int(bits(Tensor(-0.0, element=element)))
    assert set(bits(a.matmul(b)).ravel().tolist()) == {minus}
    assert set(bits(a.matmul(-b)).ravel().tolist()) == {0}


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_batch_is_the_product_per_leading_index(element: Element) -> None:
    """Batched products, of any strides, have the bits of rank 2."""
    a, b = special([2, 3, 4, 5], element, 1), special([5, 2, 3, 2], element, 2).permute([1, 2, 0, 3])
    product = a.matmul(b)
    for i, j in np.ndindex(2, 3):
        left = Tensor(a.numpy()[i, j])
        right = Tensor(b.numpy()[i, j])
        assert np.array_equal(bits(product)[i, j], bits(left.matmul(right)))
    row = special([4, 5], element, 3).broadcast_along(0, 2).broadcast_along(1, 3)
    assert row.matmul(b).shape == (2, 3, 4, 2)
    check(MatMul(), row, b)


def test_sixteen_bits_round_once() -> None:
    """A bf16 product accumulates in f32 and rounds once (case 31)."""
    ones = Tensor.filled([1, 600], 1.0, element="bf16")
    small = Tensor([[1.0]] + [[2.0**-9]] * 599, element="bf16")
    assert ones.matmul(small).to_list() == [Tensor(1 + 599 * 2.0**-9, element="bf16").to_list()[0]]
    halves = Tensor.filled([1, 3000], 1.0, element="f16")
    assert halves.matmul(Tensor.filled([3000, 1], 1.0, element="f16")).to_list() == [3000.0]


def test_one_rounding_per_term() -> None:
    """A term is fused: the product is not rounded before it is added."""
    a, b = 1 + 2.0**-12, 1 - 2.0**-12
    chain = Tensor([[1.0, a]]).matmul(Tensor([[-1.0], [b]]))
    assert chain.to_list() == [np.float32(-(2.0**-24))]


def test_blocks_of_the_object_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that states the rule cuts k into balanced blocks; exact numbers do not notice."""
    monkeypatch.setattr(reference, "K_BLOCK", 3)
    a, b = drawn([2, 8], "f64", 1), drawn([8, 3], "f64", 2)  # type: ignore[arg-type]
    blocks = [(0, 3), (3, 6), (6, 8)]  # ceil(8 / 3) blocks of ceil(8 / 3)
    parts = [a.narrow(1, i, j - i).matmul(b.narrow(0, i, j - i)) for i, j in blocks]
    wrapped = Tensor(a.numpy(), element=Wrapped).matmul(Tensor(b.numpy(), element=Wrapped))
    assert np.array_equal(floats(wrapped), (parts[0] + parts[1] + parts[2]).numpy())
    exact = [whole([2, 8], a.element, 3).convert(Fraction), whole([8, 3], a.element, 4).convert(Fraction)]
    product = exact[0].matmul(exact[1])
    monkeypatch.undo()
    assert product == exact[0].matmul(exact[1])


def test_without_a_hook_a_chain_multiplies_and_adds() -> None:
    """A number class without `fma` is multiplied and added, from the first product on."""
    calls: list[str] = []

    class Noted:
        def __init__(self, value: int) -> None:
            self.value = value

        def __mul__(self, other: Noted) -> Noted:
            calls.append("mul")
            return Noted(self.value * other.value)

        def __add__(self, other: Noted) -> Noted:
            calls.append("add")
            return Noted(self.value + other.value)

    product = Tensor([[1, 2, 3]], element=Noted).matmul(Tensor([[4], [5], [6]], element=Noted))
    assert product.to_list()[0].value == 32
    assert calls == ["mul", "mul", "add", "mul", "add"]


@pytest.mark.parametrize(
    ("speak", "message"),
    [
        (lambda: m @ v, "MatMul([2, 3], [3]): both operands need at least 2 axes; add one with unsqueeze(axis)"),
        (lambda: v @ m, "MatMul([3], [2, 3]): both operands need at least 2 axes; add one with unsqueeze(axis)"),
        (
            lambda: m @ m,
            "MatMul([2, 3], [2, 3]): the last axis of operand 0 (3) has to equal the second to last of operand 1 (2)",
        ),
        (
            lambda: c @ m,
            (
                "MatMul([2, 3, 4], [2, 3]): the leading axes have to be equal; repeat them with "
                "broadcast_along(axis, extent)"
            ),
        ),
        (
            lambda: c @ c.permute([1, 2, 0]),
            (
                "MatMul([2, 3, 4], [3, 4, 2]): the leading axes have to be equal; repeat them with "
                "broadcast_along(axis, extent)"
            ),
        ),
    ],
)
def test_mistakes(speak: Any, message: str) -> None:
    """Ranks, leading axes and the inner extent are named."""
    refuses(speak, message)


def test_strided_chains_have_equal_bits() -> None:
    """A transposed operand of more than one block is read in the same order."""
    a, b = drawn([500, 2], "f32", 5), drawn([500, 3], "f32", 6)  # type: ignore[arg-type]
    assert same_bits(a.permute([1, 0]).matmul(b), Tensor(np.array(a.numpy().T)).matmul(b))
