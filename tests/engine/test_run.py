"""Forward and backward against a hand walk over `Opcode.express` and `Opcode.vjp`, and what a run refuses."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import KINDS, Drawn, drawn_graph, graphs
from tests.helpers import ELEMENTS, bits, same_bits, whole
from topos import (
    F32,
    F64,
    DataError,
    FeedError,
    MapOperation,
    Network,
    ParametersError,
    Run,
    ShapeError,
    Symbol,
    SymbolError,
    Tape,
    Tensor,
    Trace,
    cross_entropy,
    set_num_threads,
)
from topos.engine.run import CACHED
from topos.kernels.runtime import num_threads


def hand_walk(network: Network, parameters: Any, feeds: Any) -> list[Tensor]:
    """Return the value of every node, computed one opcode at a time over tensors."""
    values: list[Tensor] = []
    for node in network.nodes():
        if node.name == "Parameter":
            values.append(parameters.of(node.symbol))
        elif node.is_source:
            values.append(feeds.get(node.symbol, network.payload(node.symbol)))
        else:
            values.append(node.opcode.express([values[operand.index] for operand in node.operands]))
    return values


def hand_scan(network: Network, values: list[Tensor], target: Symbol) -> list[Tensor]:
    """Return the cotangent of every node by the rules over tensors: first contributions as they are."""
    spoken: dict[int, Tensor] = {target.index: values[target.index].one_like()}
    for node in reversed(network.nodes()):
        g = spoken.get(node.symbol.index)
        if g is None or node.is_source:
            continue
        operands = [values[operand.index] for operand in node.operands]
        for operand, given_ in zip(node.operands, node.opcode.vjp(operands, values[node.symbol.index], g), strict=True):
            if given_ is not None:
                at = operand.index
                spoken[at] = spoken[at] + given_ if at in spoken else given_
    return [spoken.get(i, value.zero_like()) for i, value in enumerate(values)]


def assert_same(drawn: Drawn, found: list[Tensor], expected: list[Tensor], what: str) -> None:
    """Compare node by node; the message names the first node that differs."""
    for node, a, b in zip(drawn.network.nodes(), found, expected, strict=True):
        if drawn.element.kernel is None:
            assert a.to_list() == b.to_list(), f"{what} of {node} in {drawn}"
        else:
            assert same_bits(a, b), f"{what} of {node} in {drawn}: {a!r} against {b!r}"


def digest(run: Run, loss: Symbol) -> list[bytes]:
    """Return the bits of all values and all cotangents."""
    return [bits(t).tobytes() for t in (*run.field().payloads(), *run.backward(loss).payloads())]


# ---- the oracle of the oracle
def test_the_drawn_graphs_cover_the_closed_set() -> None:
    """A few dozen seeds record all 30 kinds and all ten maps."""
    kinds: set[str] = set()
    names: set[str] = set()
    for seed in range(40):
        drawn = drawn_graph(seed)
        kinds |= drawn.kinds
        names |= {node.name for node in drawn.network.nodes()}
        assert drawn.network.node(drawn.loss).shape == ()
        assert max(node.shape.rank for node in drawn.network.nodes()) <= 6
    assert kinds == {*KINDS, "Leaf", "Parameter", "Input"}
    assert len(kinds) == 30
    assert {operation.title for operation in MapOperation} <= names


def test_a_drawn_graph_is_repeatable_and_shrinks_by_steps() -> None:
    """One seed gives one graph; fewer steps give a prefix."""
    first, again, shorter = drawn_graph(7), drawn_graph(7), drawn_graph(7, steps=5)
    assert first.network.describe() == again.network.describe()
    assert [bits(t).tobytes() for t in first.feeds.values()] == [bits(t).tobytes() for t in again.feeds.values()]
    lines = shorter.network.describe().splitlines()
    sums = next(i for i, line in enumerate(lines) if " Sum  " in line)
    assert first.network.describe().splitlines()[:sums] == lines[:sums]


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(graphs())
def test_forward_and_backward_are_the_hand_walk(drawn: Drawn) -> None:
    """Every value and every cotangent has the bits of `express` and `vjp` over tensors."""
    run = drawn.run()
    values = hand_walk(drawn.network, drawn.network.parameters(), drawn.feeds)
    assert_same(drawn, run.field().payloads(), values, "value")
    cotangents = run.backward(drawn.loss).payloads()
    assert_same(drawn, cotangents, hand_scan(drawn.network, values, drawn.loss), "cotangent")


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(graphs([Fraction]))
def test_rational_graphs_are_the_hand_walk(drawn: Drawn) -> None:
    """The same over exact fractions, where equality is equality of numbers."""
    run = drawn.run()
    values = hand_walk(drawn.network, drawn.network.parameters(), drawn.feeds)
    assert_same(drawn, run.field().payloads(), values, "value")
    assert all(isinstance(x, Fraction) for value in values for x in value)
    cotangents = run.backward(drawn.loss).payloads()
    assert_same(drawn, cotangents, hand_scan(drawn.network, values, drawn.loss), "cotangent")


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_f64_of_whole_numbers_is_close_to_the_fractions(seed: int) -> None:
    """The rational kinds in f64 agree with exact arithmetic, in values and in gradients."""
    exact = drawn_graph(seed, Fraction, steps=8)
    tape = Tape(F64)
    values: list[Any] = []
    for node in exact.network.nodes():
        payload = exact.network.payload(node.symbol)
        if payload is not None:
            numbers = np.array([float(x) for x in payload], float).reshape(tuple(payload.shape))
            kind = node.name.lower()
            values.append(getattr(tape, kind)(numbers))
        else:
            values.append(node.opcode.express([values[o.index] for o in node.operands]))
    loss = values[exact.loss.index].symbol
    network = tape.into_network()
    feeds = {
        Symbol(loss.family, symbol.index): np.array([float(x) for x in tensor]).reshape(tuple(tensor.shape))
        for symbol, tensor in exact.feeds.items()
    }
    run, oracle = network.forward(network.parameters(), feeds), exact.run()
    for found, true in ((run.field(), oracle.field()), (run.backward(loss), oracle.backward(exact.loss))):
        for a, b in zip(found.payloads(), true.payloads(), strict=True):
            expected = [float(x) for x in b]
            scale = 1 + max(map(abs, expected))
            np.testing.assert_allclose(a.to_list(), expected, rtol=1e-9, atol=1e-9 * scale)


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(graphs([F32]))
def test_expressing_over_traces_records_the_same_spec(drawn: Drawn) -> None:
    """A walk of the nodes over `Trace` gives an identical `describe`."""
    network = drawn.network
    tape = Tape(drawn.element)
    traces: list[Trace] = []
    for node in network.nodes():
        payload = network.payload(node.symbol)
        if payload is not None:
            traces.append(Trace.of(getattr(tape, node.name.lower())(payload)))
        else:
            traces.append(node.opcode.express([traces[o.index] for o in node.operands]))
    assert [trace.value.index for trace in traces] == list(range(len(network)))
    assert tape.into_network().describe() == network.describe()


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_runs_repeat_their_bits(element: Any) -> None:
    """Two runs, two reverse scans, another thread count, and a pickled network give the same bits."""
    for seed in range(5):
        drawn = drawn_graph(seed, element)
        run = drawn.run()
        expected = digest(run, drawn.loss)
        assert digest(run, drawn.loss) == expected
        assert digest(drawn.run(), drawn.loss) == expected
        threads = num_threads()
        try:
            set_num_threads(1)
            assert digest(drawn.run(), drawn.loss) == expected
        finally:
            set_num_threads(threads)
        network, loss, feeds = pickle.loads(pickle.dumps((drawn.network, drawn.loss, drawn.feeds)))
        assert digest(network.forward(network.parameters(), feeds), loss) == expected


# ---- feeds
def line() -> tuple[Network, Any]:
    """Record loss = sum((w * x + b) ** 2) over three numbers."""

    def build(tape: Tape) -> Any:
        w, b = tape.parameter(2.0, name="w"), tape.parameter(1.0, name="b")
        x = tape.input([1.0, 2.0, 3.0], name="x")
        y = w.broadcast([3]) * x + b.broadcast([3])
        return {"w": w, "b": b, "x": x, "y": y, "loss": (y * y).sum()}

    return Tape.record(build, element=F64)


def test_feeds_by_mapping_pairs_and_default() -> None:
    """A mapping, pairs, an iterator; the last feed of an input counts; an input that is not fed has its default."""
    network, s = line()
    parameters = network.parameters()
    assert network.forward(parameters).of(s["y"]).to_list() == [3, 5, 7]
    assert network.forward(parameters, {}).of(s["y"]).to_list() == [3, 5, 7]
    ones, zeros = np.ones(3), [0.0, 0.0, 0.0]
    assert network.forward(parameters, {s["x"]: ones}).of(s["y"]).to_list() == [3, 3, 3]
    assert network.forward(parameters, [(s["x"], ones)]).of(s["y"]).to_list() == [3, 3, 3]
    assert network.forward(parameters, iter([(s["x"], zeros)])).of(s["y"]).to_list() == [1, 1, 1]
    last = network.forward(parameters, [(s["x"], ones), (s["x"], Tensor(zeros, element=F64))])
    assert last.of(s["y"]).to_list() == [1, 1, 1]
    assert last.of(s["x"]).to_list() == zeros


def test_a_feed_is_a_copy() -> None:
    """A later change of the caller's array changes neither the values nor a later backward."""
    network, s = line()
    given_ = np.array([1.0, -1.0, 2.0])
    run = network.forward(network.parameters(), {s["x"]: given_})
    given_[:] = 99.0
    assert run.of(s["x"]).to_list() == [1, -1, 2]
    assert run.backward(s["loss"]).of(s["w"]).scalar() == 2 * (3 * 1 + -1 * -1 + 5 * 2)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (lambda s: {s["x"]: np.ones(4)}, r"n#2 Input .*shape \[3\], the feed \[4\]"),
        (lambda s: {s["x"]: Tensor([1.0, 2.0, 3.0], element=F32)}, "holds f64, the feed f32: convert it"),
        (lambda s: {s["w"]: 1.0}, "n#0 Parameter .*is no input"),
        (lambda s: {s["y"]: np.ones(3)}, "is no input"),
        (lambda s: {s["x"]: ["a", "b", "c"]}, "cannot take this feed"),
        (lambda s: {s["x"]: [[1.0], [1.0, 2.0]]}, "cannot take this feed"),
        (lambda s: {"x": np.ones(3)}, "'x' is no symbol"),
        (lambda s: {line()[1]["x"]: np.ones(3)}, "belongs to another recording"),
        (lambda s: {Symbol(s["x"].family, 99): np.ones(3)}, "is newer than this recording of"),
    ],
    ids=["shape", "element", "parameter", "computed", "text", "ragged", "name", "foreign", "newer"],
)
def test_a_wrong_feed_is_refused(feed: Any, message: str) -> None:
    """A feed of another shape or element, of no input or of another recording raises `FeedError`."""
    network, s = line()
    with pytest.raises(FeedError, match=message) as caught:
        network.forward(network.parameters(), feed(s))
    assert isinstance(caught.value, ValueError)


