"""`Shape`: value semantics, text, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from topos import Shape, ShapeError, Tensor
from topos.payload.shape import LARGEST, MAX_RANK


def test_reads_as_a_tuple() -> None:
    """A shape is a value: equal, hashable, ordered by position, printed as a list."""
    shape = Shape([2, np.int64(3), 4])
    assert shape == (2, 3, 4) == Shape((2, 3, 4))
    assert hash(shape) == hash(Shape(range(2, 5)))
    assert (shape.axes, shape.rank, shape.volume) == ((2, 3, 4), 3, 24)
    assert all(type(extent) is int for extent in shape)
    assert (str(shape), repr(shape), str(Shape([7]))) == ("[2, 3, 4]", "[2, 3, 4]", "[7]")
    assert Shape(shape) is shape


def test_rank_0() -> None:
    """The scalar shape is the default and holds one element."""
    assert Shape() == Shape.scalar() == Shape([])
    assert (str(Shape()), Shape().rank, Shape().volume) == ("[]", 0, 1)


def test_pickles() -> None:
    """A shape survives a pickle as a shape."""
    back = pickle.loads(pickle.dumps(Shape([2, 3])))
    assert back == Shape([2, 3])
    assert type(back) is Shape


@pytest.mark.parametrize(("axis", "left"), [(0, "[3, 4]"), (1, "[2, 4]"), (2, "[2, 3]")])
def test_without_axis(axis: int, left: str) -> None:
    """One axis goes, the others keep their order."""
    reduced = Shape([2, 3, 4]).without_axis(axis)
    assert (str(reduced), type(reduced)) == (left, Shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shape([2, -1]), "Shape([2, -1]): extents are not negative"),
        (lambda: Shape([1] * 33), f"Shape({[1] * 33}): at most 32 axes"),
        (lambda: Shape([1.5]), "Shape([1.5]): a shape is a sequence of ints, e.g. [2, 3]"),
        (lambda: Shape(3), "Shape(3): a shape is a sequence of ints, e.g. [2, 3]"),
        (lambda: Shape([2, 3]).without_axis(2), "without_axis(2) of [2, 3]: axes run from 0 to 1"),
        (lambda: Shape([2, 3]).without_axis(-1), "without_axis(-1) of [2, 3]: axes run from 0 to 1"),
        (lambda: Shape().without_axis(0), "without_axis(0) of []: rank 0 has no axes"),
    ],
)
def test_refused(make: object, message: str) -> None:
    """The message repeats what was written and names the rule."""
    with pytest.raises(ShapeError) as raised:
        make()
    assert str(raised.value) == message
    assert MAX_RANK == 32


def test_volumes_are_bounded_by_their_bytes() -> None:
    """A volume whose bytes overflow 64 bits is refused with the shape; a shape alone may have one, or be empty."""
    assert Shape([LARGEST]).volume == LARGEST
    assert Shape([0, 2**62, 2**62]).volume == 0
    for shape in ([2**40, 2**40], [LARGEST + 1], [2**61]):
        with pytest.raises(ShapeError, match="bytes do not fit 64 bits") as raised:
            _ = Shape(shape).volume
        assert str(raised.value).startswith(str(shape))


@pytest.mark.parametrize("shape", [[2**40, 2**40], [2**60], [2**62, 4]], ids=str)
def test_too_large_tensors_are_refused_before_memory_is(shape: list[int]) -> None:
    """Every constructor and every operation that makes a larger shape names it, and allocates nothing."""
    one = Tensor(1.0)
    first, last = shape[0], shape[-1] if len(shape) > 1 else 2
    long = Tensor.filled([2**31], 1.0)
    makers = [
        lambda: Tensor(shape, [1.0]),
        lambda: Tensor.filled(shape, 1.0),
        lambda: Tensor.counted(shape, 1),
        lambda: Tensor.selection([0] * 4, 2**60),
        lambda: one.broadcast(shape),
        lambda: one.reshape([1]).reshape(shape),
        lambda: long.broadcast_along(0, 2**30),
        lambda: one.reshape([1]).pad(0, 0, first),
        lambda: long.unfold(0, 2**30, 1),
        lambda: one.reshape([1, 1]).fold(0, 1, 2**61, 1, 2**61),
        lambda: Tensor.filled([2**30, 1], 1.0).matmul(Tensor.filled([1, 2**31], 1.0)),
        lambda: Tensor.filled([1, 2**30], 1.0).gather(Tensor.filled([2**30, 1], 1.0)),
        lambda: Tensor.filled([1, 2**30], 1.0).scatter(Tensor.filled([1, 2**30], 1.0)),
    ]
    assert last
    for number, make in enumerate(makers):
        if number == 7 and first < 2**60:
            continue  # this pad fits
        with pytest.raises(ShapeError) as raised:
            make()
        assert "fit 64 bits" in str(raised.value) or "elements do not fill" in str(raised.value)
        assert "[" in str(raised.value)
