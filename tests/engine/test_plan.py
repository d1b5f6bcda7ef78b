"""Plans: what is not declared is not computed, kept or readable; what is has the interpreter's bits."""

from __future__ import annotations

import pickle
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import Drawn, graphs
from tests.helpers import ELEMENTS, bits, drawn, same_bits, strided
from topos import (
    DataError,
    Entry,
    FeedError,
    Network,
    Numerics,
    ParametersError,
    Plan,
    Symbol,
    SymbolError,
    Tape,
    Tensor,
    UnreadableError,
)
from topos.engine.arena import LeanEmitter
from topos.engine.catalog.units import Units
from topos.engine.plan import emit_schedule
from topos.engine.program import Lowered
from topos.engine.run import Run, finished
from topos.engine.schedule import Schedule
from topos.kernels.matmul import product


def line() -> tuple[Network, dict[str, Symbol]]:
    """Record a line fit with a value beside it."""

    def build(tape: Tape) -> Any:
        x, y = tape.input([1.0, 2.0, 3.0], name="x"), tape.input([2.0, 4.0, 7.0])
        w, b = tape.parameter(0.5, name="w"), tape.parameter(0.0)
        unused = tape.parameter([1.0, 1.0])
        residual = x * w.broadcast([3]) + b.broadcast([3]) - y
        stray = residual.exp()
        loss = (residual * residual).sum().named("loss")
        return {
            "x": x, "y": y, "w": w, "b": b, "unused": unused, "residual": residual, "stray": stray, "loss": loss,
        }  # fmt: skip

    return Tape.record(build)


# ---- what is computed, and what is readable
def test_a_plan_skips_what_its_results_do_not_need() -> None:
    """Ancestors alone are scheduled; the spec stays whole."""
    network, s = line()
    plan = network.entry(s["loss"]).lower()
    scheduled = {node.symbol for node in plan.nodes()}
    assert s["stray"] not in scheduled
    assert s["unused"] not in scheduled
    assert len(plan) == len(scheduled) == len(network) - 2
    assert plan.node(s["stray"]).name == "Exp"
    assert not plan.is_empty
    assert plan
    assert repr(plan) == f"Plan({len(plan)} of {len(network)} nodes, 1 results)"
    assert (plan.can_backward, plan.numerics, plan.results) == (False, Numerics.EXACT, (s["loss"],))


def test_an_interior_is_unreadable_until_it_is_observed() -> None:
    """The refusal names the node and the remedy; `observe` makes the value readable with the same bits."""
    network, s = line()
    parameters = network.parameters()
    whole = network.forward(parameters)
    bare = network.entry(s["loss"]).lower().forward(parameters)
    assert same_bits(bare.of(s["loss"]), whole.of(s["loss"]))
    for name in ("residual", "x", "w", "stray"):
        with pytest.raises(UnreadableError, match=r"n#\d+ .* is not readable.*entry\.observe\(\[") as caught:
            bare.of(s[name])
        assert isinstance(caught.value, LookupError)
    names = ["residual", "x", "w", "stray"]
    run = network.entry(s["loss"]).observe([s[n] for n in names]).lower().forward(parameters)
    assert all(same_bits(run.of(s[n]), whole.of(s[n])) for n in names)
    with pytest.raises(SymbolError, match="belongs to another recording"):
        run.of(Tape().leaf(1.0))
    with pytest.raises(UnreadableError):
        run.of(s["y"])


def test_results_are_in_declared_order_without_duplicates() -> None:
    """Roots, then observed values, the first mention counts."""
    network, s = line()
    plan = network.entry([s["loss"], s["w"], s["loss"]], observe=[s["residual"], s["w"]]).lower()
    assert plan.results == (s["loss"], s["w"], s["residual"])


