"""A training step in one native entry, and a sequence of them: the bits of forward, gradients and update."""

from __future__ import annotations

import gc
import resource
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, drawn, native_entries, same_bits
from topos import (
    Adam,
    AdamW,
    DataError,
    ElementError,
    FeedError,
    Network,
    Optimizer,
    Parameters,
    ParametersError,
    Sgd,
    ShapeError,
    Tape,
    Tensor,
    UnreadableError,
    UsageError,
    cross_entropy,
)
from topos.kernels.runtime import num_threads, set_grain, set_num_threads

OPTIMIZERS = {
    "sgd": Sgd,
    "adam": lambda: Adam(0.9, 0.99, 1e-4),
    "adam of other numbers": lambda: Adam(0.5, Tensor(0.75), 1e-3),
    "adamw": lambda: AdamW(0.9, 0.99, 1e-4, decay=0.1),
}


class Scaled(Optimizer):
    """Gradient descent with a factor that lies in an array."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = np.array(1.0)

    def start(self, parameters: Parameters) -> Any:
        """Return no state."""
        return ()

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: Any, decays: Any) -> Any:
        """Return p - g * rate * factor."""
        return parameter - gradient * rate * float(self.factor), state


def model(element: Any = "f32", partial: bool = False) -> tuple[Network, Any]:
    """Record an MLP over an embedding, with parameters of ranks 0 to 2; `partial` leaves some out of wrt."""

    def build(tape: Tape) -> Any:
        ids = tape.input(Tensor.selection([0, 3, 1, 1], 5, element=element))
        y = tape.input(Tensor.selection([0, 1, 1, 0], 2, element=element))
        x = tape.input(np.ones((4, 3)))
        table, w1 = (tape.parameter(drawn((5, 3), tape.element, 1)), tape.parameter(drawn((3, 4), tape.element, 2)))
        gain, b = tape.parameter(0.5), tape.parameter(np.zeros(4))
        unused = tape.parameter([[7.0, -0.0]])
        w2 = tape.parameter(drawn((4, 2), tape.element, 3))
        hidden = ((table.gather(ids) * x) @ w1 + b.broadcast_along(0, 4)).tanh() * gain.broadcast([4, 4])
        loss = cross_entropy(hidden @ w2, y)
        wrt = [w2, b, table] if partial else [table, w1, gain, b, unused, w2]
        return tape.differentiate(loss, wrt), (ids, y, x)

    return Tape.record(build, element=element)


def feed_sequence(element: Any, inputs: Any, steps: int) -> tuple[list[dict[Any, Any]], dict[Any, Any]]:
    """Return feeds per step, and the same as arrays with a leading axis."""
    generator = np.random.default_rng(7)
    ids, y, x = inputs
    rows = np.eye(5)[generator.integers(0, 5, (steps, 4))]
    targets = np.eye(2)[generator.integers(0, 2, (steps, 4))]
    numbers = generator.normal(size=(steps, 4, 3))
    stacked = {ids: rows, y: targets, x: numbers}
    return [{key: array[i] for key, array in stacked.items()} for i in range(steps)], stacked


def by_hand(network: Network, adjoints: Any, optimizer: Any, feeds: Any, rates: Any) -> Any:
    """Step with plan.forward, recorded gradients and the optimizer; return losses and tables."""
    plan = network.entry(adjoints.roots).lower()
    parameters, losses, tables = network.parameters(), [], []
    for feed, rate in zip(feeds, rates, strict=True):
        run = plan.forward(parameters, feed)
        losses.append(run.of(adjoints.target))
        parameters = optimizer.step(parameters, run.recorded_gradients(adjoints), rate)
        tables.append(parameters)
    return losses, tables


def state_bits(optimizer: Any) -> list[bytes]:
    """Return the bits of what an optimizer remembers."""
    return [(e.buffer if isinstance(e, Parameters) else bits(e)).tobytes() for e in optimizer.state or ()]


@pytest.mark.parametrize("partial", [False, True], ids=["all", "partial"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_steps_have_the_bits_of_the_parts(element: Any, name: str, partial: bool) -> None:
    """`plan.step` and `plan.steps`: losses, parameters and optimizer state, step by step, rates changing."""
    network, (adjoints, inputs) = model(element, partial)
    feeds, stacked = feed_sequence(element, inputs, 5)
    rates = [0.1, 0.05, 0.2, 0.0, 0.3]
    make = OPTIMIZERS[name]
    oracle = make()
    losses, tables = by_hand(network, adjoints, oracle, feeds, rates)
    plan = network.entry(adjoints.roots).lower()
    optimizer, parameters = make(), network.parameters()
    initial = parameters.buffer.tobytes()
    for feed, rate, loss, table in zip(feeds, rates, losses, tables, strict=True):
        before = parameters.buffer.tobytes()
        run, stepped = plan.step(parameters, feed, optimizer, rate)
        assert parameters.buffer.tobytes() == before
        assert same_bits(run.of(adjoints.target), loss)
        assert stepped.buffer.tobytes() == table.buffer.tobytes()
        parameters = stepped
    assert state_bits(optimizer) == state_bits(oracle)
    optimizer = make()
    found, parameters = plan.steps(network.parameters(), stacked, optimizer, rates)
    assert tuple(found.shape) == (5,)
    assert bits(found).tobytes() == b"".join(bits(loss).tobytes() for loss in losses)
    assert parameters.buffer.tobytes() == tables[-1].buffer.tobytes()
    assert state_bits(optimizer) == state_bits(oracle)
    assert network.parameters().buffer.tobytes() == initial


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_at_several_thread_counts(name: str) -> None:
    """Two threads, small work shared, the same bits; one learning rate for all steps."""
    network, (adjoints, inputs) = model()
    _, stacked = feed_sequence("f32", inputs, 4)
    plan = network.entry(adjoints.roots).lower()
    found, before = [], num_threads()
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            set_grain(0)
            losses, parameters = plan.steps(network.parameters(), stacked, OPTIMIZERS[name](), np.float32(0.1))
            found.append((bits(losses).tobytes(), parameters.buffer.tobytes()))
    finally:
        set_num_threads(before)
        set_grain()
    assert found[0] == found[1]


def test_a_run_of_a_step() -> None:
    """Its results are readable, stay when further steps run, and a backward plan answers its reverse scan."""
    network, (adjoints, inputs) = model()
    feeds, _ = feed_sequence("f32", inputs, 3)
    plan = network.entry(adjoints.roots).observe(inputs[2]).backward().lower()
    parameters = network.parameters()
    run, stepped = plan.step(parameters, feeds[0], Sgd(), 0.5)
    oracle = network.forward(parameters, feeds[0])
    for symbol in plan.results:
        assert same_bits(run.of(symbol), oracle.of(symbol))
    assert run.recorded_gradients(adjoints) == oracle.recorded_gradients(adjoints)
    for feed in feeds[1:]:
        _, stepped = plan.step(stepped, feed, Sgd(), 0.5)
    for symbol in plan.results:
        assert same_bits(run.of(symbol), oracle.of(symbol))
    gradients, expected = run.backward(adjoints.target), oracle.backward(adjoints.target)
    assert all(same_bits(gradients.of(wrt), expected.of(wrt)) for wrt in adjoints.wrt)


def test_inputs_that_are_not_fed_keep_their_payload() -> None:
    """In `step` and in `steps`; a selection is bound by its indices or its values as it is needed."""
    network, (adjoints, (_, _, x)) = model()
    plan = network.entry(adjoints.roots).lower()
    numbers = np.random.default_rng(1).normal(size=(3, 4, 3))
    losses, tables = by_hand(network, adjoints, Sgd(), [{x: n} for n in numbers], [0.1] * 3)
    found, parameters = plan.steps(network.parameters(), [(x, Tensor(numbers, element="f32"))], Sgd(), 0.1)
    assert bits(found).tobytes() == b"".join(bits(loss).tobytes() for loss in losses)
    assert parameters.buffer.tobytes() == tables[-1].buffer.tobytes()
    run, _ = plan.step(network.parameters(), None, Sgd(), 0.1)
    assert same_bits(run.of(adjoints.target), network.forward(network.parameters()).of(adjoints.target))


def test_more_steps_than_one_entry_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence is cut into chunks of native entries; Ctrl-C between two of them changes nothing."""
    network, (adjoints, inputs) = model()
    _, stacked = feed_sequence("f32", inputs, 11)
    plan = network.entry(adjoints.roots).lower()
    whole, table = plan.steps(network.parameters(), stacked, Sgd(), 0.1)
    monkeypatch.setattr("topos.engine.program.CHUNK", 4)
    cut, again = plan.steps(network.parameters(), stacked, Sgd(), 0.1)
    assert same_bits(whole, cut)
    assert table.buffer.tobytes() == again.buffer.tobytes()
    for make in (Sgd, Adam):
        optimizer, parameters, entries = make(), network.parameters(), []
        plan.step(parameters, None, optimizer, 0.1)
        state, before = state_bits(optimizer), parameters.buffer.tobytes()
        program = list(plan.trainings.values())[-1].lowered.program
        right = type(program).run_all

        def interrupted(self: Any, *given: Any, right: Any = right, entries: list[Any] = entries) -> Any:
            entries.append(given)
            if len(entries) == 2:
                raise KeyboardInterrupt
            return right(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(type(program), "run_all", interrupted)
            with pytest.raises(KeyboardInterrupt):
                plan.steps(parameters, stacked, optimizer, 0.1)
        assert state_bits(optimizer) == state
        assert parameters.buffer.tobytes() == before
        assert plan.steps(parameters, stacked, optimizer, 0.1)[0].shape == (11,)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_data_error_changes_nothing(name: str) -> None:
    """A bad row in a step: parameters and optimizer state are what they were, and training goes on."""
    network, (adjoints, inputs) = model()
    feeds, stacked = feed_sequence("f32", inputs, 3)
    plan = network.entry(adjoints.roots).lower()
    optimizer, oracle = OPTIMIZERS[name](), OPTIMIZERS[name]()
    _, parameters = plan.step(network.parameters(), feeds[0], optimizer, 0.1)
    _, expected = plan.step(network.parameters(), feeds[0], oracle, 0.1)
    state, before = state_bits(optimizer), parameters.buffer.tobytes()
    ids, y, _ = inputs
    bad = {**feeds[1], ids: np.ones((4, 5))}
    with pytest.raises(DataError, match=r"n#0 Input .*not one-hot"):
        plan.step(parameters, bad, optimizer, 0.1)
    spoiled = {key: array.copy() for key, array in stacked.items()}
    spoiled[y][1] = 0
    with pytest.raises(DataError, match=r"^step 1: n#.* is 0: .*total mass"):
        plan.steps(parameters, spoiled, optimizer, 0.1)
    spoiled[y][1], spoiled[ids][2] = stacked[y][1], 2
    with pytest.raises(DataError, match=r"^step 2: n#0 Input .*: row 0 .*not one-hot"):
        plan.steps(parameters, spoiled, optimizer, 0.1)
    assert (state_bits(optimizer), parameters.buffer.tobytes()) == (state, before)
    _, parameters = plan.step(parameters, feeds[1], optimizer, 0.1)
    _, expected = plan.step(expected, feeds[1], oracle, 0.1)
    assert parameters.buffer.tobytes() == expected.buffer.tobytes()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sequence_is_one_native_entry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any optimizer, as a single step is."""
    network, (adjoints, inputs) = model()
    feeds, stacked = feed_sequence("f32", inputs, 9)
    entered = native_entries(monkeypatch)
    plan, optimizer, parameters = (network.entry(adjoints.roots).lower(), OPTIMIZERS[name](), network.parameters())
    plan.step(parameters, feeds[0], optimizer, 0.1)
    entered.clear()
    plan.step(parameters, feeds[0], optimizer, 0.1)
    assert len(entered) == 1
    plan.steps(parameters, stacked, optimizer, 0.1)
    assert len(entered) == 2


def test_sequences_of_selections() -> None:
    """A list of selections has the bits of the dense rows, where indices are read and where values are."""
    network, (adjoints, (ids, y, x)) = model()
    plan, draw = network.entry(adjoints.roots).lower(), np.random.default_rng(5)
    rows, targets = draw.integers(0, 5, (6, 4)), draw.integers(0, 2, (6, 4))
    numbers = draw.normal(size=(6, 4, 3)).astype(np.float32)
    dense = {ids: np.eye(5)[rows], y: np.eye(2)[targets], x: numbers}
    sparse = {
        ids: [Tensor.selection(row, 5) for row in rows],
        y: tuple(Tensor.selection(row, 2) for row in targets),
        x: list(numbers),
    }
    expected, wanted = plan.steps(network.parameters(), dense, Adam(), 0.1)
    found, parameters = plan.steps(network.parameters(), sparse, Adam(), 0.1)
    assert same_bits(found, expected)
    assert parameters.buffer.tobytes() == wanted.buffer.tobytes()
    with pytest.raises(FeedError, match=r"has shape \[4, 5\], the feed \[4, 6\]"):
        plan.steps(parameters, {ids: [Tensor.selection([0] * 4, 6)]}, Adam(), 0.1)


def test_a_recorded_payload_that_fits_nothing_is_not_looked_at() -> None:
    """A placeholder that is no selection, fed in every step: neither steps nor single steps ask for it."""

    def build(tape: Tape) -> Any:
        table, ids = tape.parameter([[1.0], [2.0], [3.0]]), tape.input(np.zeros((2, 3)))
        return ids, tape.differentiate(table.gather(ids).sum(), [table])

    network, (ids, adjoints) = Tape.record(build)
    plan, rows = network.entry(adjoints.roots).lower(), np.eye(3)[[[0, 1], [2, 2], [1, 0]]]
    losses, parameters = plan.steps(network.parameters(), {ids: rows}, Sgd(), 0.5)
    stepped = network.parameters()
    for row, loss in zip(rows, losses, strict=True):
        run, stepped = plan.step(stepped, {ids: row}, Sgd(), 0.5)
        assert run.of(adjoints.target).scalar() == loss
    assert stepped == parameters
    with pytest.raises(DataError, match="not one-hot"):
        plan.step(stepped, None, Sgd(), 0.5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_that_have_grown(name: str) -> None:
    """A plan of an older spec steps its own slots; newer ones keep their numbers, also in the state."""
    network, (adjoints, inputs) = model()
    feeds, stacked = feed_sequence("f32", inputs, 3)
    plan, parameters = network.entry(adjoints.roots).lower(), network.parameters()
    optimizer, oracle = OPTIMIZERS[name](), OPTIMIZERS[name]()
    tape = network.into_tape()
    tape.parameter([5.0, 7.0])
    grown = parameters.carried(tape.into_network())
    for feed in feeds:
        _, parameters = plan.step(parameters, feed, oracle, 0.1)
        _, grown = plan.step(grown, feed, optimizer, 0.1)
    _, parameters = plan.steps(parameters, stacked, oracle, 0.1)
    _, grown = plan.steps(grown, stacked, optimizer, 0.1)
    assert grown.payloads()[-1].to_list() == [5, 7]
    assert grown.buffer[:-2].tobytes() == parameters.buffer.tobytes()
    for entry in optimizer.state or ():
        assert not isinstance(entry, Parameters) or entry.payloads()[-1].to_list() == [0, 0]
    older, _ = model()
    with pytest.raises(ParametersError, match="another recording"):
        plan.step(older.parameters(), feeds[0], oracle, 0.1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_was_returned_never_changes(name: str) -> None:
    """Tables, states and runs that are kept hold their bits, however many steps follow."""
    network, (adjoints, inputs) = model()
    feeds, stacked = feed_sequence("f32", inputs, 4)
    plan, optimizer, parameters = (network.entry(adjoints.roots).lower(), OPTIMIZERS[name](), network.parameters())
    kept: list[Any] = []
    for turn in range(24):
        if turn % 6 == 5:
            _, parameters = plan.steps(parameters, stacked, optimizer, 0.01)
        else:
            run, parameters = plan.step(parameters, feeds[turn % 4], optimizer, 0.01)
            values = [bits(run.of(symbol)).tobytes() for symbol in plan.results]
            kept.append((run, None, None, values))
        payload = parameters.payloads()[0].numpy()
        kept.append((None, parameters if turn % 2 else payload, optimizer.state, None))
        kept[-1] += (kept[-1][1].buffer.tobytes() if turn % 2 else payload.tobytes(), state_bits(optimizer))
    for run, table, state, values, *rest in kept:
        if run is not None:
            assert [bits(run.of(symbol)).tobytes() for symbol in plan.results] == values
            continue
        assert (table.buffer if isinstance(table, Parameters) else table).tobytes() == rest[0]
        holder = OPTIMIZERS[name]()
        holder.state = state
        assert state_bits(holder) == rest[1]


def test_threads_step_one_plan() -> None:
    """Eight threads, each with a table and an optimizer of its own: the bits of one after another."""
    network, (adjoints, inputs) = model()
    feeds, _ = feed_sequence("f32", inputs, 8)
    plan = network.entry(adjoints.roots).lower()

    def train(start: int) -> bytes:
        parameters, optimizer = network.parameters(), Adam()
        for turn in range(60):
            _, parameters = plan.step(parameters, feeds[(start + turn) % 8], optimizer, 0.01)
        return parameters.buffer.tobytes() + b"".join(state_bits(optimizer))

    expected = [train(start) for start in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(train, range(8))) == expected


def test_numbers_of_an_optimizer_may_change_between_steps() -> None:
    """An attribute that is assigned, or an array that is written to, counts from the next step on."""
    network, (adjoints, inputs) = model()
    feeds, _ = feed_sequence("f32", inputs, 4)
    plan = network.entry(adjoints.roots).lower()
    for write in (False, True):
        optimizer, oracle = Scaled(), Scaled()
        mine, others = network.parameters(), network.parameters()
        for turn, feed in enumerate(feeds):
            if write:
                optimizer.factor[...] = turn % 3
            else:
                optimizer.factor = np.array(turn % 3)
            oracle.factor = np.array(turn % 3)
            gradients = plan.forward(others, feed).recorded_gradients(adjoints)
            others = oracle.step(others, gradients, 0.1)
            _, mine = plan.step(mine, feed, optimizer, 0.1)
            assert mine.buffer.tobytes() == others.buffer.tobytes()


# ---- which derivative
def test_a_plan_without_recorded_gradients_is_refused() -> None:
    """None recorded, none among the results, by an input, of a vector: each says what to write."""

    def build(tape: Tape) -> Any:
        w, x = tape.parameter([1.0, 2.0]), tape.input([3.0, 4.0])
        y = w * x
        loss = y.sum()
        vector = tape.vjp(y, [1.0, 1.0], [w])
        return loss, tape.differentiate(loss, [x]), tape.differentiate(loss, [w]), vector

    network, (loss, by_x, by_w, vector) = Tape.record(build)
    parameters = network.parameters()
    for roots in ([loss], by_x.roots, by_w.gradients, vector.roots):
        plan = network.entry(roots).lower()
        with pytest.raises(UnreadableError, match=r"no recorded gradients of a rank-0 loss.*network\.entry") as caught:
            plan.step(parameters, None, Sgd(), 0.1)
        assert isinstance(caught.value, LookupError)
        with pytest.raises(UnreadableError):
            plan.steps(parameters, {by_x.wrt[0]: np.ones((2, 2))}, Sgd(), 0.1)
    both = network.entry([*vector.roots, *by_x.roots, *by_w.roots]).lower()
    run, stepped = both.step(parameters, None, Sgd(), 1.0)
    assert run.of(loss).scalar() == 11
    assert stepped.payloads()[0].to_list() == [-2, -2]


def test_a_loss_that_is_a_parameter() -> None:
    """The loss is read before the update, whatever it is."""

    def build(tape: Tape) -> Any:
        w = tape.parameter(3.0)
        return tape.input(0.0), tape.differentiate(w, [w])

    network, (x, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    losses, parameters = plan.steps(network.parameters(), {x: [0.0, 0.0, 0.0]}, Sgd(), 1.0)
    assert losses.to_list() == [3, 2, 1]
    assert parameters.payloads()[0].scalar() == 0
    run, _ = plan.step(network.parameters(), None, Sgd(), 1.0)
    assert run.of(adjoints.target).scalar() == 3


def test_one_parameter_twice_and_gradients_that_are_parameters() -> None:
    """A gradient may be another parameter's very value: it is taken before the update."""

    def build(tape: Tape) -> Any:
        a, b = tape.parameter([2.0]), tape.parameter([5.0])
        seed = tape.vjp(a, b, [a])
        loss = a.sum()
        adjoints = tape.differentiate(loss, [a])
        return a, b, seed, adjoints

    network, (_, b, _, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    _, parameters = plan.step(network.parameters(), None, Sgd(), 1.0)
    assert parameters.of(b).scalar if parameters.of(b).shape.rank == 0 else parameters.of(b).to_list() == [5]
    assert parameters.payloads()[0].to_list() == [1]


# ---- users' optimizers
class Momentum(Optimizer):
    """Remembers a velocity."""

    def start(self, parameters: Parameters) -> Any:
        """Return a zero velocity."""
        return (parameters.map(lambda p: p.zero_like()),)

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: Any, decays: Any) -> Any:
        """Return p - v * rate with v = 0.9 v + g."""
        velocity = state[0] * 0.9 + gradient
        return parameter - velocity * rate, (velocity,)


class Memory(Optimizer):
    """Remembers the last parameters, the last gradient and the one before it, unchanged."""

    def start(self, parameters: Parameters) -> Any:
        """Return the parameters and twice nothing."""
        zero = parameters.map(lambda p: p.zero_like())
        return parameters, zero, zero

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: Any, decays: Any) -> Any:
        """Return a mean with the parameters before, and the state moved on."""
        before, last, older = state
        return (parameter + before) * 0.5 - (gradient + older) * rate, (parameter, gradient, last)


