"""`Trace` and the reverse scan: rules that record, and gradients of gradients."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.drawn import Drawn, graphs
from tests.helpers import ELEMENTS, same_bits
from tests.test_cases import gradient
from topos import F64, Recordable, ShapeError, Tape, TapeError, Tensor, Trace, UsageError, Value
from topos.graph.trace import reverse_scan
from topos.ops import Add, Leaf, MatMul, Mul


def test_a_trace_is_a_value_that_rules_can_speak_to() -> None:
    """Every method records on the tape of the value; constants are leaves; literals spread."""
    tape = Tape(F64)
    x = Trace.of(tape.parameter([1.0, 2.0]))
    assert isinstance(x, Recordable)
    assert x.shape == (2,)
    assert x.value.index == 0
    assert repr(x) == "Trace(n#0)"
    y = (x * x + 1.0).sum()
    assert isinstance(y, Trace)
    assert [node.name for node in tape.nodes()] == ["Parameter", "Mul", "Leaf", "Broadcast", "Add", "Sum"]
    assert x.zero_like().value.payload() == Tensor([0.0, 0.0])
    assert x.one_like().value.payload() == Tensor([1.0, 1.0])
    assert x.constant_like(None).value.payload() == Tensor([-np.inf, -np.inf])
    assert (x.unfold(0, 1, 1) @ [[2.0, 3.0]]).shape == (2, 2)
    assert (2.0 - x).value.tape is tape


def test_traces_of_two_tapes_do_not_mix() -> None:
    """The error of values, also through `express`, where no operator has looked at the operands."""
    a, b = (Trace.of(Tape().parameter([1.0])) for _ in range(2))
    attempts: list[Any] = [
        lambda: a + b,
        lambda: Add().express([a, b]),
        lambda: Mul().vjp([a, b], a, a),
        lambda: Add().express([a.value, b.value]),
    ]
    for attempt in attempts:
        with pytest.raises(TapeError, match="belong to different tapes"):
            attempt()
    assert len(a.value.tape) == len(b.value.tape) == 1


def test_express_and_vjp_check_their_operands() -> None:
    """Sources have none; the count has to be the arity; shapes are checked."""
    tape = Tape()
    x = Trace.of(tape.parameter([1.0, 2.0]))
    assert Add().express([x, x]).value.index == 1
    with pytest.raises(UsageError, match="Leaf is a source: it has no operands to apply"):
        Leaf().express([])
    with pytest.raises(UsageError, match="Leaf is a source"):
        Leaf().vjp([], x, x)
    with pytest.raises(UsageError, match="Add takes 2 operands, 1 given"):
        Add().express([x])
    with pytest.raises(UsageError, match="Mul takes 2 operands, 3 given"):
        Mul().vjp([x, x, x], x, x)
    before = tape.describe()
    with pytest.raises(ShapeError, match=r"MatMul\(\[2\], \[2\]\): both operands need at least 2 axes"):
        MatMul().express([x, x])
    assert tape.describe() == before


def scan(tape: Tape, loss: Value) -> dict[int, Trace]:
    """Record the whole reverse scan of a loss."""
    return reverse_scan(tape.columns, loss.index, Trace(loss).one_like(), lambda n: Trace(Value(tape, n)))


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(graphs())
def test_recorded_gradients_have_the_bits_of_the_engine(drawn: Drawn) -> None:
    """For every node that the loss depends on, in every element."""
    text = drawn.network.describe()
    expected_run = drawn.run()
    expected = expected_run.backward(drawn.loss)
    count = len(drawn.network)
    reference = [expected.of(symbol) for symbol in drawn.symbols]
    tape = drawn.network.into_tape()
    spoken = scan(tape, tape.resolve(drawn.loss))
    found = {index: trace.value.symbol for index, trace in spoken.items()}
    network = tape.into_network()
    assert network.describe().splitlines()[:count] == text.splitlines()[:count]
    run = network.forward(network.parameters(), drawn.feeds)
    for index, symbol in found.items():
        assert same_bits(run.of(symbol), reference[index]), network.nodes()[index]
    for index in set(range(count)) - set(found):
        assert not reference[index].numpy().astype(float).any()


def test_growth_is_bounded_by_the_forward() -> None:
    """A reverse scan of a chain records a few nodes per forward node, whatever its length."""
    counts = []
    for length in (100, 200, 400):
        tape = Tape()
        x = y = tape.parameter(0.5)
        for _ in range(length):
            y = (y * x).tanh()
        forward = len(tape)
        scan(tape, y)
        counts.append((len(tape) - forward) / forward)
    assert max(counts) < 6
    assert max(counts) - min(counts) < 0.1


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_higher_orders_of_a_polynomial(element: Any) -> None:
    """d2 of sum(x^3) is exactly 6x, d3 is 6, d4 is 0; the product of Hessian and vector is 6xv."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([1, 2, -3])
        y = (x * x * x).sum()
        results = []
        for _ in range(4):
            slope = gradient(tape, y, x)
            results.append(slope)
            y = slope.sum()
        product = gradient(tape, (results[0] * [2, -1, 4]).sum(), x)
        return results, product

    network, (results, product) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    found = [run.of(s).to_list() for s in results]
    assert found == [[3, 12, 27], [6, 12, -18], [6, 6, 6], [0, 0, 0]]
    assert run.of(product).to_list() == [12, -12, -72]


def test_a_singular_expression_elsewhere_leaks_nothing() -> None:
    """0/0 that the loss does not use, and producers of masks and selections, stay out of the scan."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([0.0, 1.0])
        singular = x / x
        mask = singular >= 0.5
        loss = mask.select(x * 2.0, x * 3.0).sum()
        return x, singular, mask, loss

    network, (x, singular, mask, loss) = Tape.record(build)
    run = network.forward(network.parameters())
    by = run.backward(loss)
    assert np.isnan(run.of(singular).numpy()[0])
    assert by.of(x).to_list() == [3, 2]
    assert by.of(singular).to_list() == by.of(mask).to_list() == [0, 0]
