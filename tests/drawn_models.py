"""Random models: layers one after the other over extents that fill tiles, rows and blocks, and their remainders."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.drawn import Drawn
from tests.helpers import drawn, special, whole
from topos import (
    BatchNorm,
    GruCell,
    LayerNorm,
    Linear,
    LstmCell,
    MultiHeadAttention,
    RmsNorm,
    ShapeError,
    Tape,
    Value,
    average_pool,
    causal_mask,
    concat,
    conv2d,
    cross_entropy,
    max_pool,
    rotary,
    scaled_dot_product,
    where,
)
from topos.payload.element import element_of

MAPS = ("relu", "tanh", "sigmoid", "gelu", "silu", "elu", "softplus", "exp", "erf", "sin", "log1p", "abs", "leaky_relu")


class _Models:
    """Stages, each a method: what it makes of a value."""

    def __init__(self, seed: int, element: Any) -> None:
        self.random, self.element = random.Random(seed), element_of(element)
        self.tape = Tape(self.element)
        self.payload = self.random.choice([drawn, drawn, drawn, whole, special])

    def choice(self, *options: Any) -> Any:
        return self.random.choice(options)

    def numbers(self, *shape: int) -> Any:
        return self.payload(shape, self.element, self.random.getrandbits(32))

    def parameter(self, *shape: int) -> Value:
        return self.tape.parameter(self.numbers(*shape))

    # ---- over any shape
    def map(self, x: Value) -> Value:
        return getattr(x, self.choice(*MAPS))()

    def choose(self, x: Value) -> Value:
        return where(x > 0.25, x, x * x)

    def bounded(self, x: Value) -> Value:
        return x.clamp(-1.0, 1.0) / (x.one_like() + abs(x))

    def layer_norm(self, x: Value) -> Value:
        features = x.shape[-1]
        return LayerNorm(self.tape, self.numbers(features), self.numbers(features)).express(x)

    def rms_norm(self, x: Value) -> Value:
        return RmsNorm(self.tape, self.numbers(x.shape[-1])).express(x)

    def residual(self, x: Value) -> Value:
        return x + x * self.parameter(*x.shape)

    def softmax(self, x: Value) -> Value:
        return x.softmax(self.random.randrange(x.shape.rank))

    def log_softmax(self, x: Value) -> Value:
        return x.log_softmax(self.random.randrange(x.shape.rank))

    def centred(self, x: Value) -> Value:
        axis = self.random.randrange(x.shape.rank)
        reduced = self.choice(x.max_along, x.logsumexp, x.mean_along, x.sum_along)(axis)
        return x - reduced.broadcast_along(axis, x.shape[axis])

    # ---- over rows
    def linear(self, x: Value) -> Value:
        features, outputs = x.shape[-1], self.choice(1, 2, 5, 8, 33, 64, 127, 300)
        bias = self.choice(None, self.numbers(outputs))
        return Linear(self.tape, self.numbers(features, outputs), bias).express(x)

    def joined(self, x: Value) -> Value:
        other = self.parameter(x.shape[0], self.choice(1, 4, 33))
        return concat(self.random.sample([x, other, x * 2.0], 3), 1)

    def part(self, x: Value) -> Value:
        start = self.random.randrange(x.shape[1])
        return x.narrow(1, start, self.random.randint(1, x.shape[1] - start)) * 1.5

    def turned(self, x: Value) -> Value:
        return x.permute([1, 0]).reshape(x.shape)

    def chosen(self, x: Value) -> Value:
        rows = x.shape[0]
        ids = self.tape.input([[float(i == self.random.randrange(rows)) for i in range(rows)] for _ in range(rows)])
        return (ids * 0.5).matmul(x)

    # ---- over batches: rows and images
    def batch_norm(self, x: Value) -> Value:
        features = x.shape[1]
        return BatchNorm(self.tape, self.numbers(features), self.numbers(features)).express(x).output

    # ---- over images
    def convolution(self, x: Value) -> Value:
        channels = x.shape[1]
        groups = self.choice(1, 1, *(count for count in (2, 4, channels) if channels % count == 0))
        filters = groups * self.choice(1, 2, 8, 33)
        kernel = self.parameter(filters, channels // groups, self.choice(1, 2, 3, 5), self.choice(1, 3))
        bias = self.parameter(filters) if self.choice(False, True) else None
        stride, padding = self.choice(1, 1, 2, (1, 2)), self.choice(0, 1, 2, (1, 0))
        return conv2d(x, kernel, bias, stride, padding, self.choice(1, 1, 2), groups)

    def max_pool(self, x: Value) -> Value:
        return max_pool(x, self.choice(2, 3, (2, 1)), self.choice(None, 1, 2), self.choice(0, 0, 1))

    def average_pool(self, x: Value) -> Value:
        return average_pool(x, 2, self.choice(None, 1))

    # ---- over sequences
    def attention(self, x: Value) -> Value:
        features, heads = x.shape[2], self.choice(1, 2)
        parts = [Linear(self.tape, self.numbers(features, features), self.numbers(features)) for _ in range(4)]
        mask = self.choice(None, causal_mask(x.shape[1], element=self.element))
        return MultiHeadAttention(self.tape, *parts, heads=heads, mask=mask).express(x)

    def dot_product(self, x: Value) -> Value:
        return scaled_dot_product(x, x * 1.25, x, self.choice(None, causal_mask(x.shape[1], element=self.element)))

    def recurrent(self, x: Value) -> Value:
        cell, gates = self.choice((LstmCell, 4), (GruCell, 3))
        hidden = 2 * self.choice(1, 2, 4)
        shapes = (x.shape[2], gates * hidden), (hidden, gates * hidden), (gates * hidden,), (gates * hidden,)
        return cell(self.tape, *(self.numbers(*shape) for shape in shapes)).express(x)

    def rotary(self, x: Value) -> Value:
        return rotary(x)

    # ---- models
    def build(self, stages: int) -> Value:
        """Record a source, up to `stages` stages, and a loss."""
        anything: tuple[Callable[[Value], Value], ...] = (
            self.map, self.choose, self.bounded, self.layer_norm, self.rms_norm, self.residual, self.softmax,
            self.log_softmax, self.centred,
        )  # fmt: skip
        kind = self.choice("rows", "images", "sequences")
        if kind == "rows":
            shape = self.choice(1, 2, 5, 8, 17, 33, 64), self.choice(1, 3, 7, 16, 31, 64, 130, 257)
            own = self.linear, self.joined, self.part, self.turned, self.chosen, self.batch_norm
        elif kind == "images":
            extents = (5, 8, 9, 12, 15)
            shape = self.choice(1, 2, 3), self.choice(1, 2, 3, 4, 8), self.choice(*extents), self.choice(*extents)
            own = self.convolution, self.convolution, self.max_pool, self.average_pool, self.batch_norm
        else:
            shape = self.choice(1, 2, 5), self.choice(1, 2, 7, 16, 33), self.choice(4, 8, 24)
            own = self.attention, self.dot_product, self.recurrent, self.rotary
        value = self.parameter(*shape) if self.choice(False, True) else self.tape.input(self.numbers(*shape))
        for _ in range(self.random.randint(1, stages)):
            try:
                value = self.choice(*own, *own, *anything)(value)
            except ShapeError:  # a window that does not fit: nothing was recorded, and the next stage may
                continue
        if value.shape.rank == 2 and self.choice(False, True):
            hot = [
                [float(column == row % value.shape[1]) for column in range(value.shape[1])]
                for row in range(value.shape[0])
            ]
            return cross_entropy(value, self.tape.input(hot))
        return self.choice(value.sum, (value * value).mean)()


def drawn_model(seed: int, element: Any = "f32", stages: int = 5) -> Drawn:
    """Return the model of a seed: up to `stages` layers, and a rank-0 loss."""
    models = _Models(seed, element)
    loss = models.build(stages).symbol
    return Drawn(seed, models.element, stages, models.tape.into_network(), loss, {})
