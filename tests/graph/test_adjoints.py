"""Recorded reverse mode: what is recorded, what is not, and that it is right to any order."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import same_bits
from topos import Adjoints, Entry, Network, ShapeError, Symbol, SymbolError, Tape, TapeError, Tensor, UnreadableError


def added(tape: Tape, since: int) -> list[str]:
    """Return the kinds recorded from a position on."""
    return [node.name for node in tape.nodes()[since:]]


def value(tape: Tape, symbol: Symbol) -> Any:
    """Seal the tape, run it and return a value as a NumPy array."""
    network = tape.into_network()
    return network.forward(network.parameters()).of(symbol).numpy()


# ---- what is recorded
def test_only_what_leads_from_the_loss_to_a_wrt_is_recorded() -> None:
    """Appendix B's example in the lean form: no zero leaf, no first Add, nothing for x and y."""
    tape = Tape()
    w, x, y = tape.parameter(2.0), tape.input(3.0), tape.input(1.0)
    residual = w * x - y
    loss = residual * residual
    since = len(tape)
    adjoints = tape.differentiate(loss, [w])
    assert added(tape, since) == ["Leaf", "Scale", "Scale", "Add", "Scale"]
    assert tape.node(adjoints.of(w)).operands[1] == x.symbol
    assert value(tape, adjoints.of(w)) == 2 * (2 * 3 - 1) * 3


def test_growth_is_bounded() -> None:
    """A chain's derivative adds a bounded number of nodes per node, and none of unused constants."""
    tape = Tape(element="f64")
    x = tape.parameter(0.5)
    node = x
    for _ in range(50):
        node = (node * x).tanh()
    since = len(tape)
    adjoints = tape.differentiate(node, [x])
    assert len(tape) - since <= 6 * since
    network = tape.into_network()
    assert len(network.entry(adjoints.roots).lower()) == len(network)


def test_data_operands_lead_nowhere() -> None:
    """Through a mask or a selection no cotangent flows: what feeds only those is not even recorded."""
    tape = Tape()
    x = tape.parameter([1.0, -2.0])
    table = tape.parameter([[1.0], [2.0]])
    mask = (x * 3.0).step(0.0)
    picked = table.gather(tape.leaf([[1.0, 0.0]]) * 1.0)
    loss = (mask * 2.0).sum() + mask.select(mask, mask).sum() + picked.sum()
    since = len(tape)
    adjoints = tape.differentiate(loss, [x])
    assert added(tape, since) == ["Leaf", "Leaf"]  # the seed, and the zeros of x
    assert tape.node(adjoints.of(x)).name == "Leaf"
    assert value(tape, adjoints.of(x)).tolist() == [0, 0]


def test_a_mask_and_its_choice_may_be_one_value() -> None:
    """An operand that is data in one place and chosen in another gets the cotangent of the choice."""
    tape = Tape()
    x = tape.parameter([2.0, 0.0])
    adjoints = tape.differentiate(x.select(x, x * 5.0).sum(), x)
    assert value(tape, adjoints.of(x)).tolist() == [1, 5]


def test_relu_second_derivatives_are_zero_and_short() -> None:
    """The second derivative of a relu network by its input is an exact zero."""
    tape = Tape()
    x = tape.parameter([1.5, -0.5, 0.0])
    first = tape.differentiate(x.relu().sum(), [x]).of(x)
    since = len(tape)
    second = tape.vjp(first, [1.0, 1.0, 1.0], [x]).of(x)
    assert added(tape, since) == ["Leaf", "Leaf"]
    network = tape.into_network()
    run = network.forward(network.parameters())
    assert run.of(first).to_list() == [1, 0, 0]
    assert run.of(second).to_list() == [0, 0, 0]


def test_a_derivative_node_names_the_line_of_its_operation() -> None:
    """Nodes of a rule carry the recording line of the node that they differentiate."""
    tape = Tape()
    x = tape.parameter(2.0)
    y = x.exp()
    z = y.sin()
    since = len(tape)
    tape.differentiate(z, [x])
    here = tape.nodes()[since].source  # the seed belongs to the call
    assert here not in (tape.node(z).source, tape.node(y).source)
    assert [n.source for n in tape.nodes()[since:]] == [
        here, tape.node(z).source, tape.node(z).source, tape.node(y).source
    ]  # fmt: skip


