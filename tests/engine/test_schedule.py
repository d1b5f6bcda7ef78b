"""Facts about an entry: ancestors, last consumers, what is retained, and how much lives when."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import drawn_graph
from tests.helpers import same_bits
from topos import Entry, Network, Symbol, Tape
from topos.engine.catalog.units import Units
from topos.engine.plan import Plan
from topos.engine.schedule import Schedule, closure, same


def diamond() -> tuple[Network, list[int]]:
    """Record x -> (a, b) -> c, and a stranger."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([1.0, 2.0, 3.0])
        a = x.exp()
        b = x.sin()
        stranger = x.cos()
        return x, a, b, stranger, (a * b).sum()

    network, symbols = Tape.record(build)
    return network, [symbol.index for symbol in symbols]


def test_closure() -> None:
    """The targets and all ancestors, ascending, each once."""
    network, (x, a, b, stranger, total) = diamond()
    assert closure(network.columns, [total]) == [x, a, b, total - 1, total]
    assert closure(network.columns, [stranger]) == [x, stranger]
    assert closure(network.columns, [b, a]) == [x, a, b]


def test_liveness_of_a_diamond() -> None:
    """A value lives until its last wanted consumer; an unwanted consumer does not count."""
    network, (x, a, b, _, total) = diamond()
    units = Units(network.columns, Schedule(network.columns, [total], backward=False), formulas=())
    product = total - 1
    assert units.last == {x: b, a: product, b: product, product: total}
    assert units.releases == {b: [x], product: [a, b], total: [product]}
    assert units.live_series(release=True) == [(x, 3), (a, 6), (b, 9), (product, 9), (total, 4)]
    assert units.live_series(release=False) == [(x, 3), (a, 6), (b, 9), (product, 12), (total, 13)]


def test_results_and_what_rules_read_stay() -> None:
    """Readable values are never released, nor is in backward posture what a derivative rule reads."""
    network, (x, a, b, _, total) = diamond()
    observed = Schedule(network.columns, [total, a], backward=False)
    assert a not in Units(network.columns, observed, formulas=()).last
    assert observed.readable == {total, a}
    backward = Schedule(network.columns, [total], backward=True)
    # Exp reads its output, Sin its operand, Mul both operands, Sum nothing.
    assert backward.retained == {a, x, b}
    assert Units(network.columns, backward).releases == {total: [total - 1]}


@settings(max_examples=60, derandomize=True)
@given(seed=st.integers(0, 10**6), backward=st.booleans(), data=st.data())
def test_against_a_plain_model(seed: int, backward: bool, data: st.DataObject) -> None:
    """Drawn graphs: consumers, releases and the series are those of their definitions."""
    columns = drawn_graph(seed, "f32").network.columns
    results = data.draw(st.lists(st.integers(0, len(columns) - 1), min_size=1, max_size=3))
    schedule = Schedule(columns, results, backward)
    units = Units(columns, schedule, formulas=())
    wanted, frontier = set(results), list(results)
    while frontier:
        for operand in columns.operands[frontier.pop()]:
            if operand not in wanted:
                wanted.add(operand)
                frontier.append(operand)
    assert schedule.nodes == sorted(wanted)
    for node in wanted:
        consumers = [n for n in wanted if node in columns.operands[n]]
        keeps = node in results or node in schedule.retained or not consumers
        assert units.last.get(node) == (None if keeps else max(consumers))
    assert sorted(n for freed in units.releases.values() for n in freed) == [
        n for n in schedule.nodes if n in units.last
    ]
    for node, alive in units.live_series(release=True):
        ends = ((n, units.last.get(n)) for n in schedule.nodes if n <= node)
        assert alive == sum(columns.shapes[n].volume for n, end in ends if end is None or end >= node)


def test_equal_nodes() -> None:
    """A node with the kind, parameters and operands of an earlier one is that one; sources and checked nodes are not."""

    def build(tape: Tape) -> Any:
        x, y = tape.input([[1.0, 2.0]]), tape.input([[1.0, 2.0]])
        first, second = (x + y).exp(), (x + y).exp()
        tape.require_nonzero(second * second)
        tape.require_nonzero(second * second)
        return x, y, first, second, y + x, x.sum_along(0), x.sum_along(0), x.sum_along(1)

    network, values = Tape.record(build)
    columns = network.columns
    _, _, first, second, *_, again, _ = (value.index for value in values)
    assert same(columns, range(len(columns))) == {second - 1: first - 1, second: first, again: again - 1}


@settings(max_examples=60, derandomize=True)
@given(seed=st.integers(0, 10**6), element=st.sampled_from(["f32", "f64", "bf16"]))
def test_graphs_recorded_twice(seed: int, element: str) -> None:
    """Drawn graphs with a twin of every node: plans compute it once, with the bits of the interpreter."""
    drawn = drawn_graph(seed, element)
    columns, before = drawn.network.columns.fork(), len(drawn.network)
    twins: dict[int, int] = {}
    for node in range(before):
        if columns.operands[node]:
            operands = tuple(twins.get(operand, operand) for operand in columns.operands[node])
            twins[node] = columns.append(columns.opcodes[node], operands, columns.shapes[node], None)
    network = Network(columns)
    roots = [Symbol(columns.family, node) for node in (before - 1, *list(twins.values())[-2:])]
    wanted = network.forward(network.parameters(), drawn.feeds)
    plans = [Plan(network, Entry(tuple(roots)), poison=True, fuse=fuse) for fuse in (False, True)]
    for plan in plans:
        run = plan.forward(network.parameters(), drawn.feeds)
        assert all(same_bits(run.of(root), wanted.of(root)) for root in roots)
    equal = same(columns, plans[1].schedule.nodes)
    left = set(equal) - plans[1].schedule.readable
    assert left >= set(plans[1].schedule.nodes) & set(twins.values()) - plans[1].schedule.readable
    assert left.isdisjoint(plans[1].units.nodes)
    for node in plans[1].schedule.readable & equal.keys():  # a result that equals another value is that value
        assert plans[1].units.reads(node) == (equal[node],)
    assert plans[1].describe().count("  same as ") == len(left)