class Restless(Momentum):
    """Advances a table."""

    def advance(self, state: Any) -> Any:
        """Return twice the velocity."""
        return (state[0].scale(2.0),)


class Swap(Memory):
    """Exchanges two entries and leaves the parameters."""

    def formula(self, parameter: Any, gradient: Any, rate: Any, state: Any, decays: Any) -> Any:
        """Return the parameter itself and the first two entries exchanged."""
        return parameter, (state[1], state[0], gradient)


@pytest.mark.parametrize("make", [Momentum, Memory, Swap])
def test_users_optimizers(make: Any) -> None:
    """A formula of the user's runs natively with the bits of its tensors, also where entries change places."""
    network, (adjoints, inputs) = model()
    feeds, stacked = feed_sequence("f32", inputs, 4)
    oracle, optimizer, other = make(), make(), make()
    losses, tables = by_hand(network, adjoints, oracle, feeds, [0.1] * 4)
    plan = network.entry(adjoints.roots).lower()
    parameters = network.parameters()
    for feed, table in zip(feeds, tables, strict=True):
        _, parameters = plan.step(parameters, feed, optimizer, 0.1)
        assert parameters.buffer.tobytes() == table.buffer.tobytes()
    found, parameters = plan.steps(network.parameters(), stacked, other, 0.1)
    assert bits(found).tobytes() == b"".join(bits(loss).tobytes() for loss in losses)
    assert parameters.buffer.tobytes() == tables[-1].buffer.tobytes()
    assert state_bits(optimizer) == state_bits(other) == state_bits(oracle)


