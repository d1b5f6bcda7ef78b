"""The claim, on drawn graphs: every reading has the same bits. And `prove`, which hands it to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.drawn import KINDS, Drawn, drawn_graph
from tests.drawn_models import drawn_model
from tests.helpers import ELEMENTS, bits
from topos import F16, F32, F64, Bf16, Entry, Network, Numerics, Plan, Proof, Symbol, Tape, Tensor, prove
from topos.engine.arena import LeanEmitter
from topos.kernels.runtime import grain, num_threads, set_grain, set_num_threads
from topos.ops.emit import Program
from topos.proof import digest

SHARE = 10
"""Graphs of the native elements per graph of rationals."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with a team of `count`, small work shared too."""
    before = num_threads(), grain()
    set_num_threads(count)
    set_grain(0)
    try:
        yield
    finally:
        set_num_threads(before[0])
        set_grain(before[1])


def content(tensor: Tensor) -> bytes:
    """Return what must not differ: shape and bits, or the exact numbers."""
    if tensor.element.kernel is None:
        return repr((tuple(tensor.shape), tensor.to_list())).encode()
    return repr(tuple(tensor.shape)).encode() + bits(tensor).tobytes()


def hand_walk(drawn: Drawn) -> dict[Symbol, Tensor]:
    """Evaluate every node over tensors, with the public surface alone."""
    network, feeds = drawn.network, drawn.feeds
    parameters = network.parameters()
    values: dict[Symbol, Tensor] = {}
    for node in network.nodes():
        if node.name == "Parameter":
            values[node.symbol] = parameters.of(node.symbol)
        elif node.is_source:
            values[node.symbol] = feeds.get(node.symbol, network.payload(node.symbol))
        else:
            values[node.symbol] = node.opcode.express([values[o] for o in node.operands])
    return values


def hand_scan(drawn: Drawn, values: dict[Symbol, Tensor]) -> dict[Symbol, Tensor]:
    """Scan backward over tensors with `Opcode.vjp`."""
    found = {drawn.loss: values[drawn.loss].one_like()}
    for node in reversed(drawn.network.nodes()):
        if node.is_source or node.symbol not in found:
            continue
        spoken = node.opcode.vjp([values[o] for o in node.operands], values[node.symbol], found[node.symbol])
        for operand, cotangent in zip(node.operands, spoken, strict=True):
            if cotangent is not None:
                found[operand] = found[operand] + cotangent if operand in found else cotangent
    return found


class Readings:
    """Every reading of a drawn graph, its plans lowered once: freed memory is filled with NaN."""

    def __init__(self, drawn: Drawn, apart: int = 3) -> None:
        self.drawn, loss, network = drawn, drawn.loss, drawn.network
        self.parameters = network.parameters()
        self.chosen = drawn.symbols[drawn.seed % min(apart, len(drawn.symbols)) :: apart]
        posture = Numerics.FAST if drawn.seed % 2 else Numerics.EXACT
        self.forward = Plan(network, Entry(loss, self.chosen, numerics=posture), poison=True)
        self.backward = Plan(network, Entry(loss, backward=True), poison=True)
        tape = Tape.of_columns(network.columns.fork())
        self.adjoints = tape.differentiate(loss, [*drawn.parameters, *drawn.inputs])
        self.grown = tape.into_network()
        self.training = Plan(self.grown, Entry(self.adjoints.roots), poison=True)

    def __iter__(self) -> Iterator[tuple[str, tuple[str, int], Tensor]]:
        """Yield (reading, what is read, its tensor): a value, or a cotangent of the loss by a value."""
        network, loss, symbols = self.drawn.network, self.drawn.loss, self.drawn.symbols
        given = self.parameters, self.drawn.feeds
        run = network.forward(*given)
        yield from (("interpreter", ("value", s.index), run.of(s)) for s in symbols)
        field = run.backward(loss)
        yield from (("engine scan", ("gradient", s.index), field.of(s)) for s in symbols)
        if num_threads() == 1:  # entries of one node each: one count of threads is enough
            walked = hand_walk(self.drawn)
            yield from (("hand walk", ("value", s.index), t) for s, t in walked.items())
            scanned = hand_scan(self.drawn, walked)
            yield from (("hand scan", ("gradient", s.index), t) for s, t in scanned.items())
        run = network.entry(self.chosen[-2:], numerics=Numerics.FAST).interpret(*given)
        yield from (("sliced interpreter", ("value", s.index), run.of(s)) for s in self.chosen[-2:])
        run = self.forward.forward(*given)
        yield from (("plan", ("value", s.index), run.of(s)) for s in [loss, *self.chosen])
        run = self.backward.forward(*given)
        yield "backward plan", ("value", loss.index), run.of(loss)
        field = run.backward(loss)
        yield from (("backward plan", ("gradient", s.index), field.of(s)) for s in symbols)
        run = self.training.forward(*given)
        yield "training plan", ("value", loss.index), run.of(loss)
        yield from (("training plan", ("gradient", w.index), run.of(g)) for w, g in self.adjoints.pairs)
        run = self.grown.forward(*given)
        yield from (("recorded", ("gradient", w.index), run.of(g)) for w, g in self.adjoints.pairs)


