"""`Units`: what a plan carries out, in order: nodes, groups of the catalog, and chains of what is left."""

from collections.abc import Collection
from dataclasses import replace

from topos.backend.formula import Formula
from topos.engine.catalog import chains
from topos.engine.catalog.chains import Chain
from topos.engine.catalog.election import AT_HOME, Reduced
from topos.engine.schedule import Schedule, same
from topos.graph.columns import Columns


class Units(Reduced):
    """A schedule as it runs: groups of some formulas, and chains. Without formulas, and in backward posture, nothing is fused.

    Attributes:
        nodes: the units by their roots, in an order in which they can run.
        chains: the chains by each of their nodes.
        last: for each node that may be released, the unit after which.
        releases: for each unit, what may be released after it.
    """

    def __init__(self, columns: Columns, schedule: Schedule, formulas: Collection[Formula] = AT_HOME) -> None:
        fuse = bool(formulas) and not schedule.backward
        self.chains: dict[int, Chain] = {}
        self.same = same(columns, schedule.nodes) if fuse else {}
        if self.same:
            led = [tuple(self.same.get(operand, operand) for operand in given) for given in columns.operands]
            columns = replace(columns, operands=led)
        super().__init__(columns, schedule, formulas if fuse else ())
        if fuse:
            found = chains.find(columns, self.nodes, self.reads, {**self.groups, **self.same})
            alone = {operand for node in self.nodes if node not in found for operand in self.reads(node)}
            chains.close(found, alone | schedule.readable | set(columns.checks))
            self.chains = found
            self.nodes = chains.ordered(self.nodes, found, self.reads)
        held = schedule.readable | schedule.retained
        self.last = {operand: unit for unit in self.nodes for operand in self.reads(unit) if operand not in held}
        self.releases: dict[int, list[int]] = {}
        for operand, unit in self.last.items():
            self.releases.setdefault(unit, []).append(operand)

    def made(self, unit: int) -> tuple[int, ...]:
        """Return the nodes whose values a unit leaves."""
        return self.chains[unit].outputs if unit in self.chains else (unit,)

    def live_series(self, release: bool) -> list[tuple[int, int]]:
        """Return (root, elements alive once the unit is computed), before what it releases goes.

        Sources count; with `release` False nothing goes.
        """
        shapes = self.columns.shapes
        series, alive = [], 0
        for unit in self.nodes:
            alive += sum(shapes[node].volume for node in self.made(unit))
            series.append((unit, alive))
            if release:
                alive -= sum(shapes[node].volume for node in self.releases.get(unit, ()))
        return series

    def reads(self, node: int) -> tuple[int, ...]:
        """Return what computing a unit reads."""
        return self.chains[node].reads if node in self.chains else super().reads(node)