def test_wrong_parameters_are_refused() -> None:
    """A table of another recording, of fewer slots, or none at all raises `ParametersError`."""
    network, s = line()
    with pytest.raises(ParametersError, match=r"another recording: start from network\.parameters"):
        network.forward(line()[0].parameters())
    with pytest.raises(ParametersError, match="a Parameters table is needed, not dict"):
        network.forward({})
    old = network.parameters()
    tape = network.into_tape()
    extra = (tape.parameter(4.0) * 2.0).symbol
    grown = tape.into_network()
    with pytest.raises(ParametersError, match=r"3 parameter slots are needed, the table has 2: .*carried\(network\)"):
        grown.forward(old)
    carried = grown.forward(old.carried(grown))
    assert carried.of(extra).scalar() == 8
    assert carried.of(s["y"]).to_list() == [3, 5, 7]


# ---- readers of a run
def test_a_run_reads_only_its_own_symbols() -> None:
    """A foreign or newer symbol, and what is no symbol, raise `SymbolError`, in of and in backward."""
    network, s = line()
    run = network.forward(network.parameters())
    foreign = line()[1]["loss"]
    tape = network.into_tape()
    newer = tape.resolve(s["loss"]).exp().symbol
    for read in (run.of, run.backward):
        with pytest.raises(SymbolError, match="another recording"):
            read(foreign)
        with pytest.raises(SymbolError, match="newer than this recording of 9 nodes"):
            read(newer)
        with pytest.raises(SymbolError, match="is no symbol"):
            read("loss")
    with pytest.raises(ShapeError, match=r"backward of n#6 Add .*shape \[3\]: the target has rank 0; reduce"):
        run.backward(s["y"])


