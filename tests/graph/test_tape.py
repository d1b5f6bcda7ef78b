"""`Tape`: sources, slots, literals, names, sealing, failed recordings, threads, references."""

from __future__ import annotations

import gc
import threading
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS
from topos import (
    F32,
    F64,
    ElementError,
    Network,
    SealedError,
    ShapeError,
    Symbol,
    SymbolError,
    Tape,
    TapeError,
    Tensor,
    UsageError,
)


def test_a_fresh_tape() -> None:
    """Empty, true, of F32, and describable."""
    tape = Tape()
    assert (len(tape), tape.is_empty, bool(tape), tape.element) == (0, True, True, F32)
    assert tape.describe() == "tape: 0 nodes, 0 parameters, 0 inputs"
    assert repr(tape) == "Tape(0 nodes, f32)"
    assert tape.nodes() == []


def test_describe_is_the_documented_text() -> None:
    """Index in 4, opcode in 14, operands and parameters in 18, shape, name; then the summary."""
    tape = Tape("f64")
    x = tape.input([[1.0, 2.0, 3.0, 4.0]] * 2, name="x")
    w = tape.parameter([1.0, 2.0, 3.0], name="w")
    y = x.narrow(1, 1, 3) * w.broadcast_along(0, 2) + 1.0
    y.unfold(1, 2, 1).sum_along(2).sum().named("loss")
    assert tape.describe() == (
        "   0  Input                             [2, 4]  x\n"
        "   1  Parameter                         [3]  w\n"
        "   2  Narrow         0  axis=1 start=1 length=3 [2, 3]\n"
        "   3  BroadcastAlong 1  axis=0 extent=2 [2, 3]\n"
        "   4  Mul            2, 3               [2, 3]\n"
        "   5  Leaf                              []\n"
        "   6  Broadcast      5  shape=[2, 3]    [2, 3]\n"
        "   7  Add            4, 6               [2, 3]\n"
        "   8  Unfold         7  axis=1 size=2 step=1 dilation=1 [2, 2, 2]\n"
        "   9  SumAlong       8  axis=2          [2, 2]\n"
        "  10  Sum            9                  []  loss\n"
        "tape: 11 nodes, 1 parameter, 1 input"
    )
    network = tape.into_network()
    assert network.describe().splitlines()[-1] == "network: 11 nodes, 1 parameter, 1 input"


def test_sources_and_slots() -> None:
    """Slots are handed out in recording order; sources keep their payload, computed values have none."""
    tape = Tape(F64)
    a = tape.parameter(1.0)
    leaf = tape.leaf([1.0, 2.0])
    b = tape.parameter([[3.0]])
    x = tape.input(Tensor.selection([1], 2, element=F64))
    y = a + 2.0
    assert [v.shape for v in (a, leaf, b, x, y)] == [(), (2,), (1, 1), (1, 2), ()]
    assert leaf.payload() == Tensor([1.0, 2.0], element=F64) == tape.payload(leaf.symbol)
    assert y.payload() is None
    assert tape.payload(y) is None
    payload = x.payload()
    assert payload is not None
    assert payload.is_selection
    order = [a.symbol, b.symbol]
    assert tape.into_network().parameters().symbols() == order


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_a_tape_has_one_element(element: Any) -> None:
    """Numbers, lists and arrays become the element; a tensor of another element is refused."""
    tape = Tape(element)
    other = F64 if element is F32 else F32
    assert tape.leaf([1, 2]).payload() == Tensor([1, 2], element=element)
    for record in (tape.leaf, tape.parameter, tape.input):
        with pytest.raises(ElementError, match=rf"a tensor of {other.name} on a tape of .*convert it"):
            record(Tensor([1.0], element=other))
    assert len(tape) == 1


def test_elements_by_name_and_dtype() -> None:
    """Names, NumPy dtypes and elements; what is none is an error."""
    assert Tape("f64").element is Tape(np.float64).element is Tape(F64).element is F64
    assert Tape(np.dtype("float32")).element is F32
    assert Tape.record(lambda t: None, element="f64")[0].element is F64
    with pytest.raises(ElementError, match="'int32' is no element"):
        Tape("int32")


def test_literals_are_leaves() -> None:
    """One leaf per occurrence; a number beside a ranked value is a Leaf and a Broadcast; an array is a Leaf."""
    tape = Tape()
    x, s = tape.input([1.0, 2.0]), tape.input(3.0)
    _ = x * 2.0 + 2.0
    assert [node.name for node in tape.nodes()[2:]] == ["Leaf", "Broadcast", "Mul", "Leaf", "Broadcast", "Add"]
    count = len(tape)
    _ = s * 2.0
    _ = 2.0 * s
    assert [node.name for node in tape.nodes()[count:]] == ["Leaf", "Mul", "Leaf", "Mul"]
    count = len(tape)
    _ = x + np.array([1.0, 2.0])
    _ = np.float32(2) - x
    _ = x / np.array(2.0)
    _ = x * Tensor(2.0)
    names = [node.name for node in tape.nodes()[count:]]
    assert names == [
        "Leaf",
        "Add",
        *["Leaf", "Broadcast", "Sub"],
        *["Leaf", "Broadcast", "Div"],
        *["Leaf", "Broadcast", "Mul"],
    ]
    with pytest.raises(ShapeError, match=r"Add\(\[2\], \[3\]\): operands of one shape are needed"):
        _ = x + [1.0, 2.0, 3.0]  # noqa: RUF005
    with pytest.raises(ShapeError, match=r"write a\.broadcast_to\(\[2\]\)|write b\.broadcast_to"):
        _ = x + s


