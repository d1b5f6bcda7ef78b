"""What matchers of the catalog are written with."""

from __future__ import annotations

import math
from typing import Any

from topos.graph.columns import Columns
from topos.ops import Leaf, Opcode, Permute, Reshape, Unfold
from topos.ops.windowed import Windows


class UnmatchedError(LookupError):
    """A node is not the root of the formula that a matcher looks for."""


def require(condition: bool) -> None:
    """Raise `UnmatchedError` unless a condition of a formula holds."""
    if not condition:
        raise UnmatchedError


def walk(columns: Columns, node: int, *kinds: type[Opcode]) -> list[int]:
    """Return a node of the first kind, its operand of the second, ..., and the operand of the last.

    Raises:
        UnmatchedError: a node is of another kind.
    """
    path = []
    for kind in kinds:
        require(isinstance(columns.opcodes[node], kind))
        path.append(node)
        node = columns.operands[node][0]
    return [*path, node]


def kinds(columns: Columns, *nodes: int) -> list[Any]:
    """Return the opcodes of nodes."""
    return [columns.opcodes[node] for node in nodes]


def windows_of(columns: Columns, node: int, axes: tuple[int, ...]) -> tuple[int, Windows, tuple[int, ...]]:
    """Return the source of rank 4 whose windows a node holds in an order of `axes`, the windows, and the nodes."""
    laid, moved, across, down, source = walk(columns, node, Reshape, Permute, Unfold, Unfold)
    y, x = kinds(columns, down, across)
    shape = columns.shapes[source]
    require((y.axis, x.axis, shape.rank) == (2, 4, 4) and kinds(columns, moved)[0].order == axes)
    return source, Windows.of(y, x, (shape[2], shape[3])), (laid, moved, across, down)


class Expected:
    """A node to be found: its kind and operands; an operand is another one, a known node, or a constant (a float).

    Without a kind it is any node, but the same one wherever it is expected.
    """

    def __init__(self, opcode: Opcode | None = None, *operands: Expected | float) -> None:
        self.opcode, self.operands = opcode, operands


def meets(columns: Columns, node: int, expected: Any, found: dict[Expected, int]) -> bool:
    """Return whether a node is what is expected; `found` gathers the node of every expectation, each one node."""
    if isinstance(expected, int):
        return node == expected
    if isinstance(expected, float):
        return isinstance(columns.opcodes[node], Leaf) and _is_constant(columns.payloads[node], expected)
    if expected in found:
        return found[expected] == node
    found[expected] = node
    if expected.opcode is None:
        return True
    pairs = zip(columns.operands[node], expected.operands, strict=True)
    return bool(columns.opcodes[node] == expected.opcode) and all(meets(columns, *pair, found) for pair in pairs)


def _is_constant(payload: Any, value: float) -> bool:
    held = payload.as_constant()
    return held is not None and held == value and math.copysign(1.0, held) == math.copysign(1.0, value)