def test_a_run_outlives_its_network() -> None:
    """Values and new reverse scans of a run stay available after the network was reopened."""
    network, s = line()
    run = network.forward(network.parameters())
    before = digest(run, s["loss"])
    network.into_tape()
    assert digest(run, s["loss"]) == before
    assert repr(run) == "Run(9 values)"


def test_backward_of_intermediates_and_of_nodes_after_the_target() -> None:
    """Any rank-0 value is a target; what does not lead to it, or comes later, has cotangent 0."""

    def build(tape: Tape) -> Any:
        w = tape.parameter(3.0)
        square = w * w
        other = tape.parameter([1.0, 2.0])
        late = square * other.sum()
        return w, square, other, late

    network, (w, square, other, late) = Tape.record(build)
    run = network.forward(network.parameters())
    early = run.backward(square)
    assert (early.of(w).scalar(), early.of(square).scalar(), early.of(late).scalar()) == (6, 1, 0)
    assert early.of(other).to_list() == [0, 0]
    assert run.backward(late).of(w).scalar() == 18
    assert run.backward(w).of(w).scalar() == 1
    assert run.backward(w).of(square).scalar() == 0


def test_fields_of_a_run() -> None:
    """`field` and `backward` are tables over all nodes; the gradients of the parameters project to slots."""
    network, s = line()
    parameters = network.parameters()
    run = network.forward(parameters)
    values, gradients = run.field(), run.backward(s["loss"])
    assert len(values) == len(gradients) == len(network)
    assert all(same_bits(values.of(symbol), run.of(symbol)) for symbol in s.values())
    table = gradients.parameters(parameters)
    assert table.of(s["w"]).scalar() == gradients.of(s["w"]).scalar() == 68
    assert table.of(s["b"]).scalar() == 30


