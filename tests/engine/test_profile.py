"""`plan.profile`: one timing per instruction, attributed to nodes and recording lines."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from topos import ElementError, FeedError, Network, ParametersError, Symbol, Tape
from topos.engine.profile import Profile, Timing


def recorded(element: Any = "f32") -> tuple[Network, Symbol, Symbol]:
    """Record a product and a map on two lines."""

    def build(tape: Tape) -> Any:
        x, w = tape.input([[1, 2], [3, 4]]), tape.parameter([[1, 0], [0, 1]])
        y = x @ w
        z = y + x
        return x, z.sum()

    network, (x, loss) = Tape.record(build, element=element)
    return network, x, loss


def test_a_profile_names_kernels_nodes_and_lines() -> None:
    """Every instruction of the program appears, in order; the sums are those of its parts."""
    network, x, loss = recorded()
    plan = network.entry(loss).lower()
    profile = plan.profile(network.parameters(), {x: [[5.0, 6.0], [7.0, 8.0]]}, repeats=2)
    program = plan.lowered.program
    assert len(profile.timings) == len(program.starts)
    assert [t.kernel for t in profile.timings] == program.row_kernels
    assert [t.node for t in profile.timings] == list(program.nodes)
    assert all(t.line == network.node(Symbol(loss.family, t.node)).source for t in profile.timings)
    assert all(0 <= t.seconds < 60 for t in profile.timings)
    assert profile.seconds == sum(t.seconds for t in profile.timings)
    lines = dict(profile.by_line())
    assert len(lines) == 3
    assert all("test_profile.py:" in line for line in lines)
    assert sum(lines.values()) == pytest.approx(profile.seconds)
    assert sum(dict(profile.by_kernel()).values()) == pytest.approx(profile.seconds)
    assert "add.f32" in dict(profile.by_kernel())
    assert plan.forward(network.parameters()).of(loss).scalar() == 20


def test_totals_are_sorted_and_printed() -> None:
    """The most expensive line first, with its share; equal keys are summed."""
    timings = (Timing("a", 1, "f.py:1", 1e-6), Timing("b", 2, "f.py:2", 6e-6), Timing("a", 3, "f.py:1", 1e-6))
    profile = Profile(timings)
    assert profile.by_line() == [("f.py:2", 6e-6), ("f.py:1", 2e-6)]
    assert profile.by_kernel() == [("b", 6e-6), ("a", 2e-6)]
    assert [line.split() for line in str(profile).splitlines()] == [
        ["6.0", "us", "75.0%", "f.py:2"], ["2.0", "us", "25.0%", "f.py:1"], ["8.0", "us", "in", "3", "instructions"]
    ]  # fmt: skip
    assert str(Profile(())).split() == ["0.0", "us", "in", "0", "instructions"]


def test_refusals() -> None:
    """As `Plan.forward`; a user's number type has no instructions."""
    network, x, loss = recorded()
    plan = network.entry(loss).lower()
    with pytest.raises(ParametersError, match="another recording"):
        plan.profile(recorded()[0].parameters())
    with pytest.raises(FeedError, match="has shape"):
        plan.profile(network.parameters(), {x: 1.0})
    exact, _, total = recorded(Fraction)
    with pytest.raises(ElementError, match="Fraction runs in Python"):
        exact.entry(total).lower().profile(exact.parameters())
    assert len(plan.profile(network.parameters(), repeats=0).timings) == len(plan.lowered.program.starts)
