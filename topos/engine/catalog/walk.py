"""What matchers of the catalog are written with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from topos.graph.columns import Columns
from topos.ops import Leaf, Opcode, Permute


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


def order(columns: Columns, node: int) -> tuple[int, ...]:
    """Return the order of a permutation."""
    opcode = columns.opcodes[node]
    assert isinstance(opcode, Permute)
    return opcode.order


@dataclass(frozen=True, eq=False)
class Expected:
    """A node to be found: its kind and operands; an operand is another one, a known node, or a constant (a float).

    Without a kind it is any node, but the same one wherever it is expected.
    """

    opcode: Opcode | None
    operands: tuple[Expected | int | float, ...]


def expect(opcode: Opcode | None = None, *operands: Expected | float) -> Expected:
    """Return an expectation."""
    return Expected(opcode, operands)


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
    return bool(columns.opcodes[node] == expected.opcode) and all(
        meets(columns, operand, wanted, found)
        for operand, wanted in zip(columns.operands[node], expected.operands, strict=True)
    )


def _is_constant(payload: Any, value: float) -> bool:
    held = payload.as_constant()
    return held is not None and held == value and math.copysign(1.0, held) == math.copysign(1.0, value)