def test_postures() -> None:
    """A forward plan refuses a reverse scan; a backward plan answers with the interpreter's bits."""
    network, s = line()
    parameters = network.parameters()
    oracle = network.forward(parameters).backward(s["loss"])
    run = network.entry(s["loss"]).lower().forward(parameters)
    with pytest.raises(UnreadableError, match=r"this plan is forward-only; lower entry\(\.\.\.\)\.backward\(\)"):
        run.backward(s["loss"])
    plan = network.entry(s["loss"]).backward().lower()
    assert plan.can_backward
    run = plan.forward(parameters)
    field = run.backward(s["loss"])
    assert all(same_bits(field.of(symbol), oracle.of(symbol)) for symbol in s.values())
    assert field.parameters(parameters) == oracle.parameters(parameters)
    with pytest.raises(UnreadableError, match="is not readable"):
        run.backward(s["w"])
    with pytest.raises(UnreadableError, match="is not readable"):
        run.of(s["residual"])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_backward_plan_keeps_a_selection(element: Any) -> None:
    """Gather and scatter read their selection again in the reverse scan."""

    def build(tape: Tape) -> Any:
        table, ids = (tape.parameter(drawn((4, 3), element)), tape.input(Tensor.selection([0, 1], 4, element=element)))
        rows = table.gather(ids * 1.0)
        return table, ids, (rows.exp().scatter(ids) * 2.0).sum()

    network, (table, ids, loss) = Tape.record(build, element=element)
    parameters, feeds = network.parameters(), {ids: Tensor.selection([3, 3], 4, element=element)}
    oracle = network.forward(parameters, feeds).backward(loss)
    run = Plan(network, Entry(loss, backward=True), poison=True).forward(parameters, feeds)
    assert same_bits(run.backward(loss).of(table), oracle.of(table))


def test_a_selection_feed_is_not_written_out() -> None:
    """A plan that needs the indices of an input asks for those alone."""

    def build(tape: Tape) -> Any:
        table, ids = tape.parameter([[1.0], [2.0]]), tape.input(Tensor.selection([0], 2))
        return table.gather(ids).sum()

    network, loss = Tape.record(build)
    assert network.entry(loss).lower().lowered.program.sources == [(1, "indices")]


# ---- memory
def soup(tape: Tape, x: Any) -> Any:
    """Return values that tempt a lean program to overwrite what is still needed."""
    y = x * 2.0
    turned = (y + y.T).T - y
    late = turned.exp()
    window = y.narrow(0, 1, 2)
    spread = y.sum_along(0).broadcast_along(0, 3)
    scaled = spread * spread
    mixed = (scaled - y) * late
    part = mixed.narrow(1, 0, 2).T + window.narrow(1, 1, 2).narrow(0, 0, 2).T.unsqueeze(0).broadcast_to(
        [1, 2, 2]
    ).squeeze(0).pad(1, 0, 3)
    chain = part.exp().log1p()
    squares = chain @ chain.T
    return turned, scaled, mixed, (squares + squares.T + squares).sum() + late.sum() + mixed.maximum(y).sum()


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_in_place_writes_never_corrupt(element: Any) -> None:
    """Case 20: transposed, narrowed, stride-0 and overlapping operands, freed memory full of NaN."""
    for _, payload in strided((3, 3), element, 5):

        def build(tape: Tape, payload: Any = payload) -> Any:
            x = tape.input(payload)
            return soup(tape, x)

        network, symbols = Tape.record(build, element=element)
        run = network.forward(network.parameters())
        for wanted in (symbols[-1:], symbols, symbols[:2]):
            for backward in (False, True):
                plan = Plan(network, Entry(wanted, backward=backward), poison=True)
                found = plan.forward(network.parameters())
                assert all(same_bits(found.of(symbol), run.of(symbol)) for symbol in wanted)


@settings(max_examples=100, derandomize=True)
@given(drawn=graphs(), data=st.data())
def test_drawn_graphs(drawn: Drawn, data: st.DataObject) -> None:
    """Any results of any graph, in either posture: the interpreter's bits though freed memory is NaN."""
    results = data.draw(st.lists(st.sampled_from(drawn.symbols), min_size=1, max_size=4))
    entry = Entry([*results, drawn.loss], backward=data.draw(st.booleans()))
    oracle = drawn.run()
    run = Plan(drawn.network, entry, poison=True).forward(drawn.network.parameters(), drawn.feeds)
    assert all(same_bits(run.of(symbol), oracle.of(symbol)) for symbol in entry.results)
    if entry.backward:
        gradients, expected = run.backward(drawn.loss), oracle.backward(drawn.loss)
        assert all(same_bits(gradients.of(s), expected.of(s)) for s in drawn.symbols)


@settings(max_examples=150, derandomize=True)
@given(drawn=graphs())
def test_rules_read_what_they_say(drawn: Drawn) -> None:
    """Were what no rule reads given back in backward posture, the reverse scan would have the same bits."""
    columns, slots, loss = drawn.network.columns, drawn.network.slots, drawn.loss.index
    emitter = LeanEmitter(release=True, poison=True)
    operands = emit_schedule(emitter, slots, Units(columns, Schedule(columns, [loss], backward=True)))
    lowered = Lowered(columns, slots, operands, emitter.finish())
    parameters = drawn.network.parameters()
    cotangent = finished(lowered, lowered.start(drawn.feeds), parameters)._source.cotangents(loss)
    expected = drawn.run().backward(drawn.loss)
    for symbol in drawn.symbols:
        found = cotangent(symbol.index)
        if found is not None:
            assert same_bits(found, expected.of(symbol))


