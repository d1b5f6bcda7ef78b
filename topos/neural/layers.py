"""What layers and formulas share: whole recordings, checks, parameters, and vectors beside an axis."""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from topos.errors import ShapeError, TapeError, UsageError
from topos.graph import Symbol, Tape, Value

F = TypeVar("F", bound=Callable[..., Any])


def recorded(function: F) -> F:
    """Make a recording all or nothing, on the tape of its values."""

    @functools.wraps(function)
    def whole(*arguments: Any, **options: Any) -> Any:
        tapes = list(dict.fromkeys(a.tape for a in (*arguments, *options.values()) if isinstance(a, Value)))
        if not tapes:
            raise UsageError(f"{function.__qualname__}: give a recorded value, e.g. tape.input(...)")
        if len(tapes) > 1:
            raise TapeError(f"{function.__qualname__}: the values belong to different tapes")
        with tapes[0].transaction():
            return function(*arguments, **options)

    return cast("F", whole)


def check(fits: bool, name: str, rule: str, **given: Any) -> None:
    """Raise a `ShapeError` that shows the call, with shapes for payloads and values, and the rule.

    Raises:
        ShapeError: unless it fits.
    """
    if not fits:
        shown = {k: v if isinstance(v, np.generic) else getattr(v, "shape", v) for k, v in given.items()}
        text = ", ".join(f"{key}={value}" for key, value in shown.items())
        raise ShapeError(f"{name}({text}): {rule}")


def each(function: Callable[[Any], Any], *given: Any) -> list[Any]:
    """Return what a function makes of each: `Tape.payload_of` of data, `Tape.resolve` of symbols; None stays None."""
    return [None if one is None else function(one) for one in given]


def record(tape: Tape, *tensors: Any) -> list[Any]:
    """Record parameters, all or none, and return their symbols; None stays None."""
    with tape.transaction():
        return each(lambda tensor: tape.parameter(tensor).symbol, *tensors)


def axes_pair(given: Any, name: str, **call: Any) -> tuple[int, int]:
    """Return one int for rows and one for columns.

    Raises:
        ShapeError: neither an int nor two.
    """
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    whole = len(pair) == 2 and all(hasattr(n, "__index__") and not isinstance(n, bool) for n in pair)
    check(whole, name, "give an int or two", **call)
    return operator.index(pair[0]), operator.index(pair[1])


def repeated(value: Value, lead: Any) -> Value:
    """Repeat a value over axes before its own."""
    for extent in reversed(lead):
        value = value.broadcast_along(0, extent)
    return value


def spread(vector: Value, shape: Any, axis: int) -> Value:
    """Repeat a vector that lies along one axis of `shape` over the others."""
    vector = repeated(vector, shape[:axis])
    for following in range(axis + 1, len(shape)):
        vector = vector.broadcast_along(following, shape[following])
    return vector


def biased(value: Value, bias: Value | None, axis: int) -> Value:
    """Record a vector added along one axis; nothing where there is none."""
    return value if bias is None else value + spread(bias, value.shape, axis)


def affine(rows: Value, weights: Symbol, bias: Symbol | None) -> Value:
    """Record the product of ``[rows, in]`` with a matrix, plus a bias where there is one."""
    matrix, vector = each(rows.tape.resolve, weights, bias)
    return biased(rows.matmul(matrix), vector, 1)


def padded(value: Value, first: int, pads: tuple[int, int]) -> Value:
    """Record zeros on each side of two axes, `first` and the next; nothing where there are none."""
    for axis, pad in enumerate(pads, first):
        value = value.pad(axis, pad, value.shape[axis] + 2 * pad) if pad else value
    return value