def test_an_advance_that_changes_a_table_is_refused() -> None:
    """It is recorded for rank-0 entries alone."""
    network, (adjoints, _) = model()
    plan = network.entry(adjoints.roots).lower()
    with pytest.raises(UsageError, match=r"Restless\.advance changes entry 0 of its state: only rank-0"):
        plan.step(network.parameters(), None, Restless(), 0.1)


def test_optimizers_of_one_formula_share_a_program() -> None:
    """A program is made once per class and numbers; numbers that differ in their last bits are others."""
    network, (adjoints, _) = model("f64")
    plan = network.entry(adjoints.roots).lower()
    parameters = network.parameters()
    made = [Adam(0.9), Adam(0.9), Adam(Tensor(0.9, element="f32")), Adam(np.float32(0.9)), AdamW(), Sgd(), Sgd()]
    results = [plan.step(parameters, None, optimizer, 0.1)[1] for optimizer in made]
    assert len(plan.trainings) == 4
    oracles = [by_hand(network, adjoints, o, [None], [0.1])[1][0] for o in [Adam(0.9), Adam(Tensor(0.9))]]
    assert results[0].buffer.tobytes() == results[1].buffer.tobytes() == oracles[0].buffer.tobytes()
    assert results[2].buffer.tobytes() == results[3].buffer.tobytes() == oracles[1].buffer.tobytes()


