"""`Schedule`: what an entry needs, and how long each value lives. Facts about a spec, no memory yet."""

from __future__ import annotations

from collections.abc import Iterable

from topos.graph.columns import Columns
from topos.ops.opcode import OUT


def closure(columns: Columns, targets: Iterable[int]) -> list[int]:
    """Return the targets and all their ancestors, ascending."""
    wanted = set(targets)
    for node in range(max(wanted), -1, -1):
        if node in wanted:
            wanted.update(columns.operands[node])
    return sorted(wanted)


class Schedule:
    """The wanted nodes of an entry with their last consumers.

    Attributes:
        nodes: ancestors of the results, ascending.
        readable: the results.
        last: the last wanted consumer of each wanted node; absent where there is none.
        retained: nodes that a derivative rule reads (backward posture; empty otherwise).
        releases: for each node, what may be released after it.
    """

    __slots__ = ("backward", "columns", "last", "nodes", "readable", "releases", "retained")

    def __init__(self, columns: Columns, results: Iterable[int], backward: bool) -> None:
        self.columns, self.backward = columns, backward
        self.readable = set(results)
        self.nodes = closure(columns, self.readable)
        self.last: dict[int, int] = {}
        self.retained: set[int] = set()
        for node in self.nodes:
            operands = columns.operands[node]
            for operand in operands:
                self.last[operand] = node
            if backward and operands:
                reads = columns.opcodes[node].reads
                self.retained.update(node if read == OUT else operands[read] for read in reads)
        self.releases: dict[int, list[int]] = {}
        for node, consumer in self.last.items():
            if node not in self.readable and node not in self.retained:
                self.releases.setdefault(consumer, []).append(node)

    def released_at(self, node: int) -> int | None:
        """Return the node after which `node` may be released, or None."""
        if node in self.readable or node in self.retained:
            return None
        return self.last.get(node)

    def live_series(self, release: bool) -> list[tuple[int, int]]:
        """Return (node, elements alive once it is computed), before what it releases goes.

        Sources count; with `release` False nothing goes.
        """
        series, alive = [], 0
        for node in self.nodes:
            alive += self.columns.shapes[node].volume
            series.append((node, alive))
            if release:
                alive -= sum(self.columns.shapes[freed].volume for freed in self.releases.get(node, ()))
        return series
