"""The arithmetics of `maps/arithmetic.py` against plain statements about two numbers at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.helpers import bits
from tests.kernels.calls import call_routine, compiled
from tests.kernels.interpreted import NumpyTable
from topos.kernels import store
from topos.kernels.maps import FUNCTIONS, MAPS, arithmetic

NUMBERS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3e38, -3e38, 0.1,
]  # fmt: skip


def _maximum(a: np.floating, b: np.floating) -> np.floating:
    return a if a >= b or math.isnan(a) else b


def _scale(a: np.floating, b: np.floating) -> np.floating:
    return type(a)(0.0) if a == 0 or b == 0 else a * b


def _ratio(g: np.floating, d: np.floating) -> np.floating:
    return type(g)(0.0) if g == 0 else g / d


def _log_difference(x: np.floating, y: np.floating) -> np.floating:
    return x if x == -math.inf else x - y


STATED: dict[str, Callable[..., np.floating]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "sqrt": lambda a: np.sqrt(a),
    "maximum": _maximum,
    "step": lambda x, t: type(x)(1.0 if x >= t else 0.0),
    "select": lambda m, a, b: b if m == 0 else a,
    "scale": _scale,
    "ratio": _ratio,
    "finite_or_zero": lambda x: type(x)(0.0) if math.isinf(x) else x,
    "log_difference": _log_difference,
    "positive_zero": lambda x: type(x)(0.0) if x == 0 else x,
}


def operands(arity: int, kind: np.dtype) -> list[np.ndarray]:
    """Return every tuple of the numbers above."""
    with np.errstate(over="ignore"):
        grid = np.meshgrid(*[np.array(NUMBERS).astype(kind)] * arity, indexing="ij")
    return [axis.reshape(-1).copy() for axis in grid]


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("name", STATED)
def test_an_arithmetic_is_what_it_states(name: str, width: int) -> None:
    """Interpreted and compiled, over every tuple of special numbers, the bits are those of the statement."""
    kind = np.dtype(f"f{width // 8}")
    arity = FUNCTIONS[name].arity
    given = operands(arity, kind)
    function = getattr(arithmetic, name)
    with np.errstate(all="ignore"):
        expected = np.array([STATED[name](*pair) for pair in zip(*given, strict=True)], kind)
    interpreted = NumpyTable(width)(function, *given)
    assert interpreted.dtype == kind
    assert (bits(interpreted) == bits(expected)).all()
    assert (bits(compiled(function, arity, width)(*given)) == bits(expected)).all()
    stored = np.empty(given[0].size, kind)
    call_routine(store.address(f"{name}.f{width}"), stored, *given)
    assert (bits(stored) == bits(expected)).all()


def test_the_chosen_operand_keeps_all_its_bits() -> None:
    """Maximum and select hand on a NaN with sign and payload."""
    nan = np.array([0xFFC12345], np.uint32).view(np.float32)
    one = np.array([1.0], np.float32)
    for function, given in (
        (arithmetic.maximum, (nan, one)),
        (arithmetic.maximum, (one, nan)),
        (arithmetic.select, (one, nan, one)),
        (arithmetic.select, (nan, nan, one)),
    ):
        assert NumpyTable(32)(function, *given).view(np.uint32)[0] == 0xFFC12345
        assert compiled(function, len(given), 32)(*given).view(np.uint32)[0] == 0xFFC12345


def test_every_map_and_arithmetic_is_a_function() -> None:
    """The functions are the maps, powf and the arithmetics above, each at two widths."""
    assert set(FUNCTIONS) == {*MAPS, *STATED, "powf"}
    for function in FUNCTIONS.values():
        assert function.at(32) is function.single
        assert function.at(64) is function.double