# ---- wrt and stop
def test_wrt_that_is_no_ancestor_gets_zeros() -> None:
    """A value beside the target, newer than it, or beyond a stop has a zero leaf of its own shape."""
    tape = Tape()
    x, beside = tape.parameter([1.0, 2.0]), tape.parameter([[1.0, 2.0, 3.0]])
    loss = (x * x).sum()
    newer = loss * 2.0
    adjoints = tape.differentiate(loss, [beside, newer, x])
    assert adjoints.wrt == (beside.symbol, newer.symbol, x.symbol)
    assert [tape.node(g).name for g in adjoints.gradients[:2]] == ["Leaf", "Leaf"]
    assert [tuple(tape.node(g).shape) for g in adjoints.gradients] == [(1, 3), (), (2,)]
    network = tape.into_network()
    run = network.forward(network.parameters())
    assert run.of(adjoints.gradients[0]).to_list() == [0, 0, 0]
    assert run.of(adjoints.gradients[1]).scalar() == 0


def test_wrt_that_is_the_target_gets_the_seed() -> None:
    """The derivative of a value by itself is the seed, recorded once."""
    tape = Tape()
    x = tape.parameter(3.0)
    loss = x * x
    adjoints = tape.differentiate(loss, [loss, x, loss])
    assert adjoints.gradients[0] == adjoints.gradients[2]
    assert tape.payload(adjoints.of(loss)) == Tensor(1.0)
    seed = tape.leaf([2.0, 5.0])
    y = tape.leaf([1.0, 1.0])
    assert tape.vjp(y, seed, [y]).of(y) == seed.symbol


def test_wrt_may_be_interior_and_repeated() -> None:
    """Gradients by interior values are those that the engine reports; entries may repeat."""
    tape = Tape(element="f64")
    x = tape.parameter([0.3, 0.7])
    y = x.sin()
    loss = (y * y * x).sum()
    adjoints = tape.differentiate(loss, [y, x, y])
    network = tape.into_network()
    run = network.forward(network.parameters())
    engine = run.backward(adjoints.target)
    for wrt, gradient in adjoints.pairs:
        assert same_bits(run.of(gradient), engine.of(wrt))
    assert len(adjoints.pairs) == 3


def test_stop_lets_nothing_through() -> None:
    """A stopped value is a constant: gradients of other paths stay, its own is read where it is a wrt."""
    tape = Tape()
    x = tape.parameter(3.0)
    y = x * 2.0
    loss = y * x
    cases = {
        "free": (tape.differentiate(loss, [x]).of(x), 12),
        "stopped": (tape.differentiate(loss, [x], stop=[y]).of(x), 6),
        "one symbol": (tape.differentiate(loss, x, stop=y.symbol).of(x), 6),
        "wrt beyond": (tape.differentiate(loss, [x, y], stop=[y]).of(x), 6),
        "stopped wrt": (tape.differentiate(loss, [x, y], stop=[y]).of(y), 3),
        "target": (tape.differentiate(loss, [x], stop=[loss]).of(x), 0),
        "target and wrt": (tape.differentiate(loss, [x, loss], stop=[loss]).of(x), 0),
        "of itself": (tape.differentiate(loss, [loss], stop=[loss]).of(loss), 1),
        "vjp": (tape.vjp(loss, 2.0, [x], stop=[y]).of(x), 12),
        "stopped source": (tape.differentiate(loss, [x], stop=[x]).of(x), 12),
    }
    network = tape.into_network()
    run = network.forward(network.parameters())
    assert {name: run.of(s).scalar() for name, (s, _) in cases.items()} == {n: v for n, (_, v) in cases.items()}


def test_no_wrt() -> None:
    """Without entries there is a seed and nothing else."""
    tape = Tape()
    x = tape.parameter(1.0)
    adjoints = tape.differentiate(x * x, [])
    assert adjoints.pairs == ()
    assert len(tape) == 3