# ---- refusals
def test_errors() -> None:
    """Foreign tables and states, feeds and rates that do not fit: refused before anything runs."""
    network, (adjoints, (_, y, x)) = model()
    other, (its_adjoints, _) = model()
    plan, parameters = network.entry(adjoints.roots).lower(), network.parameters()
    good = np.ones((2, 4, 3))
    trained = Adam()
    other.entry(its_adjoints.roots).lower().step(other.parameters(), None, trained, 0.1)
    cases: list[tuple[Any, Any, str]] = [
        (lambda: plan.step(other.parameters(), None, Sgd(), 0.1), ParametersError, "another recording"),
        (lambda: plan.step(None, None, Sgd(), 0.1), ParametersError, "not NoneType"),
        (lambda: plan.step(parameters, None, None, 0.1), UsageError, "an optimizer is needed, such as .*, not None"),
        (lambda: plan.step(parameters, None, Sgd, 0.1), UsageError, "an optimizer is needed, such as .*, not <class"),
        (lambda: plan.step(parameters, None, trained, 0.1), ParametersError, "another recording"),
        (lambda: plan.steps(parameters, {x: good}, trained, 0.1), ParametersError, "another recording"),
        (lambda: plan.step(parameters, {x: good}, Sgd(), 0.1), FeedError, r"has shape \[4, 3\]"),
        (lambda: plan.step(parameters, None, Sgd(), [0.1, 0.2]), ShapeError, r"learning_rate of shape \[2\]"),
        (lambda: plan.steps(parameters, {x: good}, Sgd(), [0.1] * 3), ShapeError, "one for each of 2 steps"),
        (lambda: plan.steps(parameters, None, Sgd(), 0.1), FeedError, "feed at least one input"),
        (lambda: plan.steps(parameters, {}, Sgd(), 0.1), FeedError, "leading axis of steps"),
        (lambda: plan.steps(parameters, {x: good[0]}, Sgd(), 0.1), FeedError, r"shape \[steps, 4, 3\], not \[4, 3\]"),
        (lambda: plan.steps(parameters, {x: 1.0}, Sgd(), 0.1), FeedError, r"not \[\]"),
        (lambda: plan.steps(parameters, {adjoints.target: good}, Sgd(), 0.1), FeedError, "is no input"),
        (
            lambda: plan.steps(parameters, {x: good, y: np.tile(np.eye(2)[[0, 1, 0, 1]], (3, 1, 1))}, Sgd(), 0.1),
            FeedError,
            r"is fed 3 steps, another input 2",
        ),
    ]
    for refused, error, message in cases:
        with pytest.raises(error, match=message):
            refused()
    assert state_bits(trained)


