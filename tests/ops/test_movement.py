"""Movement: what is refused, and that a gradient moves back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import ELEMENTS, bits
from tests.ops.refusals import m, refuses, s, v
from topos import Element, Shape, Tensor
from topos.ops import Broadcast, BroadcastAlong, Pad


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_pads_are_positive_zeros(element: Element) -> None:
    """Padding is +0 around the bits of the operand; the widest pad of nothing is a copy."""
    negative = Tensor([-0.0, -1.0], element=element)
    minus = bits(negative).tolist()
    assert bits(negative.pad(0, 2, 5)).tolist() == [0, 0, *minus, 0]
    assert bits(negative.pad(0, 0, 2)).tolist() == minus


def test_broadcast_sums_back() -> None:
    """The adjoint of a repeat is a sum, of the operand's shape."""
    one = Tensor([[2.0]])
    (back,) = Broadcast(Shape([2, 2])).vjp([one], one.broadcast([2, 2]), Tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert (back.shape, back.to_list()) == ((1, 1), [10.0])
    scalar = Tensor(2.0)
    (back,) = Broadcast(Shape([2])).vjp([scalar], scalar.broadcast([2]), Tensor([1.0, 2.0]))
    assert (back.shape, back.scalar()) == ((), 3.0)
    (back,) = BroadcastAlong(0, 2).vjp([v], v.broadcast_along(0, 2), m + 1)
    assert back.to_list() == [2.0, 2.0, 2.0]
    (back,) = Pad(0, 1, 5).vjp([v], v.pad(0, 1, 5), Tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert back.to_list() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("speak", "message"),
    [
        (
            lambda: m.broadcast([2]),
            "Broadcast([2, 3], shape=[2]): the operand has to hold one element; use broadcast_to(shape) for more",
        ),
        (lambda: s.broadcast([2, 0]), "Broadcast([], shape=[2, 0]): a value holds at least one element"),
        (
            lambda: m.broadcast_along(3, 2),
            "BroadcastAlong([2, 3], axis=3, extent=2): axis 3 is outside the rank; axes run from 0 to 2",
        ),
        (
            lambda: m.broadcast_along(-4, 2),
            "BroadcastAlong([2, 3], axis=-4, extent=2): axis -4 is outside the rank; axes run from 0 to 2",
        ),
        (lambda: m.broadcast_along(0, 0), "BroadcastAlong([2, 3], axis=0, extent=0): extent has to be positive"),
        (lambda: m.reshape([4]), "Reshape([2, 3], shape=[4]): 6 elements do not fill [4], which holds 4"),
        (lambda: m.reshape([0]), "Reshape([2, 3], shape=[0]): 6 elements do not fill [0], which holds 0"),
        (lambda: m.reshape([-1]), "Shape([-1]): extents are not negative"),
        (lambda: m.reshape(6), "Shape(6): a shape is a sequence of ints, e.g. [2, 3]"),
        (lambda: m.permute([0]), "Permute([2, 3], order=[0]): the order has to name each axis 0..1 once"),
        (lambda: m.permute([0, 0]), "Permute([2, 3], order=[0, 0]): the order has to name each axis 0..1 once"),
        (lambda: m.permute([1, -1]), "Permute([2, 3], order=[1, 1]): the order has to name each axis 0..1 once"),
        (lambda: m.permute([0, -3]), "Permute([2, 3], order=[0, -3]): the order has to name each axis 0..1 once"),
        (
            lambda: m.narrow(2, 0, 1),
            "Narrow([2, 3], axis=2, start=0, length=1): axis 2 is outside the rank; axes run from 0 to 1",
        ),
        (lambda: m.narrow(1, 2, 2), "Narrow([2, 3], axis=1, start=2, length=2): 2..4 is outside axis 1 of extent 3"),
        (lambda: m.narrow(1, -1, 2), "Narrow([2, 3], axis=1, start=-1, length=2): -1..1 is outside axis 1 of extent 3"),
        (lambda: m.narrow(1, 0, 0), "Narrow([2, 3], axis=1, start=0, length=0): length has to be positive"),
        (
            lambda: m.pad(-3, 0, 5),
            "Pad([2, 3], axis=-3, start=0, full_extent=5): axis -3 is outside the rank; axes run from 0 to 1",
        ),
        (
            lambda: m.pad(1, 1, 3),
            "Pad([2, 3], axis=1, start=1, full_extent=3): axis 1 of extent 3 at 1 does not fit into 3",
        ),
        (
            lambda: m.pad(1, -1, 3),
            "Pad([2, 3], axis=1, start=-1, full_extent=3): axis 1 of extent 3 at -1 does not fit into 3",
        ),
    ],
)
def test_mistakes(speak: Any, message: str) -> None:
    """Axes, extents and volumes that do not fit are refused with the rule."""
    refuses(speak, message)
