"""`Symbol` and `detach`: names that outlive the tape."""

from __future__ import annotations

import pickle
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from topos import Symbol, SymbolError, Tape, detach
from topos.graph.symbol import symbol_of


class Pair(NamedTuple):
    """A named tuple of two."""

    left: Any
    right: Any


def test_equality_is_family_and_position() -> None:
    """Equal positions of two recordings differ; hash and equality agree; the text is the printed index."""
    tape = Tape()
    a, b = tape.leaf(1.0).symbol, tape.leaf(1.0).symbol
    other = Tape().leaf(1.0).symbol
    assert a == Symbol(a.family, 0)
    assert hash(a) == hash(Symbol(a.family, 0))
    assert a not in (b, other)
    assert a != 0
    assert len({a, b, other, Symbol(a.family, 0)}) == 3
    assert (a.index, b.index, repr(b)) == (0, 1, "n#1")


def test_symbols_survive_sealing_and_reopening() -> None:
    """The same name means the same value before, between and after."""
    tape = Tape()
    value = tape.leaf([1.0, 2.0])
    symbol = value.symbol
    network = tape.into_network()
    assert network.node(symbol).symbol == symbol
    again = network.into_tape()
    assert again.resolve(symbol).symbol == symbol


def test_pickled_together_they_stay_together() -> None:
    """A network, its parameters and its symbols keep their family through one pickle, and only that."""
    network, (w, y) = Tape.record(lambda t: ((w := t.parameter([1.0, 2.0], name="w")), (w * w).sum()))
    parameters = network.parameters().scale(2.0)
    other, table, symbols = pickle.loads(pickle.dumps((network, parameters, {"w": w, "y": y})))
    run = other.forward(table)
    assert run.of(symbols["y"]).scalar() == 20
    assert other.symbol("w") == symbols["w"]
    assert table.of(symbols["w"]).to_list() == [2, 4]
    assert run.backward(symbols["y"]).parameters(table).of(symbols["w"]).to_list() == [4, 8]
    assert hash(symbols["w"]) == hash(other.symbol("w"))
    assert {symbols["w"]: 1}[other.symbol("w")] == 1
    assert symbols["w"] != w
    with pytest.raises(SymbolError, match="another recording"):
        run.of(w)


def test_detach_goes_through_any_nesting() -> None:
    """Tuples (named too), lists and mappings; values become symbols, the rest stays."""
    tape = Tape()
    a, b = tape.leaf(1.0), tape.leaf(2.0)
    found = detach([a, (b, {"k": [a]}), Pair(a, b.symbol), None, 3, "text", MappingProxyType({"m": b})])
    assert found[0] == a.symbol
    assert found[1] == (b.symbol, {"k": [a.symbol]})
    assert isinstance(found[2], Pair)
    assert found[2] == Pair(a.symbol, b.symbol)
    assert found[3:6] == [None, 3, "text"]
    assert found[6] == {"m": b.symbol}


def test_detach_leaves_what_is_a_tuple_of_its_own() -> None:
    """Shapes, opcodes and the nodes that hold them come back as they are, in any nesting."""
    tape = Tape()
    value = tape.input([[1.0]]).sum_along(0)
    node = tape.node(value)
    for given in (value.shape, node.opcode, node):
        (found,) = detach([given])
        assert type(found) is type(given)
        assert found == given
    _, found = Tape.record(lambda tape: tape.node(tape.input([[1.0]]).sum_along(0)))
    assert (found.name, str(found.shape)) == ("SumAlong", "[1]")
    assert "SumAlong" in str(found)


def test_detach_asks_what_can_detach() -> None:
    """An object with a `detach` method answers for itself."""

    class Holder:
        def detach(self) -> str:
            return "detached"

    assert detach((Holder(),)) == ("detached",)


@pytest.mark.parametrize("given", [1, "w", None, object])
def test_what_is_no_symbol(given: Any) -> None:
    """Raises `SymbolError`, a LookupError."""
    with pytest.raises(SymbolError, match="is no symbol: give a Symbol, or the Value while its tape records") as e:
        symbol_of(given)
    assert isinstance(e.value, LookupError)
