"""`Network`: the sealed spec, immutable, never copied, pickled with its names."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import pytest

from tests.drawn import drawn_graph
from tests.helpers import ELEMENTS, same_bits
from topos import F64, Network, SealedError, SymbolError, Tape, Tensor


def record() -> tuple[Network, Any]:
    """Record a little of everything."""

    def build(tape: Tape) -> Any:
        w, x = tape.parameter([1.0, 2.0], name="w"), tape.input([3.0, 4.0], name="x")
        return w, x, (w * x).sum().named("y")

    return Tape.record(build, element=F64)


def test_readers() -> None:
    """Length, nodes, payloads, symbols by name, element, text, truth."""
    network, (w, x, y) = record()
    assert (len(network), network.is_empty, bool(network), network.element) == (4, False, True, F64)
    assert [node.name for node in network.nodes()] == ["Parameter", "Input", "Mul", "Sum"]
    assert network.node(y).operands[0].index == 2
    assert network.payload(x) == Tensor([3.0, 4.0])
    assert network.payload(y) is None
    assert (network.symbol("w"), network.symbol("y")) == (w, y)
    assert repr(network) == "Network(4 nodes)"
    assert network.describe().endswith("network: 4 nodes, 1 parameter, 1 input")
    empty = Tape().into_network()
    assert empty.is_empty
    assert bool(empty)
    assert empty.describe() == "network: 0 nodes, 0 parameters, 0 inputs"
    with pytest.raises(SymbolError, match="no value is named 'w'; names here: none"):
        empty.symbol("w")


def test_an_empty_network_runs() -> None:
    """With no nodes there is nothing to compute, and that is fine."""
    network = Tape().into_network()
    run = network.forward(network.parameters())
    assert len(run.field()) == 0


def test_foreign_symbols() -> None:
    """Both node and payload refuse symbols of another recording."""
    network, (w, *_) = record()
    other, _ = record()
    for read in (other.node, other.payload):
        with pytest.raises(SymbolError, match="n#0 belongs to another recording"):
            read(w)
    assert network.node(w).name == "Parameter"


def test_a_network_is_not_copied() -> None:
    """One origin has one history."""
    network, _ = record()
    for way in (copy.copy, copy.deepcopy):
        with pytest.raises(SealedError, match="a Network cannot be copied: share it, it never changes"):
            way(network)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_pickling_keeps_the_spec(element: Any) -> None:
    """Text, payload bits (storage kind included), names and values are the same."""
    for seed in range(6):
        graph = drawn_graph(seed, element)
        network, loss, feeds = pickle.loads(pickle.dumps((graph.network, graph.loss, graph.feeds)))
        assert network.describe() == graph.network.describe()
        for mine, theirs in zip(network.nodes(), graph.network.nodes(), strict=True):
            a, b = network.payload(mine.symbol), graph.network.payload(theirs.symbol)
            assert (a is None) == (b is None)
            if a is not None:
                assert same_bits(a, b)
                assert a.is_selection == b.is_selection
            assert mine.source == theirs.source
        run = network.forward(network.parameters(), feeds)
        assert same_bits(run.of(loss), graph.run().of(graph.loss))
    named, _ = record()
    assert pickle.loads(pickle.dumps(named)).symbol("y").index == 3


def test_an_extension_that_fails_leaves_no_tape() -> None:
    """A network has one history: what `build` kept of the tape cannot go on beside it."""
    network, _ = Tape.record(lambda tape: tape.leaf(1.0))
    kept: list[Tape] = []

    def build(tape: Tape) -> None:
        kept.append(tape)
        tape.leaf(5.0)
        raise KeyError

    with pytest.raises(KeyError):
        network.extend(build)
    with pytest.raises(SealedError):
        kept[0].into_network()
    grown, symbol = network.extend(lambda tape: tape.leaf(9.0))
    assert grown.forward(grown.parameters()).of(symbol).scalar() == 9.0


def test_reopened_and_grown() -> None:
    """The grown network has the old nodes, names and slots first; a run from before reads as before."""
    network, (w, x, y) = record()
    text = network.describe().splitlines()[:-1]
    run = network.forward(network.parameters())
    alive = weakref.ref(network)
    tape = network.into_tape()
    del network
    assert alive() is None
    v = tape.parameter(3.0, name="v")
    z = (tape.resolve(y) * v).named("z").symbol
    grown = tape.into_network()
    assert grown.describe().splitlines()[: len(text)] == text
    assert len(grown.parameters()) == 2
    result = grown.forward(grown.parameters(), {x: [1.0, 1.0]})
    assert result.of(z).scalar() == 9
    assert result.backward(z).of(w).to_list() == [3, 3]
    assert run.of(y).scalar() == 11
    assert len(run.field()) == 4
    with pytest.raises(SymbolError, match="newer"):
        run.of(z)