def check(batch: list[Drawn], counts: tuple[int, ...], apart: int = 3) -> None:
    """Compare every reading of every graph with the first one; one node of `apart` is asked for."""
    known: dict[tuple[int, tuple[str, int]], bytes] = {}
    subjects = [Readings(drawn, apart) for drawn in batch]
    for count in counts:
        with threads(count):
            for position, subject in enumerate(subjects):
                for reading, what, tensor in subject:
                    found = content(tensor)
                    first = known.setdefault((position, what), found)
                    assert found == first, f"{subject.drawn}: {reading} of {what} with {count} threads"


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_reading_has_the_same_bits(element: Any, graph_count: int) -> None:
    """Interpreter, hand walk, both scans, recorded gradients and plans: one digest per value.

    Each graph runs at 1 thread and at 2 or 3.
    """
    share, kinds = graph_count // 4, set()
    for first in range(0, share, 50):
        batch = [drawn_graph(seed, element) for seed in range(first, min(first + 50, share))]
        kinds |= set().union(*(drawn.kinds for drawn in batch))
        check(batch[::2], (1, 2))
        check(batch[1::2], (1, 3))
    assert kinds >= {*KINDS, "Leaf", "Parameter", "Input"}


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_reading_of_models(element: Any, graph_count: int) -> None:
    """The same over models of layers, whose rows are long enough for every kernel's blocks, and fuse."""
    for seed in range(graph_count // 40):
        check([drawn_model(seed, element)], (1, 2 + seed % 2), apart=64)


def test_every_reading_of_rationals_is_equal(graph_count: int) -> None:
    """The same over exact fractions, on the path of users' number types."""
    for seed in range(graph_count // SHARE):
        check([drawn_graph(seed, Fraction, steps=10)], (1,))


# ---- prove
def model(element: Any = "f32") -> tuple[Network, Any, Symbol]:
    """Record a small network with its gradients."""

    def build(tape: Tape) -> Any:
        x = tape.input(np.linspace(-1, 1, 12).reshape(4, 3))
        w = tape.parameter(np.linspace(-2, 1, 6).reshape(3, 2))
        unused = tape.parameter(1.0)
        loss = (x @ w).tanh().log_softmax(1).sum()
        return tape.differentiate(loss, [w, unused]), x

    network, (adjoints, x) = Tape.record(build, element=element)
    return network, adjoints, x


def test_prove_holds() -> None:
    """A model's readings agree; the proof names each of them, and leaves the thread settings alone."""
    network, adjoints, x = model()
    settings, size = (num_threads(), grain()), len(network)
    proof = prove(network, adjoints.roots, network.parameters(), {x: np.ones((4, 3))}, threads=(1, 2))
    assert (num_threads(), grain()) == settings
    assert proof.holds
    assert proof.differing() == []
    named = {reading for _, reading in proof.digests}
    assert named >= {
        f"{reading} ({count} threads)"
        for count in (1, 2)
        for reading in (
            "interpreter",
            "sliced interpreter",
            "hand walk",
            "plan",
            *(f"{each} scan of {adjoints.target!r} by {adjoints.wrt[0]!r}" for each in ("engine", "hand")),
        )
    }
    assert len({value for (symbol, _), value in proof.digests.items() if symbol == adjoints.target}) == 1
    text = str(proof)
    assert text.endswith("one digest per result")
    assert len(text.splitlines()) == len(proof.digests) + 1
    other = prove(
        network, Entry(adjoints.target), network.parameters(), [(x, Tensor(np.zeros((4, 3)), element="f32"))], (1,)
    )
    assert other.holds
    named = {reading for _, reading in other.digests}
    assert {
        f"{each} scan of {adjoints.target!r} by {adjoints.wrt[0]!r} (1 threads)" for each in ("engine", "hand")
    } <= named
    assert len(network) == size
    losses = [
        {value for (symbol, _), value in each.digests.items() if symbol == adjoints.target} for each in (proof, other)
    ]
    assert losses[0].isdisjoint(losses[1])


def test_prove_finds_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan whose tanh is another function is found, and so are its dependants."""
    network, adjoints, _ = model()
    right = Program.__init__

    def wrong(self: Any, emitter: Any) -> None:
        if isinstance(emitter, LeanEmitter):
            for row in emitter.rows:
                row.routines.update({k: v.replace("tanh", "sin") for k, v in row.routines.items()})
        right(self, emitter)

    monkeypatch.setattr(Program, "__init__", wrong)
    before = num_threads(), grain()
    proof = prove(network, adjoints.roots, network.parameters(), threads=(1,))
    assert not proof.holds
    assert proof.differing()[0] == adjoints.target
    assert "DIFFERENT: [" in str(proof)
    assert (num_threads(), grain()) == before


def test_prove_restores_the_settings_when_a_run_fails() -> None:
    """An error in a reading leaves threads and grain as they were."""
    network, adjoints, x = model()
    before = num_threads(), grain()
    with pytest.raises(ValueError, match="has shape"):
        prove(network, adjoints.roots, network.parameters(), {x: [1.0]}, threads=(3,))
    assert (num_threads(), grain()) == before


def test_prove_scans_the_roots_of_rank_0() -> None:
    """Their gradients have all readings, recorded or not, and whatever seed a recorded one has; those of others have no scan."""

    def build(tape: Tape) -> Any:
        w, unused = tape.parameter([1.0, 2.0]), tape.parameter(5.0)
        y = w * w
        loss = y.sum()
        return tape.vjp(y, [1.0, 1.0], [w]), tape.vjp(loss, 3.0, [w]), (unused * unused).symbol

    network, (vector, scaled, other) = Tape.record(build)
    roots = [*vector.roots, *scaled.roots, other]
    proof = prove(network, roots, network.parameters(), threads=(1,))
    assert proof.holds
    scanned = {symbol for symbol, reading in proof.digests if "scan" in reading}
    assert len(scanned) == 4  # of two losses by two parameters
    assert scanned.isdisjoint(roots)
    only = prove(network, vector.roots, network.parameters(), threads=(1,))
    assert only.holds
    assert not any("scan" in reading for _, reading in only.digests)


def test_prove_finds_a_wrong_derivative_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan whose rule of tanh says something else is found where nobody recorded a gradient."""
    network, loss = Tape.record(lambda tape: tape.parameter([0.5, 1.0]).tanh().sum().symbol)
    assert prove(network, loss, network.parameters(), threads=(1,)).holds
    kind = next(node.opcode for node in network.nodes() if node.name == "Tanh")
    right = type(kind).rule

    def wrong(self: Any, cotangent: Any, output: Any, operand: Any) -> Any:
        return right(self, cotangent * 2.0 if isinstance(cotangent, Tensor) else cotangent, output, operand)

    monkeypatch.setattr(type(kind), "rule", wrong)
    proof = prove(network, loss, network.parameters(), threads=(1,))
    assert not proof.holds
    assert loss not in proof.differing()


def test_prove_runs_user_numbers() -> None:
    """A network over fractions is proven on its own path."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([Fraction(1, 3), Fraction(2, 7)])
        return tape.differentiate((x * x).sum(), [x])

    network, adjoints = Tape.record(build, element=Fraction)
    proof = prove(network, adjoints.roots, network.parameters(), threads=(1,))
    assert proof.holds
    assert len(proof.digests) == 14  # four readings of the loss and of both gradients, and two scans


def test_digest() -> None:
    """Digests tell bits, shapes and elements apart, and count every NaN as one."""
    zeros = [digest(Tensor(z, element=e)) for z in (0.0, -0.0) for e in ELEMENTS]
    assert len({*zeros, digest(Tensor([0.0])), digest(Tensor([[0.0]])), digest(Tensor([0.0, 0.0]))}) == 11
    for element, unsigned in ((F32, np.uint32), (F64, np.uint64), (Bf16, np.uint16), (F16, np.uint16)):
        quiet = Tensor([np.nan], element=element)
        other = Tensor((~bits(quiet) ^ bits(quiet)).astype(unsigned).view(element.dtype), element=element)
        assert bits(other) == bits(quiet)
        assert digest(other) == digest(quiet)
        # The stand-in for NaN is no number's bits.
        number = Tensor(np.array([0xFFFF >> 4], unsigned).view(element.dtype), element=element)
        assert digest(number) != digest(quiet)
    subnormal = Tensor(np.array([0xFFFF], np.uint32).view(np.float32))
    assert digest(subnormal) != digest(Tensor([np.nan]))
    assert digest(Tensor([1.0]), Tensor([2.0])) != digest(Tensor([2.0]), Tensor([1.0]))
    assert digest(Tensor([Fraction(1, 3)])) != digest(Tensor([Fraction(2, 3)]))
    assert Proof({}).holds
