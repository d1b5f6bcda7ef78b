"""Windows: overlaps, gaps and dilation; folds add in ascending window order from +0."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, drawn, same_bits
from tests.ops.oracle import check
from tests.ops.refusals import m, refuses, v
from topos import Element, Tensor
from topos.ops import Fold, Unfold
from topos.ops.window import window_count


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_small_window(element: Element) -> None:
    """All extents, sizes, steps and dilations up to 6: values, and the shape of the way back."""
    for extent, size, step, dilation in itertools.product(range(1, 7), range(1, 4), range(1, 4), range(1, 4)):
        if dilation * (size - 1) + 1 > extent:
            continue
        line = drawn([extent], element, extent)
        windows = check(Unfold(0, size, step, dilation), line)
        assert windows.shape == (window_count(extent, size, step, dilation), size)
        check(Fold(0, size, step, dilation, extent), windows)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_fold_starts_from_positive_zero(element: Element) -> None:
    """-0.0 added into zeros is +0, and a position that no window reaches is +0."""
    windows = Tensor.filled([2, 2], -0.0, element=element)
    assert bits(windows.fold(0, 2, 3, 1, 6)).tolist() == [0] * 6


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_fold_adds_at_compute_precision(element: Element) -> None:
    """Sixteen overlapping windows: each addition rounds as the element computes, not in wider registers."""
    check(Fold(0, 16, 1, 1, 40), drawn([25, 16], element, 1))
    check(Fold(1, 16, 1, 1, 40), drawn([2, 25, 16, 3], element, 2))


def test_a_fold_adds_in_the_order_of_the_windows() -> None:
    """Ascending: (1e8 + 1) - 1e8 is 0 in f32, any other order would give 1."""
    windows = Tensor([[0.0, 0.0, 1e8], [0.0, 1.0, 0.0], [-1e8, 0.0, 0.0]])
    assert windows.fold(0, 3, 1, 1, 5).to_list() == [0.0, 0.0, 0.0, 0.0, 0.0]
    rounded = Tensor([[0.0, 1.0], [2.0**-9, 0.0]], element="bf16")
    assert rounded.fold(0, 2, 1, 1, 3).to_list() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("extent", "size", "step", "dilation"), [(20, 7, 3, 1), (8, 3, 2, 1), (9, 3, 1, 2)])
def test_the_way_back_has_the_extent_of_the_input(extent: int, size: int, step: int, dilation: int) -> None:
    """Positions that no window reads get exactly 0 (case 16)."""
    line = drawn([extent], Tensor(0.0).element)
    opcode = Unfold(0, size, step, dilation)
    windows = opcode.express([line])
    (back,) = opcode.vjp([line], windows, windows.one_like())
    read = np.zeros(extent)
    for window, tap in np.ndindex(*windows.shape):
        read[window * step + tap * dilation] += 1
    assert back.shape == (extent,)
    assert back.to_list() == read.tolist()


def test_one_window_takes_any_step() -> None:
    """A step beyond 64 bits is no overflow where no step is taken."""
    line = Tensor([1.0, 2.0, 3.0])
    assert line.unfold(0, 3, 2**62).to_list() == [1.0, 2.0, 3.0]
    assert line.unfold(0, 2, 2**62).numpy().tolist() == [[1.0, 2.0]]
    assert same_bits(line.unfold(0, 3, 2**62) + 1, (line + 1).reshape([1, 3]))
    assert line.reshape([1, 3]).fold(0, 3, 2**62, 1, 3).to_list() == [1.0, 2.0, 3.0]
    exact = line.convert(Fraction)
    assert exact.unfold(0, 3, 2**62).fold(0, 3, 2**62, 1, 3) == exact


@pytest.mark.parametrize(
    ("speak", "message"),
    [
        (
            lambda: m.unfold(2, 1, 1),
            "Unfold([2, 3], axis=2, size=1, step=1, dilation=1): axis 2 is outside the rank; axes run from 0 to 1",
        ),
        (
            lambda: m.unfold(1, 4, 1),
            "Unfold([2, 3], axis=1, size=4, step=1, dilation=1): a window spans 4, axis 1 holds 3",
        ),
        (
            lambda: m.unfold(1, 2, 1, 3),
            "Unfold([2, 3], axis=1, size=2, step=1, dilation=3): a window spans 4, axis 1 holds 3",
        ),
        (lambda: m.unfold(1, 0, 1), "Unfold([2, 3], axis=1, size=0, step=1, dilation=1): size has to be positive"),
        (lambda: m.unfold(1, 1, 0), "Unfold([2, 3], axis=1, size=1, step=0, dilation=1): step has to be positive"),
        (
            lambda: m.unfold(1, 1, 1, 0),
            "Unfold([2, 3], axis=1, size=1, step=1, dilation=0): dilation has to be positive",
        ),
        (
            lambda: m.fold(1, 3, 1, 1, 4),
            (
                "Fold([2, 3], axis=1, size=3, step=1, dilation=1, extent=4): axis 2 is outside the rank; "
                "axes run from 0 to 1"
            ),
        ),
        (
            lambda: m.fold(-3, 3, 1, 1, 4),
            (
                "Fold([2, 3], axis=-3, size=3, step=1, dilation=1, extent=4): axis -3 is outside the rank; "
                "axes run from 0 to 1"
            ),
        ),
        (
            lambda: m.fold(0, 3, 1, 1, 5),
            (
                "Fold([2, 3], axis=0, size=3, step=1, dilation=1, extent=5): axes 0 and 1 have to be [3, 3], "
                "the windows of the extent"
            ),
        ),
        (
            lambda: m.fold(0, 3, 1, 1, 2),
            "Fold([2, 3], axis=0, size=3, step=1, dilation=1, extent=2): a window spans 3, the extent is 2",
        ),
        (
            lambda: m.fold(0, 3, 1, 1, 0),
            "Fold([2, 3], axis=0, size=3, step=1, dilation=1, extent=0): extent has to be positive",
        ),
        (
            lambda: v.fold(0, 3, 1, 1, 3),
            (
                "Fold([3], axis=0, size=3, step=1, dilation=1, extent=3): axis 1 is outside the rank; "
                "axes run from 0 to 0"
            ),
        ),
    ],
)
def test_mistakes(speak: Any, message: str) -> None:
    """Windows that do not fit are refused with their span and the extent."""
    refuses(speak, message)
