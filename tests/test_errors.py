"""One row per error condition of this tier: its type, the built-in behind it, and what the message says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import topos
from topos import (
    F32,
    DataError,
    ElementError,
    FeedError,
    Network,
    ParametersError,
    PositionError,
    SealedError,
    ShapeError,
    Symbol,
    SymbolError,
    Tape,
    TapeError,
    Tensor,
    ToposError,
    UsageError,
    concat,
    conv2d,
    cross_entropy,
    einsum,
    max_pool,
    stack,
)
from topos import errors as tree
from topos.ops import Add, Input


class World(NamedTuple):
    """What the rows speak of: a live tape with values, a network that was reopened and grown, and strangers."""

    tape: Tape
    w: Any
    x: Any
    ids: Any
    network: Network
    s: dict[str, Symbol]
    foreign: Symbol


@pytest.fixture
def world() -> World:
    """Return a fresh world."""
    tape = Tape()
    w = tape.parameter(np.ones((2, 3)), name="w")
    x = tape.input(np.ones((2, 3)))
    ids = tape.input(Tensor.selection([0, 1], 2))

    def build(t: Tape) -> Any:
        p, q = t.parameter([1.0, 2.0], name="p"), t.input([3.0, 4.0], name="q")
        picked = t.input([[0.0, 1.0]], name="picked")
        y = p * q
        return {"p": p, "q": q, "picked": picked, "y": y, "loss": (y * p.gather(picked).broadcast([2])).sum()}

    network, s = Tape.record(build)
    return World(tape, w, x, ids, network, s, Tape().leaf(1.0).symbol)


def run(world: World) -> Any:
    """Return a run of the world's network."""
    return world.network.forward(world.network.parameters())


def grown(world: World) -> Network:
    """Return the world's network with one more parameter."""
    tape = world.network.into_tape()
    tape.parameter(1.0)
    return tape.into_network()


Row = tuple[str, type[ToposError] | type[Exception], type[Exception], Callable[[World], Any], str]