def block(x: Any, tape: Tape) -> Any:
    """Return an attention-like block over ``[64, 128]``."""
    w = [tape.parameter(np.random.default_rng(i).normal(size=(128, 128)) / 16) for i in range(4)]
    q, k, v = (x @ weight for weight in w[:3])
    scores = (q @ k.T).log_softmax(1).exp()
    x = x + scores @ v
    wide = tape.parameter(np.random.default_rng(9).normal(size=(128, 512)) / 16)
    back = tape.parameter(np.random.default_rng(8).normal(size=(512, 128)) / 32)
    return x + (x @ wide).tanh() @ back


def test_the_arena_of_a_stack_of_blocks() -> None:
    """Twelve blocks: the arena is within 1.1 of the live peak, a third or less of retaining all."""

    def build(tape: Tape) -> Any:
        x = tape.input(np.random.default_rng(0).normal(size=(64, 128)))
        for _ in range(12):
            x = block(x, tape)
        return (x * x).sum()

    network, loss = Tape.record(build)
    plan = network.entry(loss).lower()
    computed = [node.symbol.index for node in plan.nodes() if not node.is_source]
    shapes, alive, peak = network.columns.shapes, 0, 0
    releases = Units(network.columns, plan.schedule, formulas=()).releases
    for node in computed:  # the live series without sources, which lie elsewhere
        alive += shapes[node].volume
        peak = max(peak, alive)
        alive -= sum(shapes[n].volume for n in releases.get(node, ()) if n in set(computed))
    everything = sum(shapes[node].volume for node in computed)
    # What a product packs its operands into is no value: it is counted apart.
    program = plan.lowered.program
    scratch = max(
        int(program.code[start + product.SCRATCH_STEP] * program.code[start + product.WORKERS])
        for start, kernel in zip(program.starts, program.row_kernels, strict=True)
        if kernel.startswith("matmul")
    )
    assert plan.arena_bytes <= 1.1 * 4 * peak + scratch
    assert 3 * plan.arena_bytes <= 4 * everything
    assert same_bits(plan.forward(network.parameters()).of(loss), network.forward(network.parameters()).of(loss))


def test_results_never_alias_feeds_or_parameters() -> None:
    """Views of inputs and parameters are copies: later changes of fed arrays, and later runs, change nothing."""

    def build(tape: Tape) -> Any:
        x, w = tape.input(np.zeros((2, 3))), tape.parameter([[1.0, 2.0], [3.0, 4.0]])
        views = [x.T, x.narrow(1, 1, 2), x.reshape([6]), w.T, w[0], w.sum().broadcast([2]), x[1], x, w]
        constant = tape.leaf([1.0, 2.0]).reshape([2, 1])
        return x, w, [*views, constant]

    network, (x, w, results) = Tape.record(build)
    plan = network.entry(results).lower()
    parameters = network.parameters()
    fed = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    run = plan.forward(parameters, {x: fed})
    kept = [run.of(symbol) for symbol in results]
    before = [bits(tensor).tobytes() for tensor in kept]
    expected = network.forward(parameters, {x: fed.copy()})
    assert before == [bits(expected.of(symbol)).tobytes() for symbol in results]
    fed[:] = 99
    for i in range(5):
        plan.forward(parameters.scale(i), {x: np.full((2, 3), i)})
    assert [bits(tensor).tobytes() for tensor in kept] == before
    for symbol, tensor in zip(results, kept, strict=True):
        if symbol not in (w, results[-1]):
            assert not np.shares_memory(tensor.numpy(), parameters.buffer)
        with pytest.raises(ValueError, match="read-only"):
            tensor.numpy()[...] = 1.0


# ---- text
GOLDEN = """\
   0  Input                         [3]  x              freed after 5
   1  Parameter                     []  w               freed after 2
   2  Broadcast      1  shape=[3]       [3]             freed after 5
   3  Mul            0, 2              [3]             fused
   4  Exp            3                  [3]             fused
   5  Add            4, 0               [3]             freed after 6
   6  Sum            5                  []  loss        kept"""


