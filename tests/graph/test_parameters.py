"""`Parameters`: one flat table, its algebra, and what it refuses."""

from __future__ import annotations

import copy
import gc
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits
from topos import F32, F64, Network, ParametersError, ShapeError, SymbolError, Tape, Tensor
from topos.graph.columns import Columns


def record(element: Any = "f64") -> tuple[Network, Any]:
    """Record two parameters among other nodes."""

    def build(tape: Tape) -> Any:
        w = tape.parameter([[1, 2], [3, 4]], name="w")
        x = tape.input([1, 1])
        b = tape.parameter(5, name="b")
        return w, x, b, (w.sum() * b)

    return Tape.record(build, element=element)


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_readers(element: Any) -> None:
    """Length, payloads and symbols in slot order, a payload by symbol, text, truth."""
    network, (w, x, b, y) = record(element)
    table = network.parameters()
    assert (len(table), table.is_empty, bool(table)) == (2, False, True)
    assert table.symbols() == [w, b]
    assert table.of(w).to_list() == [1, 2, 3, 4]
    assert table.of(b).scalar() == 5
    assert [t.shape for t in table.payloads()] == [(2, 2), ()]
    assert repr(table).startswith("Parameters(2 slots, 5 numbers of ")
    for symbol in (x, y):
        with pytest.raises(SymbolError, match=r"Parameters.of: n#\d is no parameter of this table of 2 slots"):
            table.of(symbol)
    with pytest.raises(SymbolError, match=r"Parameters.of: n#0 belongs to another recording"):
        table.of(record(element)[1][0])


def test_a_table_without_slots() -> None:
    """Empty and still true; its algebra works."""
    network, _ = Tape.record(lambda t: t.leaf(1.0))
    table = network.parameters()
    assert (len(table), table.is_empty, bool(table), table.payloads()) == (0, True, True, [])
    assert table == table.scale(2.0) == table + table
    assert network.forward(table.map(lambda p: p)) is not None


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_algebra(element: Any) -> None:
    """map, zip, scale and + give new tables; the old ones stay; tables are equal by payloads."""
    network, (w, _, b, _) = record(element)
    table = network.parameters()
    before = [t.to_list() for t in table.payloads()]
    doubled = table.scale(2)
    assert doubled.of(w).to_list() == [2, 4, 6, 8]
    assert doubled == table + table == table.map(lambda p: p + p)
    assert doubled != table
    assert doubled.zip(table, lambda a, c: a - c) == table
    assert table.scale(Tensor([[2]], element=element)) == doubled
    stepped = table.step(doubled, lambda p, d: p - d)
    assert stepped.of(b).scalar() == -5
    assert [t.to_list() for t in table.payloads()] == before
    assert table == network.parameters()
    assert (table == 3) is False
    with pytest.raises(TypeError, match="unhashable"):
        hash(table)


def test_rules_are_called_in_slot_order() -> None:
    """`step_each` hands over symbols; a rule may keep state and may answer with arrays and numbers."""
    network, (w, _, b, _) = record()
    table = network.parameters()
    calls: list[Any] = []

    def rule(symbol: Any, current: Tensor, direction: Tensor) -> Any:
        calls.append((symbol, current.to_list(), direction.to_list()))
        return np.asarray(current) + len(calls)

    result = table.step_each(table.scale(10.0), rule)
    assert calls == [(w, [1, 2, 3, 4], [10, 20, 30, 40]), (b, [5], [50])]
    assert result.of(w).to_list() == [2, 3, 4, 5]
    assert result.of(b).scalar() == 7
    order: list[int] = []
    table.step(table, lambda p, d: (order.append(p.shape.rank), p)[1])
    table.zip(table, lambda p, d: (order.append(p.shape.rank), p)[1])
    table.map(lambda p: (order.append(p.shape.rank), p)[1])
    assert order == [2, 0] * 3


def test_rules_that_change_the_shape_are_refused() -> None:
    """The message names slot, shapes and verb."""
    table = record()[0].parameters()
    attempts: list[Any] = [
        ("map", lambda: table.map(lambda p: [1.0, 2.0])),
        ("zip", lambda: table.zip(table, lambda p, q: [1.0, 2.0])),
        ("step", lambda: table.step(table, lambda p, q: p.sum())),
        ("step_each", lambda: table.step_each(table, lambda s, p, q: p.sum())),
        ("with_payloads", lambda: table.with_payloads({table.symbols()[0]: 1.0})),
    ]
    for verb, attempt in attempts:
        with pytest.raises(ShapeError, match=rf"^{verb}: slot 0 \(n#0\) has shape \[2, 2\], the rule gave"):
            attempt()
    with pytest.raises(ShapeError, match=r"scale: a single value is needed, not shape \[2\]"):
        table.scale([1.0, 2.0])