ROWS: list[Row] = [
    # ---- operators and opcodes at record time
    ("two tapes", TapeError, ValueError, lambda o: o.w + Tape().leaf(np.ones((2, 3))), "belong to different tapes"),
    ("two tapes in concat", TapeError, ValueError, lambda o: concat([o.w, _other_value()], 0), "concat: the v"),
    ("other shape", ShapeError, ValueError, lambda o: o.w + o.w.T, r"Add\(\[2, 3\], \[3, 2\]\).*nothing broadcasts"),
    ("array literal", ShapeError, ValueError, lambda o: o.w * [1.0, 2.0], r"Mul\(\[2, 3\], \[2\]\)"),
    ("inner extents", ShapeError, ValueError, lambda o: o.w @ o.x, r"the last axis of operand 0 \(3\)"),
    ("matmul rank", ShapeError, ValueError, lambda o: o.w @ o.w[0], "both operands need at least 2 axes"),
    ("matmul leading", ShapeError, ValueError, lambda o: o.w @ o.w.unsqueeze(0), "broadcast_along"),
    ("axis", ShapeError, ValueError, lambda o: o.w.sum_along(2), "axis 2 is outside the rank; axes run from 0 to 1"),
    ("axis of rank 0", ShapeError, ValueError, lambda o: o.w.sum().sum_along(0), "rank 0 has no axes"),
    ("volume", ShapeError, ValueError, lambda o: o.w.reshape([4]), r"6 elements do not fill \[4\]"),
    ("order", ShapeError, ValueError, lambda o: o.w.permute([0, 0]), "name each axis 0..1 once"),
    ("narrow", ShapeError, ValueError, lambda o: o.w.narrow(1, 2, 2), "2..4 is outside axis 1 of extent 3"),
    ("pad", ShapeError, ValueError, lambda o: o.w.pad(1, 1, 3), "does not fit into 3"),
    ("unfold", ShapeError, ValueError, lambda o: o.w.unfold(1, 4, 1), "a window spans 4, axis 1 holds 3"),
    ("unfold step", ShapeError, ValueError, lambda o: o.w.unfold(1, 2, 0), "step has to be positive"),
    ("fold", ShapeError, ValueError, lambda o: o.w.fold(0, 2, 1, 1, 3), "the windows of the extent"),
    ("broadcast", ShapeError, ValueError, lambda o: o.w.broadcast([2, 3]), "hold one element; use broadcast_to"),
    ("broadcast to nothing", ShapeError, ValueError, lambda o: o.w.sum().broadcast([0]), "at least one element"),
    ("selection rank", ShapeError, ValueError, lambda o: o.w.gather([1.0, 0.0]), r"\[count, vocabulary\]"),
    ("table rows", ShapeError, ValueError, lambda o: o.w.T.gather(o.ids), "needs 2 rows, one per vocabulary"),
    ("scatter rows", ShapeError, ValueError, lambda o: o.w.T.scatter(o.ids), "one per row of the selection"),
    ("overflow", ShapeError, ValueError, lambda o: o.w.sum().broadcast([2**40, 2**40]), "not fit 64 bits"),
    ("negative shape", ShapeError, ValueError, lambda o: o.w.reshape([-1]), "extents are not negative"),
    ("rank", ShapeError, ValueError, lambda o: o.w.sum().broadcast([1] * 33), "at most 32 axes"),
    ("no shape", ShapeError, ValueError, lambda o: o.w.reshape("ab"), "a shape is a sequence of ints"),
    ("element", ElementError, TypeError, lambda o: o.w + Tensor(1.0, element="f64"), "convert it"),
    ("text", ElementError, TypeError, lambda o: o.w + "a", "'a' beside a value"),
    ("index", PositionError, IndexError, lambda o: o.w[2], "index 2 is outside axis 0 of extent 2"),
    ("index by array", PositionError, IndexError, lambda o: o.w[np.array([0, 1])], r"gather\(selection\)"),
    # ---- composites and formulas
    ("axes", ShapeError, ValueError, lambda o: o.w.mean((0, 0)), "at most once"),
    ("correction", ShapeError, ValueError, lambda o: o.w.var(0, 2), "nothing is left"),
    ("broadcast_to", ShapeError, ValueError, lambda o: o.w.broadcast_to([3, 3]), "every extent has to match or be 1"),
    ("squeeze", ShapeError, ValueError, lambda o: o.w.squeeze(0), "have extent 1"),
    ("clamp", ShapeError, ValueError, lambda o: o.w.clamp(), "give low, high, or both"),
    ("concat of nothing", ShapeError, ValueError, lambda o: concat([], 0), "give at least one"),
    ("concat off the axis", ShapeError, ValueError, lambda o: concat([o.w, o.w.T], 0), "operand 1 has"),
    ("stack", ShapeError, ValueError, lambda o: stack([o.w, o.w.T], 0), "operand 1 has"),
    ("conv2d", ShapeError, ValueError, lambda o: conv2d(o.w, o.w, o.w), r"needs \[B, C, H, W\]"),
    ("max_pool", ShapeError, ValueError, lambda o: max_pool(o.w, 2), r"needs \[B, C, H, W\]"),
    ("cross_entropy", ShapeError, ValueError, lambda o: cross_entropy(o.w, o.w.T), "one shape"),
    ("einsum", ShapeError, ValueError, lambda o: einsum("ij,jk->ik", o.w, o.w), "axis 'j' is 3 and 2"),
    # ---- a value is no number
    ("truth", UsageError, TypeError, lambda o: bool(o.w > 0), "topos.where"),
    ("float", UsageError, TypeError, lambda o: float(o.w.sum()), r"run\.of\(symbol\)\.scalar\(\)"),
    ("iteration", UsageError, TypeError, lambda o: list(o.w), r"value\.narrow"),
    ("array", UsageError, TypeError, lambda o: np.asarray(o.w), r"run\.of\(symbol\)\.numpy\(\)"),
    ("source", UsageError, TypeError, lambda o: Input().express([]), "Input is a source"),
    ("arity", UsageError, TypeError, lambda o: Add().express([o.w]), "Add takes 2 operands, 1 given"),
    # ---- tapes and networks
    ("foreign symbol", SymbolError, LookupError, lambda o: o.tape.resolve(o.foreign), "belongs to another recording"),
    ("newer symbol", SymbolError, LookupError, lambda o: o.tape.node(Symbol(o.w.symbol.family, 9)), "n#9 is newer"),
    ("no symbol", SymbolError, LookupError, lambda o: o.tape.payload("w"), "'w' is no symbol"),
    ("name taken", SymbolError, LookupError, lambda o: o.x.named("w"), "taken by n#0"),
    ("unknown name", SymbolError, LookupError, lambda o: o.network.symbol("z"), "names here: 'p', 'picked', 'q'"),
    ("sealed", SealedError, RuntimeError, lambda o: (o.tape.into_network(), o.w + 1), r"reopen with into_tape\(\)"),
    ("reopened", SealedError, RuntimeError, lambda o: (o.network.into_tape(), len(o.network)), "has been reopened"),
    # ---- derivatives
    ("ranked loss", ShapeError, ValueError, lambda o: o.tape.differentiate(o.w, [o.w]), "a loss has rank 0"),
    ("seed", ShapeError, ValueError, lambda o: o.tape.vjp(o.w, [1.0], [o.w]), r"the seed has shape \[1\]"),
    ("foreign wrt", SymbolError, LookupError, lambda o: o.tape.differentiate(o.w.sum(), [o.foreign]), "another"),
    (
        "not in wrt",
        SymbolError,
        LookupError,
        lambda o: o.tape.differentiate(o.w.sum(), [o.w]).of(o.x),
        "was not differentiated by",
    ),
    # ---- runs
    ("foreign table", ParametersError, ValueError, lambda o: o.network.forward(_other().parameters()), "another recor"),
    ("no table", ParametersError, ValueError, lambda o: o.network.forward([1.0]), "a Parameters table is needed"),
    (
        "uncovered slots",
        ParametersError,
        ValueError,
        lambda o: (p := o.network.parameters(), grown(o).forward(p)),
        r"parameters\.carried\(network\)",
    ),
    ("feed no input", FeedError, ValueError, lambda o: _feed(o, "p", [1.0, 2.0]), "is no input"),
    ("feed shape", FeedError, ValueError, lambda o: _feed(o, "q", [1.0]), r"has shape \[2\], the feed \[1\]"),
    ("feed element", FeedError, ValueError, lambda o: _feed(o, "q", Tensor([1.0, 2.0], element="f64")), "the feed f64"),
    ("feed text", FeedError, ValueError, lambda o: _feed(o, "q", ["a", "b"]), "cannot take this feed"),
    (
        "foreign feed",
        FeedError,
        ValueError,
        lambda o: o.network.forward(o.network.parameters(), {o.foreign: 1.0}),
        "belongs to another recording",
    ),
    ("not one-hot", DataError, ValueError, lambda o: _feed(o, "picked", [[0.5, 0.5]]), r"'picked'.*test_errors\.py:"),
    ("run of foreign", SymbolError, LookupError, lambda o: run(o).of(o.foreign), "another recording"),
    ("run of newer", SymbolError, LookupError, lambda o: run(o).of(Symbol(o.s["p"].family, 99)), "n#99 is newer"),
    ("backward of ranked", ShapeError, ValueError, lambda o: run(o).backward(o.s["y"]), "the target has rank 0"),
    ("backward of foreign", SymbolError, LookupError, lambda o: run(o).backward(o.foreign), "another recording"),
    # ---- tables
    ("no parameter", SymbolError, LookupError, lambda o: o.network.parameters().of(o.s["q"]), "is no parameter"),
    ("step of foreign", ParametersError, ValueError, lambda o: _step(o, _other().parameters()), "another recording"),
    (
        "step of longer",
        ParametersError,
        ValueError,
        lambda o: o.network.parameters().step(grown(o).parameters(), lambda a, b: a),
        "1 parameter slots are needed, the table has 2",
    ),
    (
        "rule changes shape",
        ShapeError,
        ValueError,
        lambda o: o.network.parameters().map(lambda t: t.sum()),
        r"slot 0 \(n#0\) has shape \[2\], the rule gave \[\]",
    ),
    ("carried", ParametersError, ValueError, lambda o: o.network.parameters().carried(_other()), "another recording"),
    ("scale", ShapeError, ValueError, lambda o: o.network.parameters().scale([1.0, 2.0]), "a single value is needed"),
    (
        "field of newer",
        SymbolError,
        LookupError,
        lambda o: run(o).field().of(Symbol(o.s["p"].family, 99)),
        "newer than this field",
    ),
    (
        "stale field",
        ParametersError,
        ValueError,
        lambda o: run(o).field().parameters(grown(o).parameters()),
        "is newer than this field",
    ),
    ("foreign field", ParametersError, ValueError, lambda o: run(o).field().parameters(_other().parameters()), "anoth"),
    # ---- payloads
    ("count", ShapeError, ValueError, lambda o: Tensor([2, 2], [1.0]), "4 elements expected, 1 given"),
    ("empty", ShapeError, ValueError, lambda o: Tensor(np.ones((0, 3))), r"Tensor of shape \[0, 3\]"),
    ("empty source", ShapeError, ValueError, lambda o: o.tape.leaf([]), "at least one element"),
    ("scalar", ShapeError, ValueError, lambda o: Tensor([1.0]).scalar(), "only rank 0 is one number"),
    ("selection index", PositionError, IndexError, lambda o: Tensor.selection([2], 2), "index 2 at position 0"),
    ("selection of nothing", ShapeError, ValueError, lambda o: Tensor.selection([], 2), "at least one element"),
    ("tensor shapes", ShapeError, ValueError, lambda o: Tensor([1.0]) + Tensor([1.0, 2.0]), "operands of one shape"),
    ("tensor rows", DataError, ValueError, lambda o: Tensor([[1.0]]).gather(Tensor([[0.5]])), "not one-hot"),
    ("no element", ElementError, TypeError, lambda o: Tape(element="i8"), "'i8' is no element"),
]  # fmt: skip


