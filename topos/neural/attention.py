"""Attention: scaled dot products, masks, several heads, rotary positions."""

import math
from typing import Any

import numpy as np

from topos.graph import Symbol, Tape, Value, concat
from topos.neural.layers import check, recorded, repeated
from topos.neural.linear import Linear
from topos.neural.module import Module
from topos.payload import Tensor


def causal_mask(extent: int, fill: Any = -math.inf, element: Any = "f32") -> Tensor:
    """Return the mask ``[extent, extent]`` that is 0 on and below the diagonal and `fill` above.

    >>> print(causal_mask(2))
    [[0.0, -inf], [0.0, 0.0]]
    """
    check(extent >= 1, "causal_mask", "the extent is positive", extent=extent)
    above = np.triu(np.ones((extent, extent), bool), 1)
    return Tensor(np.where(above, fill, 0.0), element=element)


@recorded
def scaled_dot_product(query: Value, key: Value, value: Value, mask: Any = None, scale: Any = None) -> Value:
    """Record ``softmax(query @ key.T * scale + mask) @ value`` over the last two axes (Vaswani et al., 2017).

    Arguments:
        query: ``[..., t, d]``; leading axes are any, and equal.
        key: ``[..., s, d]``.
        value: ``[..., s, e]``.
        mask: ``[t, s]``, added to the scores, or None.
        scale: a single value; ``1 / sqrt(d)`` by default.

    Returns ``[..., t, e]``.

    Raises:
        ShapeError: ranks, leading axes or extents disagree.

    >>> tape = Tape()
    >>> q, k, v = (tape.input(np.zeros((2, 4, 8))) for _ in range(3))
    >>> scaled_dot_product(q, k, v, causal_mask(4)).shape
    [2, 4, 8]
    """
    call = {"query": query, "key": key, "value": value, "mask": mask, "scale": scale}
    rank = query.shape.rank
    same = rank == key.shape.rank == value.shape.rank and rank >= 2
    fits = same and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    fits = fits and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    check(fits, "scaled_dot_product", "needs [..., t, d], [..., s, d] and [..., s, e]", **call)
    tape = query.tape
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    factor = scale if isinstance(scale, Value) else tape.leaf(scale)
    check(factor.shape.volume == 1, "scaled_dot_product", "the scale is a single value", **call)
    scores = query.matmul(key.permute([*range(rank - 2), rank - 1, rank - 2]))
    scores = scores * factor.broadcast(scores.shape)
    if mask is not None:
        added = mask if isinstance(mask, Value) else tape.leaf(mask)
        check(added.shape == scores.shape[-2:], "scaled_dot_product", "needs a mask [t, s]", **call)
        scores = scores + repeated(added, scores.shape[:-2])
    return scores.softmax(rank - 1).matmul(value)


@recorded
def rotary(input: Value, base: float = 10000.0, start: int = 0) -> Value:
    """Record the rotary position embedding of ``[..., t, d]`` (Su et al., 2021).

    Feature i and feature i + d/2 are turned together by the angle ``(start + position) * base**(-2 i / d)``.

    Raises:
        ShapeError: the rank is below 2, or d is odd.

    >>> rotary(Tape().input(np.zeros((2, 4, 8)))).shape
    [2, 4, 8]
    """
    shape = input.shape
    fits = shape.rank >= 2 and shape[-1] % 2 == 0
    check(fits, "rotary", "needs [..., positions, features] with an even count of features", input=input)
    *lead, extent, features = shape
    half, last = features // 2, shape.rank - 1
    exponents = Tensor(-2.0 * np.arange(half) / features * math.log(base), element="f64")
    positions = Tensor(np.arange(start, start + extent), element="f64").broadcast_along(1, half)
    angles = positions * exponents.exp().broadcast_along(0, extent)
    tables = [input.tape.leaf(table.convert(input.tape.element)) for table in (angles.cos(), angles.sin())]
    cosine, sine = (repeated(table, lead) for table in tables)
    left, right = input.narrow(last, 0, half), input.narrow(last, half, half)
    return concat([left * cosine - right * sine, right * cosine + left * sine], last)


