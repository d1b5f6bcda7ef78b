"""Lowered programs: one native entry per run, views without rows, caches, memory of their own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.drawn import drawn_graph
from tests.helpers import ELEMENTS, bits, native_entries, same_bits
from topos import F32, DataError, Network, Tape, Tensor
from topos.engine import program as programs
from topos.engine.program import Lowered, lower


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count native entries of programs made from now on: one number per call, the bytes of its instructions."""
    return native_entries(monkeypatch)


def lowered(network: Network) -> Lowered:
    """Return the trivial program of a network."""
    return lower(network.columns, network.slots)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_run_is_one_native_entry(element: Any, entries: list[int]) -> None:
    """A forward enters once, its backward once, of whatever size; reading enters never."""
    for seed in range(4):
        graph = drawn_graph(seed, element)
        graph.run()
        entries.clear()
        run = graph.run()
        assert len(entries) == 1
        run.field().payloads()
        run.backward(graph.loss).payloads()
        assert len(entries) == 2


def test_lowering_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per network, and once per target of a reverse scan, from eight threads too."""
    calls: list[int] = []
    original = lower

    def counted(*given: Any, **options: Any) -> Lowered:
        calls.append(threading.get_ident())
        return original(*given, **options)

    monkeypatch.setattr(programs, "lower", counted)
    monkeypatch.setattr("topos.engine.run.lower", counted)
    graph = drawn_graph(3, F32)
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        graph.run().backward(graph.loss)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 2
    graph.run().backward(graph.loss)
    assert len(calls) == 2


def test_views_are_no_instructions(entries: list[int]) -> None:
    """Transposing, narrowing, broadcasting, unfolding and reshaping are strides: nothing runs."""

    def build(tape: Tape) -> Any:
        w, x = tape.parameter(np.arange(6.0).reshape(2, 3)), tape.input(np.arange(6.0).reshape(2, 3))
        return [
            view
            for v in (w, x)
            for view in (v.T, v.narrow(1, 1, 2), v.broadcast_along(0, 2), v.unfold(1, 2, 1), v.reshape([3, 2]), v[:, 0])
        ]

    network, views = Tape.record(build)
    run = network.forward(network.parameters())
    assert sum(entries) == 0
    assert len(lowered(network).program.code) == 0
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    expected = [
        array.T, array[:, 1:], np.stack([array] * 2), np.stack([array[:, :2], array[:, 1:]], 1),
        array.reshape(3, 2), array[:, 0],
    ]  # fmt: skip
    for symbol, want in zip(views, expected * 2, strict=True):
        assert same_bits(run.of(symbol), want)


def test_runs_have_memory_of_their_own() -> None:
    """Values of one run stay as they are while others run."""
    graph = drawn_graph(5, F32)
    first = graph.run()
    before = [bits(t).tobytes() for t in first.field().payloads()]
    by = [bits(t).tobytes() for t in first.backward(graph.loss).payloads()]
    parameters = graph.network.parameters().scale(3.0)
    for _ in range(3):
        graph.network.forward(parameters).backward(graph.loss)
    assert [bits(t).tobytes() for t in first.field().payloads()] == before
    assert [bits(t).tobytes() for t in first.backward(graph.loss).payloads()] == by


def test_values_start_at_cache_lines() -> None:
    """Every computed value lies 64-byte aligned in the arena (small results are copied out of it)."""
    network, symbols = Tape.record(lambda t: [(x := t.parameter([1.0] * n)) * x for n in (257, 300, 1001)])
    run = network.forward(network.parameters())
    for symbol in symbols:
        assert run.of(symbol).numpy().ctypes.data % 64 == 0


def test_a_constant_selection_that_is_not_one_hot() -> None:
    """A leaf is checked as well as a feed: `DataError`, on every run, and no broken program is kept."""
    network, _ = Tape.record(lambda t: t.parameter([[1.0], [2.0]]).gather(t.leaf([[0.5, 0.5]])))
    for _ in range(2):
        with pytest.raises(DataError, match="one-hot"):
            network.forward(network.parameters())


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_selections_in_every_form(element: Any) -> None:
    """Stored as indices or dense, as leaf, input, feed, view or computed: the same rows and gradients."""
    one_hot = Tensor.selection([2, 0, 2], 3, element=element)
    dense = np.asarray(one_hot, np.float32)

    def build(tape: Tape) -> Any:
        table = tape.parameter(np.arange(6.0).reshape(3, 2))
        fed = [tape.input(np.eye(3)) for _ in range(2)]
        forms = [
            tape.leaf(one_hot),
            tape.leaf(dense),
            tape.input(one_hot),
            tape.input(dense),
            *fed,
            tape.leaf(dense.T.copy()).T,
            tape.input(dense) * 1.0,
            tape.leaf(one_hot) + 0.0,
            tape.leaf(np.pad(dense, 1)).narrow(0, 1, 3).narrow(1, 1, 3),
        ]
        rows = [table.gather(form) for form in forms]
        return (table, fed, rows, [r.sum() for r in rows], [r.scatter(f) for r, f in zip(rows, forms, strict=True)])

    network, (table, fed, rows, losses, back) = Tape.record(build, element=element)
    run = network.forward(network.parameters(), {fed[0]: one_hot, fed[1]: dense})
    for row, loss, spread in zip(rows, losses, back, strict=True):
        assert run.of(row).to_list() == [4, 5, 0, 1, 4, 5]
        assert run.backward(loss).of(table).to_list() == [1, 1, 0, 0, 2, 2]
        assert run.of(spread).to_list() == [0, 1, 0, 0, 8, 10]


def test_a_feed_may_have_any_layout() -> None:
    """Views, constants and selections as feeds of a dense input: the bits of their dense copy."""

    def build(tape: Tape) -> Any:
        x = tape.input(np.zeros((3, 2)))
        return x, x * 2.0, x.T, x.sum_along(0), (x * x).sum()

    network, (x, *results) = Tape.record(build)
    parameters = network.parameters()
    wide = Tensor(np.arange(20.0, dtype=np.float32).reshape(4, 5))
    feeds = [
        wide.narrow(0, 1, 2).narrow(1, 0, 3).permute((1, 0)),
        Tensor.filled([3, 2], np.float32(4)),
        Tensor.selection([1, 0, 0], 2),
        Tensor(np.float32([1, 2])).broadcast_along(0, 3),
        Tensor(np.arange(4.0, dtype=np.float32)).unfold(0, 2, 1),
    ]
    for feed in feeds:
        one = network.forward(parameters, {x: feed})
        two = network.forward(parameters, {x: np.array(feed.numpy())})
        for symbol in (x, *results):
            assert same_bits(one.of(symbol), two.of(symbol))
        assert same_bits(one.backward(results[-1]).of(x), two.backward(results[-1]).of(x))
