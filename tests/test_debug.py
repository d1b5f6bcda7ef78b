"""Seeing what went wrong: the first NaN, and zeros that met infinite slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS
from topos import ShapeError, SymbolError, Tape, where
from topos.debug import Finding, first_nan, meetings


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_first_nan(element: Any) -> None:
    """The line that made the first NaN, how many it made, and None where there is none."""

    def build(tape: Tape) -> Any:
        x = tape.input([1.0, 4.0, 9.0])
        y = x.sqrt()
        z = y.ln()
        return x, y, z, (z * 2.0).sum()

    network, (x, y, z, _) = Tape.record(build, element=element)
    parameters = network.parameters()
    assert first_nan(network, parameters) is None
    found = first_nan(network, parameters, {x: [-1.0, 4.0, -2.0]})
    assert isinstance(found, Finding)
    assert (found.symbol, found.count) == (y, 2)
    assert "Sqrt (recorded at" in found.label
    assert str(found) == f"{found.label}: 2 elements"
    assert str(network.node(y).source) in found.label
    assert first_nan(network, parameters, {x: [np.nan, 1.0, 1.0]}).symbol == x
    assert first_nan(network, parameters, {x: [0.0, 1.0, 1.0]}) is None  # an infinity is none
    assert z is not None


def found_at(build: Any, element: Any = "f32", feeds: Any = None) -> tuple[list[str], list[int], list[str]]:
    """Return the lines, counts and kinds of meetings in the derivative of what `build` returns."""
    network, (target, more) = Tape.record(build, element=element)
    size, spec = len(network), network.describe()
    fed = None if feeds is None else {more: feeds}
    findings = meetings(network, network.parameters(), target, fed)
    assert (len(network), network.describe()) == (size, spec)
    kinds = [finding.label.split()[1] for finding in findings]
    return [f.label.rsplit(":", 1)[1].rstrip(")") for f in findings], [f.count for f in findings], kinds


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_zero_on_a_taken_path(element: Any) -> None:
    """The documented price: the root of a sum of squares at 0 has an infinite slope that a zero silenced."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([0.0, 0.0])
        return (x * x).sum().sqrt(), None

    _, counts, kinds = found_at(build, element)
    assert kinds == ["Scale", "Scale"]  # x * x: both factors are x
    assert counts == [2, 2]

    def harmless(tape: Tape) -> Any:
        x = tape.parameter([3.0, 0.0])
        return (x * x).sum().sqrt(), None

    assert found_at(harmless, element) == ([], [], [])


def test_a_branch_not_taken_is_reported_too() -> None:
    """A silent branch cannot be told from a silenced path: both meet, and the finding names the line."""

    def build(tape: Tape) -> Any:
        x = tape.input([0.0, 4.0])
        return where(x < 1.0, x, x.sqrt()).sum(), x

    lines, counts, kinds = found_at(build)
    assert (counts, kinds) == ([1], ["Ratio"])
    assert len(lines) == 1
    assert found_at(build, feeds=[0.5, 4.0]) == ([], [], [])


def test_nan_factors_and_zero_slopes() -> None:
    """0 * NaN and 0 / NaN are meetings; 0 times a finite slope is not."""

    def build(tape: Tape) -> Any:
        x = tape.input([1.0, 2.0])
        gate = tape.leaf([0.0, 1.0])
        return (x.ln() * gate).sum(), x

    assert found_at(build)[1] == []
    assert found_at(build, feeds=[np.nan, 1.0])[1] == [1]  # 0 / NaN; the gate is no parameter
    assert found_at(build, feeds=[0.0, 1.0])[2] == ["Ratio"]


def test_errors() -> None:
    """The target has rank 0 and belongs to the network."""
    network, x = Tape.record(lambda tape: tape.parameter([1.0]))
    with pytest.raises(ShapeError, match="a loss has rank 0"):
        meetings(network, network.parameters(), x)
    with pytest.raises(SymbolError, match="another recording"):
        meetings(network, network.parameters(), Tape().leaf(1.0))