def test_tables_that_do_not_belong_together() -> None:
    """Another family, another count of slots, no table at all."""
    network, _ = record()
    table, foreign = network.parameters(), record()[0].parameters()
    tape = network.into_tape()
    tape.parameter(1.0)
    grown = tape.into_network()
    longer = grown.parameters()
    for verb in (
        lambda other: table.zip(other, lambda a, b: a),
        lambda other: table.step(other, lambda a, b: a),
        lambda other: table.step_each(other, lambda s, a, b: a),
        lambda other: table + other,
    ):
        with pytest.raises(ParametersError, match="the table belongs to another recording"):
            verb(foreign)
        with pytest.raises(
            ParametersError, match=r"2 parameter slots are needed, the table has 3: .*carried\(network\)"
        ):
            verb(longer)
        with pytest.raises(ParametersError, match="a Parameters table is needed, not"):
            verb([1.0])


def test_carried() -> None:
    """Old payloads stay, new slots get their initials; foreign and smaller networks are refused."""
    network, (w, _, _b, _) = record()
    table = network.parameters().scale(3.0)
    assert table.carried(network) == table
    tape = network.into_tape()
    extra = tape.parameter([7.0], name="extra").symbol
    grown = tape.into_network()
    carried = table.carried(grown)
    assert [t.to_list() for t in carried.payloads()] == [[3, 6, 9, 12], [15], [7]]
    assert carried.of(extra).to_list() == [7]
    assert carried.of(w).to_list() == [3, 6, 9, 12]
    assert len(table) == 2
    with pytest.raises(ParametersError, match="carried: the network belongs to another recording"):
        table.carried(record()[0])
    # A family has one history, so a smaller network of it has to be made by hand.
    smaller = Tape.of_columns(Columns(table.slots.element, table.slots.family))
    smaller.parameter(1.0)
    with pytest.raises(ParametersError, match="carried: the network has 1 slots, this table 2"):
        table.carried(smaller.into_network())


def test_with_payloads() -> None:
    """A mapping or pairs; the last of duplicates counts; what is no parameter is refused."""
    network, (_w, x, b, _y) = record()
    table = network.parameters()
    assert table.with_payloads({b: 9.0}).of(b).scalar() == 9
    assert table.with_payloads([(b, 1.0), (b, Tensor(2.0))]).of(b).scalar() == 2
    assert table.with_payloads({}) == table
    assert table.with_payloads({b: Tensor(2.5, element=F32)}).of(b).element is F64
    with pytest.raises(SymbolError, match="with_payloads: n#1 is no parameter"):
        table.with_payloads({x: 1.0})
    with pytest.raises(SymbolError, match="with_payloads: n#2 belongs to another recording"):
        table.with_payloads({record()[1][2]: 1.0})


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_copies_and_pickles(element: Any) -> None:
    """A copy has memory of its own; a pickle restores the bits; memory is read-only."""
    network, (w, *_) = record(element)
    table = network.parameters().scale(3)
    copied = table.copy()
    assert copied == table
    assert not np.shares_memory(copied.buffer, table.buffer)
    _, restored, symbol = pickle.loads(pickle.dumps((network, table, w)))
    assert restored.of(symbol).to_list() == table.of(w).to_list()
    if element is not Fraction:
        assert bits(restored.of(symbol)).tobytes() == bits(table.of(w)).tobytes()
    for held in (table, copied, restored):
        with pytest.raises(ValueError, match="read-only"):
            held.buffer[0] = held.buffer[1]


def test_initials_are_fresh_on_every_call() -> None:
    """Two tables of one network are equal and independent, with the collector off too."""
    network, _ = record()
    gc.disable()
    try:
        first, second = network.parameters(), network.parameters()
        assert first == second
        assert first is not second
        assert not np.shares_memory(first.buffer, second.buffer)
    finally:
        gc.enable()


def test_a_deep_copy_stays_in_the_family() -> None:
    """Copied tables and symbols still belong to their network."""
    network, w = Tape.record(lambda tape: tape.parameter([1.0, 2.0]))
    parameters = copy.deepcopy(network.parameters())
    assert parameters.of(copy.deepcopy(w)) == network.forward(parameters).of(w)
    plan = network.entry(w).lower()
    assert copy.deepcopy(plan) is plan
