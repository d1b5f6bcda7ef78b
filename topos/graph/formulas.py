"""Operations over several values that are formulas: joining, choice, cross-entropy, einsum."""

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

from topos.errors import ShapeError, TapeError, UsageError
from topos.graph.value import Value
from topos.payload import Shape


def _tape_of(values: Sequence[Value], what: str) -> Any:
    if not values:
        raise ShapeError(f"{what} of no values: give at least one")
    for value in values[1:]:
        if value.tape is not values[0].tape:
            raise TapeError(f"{what}: the values belong to different tapes")
    return values[0].tape


def concat(values: Sequence[Value], axis: int) -> Value:
    """Record the values joined along an axis: each padded with zeros to its place, the pads added.

    Raises:
        ShapeError: there are none, the axis is outside the rank, or shapes differ off the axis.

    >>> network, y = Tape.record(lambda tape: concat([tape.input([1.0]), tape.input([2.0, 3.0])], 0))
    >>> print(network.forward(network.parameters()).of(y))
    [1.0, 2.0, 3.0]
    """
    given = list(values)
    tape, at = _tape_of(given, "concat"), given[0].axis(axis)
    shapes = [value.shape for value in given]
    if not 0 <= at < shapes[0].rank:
        raise ShapeError(f"concat along axis {axis} of {shapes[0]}: axes run from 0 to {shapes[0].rank - 1}")
    for number, shape in enumerate(shapes):
        if shape.rank != shapes[0].rank or shape.without_axis(at) != shapes[0].without_axis(at):
            raise ShapeError(f"concat along axis {at}: operand {number} has {shape}, operand 0 has {shapes[0]}")
    if len(given) == 1:
        return given[0]
    with tape.transaction():
        *starts, full = itertools.accumulate((shape[at] for shape in shapes), initial=0)
        parts = (value.pad(at, start, full) for value, start in zip(given, starts, strict=True))
        return functools.reduce(operator.add, parts)


def stack(values: Sequence[Value], axis: int) -> Value:
    """Record the values joined along a new axis.

    Raises:
        ShapeError: there are none, the axis is outside rank + 1, or shapes differ.

    >>> network, y = Tape.record(lambda tape: stack([tape.input([1.0]), tape.input([2.0])], 0))
    >>> print(network.forward(network.parameters()).of(y))
    [[1.0], [2.0]]
    """
    given = list(values)
    with _tape_of(given, "stack").transaction():
        at = given[0].axis(axis, 1)
        return concat([value.unsqueeze(at) for value in given], at)


def where(mask: Any, on_true: Any, on_false: Any) -> Value:
    """Record `on_true` where the mask is not 0, else `on_false`; a branch not taken has gradient 0.

    One of the three has to be a value; numbers spread over its shape, arrays have to have it.

    >>> network, y = Tape.record(lambda tape: (lambda x: where(x > 0.0, x, 0.0))(tape.input([-1.0, 2.0])))
    >>> print(network.forward(network.parameters()).of(y))
    [0.0, 2.0]
    """
    like = next((given for given in (mask, on_true, on_false) if isinstance(given, Value)), None)
    if like is None:
        raise UsageError("where(mask, on_true, on_false): one of them has to be a recorded value")
    with like.tape.transaction():
        return like.fixed(mask).select(on_true, on_false)


def einsum(subscripts: str, a: Value, b: Value) -> Value:
    """Record a product of two values by index letters, ``"bij,bjk->bik"``: one matmul between movements.

    A letter in both operands and the result is a batch axis, in both but not the result is summed by the
    product, in one operand alone and not the result is summed before.

    Raises:
        ShapeError: the subscripts do not name the axes of both operands, or extents disagree.

    >>> network, y = Tape.record(lambda tape: einsum("ij,kj->ik", tape.input([[1.0, 2.0]]), tape.input([[3.0, 4.0]])))
    >>> print(network.forward(network.parameters()).of(y))
    [[11.0]]
    """
    what = f"einsum({subscripts!r}, {a.shape}, {b.shape})"
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    names = left.split(",")
    if not arrow or len(names) != 2 or not (left.replace(",", "") + result).isalpha():
        raise ShapeError(f"{what}: write two operands and a result, e.g. 'ij,jk->ik'")
    extents: dict[str, int] = {}
    for letters, value in zip(names, (a, b), strict=True):
        if len(letters) != value.shape.rank or len(set(letters)) != len(letters):
            raise ShapeError(f"{what}: {letters!r} has to name the {value.shape.rank} axes of {value.shape}, each once")
        for letter, extent in zip(letters, value.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise ShapeError(f"{what}: axis {letter!r} is {extents[letter]} and {extent}")
    if len(set(result)) != len(result) or not set(result) <= extents.keys():
        raise ShapeError(f"{what}: the result names axes of the operands, each once")
    shared = set(names[0]) & set(names[1])
    batch = [c for c in names[0] if c in shared and c in result]
    summed = [c for c in names[0] if c in shared and c not in result]
    with _tape_of([a, b], "einsum").transaction():
        sides = []
        for letters, value, product_last in ((names[0], a, True), (names[1], b, False)):
            for axis in reversed(range(len(letters))):
                if letters[axis] not in shared and letters[axis] not in result:
                    value = value.sum_along(axis)
                    letters = letters[:axis] + letters[axis + 1 :]
            own = [c for c in letters if c not in shared]
            groups = (batch, own, summed) if product_last else (batch, summed, own)
            order = [letters.index(c) for group in groups for c in group]
            shape = [Shape(extents[c] for c in group).volume for group in groups]
            sides.append((value.permute(order).reshape(shape), own))
        product = sides[0][0].matmul(sides[1][0])
        letters_out = [*batch, *sides[0][1], *sides[1][1]]
        spread = product.reshape([extents[c] for c in letters_out])
        return spread.permute([letters_out.index(c) for c in result])
