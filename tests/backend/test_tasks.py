"""Tasks are checked data."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from topos import GemmTask, ShapeError


def task(**changes: Any) -> GemmTask:
    """Return a small task with some fields changed."""
    fields = {"a": [1.0] * 6, "a_strides": (3, 1), "b": [1.0] * 12, "b_strides": (4, 1), "m": 2, "k": 3, "n": 4}
    return GemmTask(**{**fields, **changes})


def test_a_task_is_frozen_data() -> None:
    """The span of an operand may be all of its data, or less."""
    made = task()
    assert (made.m, made.k, made.n) == (2, 3, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.m = 3
    assert task(a=[1.0], a_strides=(0, 0)).a_strides == (0, 0)
    assert len(task(b=[1.0] * 99).b) == 99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 0}, "GemmTask of 0 x 3 x 4: extents are positive"),
        ({"k": -1}, "extents are positive"),
        ({"n": 0}, "extents are positive"),
        ({"a": [1.0] * 5}, "operand a holds 5 elements, its strides span 6"),
        ({"b_strides": (4, 2)}, "operand b holds 12 elements, its strides span 15"),
        ({"a_strides": (-3, 1)}, r"operand a has strides \(-3, 1\): none is negative"),
        ({"b_strides": (1, -1)}, "operand b has strides"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    """Extents, spans and strides are checked before any memory is read."""
    with pytest.raises(ShapeError, match=message) as caught:
        task(**changes)
    assert isinstance(caught.value, ValueError)