# ---- data errors
def test_a_feed_that_is_not_one_hot_is_a_data_error() -> None:
    """The error comes after the run and names the recording line; parameters stay, and the next run works."""

    def build(tape: Tape) -> Any:
        table = tape.parameter([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        ids = tape.input(Tensor.selection([0, 2], 3), name="ids")
        computed = tape.input([[0.0, 0.0, 1.0]])
        return table, ids, computed, table.gather(ids), table.gather(computed * 1.0).sum()

    network, (table, ids, computed, rows, loss) = Tape.record(build)
    parameters = network.parameters()
    before = bits(parameters.of(table)).tobytes()
    bad = [[0.0, 1.0, 0.0], [0.0, 0.5, 0.0]]
    with pytest.raises(DataError, match=r"named 'ids', recorded at .*test_run\.py:\d+\).*not one-hot") as caught:
        network.forward(parameters, {ids: bad})
    assert isinstance(caught.value, ValueError)
    for row in ([[0.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]], [[2.0, 0.0, 0.0]], [[np.nan, 0.0, 1.0]], [[-1.0, 0.0, 0.0]]):
        with pytest.raises(DataError, match=r"Gather .*test_run\.py:\d+\).*row 0 .*not one-hot"):
            network.forward(parameters, {computed: row})
    assert bits(parameters.of(table)).tobytes() == before
    good = network.forward(parameters, {ids: [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]})
    assert good.of(rows).to_list() == [3, 4, 3, 4]
    assert good.backward(loss).of(table).to_list() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_a_cross_entropy_without_mass_is_a_data_error(element: Any) -> None:
    """Targets that sum to 0 raise `DataError` after the run, with the line; a later run works."""
    if element is Fraction:

        def build(tape: Tape) -> Any:
            targets = tape.input([[1, 0]])
            mass = targets.sum()
            tape.require_nonzero(mass)
            return targets, mass
    else:

        def build(tape: Tape) -> Any:
            targets = tape.input([[1.0, 0.0]])
            return targets, cross_entropy(tape.parameter([[0.5, 1.5]]), targets)

    network, (targets, loss) = Tape.record(build, element=element)
    parameters = network.parameters()
    before = parameters.payloads()
    with pytest.raises(DataError, match=r"n#\d+ Sum \(recorded at .*test_run\.py:\d+\) is 0: .*total mass"):
        network.forward(parameters, {targets: [[0, 0]]})
    assert parameters.payloads() == before
    assert float(network.forward(parameters, {targets: [[0, 2]]}).of(loss).scalar()) > 0


# ---- training
def mlp() -> tuple[Network, Any]:
    """Record a small network with a hidden layer."""

    def build(tape: Tape) -> Any:
        x = tape.input(whole((5, 3), F32, 1))
        y = tape.input(Tensor.selection([0, 1, 1, 0, 1], 2))
        generator = np.random.default_rng(3)
        w1, w2 = (tape.parameter(generator.normal(size=s)) for s in ((3, 4), (4, 2)))
        b = tape.parameter(np.zeros(4))
        hidden = (x @ w1 + b.broadcast_along(0, 5)).tanh()
        return x, y, cross_entropy(hidden @ w2, y)

    return Tape.record(build)


def train(network: Network, parameters: Any, loss: Symbol, feeds: Any = None, steps: int = 12) -> Any:
    """Descend for some steps and return the losses and the parameters."""
    losses = []
    for _ in range(steps):
        run = network.forward(parameters, feeds)
        losses.append(run.of(loss).scalar())
        gradients = run.backward(loss).parameters(parameters)
        parameters = parameters.step(gradients, lambda p, g: p - g * 0.1)
    return losses, parameters


def test_twelve_training_steps_reproduce() -> None:
    """Two trainings have one trajectory; the loss falls; the graph never grows."""
    network, (_, _, loss) = mlp()
    count, text = len(network), network.describe()
    first, learned = train(network, network.parameters(), loss)
    again, twice = train(network, network.parameters(), loss)
    fresh, (_, _, its_loss) = mlp()
    assert first == again == train(fresh, fresh.parameters(), its_loss)[0]
    assert first[-1] < first[0]
    assert [bits(t).tobytes() for t in learned.payloads()] == [bits(t).tobytes() for t in twice.payloads()]
    assert len(network) == count
    assert network.describe() == text


def test_a_run_changes_no_parameters() -> None:
    """The table that a run was given is the one it leaves, and its memory is read-only."""
    network, (_, _, loss) = mlp()
    parameters = network.parameters()
    before = parameters.buffer.tobytes()
    run = network.forward(parameters)
    run.backward(loss)
    assert parameters.buffer.tobytes() == before
    symbol = parameters.symbols()[0]
    with pytest.raises(ValueError, match="read-only"):
        run.of(symbol).numpy()[0, 0] = 1.0


def test_eight_threads_share_a_network() -> None:
    """Eight threads with their own parameters and feeds get the bits of serial runs."""
    network, (x, _, loss) = mlp()
    tables = [network.parameters().scale(1 + i / 8) for i in range(8)]
    feeds = [{x: whole((5, 3), F32, i)} for i in range(8)]
    serial = [train(network, table, loss, feed) for table, feed in zip(tables, feeds, strict=True)]
    fresh = pickle.loads(pickle.dumps((network, tables, [list(f.items()) for f in feeds], loss)))
    shared, tables, fed, loss = fresh
    found: list[Any] = [None] * 8
    gate = threading.Barrier(8)

    def work(i: int) -> None:
        gate.wait()
        found[i] = train(shared, tables[i], loss, fed[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (losses, table), result in zip(serial, found, strict=True):
        assert result is not None
        assert result[0] == losses
        assert result[1].buffer.tobytes() == table.buffer.tobytes()


def test_a_run_is_freed_without_the_collector() -> None:
    """Runs and fields hold no cycles: the last reference frees them."""
    network, (_, _, loss) = mlp()
    gc.disable()
    try:
        run = network.forward(network.parameters())
        gone = weakref.ref(run)
        gradients = run.backward(loss)
        del run
        assert gone() is None
        assert gradients.of(loss).scalar() == 1
    finally:
        gc.enable()


def test_a_network_keeps_few_programs_of_its_interpreter() -> None:
    """Hundreds of entries are interpreted: the latest programs stay, and that of the network itself."""
    network, values = Tape.record(lambda t: [t.parameter(float(i)) * 2.0 for i in range(80)])
    parameters = network.parameters()
    network.forward(parameters)
    whole = network.cache[None]
    for i, value in enumerate(values):
        assert network.entry(value).interpret(parameters).of(value).scalar() == 2 * i
    assert len(network.cache) <= CACHED
    assert network.cache[None] is whole