def test_describe() -> None:
    """The schedule as text: every spec part occurs in the network's; the totals are those of the series."""

    def build(tape: Tape) -> Any:
        x, w = tape.input([1.0, 2.0, 3.0], name="x"), tape.parameter(2.0, name="w")
        y = (x * w.broadcast([3])).exp()
        loss = (y + x).sum().named("loss")
        return y, loss, y.cos()

    network, (y, loss, _) = Tape.record(build)
    plan = network.entry(loss).lower()
    *lines, summary, fused, live = plan.describe().splitlines()
    assert fused == "fused: 1 group in place of 3 nodes"
    assert [text.split() for text in lines] == [text.split() for text in GOLDEN.splitlines()]
    spec = network.describe()
    assert all(text[:52].rstrip() in spec and text[52:54] == "  " for text in lines)
    assert summary == "plan: forward, 7 of 8 nodes evaluated, 1 readable, exact"
    series = plan.live_series()
    node, peak = max(series, key=lambda point: point[1])
    assert live == f"live: peak {peak} elements at {node}, retain-all 11"
    assert (node, peak) == (5, 9)
    backward = network.entry(loss).observe(y).backward().numerics(Numerics.FAST).lower()
    *lines, summary, live = backward.describe().splitlines()
    ends = [text[54:] for text in lines]
    assert ends == [
        "retained", "releasable after 2", "retained", "releasable after 4", "kept", "releasable after 6", "kept"
    ]  # fmt: skip
    assert summary == "plan: retain, 7 of 8 nodes evaluated, 2 readable, fast"
    assert live.startswith("live: release floor ")
    assert live.endswith(" retain-all 17")
    assert backward.live_series()[-1] == (6, 17)


# ---- parameters and feeds
def test_parameters_and_feeds_are_checked() -> None:
    """Foreign or too few parameters and feeds that do not fit are refused; more slots are fine."""
    network, s = line()
    plan = network.entry(s["loss"]).lower()
    parameters = network.parameters()
    other, _ = line()
    expected = plan.forward(parameters).of(s["loss"]).scalar()
    with pytest.raises(ParametersError, match="another recording"):
        plan.forward(other.parameters())
    with pytest.raises(ParametersError, match="a Parameters table is needed, not list"):
        plan.forward([1.0])
    for feeds, message in (
        ({s["x"]: [1.0]}, r"has shape \[3\], the feed \[1\]"),
        ({s["w"]: 1.0}, "is no input"),
        ([(Tape().leaf(1.0), 1.0)], "another recording"),
        ({"x": 1.0}, "is no symbol"),
    ):
        with pytest.raises(FeedError, match=message):
            plan.forward(parameters, feeds)
    assert plan.forward(parameters, [(s["x"], [0.0] * 3), (s["x"], [1.0, 2.0, 3.0])]).of(s["loss"]) == Tensor(expected)
    tape = network.into_tape()
    more = tape.parameter(1.0)
    late = tape.input(0.0)
    newer = tape.resolve(s["loss"]) * more
    adopted = newer.symbol
    late = late.symbol
    grown = tape.into_network()
    carried = parameters.carried(grown)
    assert plan.forward(carried).of(s["loss"]).scalar() == expected
    assert plan.forward(parameters).of(s["loss"]).scalar() == expected
    with pytest.raises(SymbolError, match="newer than"):
        plan.forward(carried).of(adopted)
    with pytest.raises(FeedError, match="newer than"):
        plan.forward(carried, {late: 1.0})
    wider = grown.entry(adopted).lower()
    with pytest.raises(ParametersError, match=r"4 parameter slots are needed, the table has 3.*carried"):
        wider.forward(parameters)
    assert wider.forward(carried).of(adopted).scalar() == expected


def test_a_data_error_changes_nothing() -> None:
    """A row that is not one-hot is reported with its line, after the run; the next run is right."""

    def build(tape: Tape) -> Any:
        table, row = tape.parameter([[1.0], [2.0]]), tape.input([[1.0, 0.0]])
        return row, table.gather(row * 1.0).sum()

    network, (row, loss) = Tape.record(build)
    parameters, plan = network.parameters(), network.entry(loss).lower()
    before = parameters.buffer.tobytes()
    with pytest.raises(DataError, match=r"Gather .*test_plan\.py:\d+\): row 0 .*not one-hot"):
        plan.forward(parameters, {row: [[1.0, 1.0]]})
    assert parameters.buffer.tobytes() == before
    assert plan.forward(parameters, {row: [[0.0, 1.0]]}).of(loss).scalar() == 2
    assert plan.forward(parameters).of(loss).scalar() == 1


