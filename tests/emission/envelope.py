"""How far a foreign compiler may be from topos, derived from runs of the same graph in f64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from topos import F64, Network, Parameters, Plan, Symbol, Tensor
from topos.emission.module import arguments

FACTOR = 64
"""An envelope is this many times the difference that an f64 run shows; beyond 100 it would say little."""

UNIT = {"f32": 2.0**-24, "f64": 2.0**-53, "bf16": 2.0**-9, "f16": 2.0**-12}
"""Half a unit in the last place of 1."""

SMALLEST = {"f32": 2.0**-126, "f64": 2.0**-1022, "bf16": 2.0**-126, "f16": 2.0**-14}
"""The smallest normal number: XLA flushes what is below to zero, topos keeps it (case 32)."""


def report(line: str) -> None:
    """Print what a test measured: pytest shows it with ``-s``."""
    print(line)  # noqa: T201


def fed(plan: Plan, parameters: Parameters, feeds: Mapping[Symbol, Any]) -> list[Any]:
    """Return the arguments of a plan's function as arrays."""
    columns = plan.columns
    given = {symbol.index: np.asarray(data) for symbol, data in feeds.items()}
    found = []
    for node in arguments(plan):
        if node in plan.slots.by_node:
            found.append(parameters.of(Symbol(columns.family, node)).numpy())
        else:
            found.append(given.get(node, columns.payloads[node].numpy()))
    return found


def walk(network: Network, feeds: Mapping[Symbol, Tensor], moved: int = 0) -> dict[Symbol, Tensor]:
    """Evaluate every node in f64; with `moved`, numbers that are not whole move by half an ulp of the element.

    The moved runs tell how much the graph makes of a rounding, also where ours happened to be exact.
    """
    generator = np.random.default_rng(moved)
    values: dict[Symbol, Tensor] = {}
    for node in network.nodes():
        if node.is_source:
            array = feeds.get(node.symbol, network.payload(node.symbol)).convert(F64).numpy()
            if moved:
                by = generator.choice([-1, 1], array.shape) * 2 * UNIT[network.element.name]
                with np.errstate(invalid="ignore"):
                    array = np.where(array == np.rint(array), array, array * (1 + by))
            values[node.symbol] = Tensor(array, element=F64)
        else:
            values[node.symbol] = node.opcode.express([values[o] for o in node.operands])
    return values


def walks(network: Network, feeds: Mapping[Symbol, Tensor]) -> list[dict[Symbol, Tensor]]:
    """Return the f64 run of a graph, and two that are moved."""
    return [walk(network, feeds, moved) for moved in range(3)]


def difference(ours: Any, runs: Sequence[Any], unit: float) -> float:
    """Return by how much ours, or a moved run, differs from the f64 run: at least the rounding to the element."""
    exact = np.asarray(runs[0], float)
    finite = np.isfinite(exact)
    found = unit * np.max(np.abs(exact), initial=0.0, where=finite)
    for other in (ours, *runs[1:]):
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(np.asarray(other, float) - exact)
        apart = np.where(finite & np.isnan(apart), np.inf, apart)
        found = max(found, np.max(apart, initial=0.0, where=finite))
    return float(found)


def excess(got: Any, ours: Any, envelope: float) -> float:
    """Return the largest error of `got` over the envelope; infinite where one is finite and the other not."""
    a, b = np.asarray(got, float), np.asarray(ours, float)
    assert a.shape == b.shape
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    worst = float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))
    return 0.0 if worst == 0 else worst / envelope if envelope > 0 else np.inf


def is_subnormal(tensors: Iterable[Tensor], name: str) -> bool:
    """Return whether a number is below the normal range of f32, in which narrow elements compute, or of f64."""
    smallest = SMALLEST["f64" if name == "f64" else "f32"]
    return any(bool(np.any((t != 0) & (np.abs(t) < smallest))) for t in (np.asarray(x, float) for x in tensors))
