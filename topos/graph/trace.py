"""`Trace`, the payload that records, and the reverse scan: one body of rules, any payload."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from topos.graph.columns import Columns
from topos.graph.value import Value
from topos.payload import Recordable, Shape

R = TypeVar("R", bound=Recordable)


class Trace(Recordable):
    """A `Recordable` that appends nodes: the recorded interpretation of derivative rules.

    Attributes:
        value: the recorded value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    @classmethod
    def of(cls, value: Value) -> Trace:
        """Return the trace of a recorded value."""
        return cls(value)

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.value.shape

    def apply(self, opcode: Any, operands: tuple[Any, ...]) -> Trace:
        """Record `opcode`."""
        given = tuple(o.value if isinstance(o, Trace) else o for o in operands)
        return Trace(self.value.apply(opcode, given))

    def constant_like(self, count: int | None) -> Trace:
        """Record a constant of this shape."""
        return Trace(self.value.constant_like(count))

    def lift(self, literal: Any) -> Any:
        """Return an operand of this shape."""
        return literal if isinstance(literal, Trace) else self.value.lift(literal)

    def operand(self, given: Any) -> Any:
        """Return an operand of its own shape."""
        return given if isinstance(given, Trace) else self.value.operand(given)

    def __repr__(self) -> str:
        return f"Trace(n#{self.value.index})"


def reverse_scan(
    columns: Columns, target: int, seed: R, value: Callable[[int], R],
    wanted: Collection[int] | None = None, visit: Callable[[int], None] | None = None, stop: Collection[int] = (),
) -> dict[int, R]:  # fmt: skip
    """Return the cotangents of the nodes that `target` depends on.

    Positions descend; each rule's contributions arrive in operand order, the first as it is, later ones
    added to it. With `wanted`, only operands in it receive one. `visit` is told each node before its rule speaks.
    The rules of nodes in `stop` do not speak.
    """
    cotangents = {target: seed}
    for node in range(target, -1, -1):
        g, operands = cotangents.get(node), columns.operands[node]
        if g is None or not operands or node in stop or (wanted is not None and wanted.isdisjoint(operands)):  # type: ignore[attr-defined]
            continue
        if visit is not None:
            visit(node)
        spoken = columns.opcodes[node].rule(g, value(node), *map(value, operands))
        for operand, speak in zip(operands, spoken, strict=True):
            if speak is not None and (wanted is None or operand in wanted):
                cotangent = speak()
                cotangents[operand] = cotangents[operand] + cotangent if operand in cotangents else cotangent
    return cotangents