# ---- orders
def test_higher_orders_of_a_cube() -> None:
    """d2 of sum(x^3) is exactly 6x, d3 is 6; the same over exact fractions."""
    for element, numbers in (("f64", [0.1, -2.5, 3.0]), (Fraction, [Fraction(1, 3), Fraction(-5), Fraction(0)])):
        tape = Tape(element=element)
        x = tape.parameter(numbers)
        d1 = tape.resolve(tape.differentiate((x * x * x).sum(), [x]).of(x))
        d2 = tape.resolve(tape.differentiate(d1.sum(), [x]).of(x))
        s1, s2 = d1.symbol, d2.symbol
        d3 = tape.differentiate(d2.sum(), [x]).of(x)
        network = tape.into_network()
        run = network.forward(network.parameters())
        exact = [6 * n for n in numbers]
        assert np.allclose(np.array(run.of(s2).to_list(), float), np.array(exact, float), rtol=1e-15)
        assert run.of(d3).to_list() == [6, 6, 6]
        if element is Fraction:
            assert run.of(s2).to_list() == exact
            assert run.of(s1).to_list() == [3 * n * n for n in numbers]


def test_hessian_vector_product() -> None:
    """The vjp of a gradient with a vector is the Hessian times it: 6 x v for a sum of cubes, exactly."""
    tape = Tape()
    x, v = tape.parameter([1.0, -2.0, 4.0]), tape.input([1.0, 10.0, -3.0])
    gradient = tape.differentiate((x * x * x).sum(), [x]).of(x)
    by_value = tape.vjp(gradient, v, [x]).of(x)
    by_symbol = tape.vjp(gradient, v.symbol, [x]).of(x)
    by_array = tape.vjp(gradient, np.array([1.0, 10.0, -3.0]), [x]).of(x)
    network = tape.into_network()
    run = network.forward(network.parameters())
    for symbol in (by_value, by_symbol, by_array):
        assert run.of(symbol).to_list() == [6, -120, -72]


def test_the_seed_is_constant() -> None:
    """A computed seed takes part as a number: what it depends on gets nothing through it."""
    tape = Tape()
    x = tape.parameter(3.0)
    seed = x * 10.0
    assert value(tape, tape.vjp(x * x, seed, [x]).of(x)) == 30 * 6


def test_vjp_with_ones_is_differentiate() -> None:
    """The same nodes and the same bits."""

    def tape_of() -> tuple[Tape, Any, Any]:
        tape = Tape()
        x = tape.parameter([0.5, 1.5])
        return tape, x, x.tanh().sum()

    tape, x, loss = tape_of()
    first = tape.differentiate(loss, [x])
    other, y, target = tape_of()
    second = other.vjp(target, target.one_like(), [y])
    assert tape.describe() == other.describe()
    assert first.of(x).index == second.of(y).index
    third = other.vjp(target, 1.0, [y])
    pair = second.of(y), third.of(y)
    network = other.into_network()
    run = network.forward(network.parameters())
    assert same_bits(*map(run.of, pair))


def test_vjp_of_a_vector_is_the_gradient_of_the_dotted_scalar() -> None:
    """The vjp of y with s has the values of differentiate(sum(y * s))."""
    tape = Tape(element="f64")
    x = tape.parameter([[0.5, 1.5], [-0.3, 2.0]])
    y, s = x @ x.tanh(), tape.leaf([[1.0, -2.0], [0.5, 3.0]])
    one = tape.vjp(y, s, [x]).of(x)
    other = tape.differentiate((y * s).sum(), [x]).of(x)
    network = tape.into_network()
    run = network.forward(network.parameters())
    assert same_bits(run.of(one), run.of(other))


def test_perturbation_confusion() -> None:
    """Case 11: d/dx [x * d/dy (x + y)] is 1."""
    tape = Tape()
    x, y = tape.parameter(5.0), tape.parameter(7.0)
    inner = tape.resolve(tape.differentiate(x + y, [y]).of(y))
    assert value(tape, tape.differentiate(x * inner, [x]).of(x)) == 1