def _other() -> Network:
    return Tape.record(lambda t: t.parameter([1.0, 2.0]))[0]


def _other_value() -> Any:
    return Tape().leaf(np.ones((2, 3)))


def _feed(world: World, name: str, data: Any) -> Any:
    return world.network.forward(world.network.parameters(), {world.s[name]: data})


def _step(world: World, direction: Any) -> Any:
    return world.network.parameters().step(direction, lambda p, d: p)


@pytest.mark.parametrize(("kind", "builtin", "attempt", "message"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_a_condition_raises_its_error(
    world: World, kind: type[Exception], builtin: type[Exception], attempt: Callable[[World], Any], message: str
) -> None:
    """The type is topos's and the built-in's; the message names operation, operands and rule."""
    with pytest.raises(builtin, match=message) as caught:
        attempt(world)
    assert type(caught.value) is kind
    assert isinstance(caught.value, ToposError)


def test_no_row_is_written_twice() -> None:
    """Names are unique, so a failing one is found."""
    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)


def test_the_tree() -> None:
    """Every error is a ToposError and a built-in error, has a docstring, and those of this tier are exported."""
    found = [e for e in vars(tree).values() if isinstance(e, type) and issubclass(e, ToposError)]
    assert len(found) > 10
    for error in found:
        assert error.__doc__
        if error is not ToposError:
            builtins = {
                ValueError,
                TypeError,
                RuntimeError,
                LookupError,
                OSError,
                ImportError,
                BufferError,
                NotImplementedError,
            }
            assert any(issubclass(error, builtin) for builtin in builtins), error
    for name in ("ShapeError", "SealedError", "SymbolError", "UnreadableError", "FeedError", "DataError"):
        assert getattr(topos, name) is getattr(tree, name)


FULL: list[tuple[str, Callable[[World], Any], str]] = [
    (
        "adding a row to a matrix",
        lambda o: o.w + o.w[0],
        (
            "Add([2, 3], [3]): operands of one shape are needed, operand 0 has [2, 3] and operand 1 has [3]; "
            "nothing broadcasts by itself: write b.broadcast_to([2, 3])"
        ),
    ),
    (
        "a product of shapes that do not chain",
        lambda o: o.w @ o.x,
        "MatMul([2, 3], [2, 3]): the last axis of operand 0 (3) has to equal the second to last of operand 1 (2)",
    ),
    (
        "a product with a vector",
        lambda o: o.w @ o.w[0],
        "MatMul([2, 3], [3]): both operands need at least 2 axes; add one with unsqueeze(axis)",
    ),
    (
        "an axis outside",
        lambda o: o.w.sum_along(2),
        "SumAlong([2, 3], axis=2): axis 2 is outside the rank; axes run from 0 to 1",
    ),
    (
        "a reshape of another volume",
        lambda o: o.w.reshape([4]),
        "Reshape([2, 3], shape=[4]): 6 elements do not fill [4], which holds 4",
    ),
    (
        "if on a value",
        lambda o: 1 if o.w > 0 else 2,
        (
            "the truth of Value(n#8): a recorded value has no number until a run; choose in the graph with "
            "topos.where(mask, on_true, on_false)"
        ),
    ),
    (
        "values of two tapes",
        lambda o: o.w + Tape().leaf(np.ones((2, 3))),
        (
            "Value(n#0) and Value(n#0) belong to different tapes: record both on one tape, or feed one of them as an "
            "input"
        ),
    ),
    (
        "recording after sealing",
        lambda o: (o.tape.into_network(), o.w * 2.0),
        "this tape has been sealed: record before into_network(), or reopen with into_tape()",
    ),
    (
        "parameters of another network",
        lambda o: o.network.forward(_other().parameters()),
        "a run: the table belongs to another recording: start from network.parameters()",
    ),
    (
        "a number read before the run",
        lambda o: float(o.w),
        (
            "float() of Value(n#0): a recorded value has no number until a run; read run.of(symbol).scalar() after "
            "network.forward(...)"
        ),
    ),
    (
        "a tensor of another element",
        lambda o: o.tape.parameter(Tensor([1.0], element="f64")),
        "a tensor of f64 on a tape of f32: convert it, e.g. tensor.convert('f32')",
    ),
]


@pytest.mark.parametrize(("attempt", "message"), [row[1:] for row in FULL], ids=[row[0] for row in FULL])
def test_the_most_common_mistakes_in_full(world: World, attempt: Callable[[World], Any], message: str) -> None:
    """The whole sentence: what was done, what broke, what to write instead."""
    with pytest.raises(ToposError) as caught:
        attempt(world)
    assert str(caught.value) == message


def test_messages_with_a_line(world: World) -> None:
    """A wrong feed, and a backward of a ranked value, name the line that recorded the node."""
    source = world.network.node(world.s["q"]).source
    with pytest.raises(FeedError) as caught:
        _feed(world, "q", [1.0])
    assert str(caught.value) == (f"n#1 Input (named 'q', recorded at {source}) has shape [2], the feed [1]")
    source = world.network.node(world.s["y"]).source
    with pytest.raises(ShapeError) as found:
        run(world).backward(world.s["y"])
    assert str(found.value) == (
        f"backward of n#3 Mul (recorded at {source}) with shape [2]: the target has rank 0; reduce it first, "
        f"e.g. with sum()"
    )
    assert F32.name == "f32"
