"""What tests of groups and chains share: a plan against the interpreter, and the kernels of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from tests.helpers import same_bits
from topos import Entry, Network, Symbol
from topos.engine.plan import Plan
from topos.kernels import runtime, store


def kernels(plan: Plan) -> list[str]:
    """Return the kernels of a plan's rows, without elements."""
    assert plan.lowered is not None
    return [name.partition(".")[0] for name in plan.lowered.program.row_kernels]


def count(plan: Plan, routine: str) -> int:
    """Return how often the rows of a plan name a routine."""
    assert plan.lowered is not None
    return int((plan.lowered.program.code == store.address(routine)).sum())


def check(network: Network, roots: Sequence[Symbol], threads: int = 1) -> Plan:
    """Run a network by the interpreter and by plans, fused and not: the same bits everywhere. Return the plan."""
    runtime.set_num_threads(threads)
    parameters, entry = network.parameters(), Entry(tuple(roots))
    wanted = network.forward(parameters)
    for fuse in (False, True):
        run = Plan(network, entry, poison=True, fuse=fuse).forward(parameters)
        for root in roots:
            assert same_bits(run.of(root), wanted.of(root)), (fuse, root)
    return Plan(network, entry)
