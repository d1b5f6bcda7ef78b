"""Concatenation as a group: the bits of pads added up, and nothing padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine.catalog.plans import check, kernels
from tests.helpers import ELEMENTS, drawn, special
from topos import Element, Formula, Network, PatternKind, Plan, Symbol, Tape, Value, concat, init, named_parameters
from topos.engine.catalog import concatenation
from topos.engine.catalog.walk import UnmatchedError
from topos.neural.recurrent import GruCell, LstmCell


def kinds(plan: Plan) -> list[PatternKind]:
    """Return the kinds of what a plan elected."""
    return [match.kind for match in plan.patterns()]


def joined(element: Element, axis: int, make: Any, turned: bool) -> tuple[Network, Symbol]:
    """Record three parts along an axis of rank 3, dense or turned views."""

    def build(tape: Tape) -> Value:
        parts = []
        for i, extent in enumerate((3, 1, 4)):
            shape = [2, 5, 3]
            shape[axis] = extent
            if turned:
                parts.append(tape.input(make(tuple(shape[::-1]), element, i)).permute([2, 1, 0]))
            else:
                parts.append(tape.input(make(tuple(shape), element, i)))
        return concat(parts, axis)

    return Tape.record(build, element=element)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("make", [drawn, special])
def test_a_concatenation_is_one_pass(element: Element, axis: int, make: Any, turned: bool) -> None:
    """Along every axis, of views, with zeros of both signs and NaNs: no zeros are written first, nothing is padded.

    What lies dense is moved in one pass, unless single values of it are moved far apart.
    """
    network, y = joined(element, axis, make, turned)
    copies = 0 if axis == 0 else 3 if turned else 1 if axis == 2 else 0
    for threads in (1, 3):
        plan = check(network, [y], threads)
        assert kinds(plan) == [PatternKind.CONCATENATION]
        assert sorted(kernels(plan)) == ["copy"] * copies + ["positive_zero"] * 3


def test_negative_zero_becomes_positive() -> None:
    """Adding the zeros of another pad to -0 gives +0: so does the group."""
    network, y = Tape.record(lambda tape: concat([tape.input([-0.0, 1.0]), tape.input([-0.0])], 0))
    plan = check(network, [y])
    assert np.signbit(np.asarray(plan.forward(network.parameters()).of(y))).tolist() == [False, False, False]
    assert np.asarray(plan.forward(network.parameters()).of(y)).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("cell", [LstmCell, GruCell])
def test_steps_of_a_recurrent_net_are_joined_in_one_pass(cell: Any) -> None:
    """Its outputs, the gradient of its gates at each step, and that of the sequence: rows are linear in the steps."""

    def rows(steps: int) -> int:
        def build(tape: Tape) -> Any:
            draw, width = init.xavier(7), cell.gates * 3
            module = cell(tape, *(draw(shape) for shape in ([2, width], [3, width], [width], [width])))
            out = module.express(tape.input(drawn((2, steps, 2), tape.element, 1)))
            return tape.differentiate((out * out).sum(), [symbol for _, symbol in named_parameters(module)]).roots

        network, roots = Tape.record(build)
        plan = check(network, roots)
        assert kinds(plan).count(PatternKind.CONCATENATION) >= steps
        return len(kernels(plan))

    few, more, most = rows(4), rows(6), rows(8)
    assert most - more == more - few


def holes(tape: Tape) -> Value:
    """Leave a place that no part covers."""
    return tape.input([1.0]).pad(0, 0, 4) + tape.input([2.0, 3.0]).pad(0, 2, 4)


def overlaps(tape: Tape) -> Value:
    """Let two parts meet."""
    return tape.input([1.0, 2.0]).pad(0, 0, 3) + tape.input([2.0, 3.0]).pad(0, 1, 3)


def turns(tape: Tape) -> Value:
    """Pad along two axes."""
    row, column = tape.input([[1.0, 2.0]]), tape.input([[1.0], [2.0]])
    return row.pad(0, 0, 2) + column.pad(1, 1, 2)


def doubles(tape: Tape) -> Value:
    """Add a pad to itself."""
    half = tape.input([1.0]).pad(0, 0, 2)
    return half + half


def adds_more(tape: Tape) -> Value:
    """Add something that is no pad."""
    return tape.input([1.0]).pad(0, 0, 2) + tape.input([1.0]).pad(0, 1, 2) + tape.input([1.0, 2.0])


@pytest.mark.parametrize("build", [holes, overlaps, turns, doubles])
def test_other_sums_of_pads_are_left(build: Callable[[Tape], Value]) -> None:
    """Parts have to cover one axis, each place once."""
    network, y = Tape.record(build)
    assert PatternKind.CONCATENATION not in kinds(check(network, [y]))


def test_a_sum_with_more_than_pads_keeps_its_concatenation() -> None:
    """The part of the sum that is one is found."""
    network, y = Tape.record(adds_more)
    assert kinds(check(network, [y])) == [PatternKind.CONCATENATION]


def test_a_sum_that_is_read_elsewhere_is_left() -> None:
    """Interiors that somebody asked for, or reads, are computed: joining would save nothing."""

    def build(tape: Tape) -> list[Value]:
        first = tape.input([1.0]).pad(0, 0, 3) + tape.input([2.0]).pad(0, 1, 3)
        return [first + tape.input([3.0]).pad(0, 2, 3), first]

    network, roots = Tape.record(build)
    assert PatternKind.CONCATENATION not in kinds(check(network, roots))
    assert kinds(check(network, roots[:1])) == [PatternKind.CONCATENATION]


def test_the_longest_concatenation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher looks no further than at so many parts; what is longer is padded."""
    monkeypatch.setattr(concatenation, "MOST", 4)

    def record(parts: int) -> Plan:
        network, y = Tape.record(lambda tape: concat([tape.input([float(i)]) for i in range(parts)], 0))
        return check(network, [y])

    assert PatternKind.CONCATENATION in kinds(record(4))
    assert PatternKind.CONCATENATION not in kinds(record(5))
    (match,) = record(4).candidates()[-1:]
    assert match.formula is Formula.CONCATENATION


class Counted(list[Any]):
    """A list that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        """Return a member."""
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("to_the_right", [False, True])
def test_a_long_sum_is_looked_at_once(to_the_right: bool) -> None:
    """Of a sum that is no concatenation, however it leans, a matcher sees little: all of it is linear."""

    def build(tape: Tape) -> Value:
        x = total = tape.input([1.0, 2.0])
        for _ in range(1000):
            total = x + total if to_the_right else total + x
        return total

    network, y = Tape.record(build)
    columns = network.columns
    opcodes = columns.opcodes
    columns.opcodes = looked = Counted(opcodes)  # type: ignore[misc]
    try:
        for root in range(1, y.index + 1):
            with pytest.raises(UnmatchedError):
                concatenation.concatenation(columns, root)
    finally:
        columns.opcodes = opcodes  # type: ignore[misc]
    assert looked.looks <= 8 * len(opcodes)