class MultiHeadAttention(Module):
    """Self-attention in several heads between a joint projection each of query, key, value and output.

    Fewer columns in `key` and `value` than in `query` share each head of theirs among several of the query's
    (Ainslie et al., 2023).

    Arguments:
        tape: where the parameters are recorded.
        query: the projection, a `Linear` of ``[features, heads * d]``.
        key: likewise, ``[features, key heads * d]``.
        value: likewise, ``[features, key heads * d]``.
        output: a `Linear` of ``[heads * d, features]``.
        heads: how many heads the query has.
        mask: ``[t, t]``, added to the scores, or None; `causal_mask` for a language model.
        base: of rotary positions, or None for none.

    Raises:
        ShapeError: the heads do not divide the projections, or these disagree.

    >>> tape = Tape()
    >>> draw = init.xavier(7)
    >>> projections = [Linear(tape, draw([8, 8])) for _ in range(4)]
    >>> layer = MultiHeadAttention(tape, *projections, heads=2, mask=causal_mask(3))
    >>> layer.express(tape.input(np.zeros((5, 3, 8)))).shape
    [5, 3, 8]
    """

    members = ("query", "key", "value", "output")

    def __init__(
        self, tape: Tape, query: Linear, key: Linear, value: Linear, output: Linear,
        heads: int, mask: Any = None, base: float | None = None,
    ) -> None:  # fmt: skip
        sizes = {"query": query.outputs, "key": key.outputs, "value": value.outputs, "output": output.inputs}
        width, rest = divmod(query.outputs, max(heads, 1))
        shared, odd = divmod(key.outputs, max(width, 1))
        fits = heads >= 1 and rest == odd == 0 < shared and heads % shared == 0
        fits = fits and query.outputs == output.inputs and key.outputs == value.outputs
        check(fits, "MultiHeadAttention", "the heads have to divide the projections", heads=heads, **sizes)
        self.query, self.key, self.value, self.output = query, key, value, output
        self.heads, self.width, self.base = heads, width, base
        self.mask: Symbol | None = None if mask is None else tape.leaf(mask).symbol

    @recorded
    def express(self, input: Value) -> Value:
        """Record the attention of ``[..., t, features]`` to itself, in its shape."""
        return self.attend(input, input)

    @recorded
    def attend(self, input: Value, context: Value) -> Value:
        """Record the attention of ``[..., t, features]`` to a context ``[..., s, features]``.

        Raises:
            ShapeError: the features or leading axes disagree, or the mask does not have shape ``[t, s]``.
        """
        rank = input.shape.rank
        check(rank >= 2, "MultiHeadAttention.attend", "needs [..., t, features]", input=input)
        query = self._heads(self.query.express(input))
        key, value = (self._heads(stage.express(context)) for stage in (self.key, self.value))
        if self.base is not None:
            query, key = rotary(query, self.base), rotary(key, self.base)
        key, value = self._shared(key), self._shared(value)
        mask = None if self.mask is None else input.tape.resolve(self.mask)
        mixed = scaled_dot_product(query, key, value, mask)
        lead = list(range(rank - 2))
        joined = mixed.permute([*lead, rank - 1, rank - 2, rank])
        return self.output.express(joined.reshape([*input.shape[:-1], self.output.inputs]))

    def _heads(self, value: Value) -> Value:
        """Record ``[..., t, heads * d]`` as ``[..., heads, t, d]``."""
        rank = value.shape.rank
        split = value.reshape([*value.shape[:-1], value.shape[-1] // self.width, self.width])
        return split.permute([*range(rank - 2), rank - 1, rank - 2, rank])

    def _shared(self, value: Value) -> Value:
        """Record key heads repeated for the query heads that share them."""
        axis = value.shape.rank - 3
        repeats = self.heads // value.shape[axis]
        if repeats == 1:
            return value
        shape = [*value.shape[:axis], self.heads, *value.shape[axis + 1 :]]
        return value.broadcast_along(axis + 1, repeats).reshape(shape)
