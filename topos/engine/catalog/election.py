"""Which groups a plan carries out, and the schedule that is left: nodes that nobody reads any more vanish."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from topos.backend.formula import Formula
from topos.engine.catalog import attention, concatenation, convolution, normalization, pooling
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import UnmatchedError
from topos.engine.schedule import Schedule
from topos.graph.columns import Columns
from topos.ops import Add, Fold, MatMul, Narrow, Opcode, Pad, Permute, Reshape

Matcher = Callable[[Columns, int], Group]

# Who looks at a node, by its kind, in order of priority; who does not find its formula raises `UnmatchedError`.
MATCHERS: dict[type[Opcode], tuple[Matcher, ...]] = {
    Permute: (convolution.window_product,),
    MatMul: (attention.attention, convolution.window_product, convolution.window_weights),
    Narrow: (convolution.window_input,),
    Fold: (convolution.window_input, pooling.pool_gradient),
    Pad: (convolution.padding,),
    Reshape: (pooling.pool,),
    Add: (normalization.batch_norm, concatenation.concatenation),
}

# The formulas that runs carry out as one. Batch norms are chains there.
AT_HOME = frozenset({Formula.WINDOW_PRODUCT, Formula.REDUCE_WINDOW, Formula.CONCATENATION, Formula.ATTENTION})

# How often the election is repeated without groups whose work has to be done for others anyway.
ROUNDS = 4


def matched(columns: Columns, node: int, fixed: set[int], formulas: Collection[Formula]) -> Group | None:
    """Return the group of some formulas whose root a node is and whose interiors are not fixed."""
    for matcher in MATCHERS.get(type(columns.opcodes[node]), ()):
        try:
            group = matcher(columns, node)
        except UnmatchedError:
            continue
        if group.formula in formulas and fixed.isdisjoint(group.interiors):
            return group
    return None


class Reduced:
    """A schedule whose groups of some formulas read their `reads` alone.

    Attributes:
        nodes: what is computed, ascending; a group at its root, and at what else it makes and others read.
        groups: the elected groups by these nodes.
        same: the earlier node that stands for each one that equals it: nothing but a result reads the later one.
    """

    same: Mapping[int, int] = {}

    def __init__(self, columns: Columns, schedule: Schedule, formulas: Collection[Formula]) -> None:
        self.columns, self.schedule = columns, schedule
        barred: set[int] = set()
        for turn in range(ROUNDS):
            self.groups: dict[int, Group] = {}
            self.nodes = self._needed(schedule, barred, formulas)
            attentions = [group for group in self.groups.values() if group.formula is Formula.ATTENTION]
            weights = Counter(node for group in attentions for node in group.owned)
            computed = {*self.nodes, *(node for node, owners in weights.items() if owners > 1)}
            again = {root for root, group in self.groups.items() if not computed.isdisjoint(group.owned)}
            if not again:
                break
            barred |= again if turn < ROUNDS - 2 else set(self.groups)

    def reads(self, node: int) -> tuple[int, ...]:
        """Return what computing a node reads."""
        if node in self.same:
            return (self.same[node],)
        return self.groups[node].reads if node in self.groups else self.columns.operands[node]

    def _needed(self, schedule: Schedule, barred: set[int], formulas: Collection[Formula]) -> list[int]:
        fixed = schedule.readable | set(self.columns.checks)
        needed, nodes = set(schedule.readable), []
        for node in reversed(schedule.nodes):
            if node not in needed:
                continue
            nodes.append(node)
            if formulas and node not in barred and node not in self.groups and node not in self.same:
                group = matched(self.columns, node, fixed, formulas)
                if group is not None:
                    self.groups |= dict.fromkeys((node, *group.made), group)
            needed.update(self.reads(node))
        return nodes[::-1]
