"""`Schedule`: what an entry needs. Facts about a spec, no memory yet."""

from collections.abc import Iterable

from topos.graph import Columns
from topos.ops.opcode import OUT, Opcode


def closure(columns: Columns, targets: Iterable[int]) -> list[int]:
    """Return the targets and all their ancestors, ascending."""
    wanted = set(targets)
    for node in range(max(wanted), -1, -1):
        if node in wanted:
            wanted.update(columns.operands[node])
    return sorted(wanted)


def same(columns: Columns, nodes: Iterable[int]) -> dict[int, int]:
    """Return, for each node that an earlier one equals, that one: they have one opcode and equal operands.

    Value numbering (Cocke & Schwartz, 1970). A node that is checked stands for itself, and so does a source.
    """
    first: dict[tuple[Opcode, tuple[int, ...]], int] = {}
    found: dict[int, int] = {}
    checks = set(columns.checks)
    for node in nodes:
        operands = tuple(found.get(operand, operand) for operand in columns.operands[node])
        if operands and node not in checks:
            earlier = first.setdefault((columns.opcodes[node], operands), node)
            if earlier != node:
                found[node] = earlier
    return found


class Schedule:
    """The wanted nodes of an entry, and which of them stay.

    Attributes:
        nodes: ancestors of the results, ascending.
        readable: the results.
        retained: nodes that a derivative rule reads (backward posture; empty otherwise).
        kept: of which inputs a run has to keep what it was fed; None for all.
    """

    def __init__(self, columns: Columns, results: Iterable[int], backward: bool) -> None:
        self.columns, self.backward = columns, backward
        self.readable = set(results)
        self.kept = None if backward else self.readable
        self.nodes = closure(columns, self.readable)
        self.retained: set[int] = set()
        for node in self.nodes:
            operands = columns.operands[node]
            if backward and operands:
                reads = columns.opcodes[node].reads
                self.retained.update(node if read == OUT else operands[read] for read in reads)