def test_both_contributions_arrive() -> None:
    """Cases 12 and 13: a value used twice, and two parameters of equal values."""
    tape = Tape()
    x, twin = tape.parameter([[2.0, 1.0], [0.0, 3.0]]), tape.parameter([[2.0, 1.0], [0.0, 3.0]])
    found = {
        "square": tape.differentiate((x * x).sum(), [x]).of(x),
        "difference": tape.differentiate((x - x).sum(), [x]).of(x),
        "product": tape.differentiate((x @ x).sum(), [x]).of(x),
        "sum": tape.differentiate((x + twin).sum(), [x]).of(x),
    }
    network = tape.into_network()
    run = network.forward(network.parameters())
    read = {name: run.of(symbol).to_list() for name, symbol in found.items()}
    assert read["square"] == [4, 2, 0, 6]
    assert read["difference"] == [0, 0, 0, 0]
    assert read["product"] == [3 + 2, 3 + 2, 3 + 4, 3 + 4]
    assert read["sum"] == [1, 1, 1, 1]


# ---- Adjoints
def test_adjoints() -> None:
    """The readers, the roots, the rewriting of gradients, and the text."""
    tape = Tape()
    x, y = tape.parameter([1.0, 2.0]), tape.parameter(3.0)
    loss = (x * x).sum() * y
    adjoints = tape.differentiate(loss, [x, y])
    assert adjoints.target == loss.symbol
    assert adjoints.pairs == ((x.symbol, adjoints.of(x)), (y.symbol, adjoints.of(y.symbol)))
    assert adjoints.wrt == (x.symbol, y.symbol)
    assert adjoints.gradients == (adjoints.of(x), adjoints.of(y))
    assert adjoints.roots == [loss.symbol, *adjoints.gradients]
    assert adjoints.detach() is adjoints
    assert repr(adjoints).startswith(f"Adjoints({loss.symbol!r} by {{{x.symbol!r}: ")
    with pytest.raises(SymbolError, match=r"Adjoints\.of: n#\d+ was not differentiated by; entries are \[n#0"):
        adjoints.of(loss)
    aliased = adjoints.map_gradients(lambda g: tape.resolve(g).reshape(tape.node(g).shape))
    assert aliased.wrt == adjoints.wrt
    assert aliased.target == adjoints.target
    assert [tape.node(g).name for g in aliased.gradients] == ["Reshape", "Reshape"]
    network = tape.into_network()
    run = network.entry(aliased.roots).lower().forward(network.parameters())
    assert run.of(aliased.of(adjoints.wrt[0])).to_list() == [6, 12]


def test_adjoints_survive_record() -> None:
    """`Tape.record` hands adjoints out as they are, in any nesting."""

    def build(tape: Tape) -> Any:
        x = tape.parameter(2.0)
        return {"gradients": [tape.differentiate(x * x, x)], "x": x}

    network, names = Tape.record(build)
    (adjoints,) = names["gradients"]
    assert isinstance(adjoints, Adjoints)
    assert network.forward(network.parameters()).of(adjoints.of(names["x"])).scalar() == 4


# ---- recorded gradients as a table
def trained() -> tuple[Network, Adjoints, Any]:
    """Record two used parameters, one unused, and gradients by the first."""

    def build(tape: Tape) -> Any:
        w, b, unused = tape.parameter([1.0, 2.0]), tape.parameter(1.0), tape.parameter([[9.0]])
        x = tape.input([3.0, 4.0])
        loss = (w * x).sum() * b
        return tape.differentiate(loss, [w]), tape.differentiate(loss, [x]), (w, b, unused, x)

    network, (by_w, by_x, names) = Tape.record(build)
    return network, by_w, (by_x, names)


def test_recorded_gradients() -> None:
    """Each gradient lies in its parameter's slot; unnamed slots are zeros of their shape."""
    network, by_w, (_, (w, b, unused, _)) = trained()
    run = network.entry(by_w.roots).lower().forward(network.parameters())
    table = run.recorded_gradients(by_w)
    assert table.of(w).to_list() == [3, 4]
    assert table.of(b).scalar() == 0
    assert table.of(unused).to_list() == [0]
    assert tuple(table.of(unused).shape) == (1, 1)


