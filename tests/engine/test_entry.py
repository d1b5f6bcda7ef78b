"""Declared readings: `Entry` is data, `BoundEntry` executes it, sliced or lowered."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from topos import (
    BoundEntry,
    Entry,
    Network,
    Numerics,
    Plan,
    SealedError,
    Symbol,
    SymbolError,
    Tape,
    UnreadableError,
    UsageError,
)


def recorded() -> tuple[Network, dict[str, Symbol]]:
    """Record two losses over one parameter."""

    def build(tape: Tape) -> Any:
        w, x = tape.parameter(2.0), tape.input(3.0)
        y = w * x
        return {"w": w, "x": x, "y": y, "loss": y * y, "other": y.exp()}

    return Tape.record(build)


def test_an_entry_is_plain_data() -> None:
    """Symbols in tuples, a default posture, equality, hash, and results in declared order, each once."""
    _, s = recorded()
    entry = Entry([s["loss"], s["y"], s["loss"]], observe=[s["w"], s["y"]])
    assert entry.roots == (s["loss"], s["y"], s["loss"])
    assert (entry.backward, entry.numerics) == (False, Numerics.EXACT)
    assert entry.results == (s["loss"], s["y"], s["w"])
    assert Entry(s["loss"]) == Entry([s["loss"]]) == Entry(iter([s["loss"]]))
    assert hash(Entry(s["loss"])) == hash(Entry((s["loss"],)))
    assert Entry(s["loss"], backward=True) != Entry(s["loss"])
    assert Entry((), observe=s["y"]).results == (s["y"],)
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.backward = True


def test_values_of_a_live_tape_are_symbols_too() -> None:
    """An entry may be written while its tape records."""
    tape = Tape()
    x = tape.leaf(1.0)
    assert Entry(x) == Entry([x.symbol])
    assert Entry([], [x]) == Entry((), x.symbol)


def test_the_fluent_methods_return_new_ones() -> None:
    """`observe` accumulates, `backward` and `numerics` set; the receiver stays."""
    network, s = recorded()
    bound = network.entry(s["loss"])
    other = bound.observe(s["y"]).observe([s["w"], s["x"]]).backward().numerics(Numerics.FAST)
    assert isinstance(other, BoundEntry)
    assert bound.entry() == Entry(s["loss"])
    assert other.entry() == Entry(s["loss"], [s["y"], s["w"], s["x"]], True, Numerics.FAST)
    assert other.into_entry() == other.entry()
    spelled = network.entry([s["loss"]], observe=[s["y"]], backward=True, numerics=Numerics.FAST)
    assert spelled.entry() == Entry(s["loss"], s["y"], True, Numerics.FAST)
    assert repr(bound) == f"BoundEntry({bound.entry()!r})"
    plan = other.lower()
    assert (plan.entry, plan.numerics, plan.can_backward) == (other.entry(), Numerics.FAST, True)


def test_interpret_computes_ancestors_alone_and_reads_them_all() -> None:
    """Every ancestor of the results is readable; what is skipped is not; any computed scalar scans backward."""
    network, s = recorded()
    run = network.entry(s["loss"]).interpret(network.parameters(), {s["x"]: 4.0})
    assert [run.of(s[name]).scalar() for name in ("w", "x", "y", "loss")] == [2, 4, 8, 64]
    with pytest.raises(UnreadableError, match=r"n#4 Exp .* was not computed"):
        run.of(s["other"])
    with pytest.raises(UnreadableError, match="was not computed"):
        run.backward(s["other"])
    assert run.backward(s["loss"]).of(s["w"]).scalar() == 2 * 8 * 4
    assert run.backward(s["y"]).of(s["w"]).scalar() == 4
    observed = network.entry(s["y"], observe=s["other"]).interpret(network.parameters())
    assert observed.of(s["other"]).scalar() > 400
    with pytest.raises(UnreadableError):
        observed.of(s["loss"])


def test_detached_entries_survive_a_reopen_and_a_pickle() -> None:
    """An entry is bound by the network that a reopened tape becomes."""
    network, s = recorded()
    entry = network.entry(s["loss"]).observe(s["y"]).entry()
    tape = network.into_tape()
    tape.leaf(1.0)
    grown = tape.into_network()
    plan = grown.compile(entry)
    assert isinstance(plan, Plan)
    assert plan.forward(grown.parameters()).of(s["loss"]).scalar() == 36
    again, copy = pickle.loads(pickle.dumps((grown, entry)))
    assert again.compile(copy).forward(again.parameters()).of(copy.roots[0]).scalar() == 36


def test_errors() -> None:
    """No result, foreign, newer or wrong symbols, and a network that was reopened."""
    network, s = recorded()
    foreign, newer = Tape().leaf(1.0), Symbol(s["w"].family, 5)
    with pytest.raises(SymbolError, match="at least one root or observed value"):
        Entry([])
    with pytest.raises(SymbolError, match="'loss' is no symbol"):
        Entry(["loss"])
    for refused in (lambda: network.entry(s["w"]).numerics("fast"), lambda: Entry(s["w"], numerics=None)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"numerics=.*: a posture is Numerics.EXACT or Numerics.FAST"):
            refused()
    for symbol, message in ((foreign, "entry: n#0 belongs to another recording"), (newer, "n#5 is newer than")):
        for refused in (
            lambda: network.entry(symbol),  # noqa: B023
            lambda: network.entry(s["w"], observe=[symbol]),  # noqa: B023
            lambda: network.entry(s["w"]).observe(symbol),  # noqa: B023
            lambda: network.compile(Entry(symbol)),  # noqa: B023
        ):
            with pytest.raises(SymbolError, match=message) as caught:
                refused()
            assert isinstance(caught.value, LookupError)
    bound = network.entry(s["loss"])
    parameters = network.parameters()
    network.into_tape()
    for refused in (bound.lower, lambda: bound.interpret(parameters), lambda: bound.observe(s["y"])):
        with pytest.raises(SealedError, match="reopened"):
            refused()