@pytest.mark.parametrize("element", ["f32", Fraction])
def test_a_required_value_is_checked_before_it_dies(element: Any) -> None:
    """`require_nonzero` holds in plans, also where the value's memory is reused."""

    def build(tape: Tape) -> Any:
        x = tape.input([1, 2])
        mass = x.sum()
        tape.require_nonzero(mass)
        return x, mass * mass * mass

    network, (x, y) = Tape.record(build, element=element)
    plan = network.entry(y).lower()
    assert plan.forward(network.parameters(), {x: [1, 1]}).of(y).scalar() == 8
    with pytest.raises(DataError, match=r"n#1 Sum .* is 0"):
        plan.forward(network.parameters(), {x: [1, -1]})


def test_a_plan_over_sources_alone() -> None:
    """Sources and views of them are results too; there may be no instruction and no arena."""

    def build(tape: Tape) -> Any:
        return tape.parameter([1.0, 2.0]), tape.input(3.0), tape.leaf([4.0])

    network, (w, x, leaf) = Tape.record(build)
    plan = network.entry([leaf, x, w]).lower()
    run = plan.forward(network.parameters(), {x: 5.0})
    assert (run.of(w).to_list(), run.of(x).scalar(), run.of(leaf).to_list()) == ([1, 2], 5, [4])
    assert plan.arena_bytes == 0


# ---- user numbers, pickles, threads, length
def test_user_numbers() -> None:
    """A plan over fractions: the same declared reads, in Python."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([Fraction(1, 3), Fraction(1, 7)])
        y = x * x
        return x, y, y.sum(), y + y

    network, (x, y, loss, stray) = Tape.record(build, element=Fraction)
    parameters = network.parameters()
    plan = network.entry(loss).lower()
    run = plan.forward(parameters)
    assert run.of(loss).scalar() == Fraction(58, 441)
    assert plan.arena_bytes == 0
    assert plan.lowered is None
    for refused in (lambda: run.of(y), lambda: run.backward(loss)):
        with pytest.raises(UnreadableError):
            refused()
    run = network.entry(loss).backward().lower().forward(parameters)
    assert run.backward(loss).of(x).to_list() == [Fraction(2, 3), Fraction(2, 7)]
    with pytest.raises(UnreadableError):
        run.of(stray)
    with pytest.raises(ParametersError):
        plan.forward(Tape(Fraction).into_network().parameters())


def test_a_plan_pickles() -> None:
    """With its network's family: symbols and parameters that travel along fit, and the bits stay."""
    network, s = line()
    plan = network.entry(s["loss"]).observe(s["residual"]).backward().lower()
    run = plan.forward(network.parameters())
    copy, parameters, loss, residual = pickle.loads(
        pickle.dumps((plan, network.parameters(), s["loss"], s["residual"]))
    )
    assert copy.describe() == plan.describe()
    again = copy.forward(parameters)
    assert same_bits(again.of(residual), run.of(s["residual"]))
    assert same_bits(again.backward(loss).of(parameters.symbols()[0]), run.backward(s["loss"]).of(s["w"]))


def test_eight_threads_share_a_plan() -> None:
    """Their own parameters and feeds, many runs each, values and reverse scans: the bits of serial runs."""
    network, s = line()
    plan = Plan(network, Entry(s["loss"], [s["residual"]], backward=True), poison=True)
    tables = [network.parameters().scale(1 + i / 8) for i in range(8)]
    feeds = [{s["x"]: np.arange(3.0) + i} for i in range(8)]

    def reading(run: Run) -> tuple[bytes, ...]:
        gradients = run.backward(s["loss"])
        read = (run.of(s["loss"]), run.of(s["residual"]), gradients.of(s["w"]), gradients.of(s["b"]))
        return tuple(bits(tensor).tobytes() for tensor in read)

    serial = [reading(plan.forward(table, feed)) for table, feed in zip(tables, feeds, strict=True)]
    assert len(set(serial)) == 8
    found: list[set[Any]] = [set() for _ in range(8)]
    barrier = threading.Barrier(8)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(25):
            found[i].add(reading(plan.forward(tables[i], feeds[i])))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [{bytes_} for bytes_ in serial]


@pytest.mark.parametrize("count", [10_000, 100_000])
def test_a_long_chain_lowers_without_recursion(count: int) -> None:
    """Case 23: recorded, lowered, run, described; one buffer serves the whole chain."""
    tape = Tape()
    x = tape.parameter([1.0, 2.0])
    value = x
    for _ in range(count // 2):
        value = -(value + x)
    symbol = value.symbol
    network = tape.into_network()
    plan = network.entry(symbol).lower()
    assert len(plan) == count + 1
    assert plan.arena_bytes == 64
    assert plan.forward(network.parameters()).of(symbol).to_list() == [1, 2]
    assert len(plan.describe().splitlines()) == count + 4
