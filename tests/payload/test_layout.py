"""`Layout`: views change strides alone; reshape is a view exactly where it can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topos import Shape
from topos.payload.layout import Layout, dense_strides


def read(layout: Layout, buffer: np.ndarray) -> np.ndarray:
    """Return what a layout reads, position by position."""
    out = np.empty(tuple(layout.shape), buffer.dtype)
    for index in np.ndindex(out.shape):
        out[index] = buffer[layout.offset + sum(i * s for i, s in zip(index, layout.strides, strict=True))]
    return out


def test_dense() -> None:
    """The row-major layout, with extent-1 axes of any stride, is dense; a gap or a repeat is not."""
    assert dense_strides((2, 3, 4)) == (12, 4, 1)
    assert dense_strides(()) == ()
    assert Layout.dense(Shape([2, 3])).is_dense
    assert Layout(Shape([2, 1, 3]), (3, 77, 1), 5).is_dense
    assert not Layout(Shape([2, 3]), (4, 1)).is_dense
    assert not Layout(Shape([2, 3]), (1, 2)).is_dense
    assert not Layout(Shape([2]), (0,)).is_dense
    assert Layout(Shape([]), ()).is_dense


def test_constant() -> None:
    """A layout is constant where each axis has stride 0 or extent 1."""
    assert Layout(Shape([2, 1]), (0, 5)).is_constant
    assert Layout(Shape([]), ()).is_constant
    assert not Layout(Shape([2, 2]), (0, 1)).is_constant


def test_views_read_what_numpy_reads() -> None:
    """Each view method, on a layout with an offset, reads the elements that NumPy's view has."""
    buffer = np.arange(200)
    base = Layout(Shape([4, 5]), (10, 2), 3)
    array = read(base, buffer)
    expected = [
        (base.permute((1, 0)), array.T),
        (base.narrow(1, 1, 3), array[:, 1:4]),
        (base.narrow(0, 3, 1), array[3:]),
        (base.broadcast_along(1, 3), np.repeat(array[:, None], 3, 1)),
        (base.broadcast_along(2, 2), np.repeat(array[..., None], 2, 2)),
        (Layout(Shape([1]), (9,), 7).broadcast(Shape([2, 2])), np.full((2, 2), 7)),
        (base.unfold(1, 2, 1, 2), np.stack([array[:, i : i + 3 : 2] for i in range(3)], 1)),
        (base.unfold(0, 2, 2, 1), np.stack([array[0:2], array[2:4]])),
    ]
    for layout, wanted in expected:
        assert np.array_equal(read(layout, buffer), wanted)


def test_unfold_of_one_window_takes_any_step() -> None:
    """A stride along which no step is taken does not overflow."""
    layout = Layout.dense(Shape([3])).unfold(0, 3, 2**70, 1)
    assert (layout.shape, layout.strides) == ((1, 3), (0, 1))
    layout = Layout.dense(Shape([3])).unfold(0, 1, 1, 2**70)
    assert (layout.shape, layout.strides) == ((3, 1), (1, 0))


@pytest.mark.parametrize(
    ("layout", "shape", "is_view"),
    [
        (Layout.dense(Shape([2, 3, 4])), [4, 6], True),
        (Layout(Shape([3, 4]), (4, 1), 9), [2, 6], True),  # dense behind an offset
        (Layout(Shape([2, 3]), (0, 0), 4), [6, 1], True),  # constant
        (Layout(Shape([2, 3]), (1, 2)), [2, 1, 3, 1], True),  # only extent-1 axes come
        (Layout(Shape([2, 1, 3]), (1, 9, 2)), [2, 3], True),  # or go
        (Layout(Shape([2, 3]), (1, 2)), [6], False),
        (Layout(Shape([2, 3]), (1, 2)), [3, 2], False),
        (Layout(Shape([4, 3]), (0, 1)), [2, 2, 3], True),  # an axis is split
        (Layout(Shape([2, 3, 4]), (1, 8, 2)), [2, 12], True),  # axes that walk as one are joined
        (Layout(Shape([2, 6, 2]), (40, 4, 2)), [2, 4, 3], True),  # joined and split elsewhere
        (Layout(Shape([2, 6, 2]), (40, 4, 1)), [2, 4, 3], False),
    ],
)
def test_reshape(layout: Layout, shape: list[int], is_view: bool) -> None:
    """A reshape that a layout can express reads the same elements row-major; others answer None."""
    found = layout.reshape(Shape(shape))
    assert (found is not None) == is_view
    if found is not None:
        buffer = np.arange(100)
        assert np.array_equal(read(found, buffer), read(layout, buffer).reshape(shape))


def test_every_permutation_and_back() -> None:
    """A permutation and its inverse give the strides back."""
    layout = Layout(Shape([2, 3, 4]), (5, 7, 11), 2)
    for order in itertools.permutations(range(3)):
        back = layout.permute(order).permute([order.index(axis) for axis in range(3)])
        assert (back.shape, back.strides, back.offset) == (layout.shape, layout.strides, 2)