def test_user_numbers_are_refused_with_the_way_to_do_it() -> None:
    """Fractions step with plan.forward and optimizer.step."""

    def build(tape: Tape) -> Any:
        w, x = tape.parameter([Fraction(1, 3)]), tape.input([Fraction(1)])
        return x, tape.differentiate((w * w * x).sum(), [w])

    network, (x, adjoints) = Tape.record(build, element=Fraction)
    plan = network.entry(adjoints.roots).lower()
    parameters = network.parameters()
    for refused in (
        lambda: plan.step(parameters, None, Sgd(), 1),
        lambda: plan.steps(parameters, {x: [[Fraction(1)]]}, Sgd(), 1),
    ):
        with pytest.raises(ElementError, match=r"not Fraction: use plan\.forward"):
            refused()
    run = plan.forward(parameters)
    stepped = Sgd().step(parameters, run.recorded_gradients(adjoints), Fraction(1, 2))
    assert stepped.payloads()[0].to_list() == [0]


# ---- memory
def resident() -> int:
    """Return the bytes of this process that are in memory."""
    place = Path("/proc/self/statm")
    return int(place.read_text().split()[1]) * resource.getpagesize() if place.exists() else 0


@pytest.mark.parametrize("collect", [True, False], ids=["gc on", "gc off"])
def test_ten_thousand_steps_do_not_grow(collect: bool) -> None:
    """After the first steps neither arenas nor Python objects grow in number, nor the process in size."""
    network, (adjoints, inputs) = model()
    feeds, stacked = feed_sequence("f32", inputs, 8)
    plan, parameters, optimizer = network.entry(adjoints.roots).lower(), network.parameters(), Adam()

    def train(steps: int) -> None:
        nonlocal parameters
        for step in range(steps):
            run, parameters = plan.step(parameters, feeds[step % 8], optimizer, 0.01)
            run.of(adjoints.target).scalar()

    train(50)
    plan.steps(parameters, stacked, Sgd(), 0.01)
    gc.collect()
    if not collect:
        gc.disable()
    try:
        train(1000)
        before, size = len(gc.get_objects()), resident()
        train(10_000)
        plan.steps(parameters, stacked, Sgd(), 0.01)
        assert len(gc.get_objects()) - before < 50
        assert resident() - size < 2**22  # Python takes memory by the MiB; 10,000 frames are 80
        tracemalloc.start()
        windows = []
        for _ in range(3):
            before = tracemalloc.get_traced_memory()[0]
            train(100)
            windows.append(tracemalloc.get_traced_memory()[0] - before)
        # Python's own lists of free tuples fill up at first; a run, a table or an arena a step is far larger.
        assert min(windows) < 100 * 500
    finally:
        tracemalloc.stop()
        gc.enable()
    assert all(len(made.lowered.pool) <= 2 for made in plan.trainings.values())