def test_recorded_gradients_refuse() -> None:
    """A wrt that is no parameter, and a gradient that the plan does not keep."""
    network, by_w, (by_x, _) = trained()
    run = network.forward(network.parameters())
    with pytest.raises(SymbolError, match=r"n#3 Input .* is no parameter"):
        run.recorded_gradients(by_x)
    plan = network.entry(by_w.target).lower()
    with pytest.raises(UnreadableError, match=r"entry\.observe"):
        plan.forward(network.parameters()).recorded_gradients(by_w)
    mapped = by_w.map_gradients(lambda _: by_w.target)
    with pytest.raises(ShapeError, match=r"n#0 Parameter .* has shape \[2\], its gradient \[\]"):
        run.recorded_gradients(mapped)


# ---- errors
def test_errors_leave_the_tape_as_it_was() -> None:
    """Appendix C: each refusal names its rule, is a subclass of the built-in, and records nothing."""
    tape = Tape()
    x = tape.parameter([1.0, 2.0])
    loss = (x * x).sum()
    foreign = Tape().parameter(1.0)
    newer = Symbol(x.symbol.family, 99)
    vector = x * 1.0
    before = tape.describe(), list(tape.columns.adjoints)
    cases = [
        (lambda: tape.differentiate(vector, [x]), ShapeError, r"with shape \[2\]: a loss has rank 0.*vjp"),
        (lambda: tape.differentiate(foreign, [x]), SymbolError, "belongs to another recording"),
        (lambda: tape.differentiate(newer, [x]), SymbolError, "newer than this recording of"),
        (lambda: tape.differentiate(loss, [foreign]), SymbolError, "belongs to another recording"),
        (lambda: tape.differentiate(loss, [x, newer]), SymbolError, "newer"),
        (lambda: tape.differentiate(loss, [x], stop=[foreign]), SymbolError, "belongs to another"),
        (lambda: tape.differentiate(loss, [x, "w"]), SymbolError, "'w' is no symbol"),
        (lambda: tape.vjp(x, [1.0], [x]), ShapeError, r"seed has shape \[1\], the target \[2\]"),
        (lambda: tape.vjp(x, foreign, [x]), TapeError, "seed belongs to another tape"),
        (lambda: tape.vjp(x, foreign.symbol, [x]), SymbolError, "belongs to another recording"),
        (lambda: tape.vjp(foreign, [1.0], [x]), SymbolError, "belongs to another recording"),
    ]
    for refused, error, message in cases:
        with pytest.raises(error, match=message):
            refused()
        assert (tape.describe(), tape.columns.adjoints) == before
    assert value(tape, tape.differentiate(loss, [x]).of(x)).tolist() == [2, 4]


def test_a_failing_rule_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the middle of the scan leaves nodes, payloads, lines and adjoints as they were."""
    from topos.ops import Mul

    tape = Tape()
    x = tape.parameter(2.0)
    loss = (x * x).exp()
    before = tape.describe(), dict(tape.columns.payloads)

    def broken(self: Any, g: Any, out: Any, *operands: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Mul, "rule", broken)
        with pytest.raises(KeyboardInterrupt):
            tape.differentiate(loss, [x])
    assert (tape.describe(), tape.columns.payloads) == before
    assert tape.location is None
    assert tape.columns.adjoints == []
    adjoints = tape.differentiate(loss, [x])
    assert np.isclose(value(tape, adjoints.of(x)), 4 * np.exp(4.0), rtol=1e-6)


def test_a_long_chain_is_differentiated_without_recursion() -> None:
    """10,000 nodes: recorded, differentiated and lowered; the count stays linear."""
    tape = Tape()
    x = tape.parameter(1.0)
    node = x
    for _ in range(10_000):
        node = -node
    since = len(tape)
    adjoints = tape.differentiate(node, [x])
    assert len(tape) - since == 10_001
    assert Counter(added(tape, since)) == {"Leaf": 1, "Neg": 10_000}
    network = tape.into_network()
    plan = network.compile(Entry(adjoints.roots))
    assert plan.forward(network.parameters()).of(adjoints.of(adjoints.wrt[0])).scalar() == 1
