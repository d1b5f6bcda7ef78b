"""`Columns` and `Node`: rows of the spec, rolling back, forking, recording lines."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tests.drawn import drawn_graph
from topos import Linear, Shape, SymbolError, Tape, name_parameters
from topos.graph.columns import Columns


def test_a_node_is_a_snapshot() -> None:
    """Symbol, opcode, operands in order, shape and recording line; the text is its line of describe."""
    tape = Tape()
    x = tape.parameter(np.ones((2, 3)))
    y = x.sum_along(1) - 1.0
    node = tape.node(y)
    assert node.symbol == y.symbol
    assert node.name == node.opcode.name == "Sub"
    assert [o.index for o in node.operands] == [1, 3]
    assert node.shape == Shape([2])
    assert not node.is_source
    assert tape.node(x).is_source
    assert tape.node(x).operands == ()
    assert str(tape.node(x.tape.nodes()[1].symbol)) == "   1  SumAlong       0  axis=1          [2]"
    lines = tape.describe().splitlines()
    assert [str(n) for n in tape.nodes()] == lines[:-1]
    tape.into_network()
    assert node.shape == (2,)


def test_every_node_remembers_its_line() -> None:
    """Sources, operators, composites and literals: the line of this file that recorded them."""
    tape = Tape()
    first = _line() + 1
    x = tape.input([1.0])
    y = x * 2.0
    z = y.softplus()
    sources = [node.source for node in tape.nodes()]
    assert all(source.rpartition(":")[0].endswith("test_columns.py") for source in sources)
    lines = [int(source.rpartition(":")[2]) for source in sources]
    assert lines == [first] + [first + 1] * 3 + [first + 2] * (z.index - y.index)
    network, symbols = pickle.loads(pickle.dumps((tape.into_network(), [z.index])))
    assert [node.source for node in network.nodes()] == sources
    assert symbols == [z.index]


def _line() -> int:
    import sys

    return sys._getframe(1).f_lineno


def test_labels_name_kind_name_and_line() -> None:
    """What error messages call a node."""
    tape = Tape()
    x = tape.input([1.0], name="x")
    y = x.exp()
    assert tape.columns.label(0).startswith("n#0 Input (named 'x', recorded at ")
    assert tape.columns.label(y.index).startswith("n#1 Exp (recorded at ")


def state(columns: Columns) -> Any:
    """Return everything that a recording can change."""
    lists = (columns.opcodes, columns.operands, columns.shapes, columns.parameters, columns.inputs, columns.checks)
    return [list(c) for c in lists], dict(columns.names), list(columns.payloads), len(columns.locations)


@pytest.mark.parametrize("seed", range(6))
def test_rollback_is_exact_and_a_fork_grows_alone(seed: int) -> None:
    """A fork extended by many nodes and rolled back equals its origin, which never changed."""
    graph = drawn_graph(seed, "f64")
    columns = graph.network.columns
    before = state(columns)
    fork = columns.fork()
    tape = Tape.of_columns(fork)
    loss = tape.resolve(graph.loss)
    tape.input([1.0], name="extra")
    tape.parameter([2.0])
    tape.require_nonzero((loss * 2.0).relu().named("more"))
    assert len(fork) > len(columns)
    assert state(columns) == before
    assert fork.family is columns.family
    fork.rollback(columns.lengths())
    assert state(fork) == before


def test_a_failed_recording_keeps_what_older_values_had_and_no_more() -> None:
    """Checks and names that it gave to values recorded before it are gone, in whatever order they were made."""
    tape = Tape()
    x = tape.parameter(1.0)
    y = x * 2.0
    tape.require_nonzero(y)
    tape.require_nonzero(x)
    tape.name(y, "y")
    before = state(tape.columns)

    def fail() -> None:
        with tape.transaction():
            tape.require_nonzero(y + 1.0)
            tape.require_nonzero(x)
            tape.name(x, "x")
            tape.differentiate(y, x)
            tape.name(x, "y")

    with pytest.raises(SymbolError, match="is taken"):
        fail()
    assert state(tape.columns) == before
    assert tape.columns.checks == [y.index, x.index]
    assert tape.columns.names == {"y": y.index}
    assert tape.columns.adjoints == []


def test_parameters_are_named_all_or_none() -> None:
    """A name that is taken leaves the others of a tree ungiven."""
    tape = Tape()
    tape.parameter(1.0, name="bias")
    with pytest.raises(SymbolError):
        name_parameters(tape, Linear(tape, [[1.0]], [0.0]))
    assert tape.columns.names == {"bias": 0}


def test_an_index_outside() -> None:
    """A foreign symbol, or one that these columns do not have yet."""
    columns = Tape().columns
    with pytest.raises(SymbolError, match="what: n#0 belongs to another recording"):
        columns.index(Tape().leaf(1.0), "what")


def test_a_node_recorded_by_no_line() -> None:
    """Without a frame outside the package, the line is unknown."""
    tape = Tape()
    tape.leaf(1.0)
    tape.columns.locations[0] = None
    assert tape.nodes()[0].source == "unknown line"
    network = pickle.loads(pickle.dumps(tape.into_network()))
    assert network.nodes()[0].source == "unknown line"
