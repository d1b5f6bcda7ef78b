"""One small graph per kind of opcode, and per form that its text takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.helpers import drawn, positions
from topos import Element, Network, Symbol, Tape, Tensor

Build = Callable[[Callable[..., Any], Element, Tape], Any]


def _near(shape: Any, element: Element, seed: int, low: float, high: float) -> Tensor:
    """Return numbers between two."""
    return Tensor(np.random.default_rng(seed).uniform(low, high, shape), element=element)


def _map(name: str, low: float, high: float) -> Build:
    return lambda x, e, t: getattr(t.parameter(_near((3, 5), e, 1, low, high)), name)()


GRAPHS: dict[str, Build] = {
    "Add": lambda x, e, t: x(3, 4) + x(3, 4),
    "Sub": lambda x, e, t: x(3, 4) - x(3, 4),
    "Mul": lambda x, e, t: x(3, 4) * x(3, 4),
    "Div": lambda x, e, t: x(3, 4) / x(3, 4),
    "Neg": lambda x, e, t: -x(3, 4),
    "Powf": lambda x, e, t: t.parameter(_near((3, 4), e, 2, 0.2, 3)).powf(x(3, 4)),
    "Maximum": lambda x, e, t: x(3, 4).maximum(x(3, 4)),
    "Maximum of a constant": lambda x, e, t: x(3, 4).relu(),
    "Step": lambda x, e, t: x(3, 4).step(x(3, 4)),
    "Select": lambda x, e, t: x(3, 4).step(x(3, 4)).select(x(3, 4), x(3, 4)),
    "Scale": lambda x, e, t: x(3, 4).relu().scale(x(3, 4)),
    "Ratio": lambda x, e, t: x(3, 4).relu().ratio(x(3, 4)),
    "Exp": _map("exp", -6, 6),
    "Ln": _map("ln", 0.01, 9),
    "Sqrt": _map("sqrt", 0.01, 9),
    "Tanh": _map("tanh", -3, 3),
    "Sin": _map("sin", -9, 9),
    "Cos": _map("cos", -9, 9),
    "Log1p": _map("log1p", -0.5, 3),
    "Expm1": _map("expm1", -2, 2),
    "Erf": _map("erf", -3, 3),
    "ErfDerivative": _map("erf_derivative", -3, 3),
    "MatMul": lambda x, e, t: x(3, 40) @ x(40, 2),
    "MatMul batched": lambda x, e, t: x(2, 1, 3, 7) @ x(2, 1, 7, 4),
    "Sum": lambda x, e, t: x(3, 40).sum(),
    "Sum of rank 0": lambda x, e, t: (x() * x()).sum(),
    "SumAlong": lambda x, e, t: x(3, 40, 2).sum_along(1),
    "LogSoftmax": lambda x, e, t: x(3, 5, 2).log_softmax(1),
    "LogSumExp": lambda x, e, t: x(3, 5, 2).logsumexp(1),
    "Broadcast": lambda x, e, t: x(1, 1).broadcast([2, 3]),
    "Broadcast to rank 0": lambda x, e, t: x(1, 1).broadcast([]),
    "BroadcastAlong": lambda x, e, t: x(2, 3).broadcast_along(1, 4),
    "Reshape": lambda x, e, t: x(4, 3).reshape([2, 6]),
    "Permute": lambda x, e, t: x(2, 3, 4).permute([2, 0, 1]),
    "Narrow": lambda x, e, t: x(5, 4).narrow(0, 1, 3),
    "Pad": lambda x, e, t: x(2, 3).pad(1, 2, 6),
    "Unfold by taps": lambda x, e, t: x(2, 11, 2).unfold(1, 3, 2, 2),
    "Unfold by windows": lambda x, e, t: x(2, 11, 2).unfold(1, 4, 3, 2),
    "Unfold side by side": lambda x, e, t: x(2, 11, 2).unfold(1, 3, 3, 1),
    "Unfold one window": lambda x, e, t: x(2, 5, 2).unfold(1, 3, 3, 2),
    "Unfold by positions": lambda x, e, t: x(2, 60, 2).unfold(1, 20, 2, 1),
    "Fold by taps": lambda x, e, t: x(2, 4, 3, 2).fold(1, 3, 2, 2, 12),
    "Fold by windows": lambda x, e, t: x(2, 2, 4, 2).fold(1, 4, 3, 2, 11),
    "Fold side by side": lambda x, e, t: x(2, 3, 3, 2).fold(1, 3, 3, 1, 11),
    "Fold by positions": lambda x, e, t: x(2, 21, 20, 2).fold(1, 20, 2, 1, 61),
    "Gather by a constant": lambda x, e, t: x(4, 2, 3).gather(t.leaf(positions(5, 4, e))),
    "Gather by an input": lambda x, e, t: x(4).gather(t.input(positions(5, 4, e))),
    "Gather by a view": lambda x, e, t: x(4, 2).gather(t.leaf(_dense(4, 5, e)).T),
    "Scatter by a constant": lambda x, e, t: x(5, 2).scatter(t.leaf(positions(5, 3, e))),
    "Scatter by an input": lambda x, e, t: x(5, 2, 3).scatter(t.input(positions(5, 4, e))),
    "Scatter to rank 1": lambda x, e, t: x(30).scatter(t.input(positions(30, 4, e))),
}


def _dense(vocabulary: int, count: int, element: Element) -> Tensor:
    """Return a transposed selection, stored densely."""
    return Tensor(np.array(positions(count, vocabulary, element).numpy().T), element=element)


def recorded(element: Element) -> tuple[Network, dict[str, Symbol]]:
    """Record all graphs in one network; return the result of each."""
    seeds = iter(range(1000))

    def build(tape: Tape) -> dict[str, Any]:
        def x(*shape: int) -> Any:
            return tape.parameter(drawn(shape, element, next(seeds)))

        return {name: graph(x, element, tape) for name, graph in GRAPHS.items()}

    return Tape.record(build, element=element)