def two_losses() -> tuple[Network, Any, Any, Any]:
    """Record two parameters with a loss each, and a clipped gradient of the first."""

    def build(tape: Tape) -> tuple:
        w, v = tape.parameter(3.0), tape.parameter(5.0)
        first, second = tape.differentiate(w * w, [w]), tape.differentiate(v * v, [v])
        clipped = first.map_gradients(lambda g: tape.resolve(g).clamp(-1.0, 1.0).symbol)
        return first, second, clipped

    network, (first, second, clipped) = Tape.record(build, element="f64")
    return network, first, second, clipped


def test_a_plan_of_several_derivatives_asks_which_one() -> None:
    """Two recorded losses in one plan: nothing is guessed, and each can be followed."""
    network, first, second, _ = two_losses()
    plan = network.entry([*first.roots, *second.roots]).lower()
    parameters = network.parameters()
    with pytest.raises(UnreadableError, match=r"computes 2 recorded derivatives .*adjoints=adjoints"):
        plan.step(parameters, None, Sgd(), 0.1)
    for adjoints, moved in ((first, [2.4, 5.0]), (second, [3.0, 4.0])):
        _, after = plan.step(parameters, None, Sgd(), 0.1, adjoints=adjoints)
        assert [float(payload.scalar()) for payload in after.payloads()] == pytest.approx(moved)


