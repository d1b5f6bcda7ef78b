"""`PatternMatch`: a group of nodes that the catalog knows, as a reader of a plan sees it."""

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from topos.backend.formula import Formula
from topos.engine.catalog.election import matched
from topos.engine.catalog.units import Units
from topos.engine.schedule import Schedule
from topos.graph import Columns, Symbol


class PatternKind(Enum):
    """What a group of nodes is: a formula of the catalog with its gradients, or a chain of elementwise operations.

    Rows are a chain with reductions of rows in it: softmax, layer norm, RMS norm, cross-entropy, and their
    gradients.
    """

    WINDOW_PRODUCT = Formula.WINDOW_PRODUCT.value
    REDUCE_WINDOW = Formula.REDUCE_WINDOW.value
    CONCATENATION = Formula.CONCATENATION.value
    ATTENTION = Formula.ATTENTION.value
    BATCH_NORM_TRAINING = Formula.BATCH_NORM_TRAINING.value
    BATCH_NORM_INFERENCE = Formula.BATCH_NORM_INFERENCE.value
    CHAIN = Formula.CHAIN.value
    ROWS = "rows"


class PatternMatch(NamedTuple):
    """Nodes that one unit of a plan stands for, or could.

    Attributes:
        kind: what they are.
        root: the node whose value they are (of a chain: the last one).
        nodes: all of them, in the order of recording.
        formula: the job, as backends speak of it.
    """

    kind: PatternKind
    root: Symbol
    nodes: tuple[Symbol, ...]
    formula: Formula


def _match(family: Any, root: int, nodes: Iterable[int], formula: Formula, has_rows: bool = False) -> PatternMatch:
    """Return a match; its kind is that of the formula, unless it is a chain that has rows."""
    kind = PatternKind.ROWS if has_rows else PatternKind(formula.value)
    members = tuple(Symbol(family, node) for node in sorted({*nodes, root}))
    return PatternMatch(kind, Symbol(family, root), members, formula)


def elected(units: Units, family: Any) -> list[PatternMatch]:
    """Return what a plan carries out as one, in the order of recording."""
    found = [_match(family, root, group.interiors, group.formula) for root, group in units.groups.items()]
    distinct = dict.fromkeys(units.chains.values())
    found += [_match(family, one.root, one.nodes, Formula.CHAIN, one.has_rows) for one in distinct]
    return sorted(found, key=lambda match: match.root.index)


def candidates(columns: Columns, schedule: Schedule, family: Any) -> list[PatternMatch]:
    """Return every group of the catalog in a schedule whose interiors nobody asked for, whoever elects it.

    Windows first, then concatenations, attention, batch norms; within a kind in the order of recording. Groups may share nodes.
    """
    fixed = schedule.readable | set(columns.checks)
    groups = [matched(columns, node, fixed, Formula.ALL) for node in schedule.nodes]
    found = [_match(family, g.root, (*g.interiors, *g.made), g.formula) for g in groups if g is not None]
    order = list(PatternKind)
    return sorted(found, key=lambda match: (order.index(match.kind), match.root.index))