def test_names() -> None:
    """Names show, look symbols up, survive sealing, and are unique; a value may be found by several."""
    tape = Tape()
    w = tape.parameter(1.0, name="w")
    y = (w * 2.0).named("y")
    assert y.named("y") == y
    assert y.named("answer") == y
    for record in (
        lambda: tape.leaf(1.0, name="w"),
        lambda: tape.input(1.0, name="y"),
        lambda: (w + 1.0).named("w"),
        lambda: w.named("y"),
    ):
        text, count = tape.describe(), len(tape)
        with pytest.raises(SymbolError, match=r"the name '[wy]' is taken by n#[02]: names are unique on a tape"):
            record()
        if len(tape) == count:
            assert tape.describe() == text
    for name in (5, b"w", "two\nlines", "tab\t", ""):
        with pytest.raises(UsageError, match=r"the name .* of n#0: a name is printable text"):
            w.named(name)  # type: ignore[arg-type]
    network = tape.into_network()
    assert network.symbol("w") == w_symbol(network, 0)
    assert network.symbol("y") == network.symbol("answer") == w_symbol(network, 2)
    with pytest.raises(SymbolError, match="no value is named 'z'; names here: 'answer', 'w', 'y'"):
        network.symbol("z")


def w_symbol(network: Network, index: int) -> Symbol:
    """Return the symbol of a position."""
    return network.nodes()[index].symbol


# ---- sealing and reopening
def test_a_sealed_tape_is_used_up() -> None:
    """Every later use of the tape or of its values raises `SealedError`; symbols stay."""
    tape = Tape()
    x = tape.parameter([1.0, 2.0])
    symbol = x.symbol
    tape.into_network()
    uses: list[Any] = [
        lambda: tape.leaf(1.0),
        lambda: tape.describe(),
        lambda: len(tape),
        lambda: tape.is_empty,
        lambda: tape.nodes(),
        lambda: tape.node(symbol),
        lambda: tape.resolve(symbol),
        lambda: tape.payload(symbol),
        lambda: tape.into_network(),
        lambda: tape.differentiate(symbol, [symbol]),
        lambda: x + x,
        lambda: x.sum(),
        lambda: x.relu(),
        lambda: x.shape,
        lambda: x.symbol,
        lambda: x.payload(),
        lambda: x.named("x"),
        lambda: tape.columns,
    ]
    for use in uses:
        with pytest.raises(SealedError, match="this tape has been sealed") as caught:
            use()
        assert isinstance(caught.value, RuntimeError)
    assert repr(tape) == "Tape(sealed)"
    assert repr(x) == "Value(n#0)"


def test_a_reopened_network_is_used_up() -> None:
    """Every later use raises; the tape continues the same family, and symbols from before still work."""
    network, (w, y) = Tape.record(lambda t: ((w := t.parameter(2.0, name="w")), w * 3.0))
    tape = network.into_tape()
    uses: list[Any] = [
        lambda: network.describe(),
        lambda: len(network),
        lambda: network.nodes(),
        lambda: network.node(w),
        lambda: network.payload(w),
        lambda: network.parameters(),
        lambda: network.symbol("w"),
        lambda: network.into_tape(),
        lambda: network.forward(None),
        lambda: network.element,
    ]
    for use in uses:
        with pytest.raises(SealedError, match="has been reopened"):
            use()
    assert repr(network) == "Network(reopened)"
    z = (tape.resolve(y) + tape.resolve(w)).symbol
    grown = tape.into_network()
    run = grown.forward(grown.parameters())
    assert [run.of(s).scalar() for s in (w, y, z)] == [2, 6, 8]
    assert grown.symbol("w") == w


def test_resolve_refuses_what_is_not_here() -> None:
    """Foreign symbols, newer ones and what is no symbol."""
    tape, other = Tape(), Tape()
    x = tape.parameter(1.0)
    foreign = other.parameter(1.0)
    newer = Symbol(x.symbol.family, 5)
    for read in (tape.resolve, tape.node, tape.payload):
        with pytest.raises(SymbolError, match=r"n#0 belongs to another recording"):
            read(foreign.symbol)
        with pytest.raises(SymbolError, match="n#5 is newer than this recording of 1 nodes"):
            read(newer)
        with pytest.raises(SymbolError, match="1 is no symbol"):
            read(1)
    assert tape.resolve(x.symbol) == x
    assert tape.resolve(x) == x


