"""The operands of the tables of mistakes: one row is what is written and the whole message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from topos import ShapeError, Tensor

s = Tensor(0.0)
v = Tensor.filled([3], 0)
m = Tensor.filled([2, 3], 0)
c = Tensor.filled([2, 3, 4], 0)


def refuses(speak: Callable[[], Any], message: str) -> None:
    """Assert that an expression is refused with exactly this message."""
    with pytest.raises(ShapeError) as raised:
        speak()
    assert str(raised.value) == message