def test_rewritten_gradients_are_followed() -> None:
    """Clipped gradients, by `map_gradients`, train where they are named; the plan need hold no others."""
    network, first, _, clipped = two_losses()
    for roots in (clipped.roots, [*clipped.roots, *first.roots]):
        plan = network.entry(roots).lower()
        _, after = plan.step(network.parameters(), None, Sgd(), 0.1, adjoints=clipped)
        assert after.payloads()[0].scalar() == pytest.approx(2.9)


def test_a_plan_keeps_few_programs_of_steps() -> None:
    """Many optimizers on one plan: the latest programs stay."""
    network, first, _, _ = two_losses()
    plan = network.entry(first.roots).lower()
    for i in range(20):
        plan.step(network.parameters(), None, Adam(0.5 + i / 100), 0.1)
    assert len(plan.trainings) <= 8


def test_steps_that_are_refused_keep_no_feeds() -> None:
    """Whatever fails after the feeds are in place: at most the latest are kept, until the next step."""

    def build(tape: Tape) -> Any:
        x, w = tape.input(np.zeros(5000)), tape.parameter(np.ones(5000))
        return x, tape.differentiate((x * w).sum(), [w])

    network, (x, adjoints) = Tape.record(build)
    plan, parameters = network.entry(adjoints.roots).lower(), network.parameters()
    given, optimizer = np.ones(5000, np.float32), Sgd()
    bare: Any = Parameters.__new__(Parameters)
    bare.slots = network.slots
    before = sys.getrefcount(given)
    for _ in range(5):
        with pytest.raises(ShapeError):
            plan.step(parameters, {x: given}, optimizer, [0.1, 0.2, 0.3])
        with pytest.raises(AttributeError):
            plan.forward(bare, {x: given})  # a table without memory is an error, not a crash
        with pytest.raises(AttributeError):
            plan.step(bare, {x: given}, optimizer, 0.5)
    assert sys.getrefcount(given) <= before + 2  # a step and a run have a frame each
    plan.step(parameters, {x: given}, optimizer, 0.5)
    plan.forward(parameters, {x: given})
    assert sys.getrefcount(given) == before
