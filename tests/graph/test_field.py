"""`Field`: a table aligned to the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from topos import Field, Gradients, Network, ParametersError, ShapeError, SymbolError, Tape


def record() -> tuple[Network, Any]:
    """Record y = sum(w * x)."""

    def build(tape: Tape) -> Any:
        w, x = tape.parameter([1.0, 2.0]), tape.input([3.0, 4.0])
        return w, x, (w * x).sum()

    return Tape.record(build)


def test_gradients_is_field() -> None:
    """Two names of one class."""
    assert Gradients is Field


def test_readers_and_algebra() -> None:
    """of, payloads, map, zip, scale, +; each gives a new field."""
    network, (w, x, y) = record()
    run = network.forward(network.parameters())
    by = run.backward(y)
    assert isinstance(by, Field)
    assert (len(by), repr(by)) == (4, "Field(4 nodes, f32)")
    assert by.of(w).to_list() == [3, 4]
    assert [t.to_list() for t in by.payloads()] == [[3, 4], [1, 2], [1, 1], [1]]
    assert by.scale(2.0).of(w).to_list() == [6, 8]
    assert (by + by.map(lambda t: -t)).of(w).to_list() == [0, 0]
    assert by.zip(run.field(), lambda a, b: a - b).of(x).to_list() == [-2, -2]
    assert by.of(w).to_list() == [3, 4]
    assert by.of(w) is by.of(w)
    with pytest.raises(ShapeError, match=r"scale: a single value is needed, not shape \[2\]"):
        by.scale([1.0, 2.0])


def test_foreign_and_newer_symbols() -> None:
    """A field knows the nodes that it was made of."""
    network, (_, _, y) = record()
    by = network.forward(network.parameters()).backward(y)
    tape = network.into_tape()
    newer = tape.parameter(1.0).symbol
    with pytest.raises(SymbolError, match=r"Field.of: n#4 is newer than this field of 4 nodes"):
        by.of(newer)
    with pytest.raises(SymbolError, match=r"Field.of: n#0 belongs to another recording"):
        by.of(record()[1][0])
    with pytest.raises(SymbolError, match="is no symbol"):
        by.of(0)


def test_fields_of_different_recordings_or_lengths() -> None:
    """Both zip and + refuse them."""
    network, (_, _, y) = record()
    by = network.forward(network.parameters()).backward(y)
    other_network, (_, _, z) = record()
    other = other_network.forward(other_network.parameters()).backward(z)
    tape = network.into_tape()
    tape.leaf(1.0)
    grown = tape.into_network()
    longer = grown.forward(grown.parameters()).backward(y)
    for second in (other, longer):
        with pytest.raises(SymbolError, match=r"zip: fields of 4 and \d nodes of one recording are needed"):
            by + second
        with pytest.raises(SymbolError, match="zip: fields of"):
            by.zip(second, lambda a, b: a)


def test_projection_onto_parameters() -> None:
    """The entries of the slots; foreign tables and tables with newer slots are refused."""
    network, (w, _, y) = record()
    table = network.parameters()
    by = network.forward(table).backward(y)
    assert by.parameters(table).of(w).to_list() == [3, 4]
    with pytest.raises(ParametersError, match=r"Field.parameters: the table belongs to another recording"):
        by.parameters(record()[0].parameters())
    tape = network.into_tape()
    tape.parameter(1.0)
    grown = tape.into_network()
    with pytest.raises(ParametersError, match=r"parameter n#4 is newer than this field of 4 nodes"):
        by.parameters(grown.parameters())
