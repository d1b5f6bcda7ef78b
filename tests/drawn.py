"""Random valid graphs over every opcode and element, from a seed or as a Hypothesis strategy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers import ELEMENTS, drawn, positions, special, whole
from topos import Element, MapOperation, Network, Run, Shape, Symbol, Tape, Tensor, Value
from topos.payload.element import element_of

LARGEST_VOLUME = 200
LARGEST_RANK = 4
STEPS = 18

RATIONAL = (
    "Add", "Sub", "Mul", "Div", "Neg", "Maximum", "Step", "Select", "Scale", "Ratio", "MatMul", "Sum",
    "SumAlong", "Broadcast", "BroadcastAlong", "Reshape", "Permute", "Narrow", "Pad", "Unfold", "Fold",
    "Gather", "Scatter",
)  # fmt: skip
"""Kinds whose values and gradients are rational where the operands are."""

KINDS = (*RATIONAL, "Powf", "Map", "LogSoftmax", "LogSumExp")
"""All kinds with operands; with the three sources, the closed set."""


@dataclass(frozen=True, repr=False)
class Drawn:
    """A drawn recording with feeds for some of its inputs; `drawn_graph` of the same arguments repeats it."""

    seed: int
    element: Element
    steps: int
    network: Network
    loss: Symbol
    feeds: dict[Symbol, Tensor]

    @property
    def parameters(self) -> list[Symbol]:
        """The parameters, in slot order."""
        return self.network.parameters().symbols()

    @property
    def inputs(self) -> list[Symbol]:
        """The inputs, in recording order."""
        return [node.symbol for node in self.network.nodes() if node.name == "Input"]

    @property
    def symbols(self) -> list[Symbol]:
        """All nodes, in recording order."""
        return [node.symbol for node in self.network.nodes()]

    @property
    def kinds(self) -> set[str]:
        """The kinds of opcode that it records (maps as ``Map``)."""
        return {type(node.opcode).__name__ for node in self.network.nodes()}

    def run(self) -> Run:
        """Return a run over the initial parameters and the drawn feeds."""
        return self.network.forward(self.network.parameters(), self.feeds)

    def __repr__(self) -> str:
        return f"drawn_graph({self.seed}, {self.element!r}, steps={self.steps})"


def drawn_graph(seed: int, element: Any = "f32", steps: int = STEPS) -> Drawn:
    """Return the graph of a seed: about `steps` nodes and their sources, and a rank-0 loss over them.

    The graph of fewer steps is a prefix, up to the loss. A user's number type gets the rational kinds and
    whole numbers.
    """
    kind = element_of(element)
    builder = _Builder(seed, kind)

    def build(tape: Tape) -> Any:
        return builder.build(tape, steps)

    network, (loss, feeds) = Tape.record(build, element=kind)
    return Drawn(seed, kind, steps, network, loss, dict(feeds))


def graphs(elements: Sequence[Any] = ELEMENTS) -> st.SearchStrategy[Drawn]:
    """Return a strategy of drawn graphs; a failure shrinks towards few steps."""
    return st.builds(
        drawn_graph, seed=st.integers(0, 2**32 - 1), element=st.sampled_from(elements), steps=st.integers(2, 24)
    )


class _Builder:
    """Records one node after another over operands from a pool of what has been recorded."""

    def __init__(self, seed: int, element: Element) -> None:
        self.random = random.Random(seed)
        self.element = element
        self.is_rational = element.kernel is None
        self.pool: list[Value] = []
        self.feeds: list[tuple[Value, Tensor]] = []
        self.kinds = RATIONAL if self.is_rational else KINDS
        self.payload_kinds: list[Callable[..., Tensor]] = [whole]
        if not self.is_rational:
            # Most graphs have finite numbers in most places; the others meet infinities and NaN all over.
            self.payload_kinds = self.random.choice([[drawn], [drawn, whole], [drawn, whole, special], [special]])

    def build(self, tape: Tape, steps: int) -> Any:
        self.tape = tape
        self.source(self.shape())
        ends = random.Random(self.random.random())
        for _ in range(steps):
            self.pool.append(self.node(self.random.choice(self.kinds)))
        used = {operand.index for node in tape.nodes() for operand in node.operands}
        ends_at = [value for value in self.pool if value.index not in used] or self.pool[-1:]
        totals = [value.sum() for value in ends_at[-6:]]
        loss = totals[0]
        for total in totals[1:]:
            loss = loss + total if ends.random() < 0.7 else loss * total
        return loss, [(value.symbol, tensor) for value, tensor in self.feeds]

    # ---- operands
    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def shape(self, rank: int | None = None) -> Shape:
        if rank is None:
            rank = self.random.choice([0, 1, 1, 2, 2, 2, 3, 4])
        return Shape(self.random.choice([1, 2, 2, 3, 4, 5]) if rank < 4 else 2 for _ in range(rank))

    def payload(self, shape: Shape) -> Tensor:
        make = self.random.choice(self.payload_kinds)
        number = self.random.getrandbits(32)
        if not self.is_rational and self.chance(0.15):
            return Tensor.filled(shape, make((), self.element, number))
        return make(shape, self.element, number)

    def source(self, shape: Shape) -> Value:
        kind = self.random.choice(["parameter", "parameter", "input", "leaf"])
        value = getattr(self.tape, kind)(self.payload(shape))
        if kind == "input" and self.chance(0.6):
            self.feeds.append((value, self.payload(shape)))
        self.pool.append(value)
        return value

    def pick(self, fits: Callable[[Shape], bool]) -> Value | None:
        """Return one of the pool that fits, the later ones more often."""
        found = [value for value in self.pool if fits(value.shape)]
        if not found:
            return None
        return found[max(self.random.randrange(len(found)), self.random.randrange(len(found)))]

    def any(self) -> Value:
        found = self.pick(lambda shape: True)
        assert found is not None
        return found

    def ranked(self, least: int = 1, most: int = LARGEST_RANK) -> Value:
        found = self.pick(lambda shape: least <= shape.rank <= most)
        return found if found is not None else self.source(self.shape(self.random.randint(least, most)))

    def like(self, shape: Shape) -> Value:
        if self.chance(0.75):
            found = self.pick(lambda other: other == shape)
            if found is not None:
                return found
        one = self.pick(lambda other: other.volume == 1)
        if one is not None and self.chance(0.2):
            return one.broadcast(shape)
        return self.source(shape)

    def operand(self, shape: Shape) -> Any:
        """Return a value of a shape, or a number that spreads over it."""
        if self.chance(0.12):
            return self.random.choice([0, 1, 2, -3] if self.is_rational else [0.0, -0.0, 1.0, 0.5, -3.0])
        return self.like(shape)

    def axis(self, value: Value) -> int:
        return self.random.randrange(value.shape.rank)

    def positive(self, value: Value) -> Value:
        """Return squares plus 1: no divisor of a rational is 0."""
        return value * value + 1

    def selection(self, count: int, vocabulary: int) -> Value:
        one_hot = positions(count, vocabulary, self.element, self.random.getrandbits(32))
        dense = Tensor(np.array(one_hot.numpy()), element=self.element)
        way = self.random.randrange(6)
        if way == 0:
            return self.tape.leaf(one_hot)
        if way == 1:
            return self.tape.leaf(dense)
        if way in (2, 3):
            value = self.tape.input(one_hot if way == 2 else dense)
            other = positions(count, vocabulary, self.element, self.random.getrandbits(32))
            if self.chance(0.7):
                fed = other if self.chance(0.5) else Tensor(np.array(other.numpy()), element=self.element)
                self.feeds.append((value, fed))
            return value
        if way == 4:  # a view
            return self.tape.leaf(dense.transpose() if hasattr(dense, "transpose") else dense.permute((1, 0))).T
        return self.tape.leaf(dense) * 1  # computed in the run

    # ---- nodes
    def node(self, kind: str) -> Value:
        value = getattr(self, f"_{kind.lower()}")()
        return value if value.shape.volume <= LARGEST_VOLUME else value.sum()

    def _binary(self, name: str) -> Value:
        a = self.any()
        b = self.operand(a.shape)
        return getattr(a, name)(b)

    def _add(self) -> Value:
        return self._binary("__add__")

    def _sub(self) -> Value:
        return self._binary("__rsub__" if self.chance(0.2) else "__sub__")

    def _mul(self) -> Value:
        a = self.any()
        return a * a if self.chance(0.2) else a * self.operand(a.shape)

    def _div(self) -> Value:
        a = self.any()
        b = self.like(a.shape)
        return a / (self.positive(b) if self.is_rational or self.chance(0.5) else b)

    def _neg(self) -> Value:
        return -self.any()

    def _maximum(self) -> Value:
        return self._binary("maximum")

    def _step(self) -> Value:
        return self._binary("step")

    def _select(self) -> Value:
        a = self.any()
        mask = self.like(a.shape)
        if self.chance(0.6):
            mask = mask.step(self.operand(a.shape))
        return mask.select(a, self.operand(a.shape))

    def _scale(self) -> Value:
        return self._binary("scale")

    def _ratio(self) -> Value:
        a = self.any()
        b = self.like(a.shape)
        return a.ratio(self.positive(b) if self.is_rational or self.chance(0.5) else b)

    def _powf(self) -> Value:
        a = self.any()
        if self.chance(0.6):
            return a.powf(self.random.choice([0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -1.5]))
        return a.powf(self.like(a.shape))

    def _map(self) -> Value:
        operation = self.random.choice(list(MapOperation))
        return getattr(self.any(), operation.value)()

    def _matmul(self) -> Value:
        a = self.ranked(2)
        if self.chance(0.2) and a.shape[-1] == a.shape[-2]:
            return a @ a
        return a @ self.like(Shape((*a.shape[:-2], a.shape[-1], self.random.randint(1, 4))))

    def _sum(self) -> Value:
        return self.any().sum()

    def _sumalong(self) -> Value:
        a = self.ranked()
        return a.sum_along(self.axis(a))

    def _logsoftmax(self) -> Value:
        a = self.ranked()
        return a.log_softmax(self.axis(a))

    def _logsumexp(self) -> Value:
        a = self.ranked()
        return a.logsumexp(self.axis(a))

    def _broadcast(self) -> Value:
        a = self.pick(lambda shape: shape.volume == 1)
        return (a if a is not None else self.any().sum()).broadcast(self.shape())

    def _broadcastalong(self) -> Value:
        a = self.pick(lambda shape: shape.rank < LARGEST_RANK)
        a = a if a is not None else self.any().sum()
        return a.broadcast_along(self.random.randint(0, a.shape.rank), self.random.randint(1, 3))

    def _reshape(self) -> Value:
        a = self.any()
        volume, shape = a.shape.volume, []
        while volume > 1 and len(shape) < LARGEST_RANK - 1:
            extent = self.random.choice([d for d in range(1, volume + 1) if volume % d == 0])
            shape.append(extent)
            volume //= extent
        return a.reshape([*shape, volume] if volume > 1 or self.chance(0.3) else shape)

    def _permute(self) -> Value:
        a = self.any()
        order = list(range(a.shape.rank))
        self.random.shuffle(order)
        return a.permute(order)

    def _narrow(self) -> Value:
        a = self.ranked()
        axis = self.axis(a)
        length = self.random.randint(1, a.shape[axis])
        return a.narrow(axis, self.random.randint(0, a.shape[axis] - length), length)

    def _pad(self) -> Value:
        a = self.ranked()
        axis = self.axis(a)
        start = self.random.randint(0, 2)
        return a.pad(axis, start, start + a.shape[axis] + self.random.randint(0, 2))

    def _unfold(self) -> Value:
        a = self.ranked(1, LARGEST_RANK - 1)
        axis = self.axis(a)
        extent = a.shape[axis]
        size = self.random.randint(1, extent)
        most = (extent - 1) // (size - 1) if size > 1 else 3
        return a.unfold(axis, size, self.random.randint(1, 3), self.random.randint(1, max(most, 1)))

    def _fold(self) -> Value:
        a = self.ranked(2)
        axis = self.random.randrange(a.shape.rank - 1)
        count, size = a.shape[axis : axis + 2]
        step, dilation = self.random.randint(1, 3), self.random.randint(1, 2)
        least = dilation * (size - 1) + 1 + (count - 1) * step
        return a.fold(axis, size, step, dilation, least + self.random.randrange(step))

    def _gather(self) -> Value:
        table = self.ranked()
        return table.gather(self.selection(self.random.randint(1, 5), table.shape[0]))

    def _scatter(self) -> Value:
        rows = self.ranked()
        return rows.scatter(self.selection(rows.shape[0], self.random.randint(1, 5)))


__all__ = ["KINDS", "RATIONAL", "Drawn", "drawn_graph", "graphs"]