def test_mixed_tapes_are_refused() -> None:
    """At the expression, with both values named; neither tape changes."""
    a, b = Tape().parameter([[1.0]]), Tape().parameter([[2.0]])
    attempts: list[Any] = [
        lambda: a + b,
        lambda: a @ b,
        lambda: a.maximum(b),
        lambda: a.select(b, a),
        lambda: a.gather(b),
        lambda: a < b,
        lambda: a.minimum(b),
    ]
    for attempt in attempts:
        with pytest.raises(TapeError, match=r"belong to different tapes: record both on one tape"):
            attempt()
    assert len(a.tape) == len(b.tape) == 1


def test_a_failed_source_leaves_nothing() -> None:
    """Payloads that hold nothing, ragged lists and text are refused with the tape as it was."""
    tape = Tape()
    tape.parameter(1.0, name="w")
    before = tape.describe()
    for data, kind in (
        ([], ShapeError),
        ([[1.0], [1.0, 2.0]], ShapeError),
        ("abc", ElementError),
        (None, ElementError),
    ):
        for record in (tape.leaf, tape.parameter, tape.input):
            with pytest.raises(kind):
                record(data)
            assert tape.describe() == before


def test_record_hands_back_names_in_any_nesting() -> None:
    """Tuples, lists, dicts and None pass; values become symbols."""
    network, found = Tape.record(
        lambda t: {"a": (t.leaf(1.0), [t.leaf(2.0)]), "b": None, "c": t.leaf(3.0).symbol, "d": "text"}
    )
    assert isinstance(network, Network)
    assert found["b"] is None
    assert found["d"] == "text"
    assert [s.index for s in (found["a"][0], found["a"][1][0], found["c"])] == [0, 1, 2]
    assert Tape.record(lambda t: None)[1] is None


# ---- threads and references
def test_two_threads_record_on_one_tape() -> None:
    """Every node of either thread is there, whole composites stay together."""
    tape = Tape()
    x = tape.parameter([1.0, -2.0])
    gate = threading.Barrier(2)
    rounds = 200

    def work() -> None:
        gate.wait()
        y = x
        for _ in range(rounds):
            y = y.sigmoid()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    single = Tape()
    single.parameter([1.0, -2.0]).sigmoid()
    names = [node.name for node in tape.nodes()[1:]]
    one = [node.name for node in single.nodes()[1:]]
    assert names == one * (2 * rounds)
    network = tape.into_network()
    last = network.nodes()[-1].symbol
    assert 0 < network.forward(network.parameters()).of(last).numpy()[0] < 1


def test_a_failure_in_one_thread_spares_the_other() -> None:
    """Failing composites of one thread take back nothing of the other's."""
    tape = Tape()
    x = tape.parameter([1.0, 2.0])
    gate = threading.Barrier(2)

    def fail() -> None:
        gate.wait()
        for _ in range(100):
            with pytest.raises(ShapeError):
                x.clamp(0.0, [1.0])

    def work() -> None:
        gate.wait()
        y = x
        for _ in range(100):
            y = y.relu()

    threads = [threading.Thread(target=f) for f in (fail, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [node.name for node in tape.nodes()] == ["Parameter", *["Leaf", "Maximum"] * 100]


def test_no_reference_cycles() -> None:
    """With the collector off, tapes, networks and tables die with their last reference."""
    gc.disable()
    try:
        tape = Tape()
        x = tape.parameter([1.0, 2.0])
        loss = (x * x).sum().relu()
        tape.differentiate(loss, [x])
        with pytest.raises(ShapeError):
            x.clamp(0.0, [1.0])
        gone = [weakref.ref(tape), weakref.ref(x.symbol.family)]
        network = tape.into_network()
        del tape, x, loss
        assert gone[0]() is None
        parameters = network.parameters()
        run = network.forward(parameters)
        run.backward(network.nodes()[2].symbol)
        gone += [weakref.ref(network), weakref.ref(parameters), weakref.ref(run)]
        del network, parameters, run
        assert [ref() for ref in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_a_seed_may_be_a_value_a_symbol_or_an_array() -> None:
    """The three record the same gradient; a seed of another tape is refused and leaves nothing."""
    tape = Tape()
    x = tape.parameter([1.0, 2.0])
    y, seed = x * x, tape.leaf([3.0, 4.0])
    found = [tape.vjp(y, given, x).of(x) for given in (seed, seed.symbol, [3.0, 4.0])]
    before = tape.describe()
    with pytest.raises(TapeError, match="vjp: the seed belongs to another tape"):
        tape.vjp(y, Tape().leaf([3.0, 4.0]), x)
    assert tape.describe() == before
    network = tape.into_network()
    run = network.forward(network.parameters())
    assert [run.of(symbol).to_list() for symbol in found] == [[6, 16]] * 3
