"""The cases that broke other libraries, each as its whole kind, over values, gradients and higher orders."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.drawn import drawn_graph
from tests.helpers import ELEMENTS, bits, drawn, positions, same_bits
from topos import (
    F16,
    F32,
    F64,
    Bf16,
    Element,
    Tape,
    Tensor,
    Trace,
    Value,
    concat,
    cross_entropy,
    max_pool,
    set_num_threads,
    stack,
    where,
)
from topos.graph.trace import reverse_scan
from topos.kernels.runtime import num_threads

elements = pytest.mark.parametrize("element", ELEMENTS, ids=str)
INF, NAN = np.inf, np.nan


def gradient(tape: Tape, loss: Value, wrt: Value) -> Value:
    """Record d loss / d wrt with the rules over `Trace`: differentiating the answer gives the next order."""
    columns = tape.columns
    wanted = {wrt.index}
    for node in range(wrt.index + 1, loss.index + 1):
        if not wanted.isdisjoint(columns.operands[node]):
            wanted.add(node)
    seed = Trace(loss).one_like()
    spoken = reverse_scan(columns, loss.index, seed, lambda node: Trace(Value(tape, node)), wanted)
    return spoken[wrt.index].value if wrt.index in spoken else wrt.zero_like()


def orders(function: Callable[[Value], Value], at: Any, element: Element = F64, highest: int = 3) -> list[np.ndarray]:
    """Return the value and the derivatives of an elementwise function, order by order, as f64 arrays."""

    def build(tape: Tape) -> Any:
        x = tape.parameter(at)
        results = [function(x)]
        for _ in range(highest):
            last = results[-1]
            results.append(gradient(tape, last.sum() if last.shape.rank else last, x))
        return results

    network, symbols = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    return [np.asarray(run.of(symbol), np.float64) for symbol in symbols]


def gradients(function: Callable[..., Value], *given: Any, element: Element = F64) -> list[np.ndarray]:
    """Return the value of a rank-0 function, then its gradient by each argument, from `Run.backward`."""

    def build(tape: Tape) -> Any:
        arguments = [tape.parameter(one) for one in given]
        return function(*arguments), arguments

    network, (loss, arguments) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    field = run.backward(loss)
    return [np.asarray(t) for t in (run.of(loss), *(field.of(a) for a in arguments))]


# ---- 1: branches not taken
SINGULAR: dict[str, tuple[float, Callable[[Value], Value]]] = {
    "sqrt": (0.0, lambda x: x.sqrt()),
    "sqrt sqrt": (0.0, lambda x: x.sqrt() * x.sqrt()),
    "ln": (0.0, lambda x: x.ln()),
    "ln of negative": (-1.0, lambda x: x.ln()),
    "ln sqrt": (-0.0, lambda x: x.sqrt().ln()),
    "reciprocal": (0.0, lambda x: 1 / x),
    "reciprocal square": (-0.0, lambda x: 1 / (x * x)),
    "x / x": (0.0, lambda x: x / x),
    "ratio": (0.0, lambda x: x.one_like().ratio(x)),
    "exp": (1000.0, lambda x: x.exp()),
    "exp exp": (1000.0, lambda x: x.exp() * x.exp()),
    "exp of exp": (200.0, lambda x: x.exp().exp()),
    "expm1": (1000.0, lambda x: x.expm1()),
    "log1p": (-1.0, lambda x: x.log1p()),
    "log1p of less": (-2.0, lambda x: x.log1p()),
    "powf": (0.0, lambda x: x.powf(-1.5)),
    "powf half": (0.0, lambda x: x.powf(0.5)),
    "powf of negative": (-1.0, lambda x: x.powf(0.5)),
    "powf by x": (-1.0, lambda x: x.powf(x * 0.5)),
    "powf of x by x": (0.0, lambda x: x.powf(-x.exp())),
    "tanh of exp": (1000.0, lambda x: x.exp().tanh()),
    "sin of inf": (1000.0, lambda x: x.exp().sin()),
    "cos of ln": (0.0, lambda x: x.ln().cos()),
    "erf of inf": (1000.0, lambda x: (x.exp() - x.exp()).erf()),
    "erf_derivative": (0.0, lambda x: x.ln().erf_derivative()),
    "maximum": (0.0, lambda x: x.ln().maximum(x.sqrt())),
    "minimum": (0.0, lambda x: (1 / x).minimum(x.ln())),
    "nested": (0.0, lambda x: where(x < 1, x.ln(), 1 / x)),
    "sigmoid of inf": (0.0, lambda x: (1 / x).sigmoid()),
    "softplus of NaN": (0.0, lambda x: (x / x).softplus()),
    "logsumexp": (0.0, lambda x: stack([x.ln(), 1 / x], 0).logsumexp(0)),
    "log_softmax": (0.0, lambda x: stack([x.ln(), 1 / x], 0).log_softmax(0)[1]),
}  # fmt: skip


@elements
@pytest.mark.parametrize("name", SINGULAR)
def test_case_1_a_singular_branch_contributes_nothing(name: str, element: Element) -> None:
    """To third order, in a scalar and in a vector longer than any register, on either side of a `where`."""
    at, branch = SINGULAR[name]
    for shape in ((), (37,)):
        point = np.full(shape, at)

        def right(x: Value) -> Value:
            return where(x.one_like(), x * x, branch(x))

        def left(x: Value) -> Value:
            return where(x.zero_like(), branch(x), x * x)

        value = float(element(at * at))
        for function in (left, right):
            found = orders(function, point, element)
            for order, expected in enumerate([value, 2 * at, 2.0, 0.0]):
                assert (found[order] == expected).all(), (order, found[order])


def test_case_1_the_example() -> None:
    """`where(x < 1, x, sqrt(x))` at 0 has gradient 1, an ELU at 1000 too, and the taken side is its own."""
    found = orders(lambda x: where(x < 1, x, x.sqrt()), np.array([0.0, 4.0]))
    np.testing.assert_array_equal(found[1], [1, 0.25])
    np.testing.assert_array_equal(found[2], [0, -1 / 32])
    elu = orders(lambda x: where(x >= 0, x, x.expm1()), np.array([1000.0, 0.0]))
    np.testing.assert_array_equal(elu[1], [1, 1])
    np.testing.assert_array_equal(orders(lambda x: x.elu(), 1000.0, F32)[1:], [1, 0, 0])


def _branch(x: Value, depth: int, source: random.Random) -> Value:
    """Return a drawn expression of `x`, singular in many places."""
    if depth == 0:
        return x if source.random() < 0.8 else x * 0 + source.choice([0.0, -1.0, 2.0, 1e300, 0.5])
    unary = ["exp", "ln", "sqrt", "expm1", "log1p", "tanh", "sin", "erf", "__neg__", "relu", "sigmoid"]
    binary = ["__mul__", "__mul__", "__truediv__", "__add__", "__sub__", "maximum", "minimum", "powf"]
    name = source.choice([*unary, *binary])
    if name in unary:
        return getattr(_branch(x, depth - 1, source), name)()
    if name == "powf" and source.random() < 0.7:
        return _branch(x, depth - 1, source).powf(source.choice([2.0, 0.5, -1.0, 3.0, -1.5, 0.0, 1.0]))
    return getattr(_branch(x, depth - 1, source), name)(_branch(x, depth - 1, source))


def test_case_1_fuzz() -> None:
    """Three hundred drawn branches not taken, at zeros, ones and large numbers: none is wrong to order 3."""
    point = np.array([0.0, 1000.0, -1000.0, -0.0, 1.0, -1.0])
    wrong, singular = [], 0
    for seed in range(300):
        source = random.Random(seed)
        depth = source.randint(1, 4)
        taken: list[Any] = []

        def function(x: Value, source: Any = source, depth: int = depth, taken: Any = taken) -> Value:
            taken.append(_branch(x, depth, source))
            return where(x.one_like(), x * x, taken[0])

        found = orders(function, point)
        singular += not np.isfinite(
            orders(lambda x, s=seed: _branch(x, (r := random.Random(s)).randint(1, 4), r), point, F64, 0)[0]
        ).all()
        expected = [2 * point, np.full(6, 2.0), np.zeros(6)]
        if not all((a == b).all() for a, b in zip(found[1:], expected, strict=True)):
            wrong.append(seed)
    assert wrong == []
    assert singular > 80  # the drawn branches are of the kind that this is about


# ---- 2 and 3: roots and powers at 0
@elements
def test_case_2_the_norm_at_zero(element: Element) -> None:
    """sqrt(sum(x*x)) and its square have gradient 0 at x = 0; other parameters keep their bits."""
    other = drawn((4,), element, 1).numpy()

    def rest(w: Value) -> Value:
        return (w * w).tanh().sum()

    alone = gradients(rest, other, element=element)[1]
    for power in (1, 2):

        def norm(x: Value, w: Value, power: int = power) -> Value:
            root = (x * x).sum().sqrt()
            return (root if power == 1 else root * root) + rest(w)

        _, by_x, by_w = gradients(norm, np.zeros(5), other, element=element)
        assert (by_x == 0).all()
        assert same_bits(by_w, alone)


@elements
def test_case_3_powers_at_zero(element: Element) -> None:
    """d/dx x**p at 0 by the size of p, in scalars and vectors; d/dp 0**p is 0 for p >= 0."""
    expected = {3.0: 0, 2.0: 0, 1.5: 0, 1.0: 1, 0.5: INF, 0.25: INF, 0.0: 0, -0.5: -INF, -1.0: -INF, -2.0: -INF}
    for shape in ((), (35,)):
        for p, slope in expected.items():
            _, by_x, by_p = gradients(lambda x, e: x.powf(e).sum(), np.zeros(shape), np.full(shape, p), element=element)
            assert (by_x == slope).all(), p
            if p >= 0:
                assert (by_p == 0).all(), p


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4, 5])
def test_case_3_higher_orders_are_the_polynomial(power: int) -> None:
    """Repeated differentiation of x.powf(n) agrees with x*...*x, at 0 exactly and elsewhere."""
    at = np.array([0.0, -0.0, 1.0, -2.0, 3.0, 0.5])

    def product(x: Value) -> Value:
        result = x.one_like()
        for _ in range(power):
            result = result * x
        return result

    found = orders(lambda x: x.powf(float(power)), at, highest=4)
    for a, b in zip(found, orders(product, at, highest=4), strict=True):
        np.testing.assert_allclose(a, b, rtol=16 * np.finfo(float).eps, atol=0)


# ---- 4: one winner
@elements
def test_case_4_one_winner(element: Element) -> None:
    """Cotangents of a tie sum to the incoming one, and the left operand or the earliest entry takes it."""
    tie = np.array([1.0, -0.0, 0.0, 2.0])
    _, left, right = gradients(
        lambda a, b: (a.maximum(b) * 3).sum(), tie, np.array([1.0, 0.0, -0.0, 2.0]), element=element
    )
    np.testing.assert_array_equal(left, np.full(4, 3.0))
    np.testing.assert_array_equal(right, np.zeros(4))
    for itself in (lambda x: x.maximum(x), lambda x: x.minimum(x), lambda x: x.clamp(x, x)):
        _, by = gradients(lambda x, f=itself: f(x).sum(), tie, element=element)
        np.testing.assert_array_equal(by, np.ones(4))
    for extent in (1, 2, 3, 5, 8, 13):
        for reduce in ("max_along", "min_along"):
            _, by = gradients(
                lambda x, reduce=reduce: getattr(x, reduce)(1).sum(), np.full((2, extent), 7.0), element=element
            )
            np.testing.assert_array_equal(by, np.eye(1, extent).repeat(2, 0))
    _, by = gradients(lambda x: max_pool(x, 2).sum(), np.full((1, 1, 4, 4), 5.0), element=element)
    np.testing.assert_array_equal(by[0, 0], [[1, 0, 1, 0], [0] * 4, [1, 0, 1, 0], [0] * 4])
    _, by = gradients(lambda x: max_pool(x, 2, 1).sum(), np.full((1, 1, 3, 3), 5.0), element=element)
    np.testing.assert_array_equal(by[0, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])


def test_case_4_seventy_thousand_equal_entries() -> None:
    """In f16, where a count of the winners would overflow: still one winner, gradient 1."""
    value, by = gradients(lambda x: x.max_along(0), np.full(70_000, 3.0), element=F16)
    assert value == 3
    assert by[0] == 1
    assert not by[1:].any()


# ---- 5: saturation
@elements
@pytest.mark.parametrize("shape", [(), (33,)])
def test_case_5_saturated_activations(element: Element, shape: tuple[int, ...]) -> None:
    """softplus, sigmoid, tanh and their kin at +-1000, +-125, +-100: values and gradients are right."""
    table: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
        "softplus": (lambda x: max(x, 0), lambda x: x > 0),
        "sigmoid": (lambda x: x > 0, lambda x: 0),
        "tanh": (lambda x: np.sign(x), lambda x: 0),
        "silu": (lambda x: max(x, 0), lambda x: x > 0),
        "gelu": (lambda x: max(x, 0), lambda x: x > 0),
        "elu": (lambda x: x if x > 0 else -1, lambda x: x > 0),
        "relu": (lambda x: max(x, 0), lambda x: x > 0),
        "abs": (abs, np.sign),
        "erf": (lambda x: np.sign(x), lambda x: 0),
        "leaky_relu": (lambda x: x if x > 0 else float(element(element(x) * element(0.01))), None),
    }  # type: ignore[dict-item]
    for name, (value, slope) in table.items():
        for x in (1000.0, 125.0, 100.0, -100.0, -125.0, -1000.0):
            found = orders(lambda v, name=name: getattr(v, name)(), np.full(shape, x), element, 2)
            tolerance = 1e-40 if element in (F64, F32, Bf16) else 0
            np.testing.assert_allclose(found[0], np.full(shape, value(x), float), 0, tolerance, err_msg=name)
            if slope is not None:
                np.testing.assert_allclose(found[1], np.full(shape, slope(x), float), 0, 1e-40, err_msg=name)
            np.testing.assert_allclose(found[2], np.zeros(shape), 0, 1e-40, err_msg=name)
    assert (orders(lambda v: v.tanh(), np.full(shape, -1000.0), element)[1] == 0).all()
    assert (orders(lambda v: v.softplus(), np.full(shape, 100.0), element)[1] == 1).all()


# ---- 6 and 7: log-domain rows
@elements
def test_case_6_rows_of_minus_infinity(element: Element) -> None:
    """A dead row has value -inf and gradient 0; one dead entry has weight 0; NaN stays; others keep their bits."""
    largest = 1e308 if element is F64 else 5000.0
    rows = {
        "dead": [-INF, -INF, -INF],
        "one dead": [-INF, 0.0, 1.0],
        "large": [5000.0, -5000.0, 0.0],
        "opposite": [largest, -largest, largest],
        "plain": [0.5, -1.0, 2.0],
        "nan": [NAN, 0.0, 1.0],
    }
    names = list(rows)
    whole = np.array(list(rows.values()))

    def lse(x: Value) -> Value:
        return x.logsumexp(1)

    def ls(x: Value) -> Value:
        return x.log_softmax(1)

    def soft(x: Value) -> Value:
        return x.softmax(1)

    for function in (lse, ls, soft):
        value, by = _rows(function, whole, element)
        for i, name in enumerate(names):
            alone, by_alone = _rows(function, whole[i : i + 1], element)
            assert same_bits(value[i], alone[0]), (function, name)
            assert same_bits(by[i], by_alone[0]), (function, name)
        finite = [i for i, n in enumerate(names) if n != "nan"]
        assert np.isfinite(by[finite].astype(float)).all()
        assert np.isnan(value[names.index("nan")].astype(float)).any()
        assert (by[names.index("dead")] == 0).all()
    value, by = _rows(lse, whole, element)
    assert value[names.index("dead")] == -INF
    assert value[names.index("large")] == element(5000)
    np.testing.assert_array_equal(by[names.index("large")].astype(float), [1, 0, 0])
    value, _ = _rows(soft, whole, element)
    tolerance = {F64: 1e-15, F32: 1e-6}.get(element, 0.01)
    np.testing.assert_allclose(value[names.index("opposite")].astype(float), [0.5, 0, 0.5], tolerance)
    assert value[names.index("one dead")][0] == 0
    assert (_rows(ls, whole, element)[0][names.index("dead")] == -INF).all()


def _rows(function: Callable[[Value], Value], rows: np.ndarray, element: Element) -> tuple[np.ndarray, np.ndarray]:
    """Return value and gradient per row: the cotangents are the same for every row."""

    def build(tape: Tape) -> Any:
        x = tape.parameter(rows)
        y = function(x)
        weights = np.broadcast_to(np.arange(1, 4) / 4 if y.shape.rank == 2 else 1.0, tuple(y.shape))
        return x, y, (y * tape.leaf(weights)).sum()

    network, (x, y, total) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    return np.asarray(run.of(y)), np.asarray(run.backward(total).of(x))


@elements
def test_case_6_second_order_of_dead_rows(element: Element) -> None:
    """Gradients of gradients of rows of -inf stay finite."""
    at = np.array([[-INF, -INF], [-INF, 1.0]])
    for function in (lambda x: x.logsumexp(1), lambda x: x.softmax(1)[:, 0]):
        found = orders(function, at, element, 2)
        assert np.isfinite(found[1]).all()
        assert np.isfinite(found[2]).all()


@elements
def test_case_7_cross_entropy_beside_zero_targets(element: Element) -> None:
    """A logit of -inf under target 0 contributes 0, an all-zero row contributes 0, large logits keep digits."""
    logits = np.array([[-INF, 1.0, 2.0], [0.0, 0.5, -INF]])
    targets = np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    value, by, _ = gradients(cross_entropy, logits, targets, element=element)
    wide = np.array([1.0, 2.0])
    first = np.log(np.exp(wide).sum()) - 1.0
    second = np.log(np.exp([0.0, 0.5]).sum()) - 0.25
    np.testing.assert_allclose(float(value), (first + second) / 2, rtol=0.02 if element in (F16, Bf16) else 1e-6)
    assert np.isfinite(by.astype(float)).all()
    assert by[0, 0] == by[1, 2] == 0
    padded = np.vstack([logits, [[3.0, -1.0, -INF]], [[-INF] * 3]])
    with_zero = np.vstack([targets, np.zeros((2, 3))])
    same, by_padded, _ = gradients(cross_entropy, padded, with_zero, element=element)
    assert same_bits(same, value)
    assert same_bits(by_padded[:2], by)
    assert (by_padded[2:] == 0).all()
    if element in (F32, F64):
        shifted, _, _ = gradients(
            cross_entropy, np.array([[10000.0, 10001.0]]), np.array([[1.0, 0.0]]), element=element
        )
        np.testing.assert_allclose(float(shifted), np.log1p(np.e), rtol=4 * np.finfo(element.dtype).eps)


# ---- 8: NaN
@elements
@pytest.mark.parametrize("count", [1, 40])
def test_case_8_nan_has_one_answer(element: Element, count: int) -> None:
    """NaN propagates through maxima, is 0 in every comparison, and is a true mask; neighbours are untouched."""

    def build(tape: Tape) -> Any:
        n, one = tape.leaf(np.full(count, NAN)), tape.leaf(np.ones(count))
        maxima = [n.maximum(one), one.maximum(n), n.minimum(one), one.minimum(n), n.relu(), abs(n), n.clamp(0, 1)]
        masks = [n >= one, one >= n, n > one, n < one, n <= one, one < n, one <= n, one > n, n >= n, n < n, n > n]
        steps = [n.step(one), one.step(n), n.step(n)]
        chosen = [where(n, one, one * 2), n.select(one, n)]
        image = np.arange(16.0).reshape(1, 1, 4, 4)
        image[0, 0, 0, 1] = NAN
        pools = [max_pool(tape.leaf(image), 2), tape.leaf(image).max_along(3), tape.leaf(image).min_along(2)]
        return maxima, masks + steps, chosen, pools

    network, (maxima, masks, chosen, pools) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    for symbol in maxima:
        assert np.isnan(np.asarray(run.of(symbol)).astype(float)).all(), network.node(symbol)
    for symbol in masks:
        assert run.of(symbol).to_list() == [0] * count, network.node(symbol)
    for symbol in chosen:
        assert run.of(symbol).to_list() == [1] * count
    pooled, along, least = (np.asarray(run.of(s)).astype(float)[0, 0] for s in pools)
    np.testing.assert_array_equal(pooled, [[NAN, 7], [13, 15]])
    np.testing.assert_array_equal(along, [NAN, 7, 11, 15])
    np.testing.assert_array_equal(least, [0, NAN, 2, 3])


@elements
def test_case_8_a_nan_takes_the_cotangent(element: Element) -> None:
    """The operand that wins by being NaN takes the whole gradient: the left one, the right one, one of many."""
    a = np.array([NAN, 1.0, NAN, 2.0])
    b = np.array([1.0, NAN, NAN, 1.0])
    _, left, right = gradients(lambda x, y: (x.maximum(y) * 2).sum(), a, b, element=element)
    np.testing.assert_array_equal(left.astype(float), [2, 0, 2, 2])
    np.testing.assert_array_equal(right.astype(float), [0, 2, 0, 0])
    row = np.array([[3.0, NAN, 5.0, NAN, 1.0]])
    for reduce in (lambda x: x.max_along(1), lambda x: x.min_along(1)):
        _, by = gradients(lambda x, f=reduce: f(x).sum(), row, element=element)
        np.testing.assert_array_equal(by.astype(float), [[0, 1, 0, 0, 0]])
    image = np.array([[[[1.0, NAN], [NAN, 2.0]]]])
    _, by = gradients(lambda x: max_pool(x, 2).sum(), image, element=element)
    np.testing.assert_array_equal(by.astype(float)[0, 0], [[0, 1], [0, 0]])


# ---- 9: one sample
@elements
def test_case_9_batch_norm_over_one_sample(element: Element) -> None:
    """The biased variance of one sample is 0: the output is the shift and all gradients are finite."""

    def norm(x: Value, scale: Value, shift: Value) -> Value:
        centered = x - x.mean(0).broadcast_to(x.shape)
        spread = (x.var(0) + 1e-3).sqrt().broadcast_to(x.shape)
        out = centered / spread * scale.broadcast_to(x.shape) + shift.broadcast_to(x.shape)
        outputs.append(out.symbol)
        return (out * out).sum()

    outputs: list[Any] = []
    shift = drawn((6,), element, 2).numpy()

    def build(tape: Tape) -> Any:
        given = [tape.parameter(a) for a in (drawn((1, 6), element, 1).numpy() * 100, np.full(6, 2.0), shift)]
        return norm(*given), given

    network, (loss, given) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    assert run.of(outputs[0]).to_list() == list(shift)
    for symbol in given:
        assert np.isfinite(np.asarray(run.backward(loss).of(symbol)).astype(float)).all()


# ---- 10: small arguments
@elements
def test_case_10_small_arguments_keep_their_digits(element: Element) -> None:
    """log1p and expm1 of a tiny number are that number, for every length of tail and body, odd in the sign."""
    tiny = 1e-20 if element is not F16 else 6e-8
    for count in [*range(1, 20), 31, 32, 33, 63, 65, 127]:
        at = np.full(count, tiny)
        at[::3] *= -1
        for name in ("log1p", "expm1", "tanh", "sin"):
            value, slope = orders(lambda x, name=name: getattr(x, name)(), at, element, 1)
            assert same_bits(element.array(value), element.array(at)), (name, count)
            assert (slope == 1).all()


# ---- 11 to 13: who is who
def test_case_11_perturbations_are_not_confused() -> None:
    """d/dx [x * d/dy (x + y)] is 1, and d/dx [x * d/dy (x * y)] is 2x."""
    network, symbols = Tape.record(_confused)
    run = network.forward(network.parameters())
    assert [run.of(symbol).scalar() for symbol in symbols] == [1, 6, 1]


def _confused(tape: Tape) -> Any:
    x, y = tape.parameter(3.0), tape.parameter(5.0)
    simple = gradient(tape, x * gradient(tape, x + y, y), x)
    product = gradient(tape, x * gradient(tape, x * y, y), x)
    itself = gradient(tape, x * gradient(tape, x + x * 0 + y, y), x)
    return simple, product, itself


@elements
def test_case_12_equal_parameters_stay_two(element: Element) -> None:
    """Sources of equal values, or of one array, are distinct nodes and slots with gradients of their own."""
    shared = np.array([1.0, 2.0])

    def build(tape: Tape) -> Any:
        w1, w2 = tape.parameter(shared), tape.parameter(shared)
        return w1, w2, (w1 + w2 * 3).sum()

    network, (w1, w2, loss) = Tape.record(build, element=element)
    parameters = network.parameters()
    field = network.forward(parameters).backward(loss)
    assert w1 != w2
    assert len(parameters) == 2
    assert field.of(w1).to_list() == [1, 1]
    assert field.of(w2).to_list() == [3, 3]
    stepped = parameters.with_payloads({w1: [5.0, 6.0]})
    assert stepped.of(w2).to_list() == [1, 2]


@elements
@pytest.mark.parametrize(
    ("name", "function", "expected"),
    [
        ("x * x", lambda x: x * x, lambda x: 2 * x),
        ("x + x", lambda x: x + x, lambda x: 2 + 0 * x),
        ("x - x", lambda x: x - x, lambda x: 0 * x),
        ("x / x", lambda x: x / x, lambda x: 0 * x),
        ("maximum", lambda x: x.maximum(x), lambda x: 1 + 0 * x),
        ("select", lambda x: x.select(x, x), lambda x: 1 + 0 * x),
        ("step", lambda x: x.step(x), lambda x: 0 * x),
        ("scale", lambda x: x.scale(x), lambda x: 2 * x),
        ("ratio", lambda x: x.ratio(x), lambda x: 0 * x),
        ("matmul", lambda x: x @ x, lambda x: np.ones((2, 2)) @ x.T + x.T @ np.ones((2, 2))),
        ("concat", lambda x: concat([x, x, x], 0), lambda x: 3 + 0 * x),
        ("cube", lambda x: x * x * x, lambda x: 3 * x * x),
    ],
)
def test_case_13_a_value_that_feeds_itself_twice(name: str, function: Any, expected: Any, element: Element) -> None:
    """Both contributions arrive."""
    at = np.array([[1.0, 2.0], [-4.0, 0.5]])
    _, by = gradients(lambda x: function(x).sum(), at, element=element)
    np.testing.assert_array_equal(by.astype(float), expected(at), err_msg=name)


# ---- 14 and 15: indices
@elements
def test_case_14_gather_accumulates_in_index_order(element: Element) -> None:
    """Repeated rows add up in row order with one rounding at the end of it; rows not chosen get exactly +0."""
    big = {"f64": 2.0**60, "f32": 2.0**30, "bf16": 2.0**30, "f16": 2.0**11}[element.name]
    weights = np.array([[big], [1.0], [-big], [1.0], [2.0]])

    def build(tape: Tape) -> Any:
        table = tape.parameter(np.arange(4.0).reshape(4, 1))
        rows = table.gather(tape.leaf(Tensor.selection([2, 2, 2, 0, 2], 4, element=element)))
        return table, rows, (rows * tape.leaf(weights)).sum()

    network, (table, rows, loss) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    assert run.of(rows).to_list() == [2, 2, 2, 0, 2]
    found = run.backward(loss).of(table).numpy()
    # big + 1 - big is 1 where f32 holds it (an f16 accumulates in f32), and 0 in a chain of the element.
    expected = [1.0, 0.0, 3.0 if element is F16 else 2.0, 0.0]
    np.testing.assert_array_equal(found.astype(float).ravel(), expected)
    assert not np.signbit(found.astype(float)).any()
    with pytest.raises(IndexError, match=r"index 4 at position 1 is outside 0\.\.3"):
        Tensor.selection([0, 4], 4)
    with pytest.raises(IndexError, match=r"index -1 at position 0 is outside 0\.\.3"):
        Tensor.selection([-1], 4)


@elements
def test_case_15_scatter_adds_duplicates(element: Element) -> None:
    """Scatter adds rows forward, gathers backward, and is the adjoint of gather on whole numbers."""
    one_hot = Tensor.selection([1, 1, 3, 0, 1], 5, element=element)

    def build(tape: Tape) -> Any:
        given = tape.parameter(np.arange(10.0).reshape(5, 2))
        out = given.scatter(tape.leaf(one_hot))
        weights = tape.leaf(np.arange(10.0).reshape(5, 2) - 4)
        table = tape.parameter(np.arange(10.0).reshape(5, 2) - 4)
        rows = table.gather(tape.leaf(one_hot))
        return given, out, (out * weights).sum(), (rows * given).sum(), table

    network, (given, out, loss, twin, table) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    expected = [[6, 7], [10, 13], [0, 0], [4, 5], [0, 0]]
    np.testing.assert_array_equal(run.of(out).numpy().astype(float), expected)
    assert run.of(loss) == run.of(twin)
    by = run.backward(loss).of(given).numpy().astype(float)
    np.testing.assert_array_equal(by, (np.arange(10.0).reshape(5, 2) - 4)[[1, 1, 3, 0, 1]])
    np.testing.assert_array_equal(run.backward(twin).of(table).numpy().astype(float), expected)


# ---- 22: arrays of the caller
ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda a: a,
    "fortran": np.asfortranarray,
    "view": lambda a: np.concatenate([a, a])[:2],
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "negative strides": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "big endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "rows in a list": list,
}


@elements
@pytest.mark.parametrize("form", ARRAYS)
def test_case_22_a_later_change_by_the_caller_changes_nothing(element: Element, form: str) -> None:
    """Parameter, leaf, input default, literal, feed, selection indices and replaced payload are copies."""
    if element is Bf16 and form == "big endian":
        kept = np.arange(6.0).reshape(2, 3) % 4  # no bfloat16 has a byte order: f64 stands in
    else:
        kept = (np.arange(6.0).reshape(2, 3) % 4).astype(element.dtype)
    names = ("parameter", "leaf", "input", "literal", "feed", "replaced")
    arrays = {name: ARRAYS[form](np.array(kept)) for name in names}
    indices = np.array([1, 0])

    def build(tape: Tape) -> Any:
        w, c, x = (getattr(tape, n)(arrays[n]) for n in ("parameter", "leaf", "input"))
        fed, other = tape.input(np.zeros((2, 3))), tape.input(np.zeros((2, 3)))
        rows = w.gather(tape.leaf(Tensor.selection(indices, 2, element=element)))
        literal = w * (arrays["literal"] if isinstance(arrays["literal"], np.ndarray) else np.array(kept))
        return w, c, x, fed, other, rows, literal, (w * c * x * fed * other).sum()

    network, (w, c, x, fed, other, rows, literal, loss) = Tape.record(build, element=element)
    replaced = network.parameters().with_payloads({w: arrays["replaced"]})
    parameters = network.parameters()
    run = network.forward(parameters, {fed: arrays["feed"], other: arrays["feed"]})
    indices[:] = 1
    for array in arrays.values():
        for row in array:
            row[...] = 77.0
    expected = kept.astype(float)
    for symbol in (w, c, x, fed, other):
        np.testing.assert_array_equal(run.of(symbol).numpy().astype(float), expected)
    np.testing.assert_array_equal(run.of(rows).numpy().astype(float), expected[::-1])
    np.testing.assert_array_equal(run.of(literal).numpy().astype(float), expected**2)
    np.testing.assert_array_equal(run.backward(loss).of(w).numpy().astype(float), expected**4)
    np.testing.assert_array_equal(replaced.of(w).numpy().astype(float), expected)
    again = network.forward(parameters)
    np.testing.assert_array_equal(again.of(c).numpy().astype(float), expected)


def test_case_22_results_are_read_only() -> None:
    """No value of a run, no gradient and no payload can be written through NumPy, views included."""
    feed = np.ones((2, 3), np.float32)

    def build(tape: Tape) -> Any:
        w, x = tape.parameter(np.ones((2, 3))), tape.input(np.zeros((2, 3)))
        views = [w.T, x.T, w.narrow(0, 0, 1), x.reshape([6]), w.broadcast_along(0, 2), x, w]
        return x, views, (w * x).sum()

    network, (x, views, loss) = Tape.record(build)
    parameters = network.parameters()
    run = network.forward(parameters, {x: feed})
    tensors = [run.of(v) for v in views] + run.backward(loss).payloads() + parameters.payloads()
    for tensor in tensors:
        array = np.asarray(tensor)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 5.0
        copy = np.array(tensor)
        copy[...] = 5.0
    assert all((np.asarray(p) == 1).all() for p in parameters.payloads())
    assert feed.flags.writeable
    assert (feed == 1).all()


# ---- 23: long chains and long trainings
def test_case_23_a_chain_of_a_hundred_thousand_nodes() -> None:
    """Record, describe, run, scan backward, pickle and free it: no recursion, linear memory."""
    limit = sys.getrecursionlimit()
    length = 100_000

    def build(tape: Tape) -> Any:
        x = y = tape.parameter(1.0)
        for i in range(length // 2):
            y = (-y) + x if i % 2 else (-y) - x
        return x, y

    network, (x, y) = Tape.record(build, element=F64)
    assert len(network) == length + 1
    assert network.describe().count("\n") == length + 1
    run = network.forward(network.parameters())
    by = run.backward(y).of(x).scalar()
    # y -> -y -+ x: two steps add -2 to the coefficient of x, starting from 1.
    value, slope = 1.0, 1.0
    for i in range(length // 2):
        value, slope = (-value + 1, -slope + 1) if i % 2 else (-value - 1, -slope - 1)
    assert (run.of(y).scalar(), by) == (value, slope)
    again, symbol = pickle.loads(pickle.dumps((network, y)))
    assert again.forward(again.parameters()).of(symbol).scalar() == value
    assert sys.getrecursionlimit() == limit
    del run, network, again


def _resident() -> int:
    """Return this process's resident bytes, or 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096
    except OSError:
        return 0


@pytest.mark.parametrize("collecting", [True, False], ids=["gc on", "gc off"])
def test_case_23_training_does_not_grow(collecting: bool) -> None:
    """A thousand training steps after the first hundred leave Python's and the process's memory where it was."""

    def build(tape: Tape) -> Any:
        x, y = tape.input(np.zeros((4, 8))), tape.input(Tensor.selection([0, 1, 2, 0], 3))
        w = tape.parameter(np.full((8, 3), 0.1))
        return x, y, cross_entropy((x @ w).tanh(), y)

    network, (x, y, loss) = Tape.record(build)
    parameters = network.parameters()
    generator = np.random.default_rng(0)

    def steps(count: int) -> None:
        nonlocal parameters
        for _ in range(count):
            feeds = {x: generator.normal(size=(4, 8)), y: Tensor.selection([0, 1, 2, 1], 3)}
            run = network.forward(parameters, feeds)
            slopes = run.backward(loss).parameters(parameters)
            parameters = parameters.step(slopes, lambda p, g: p - g * 0.1)

    if not collecting:
        gc.disable()
    try:
        steps(100)
        tracemalloc.start()
        try:
            steps(20)
            before, resident = tracemalloc.get_traced_memory()[0], _resident()
            steps(900)
            after, now = tracemalloc.get_traced_memory()[0], _resident()
        finally:
            tracemalloc.stop()
    finally:
        gc.enable()
    assert after - before < 40_000, f"grew by {after - before} bytes in 900 steps"
    assert now - resident < 8_000_000


# ---- 24: threads
def test_case_24_two_threads_record_on_two_tapes() -> None:
    """Each tape becomes what a serial recording gives."""
    serial = [drawn_graph(seed, F64).network.describe() for seed in range(40)]
    found: dict[int, str] = {}

    def work(start: int) -> None:
        for seed in range(start, 40, 2):
            found[seed] = drawn_graph(seed, F64).network.describe()

    _together([lambda: work(0), lambda: work(1)])
    assert [found[seed] for seed in range(40)] == serial


def _together(work: Sequence[Callable[[], None]]) -> None:
    """Run the callables in a thread each and raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_case_24_two_hundred_runs_have_one_digest() -> None:
    """At one and at two threads, serially and from eight Python threads."""
    graph = drawn_graph(11, F32, steps=24)

    def digest() -> bytes:
        run = graph.run()
        return b"".join(bits(t).tobytes() for t in (*run.field().payloads(), *run.backward(graph.loss).payloads()))

    threads = num_threads()
    digests: set[bytes] = set()
    found: list[bytes] = []
    try:
        for count in (1, 2):
            set_num_threads(count)
            digests.update(digest() for _ in range(60))
            _together([lambda: found.extend(digest() for _ in range(10))] * 8)
    finally:
        set_num_threads(threads)
    assert len(found) == 160
    assert len(digests | set(found)) == 1


# ---- 26: exceptions in a user's code
class Failing(Fraction):
    """A number whose maps fail on demand."""

    fails = False

    def _operate(self, other: Any, name: str) -> Failing:
        result = getattr(Fraction, name)(Fraction(self), Fraction(other))
        return Failing(result)

    def __add__(self, other: Any) -> Failing:
        if Failing.fails:
            raise ArithmeticError("the user's add failed")
        return self._operate(other, "__add__")

    def __mul__(self, other: Any) -> Failing:
        return self._operate(other, "__mul__")

    def __neg__(self) -> Failing:
        return Failing(-Fraction(self))


def test_case_26_a_hook_of_an_element_fails() -> None:
    """The error arrives as it is; network, parameters and tape are as before, and the next run works."""
    network, (x, loss) = Tape.record(lambda t: ((x := t.parameter([1, 2])), (x * x + x).sum()), element=Failing)
    parameters = network.parameters()
    text = network.describe()
    expected = network.forward(parameters).of(loss)
    Failing.fails = True
    try:
        with pytest.raises(ArithmeticError, match="the user's add failed"):
            network.forward(parameters)
    finally:
        Failing.fails = False
    assert network.describe() == text
    assert network.forward(parameters).of(loss) == expected
    assert network.forward(parameters).backward(loss).of(x).to_list() == [3, 5]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_case_26_a_closure_fails(error: type[BaseException]) -> None:
    """In record, step, map, zip, step_each and with_payloads: the state before is the state after."""

    def fail(*_: Any) -> Any:
        raise error("stop")

    tape = Tape()

    def build(_: Tape) -> Any:
        tape.parameter(1.0)
        fail()

    with pytest.raises(error, match="stop"):
        Tape.record(build)
    (tape.resolve(tape.nodes()[0].symbol) * 2.0).named("y")
    network = tape.into_network()
    parameters = network.parameters()
    before = parameters.buffer.tobytes()
    attempts: list[Callable[[], Any]] = [
        lambda: parameters.map(fail),
        lambda: parameters.zip(parameters, fail),
        lambda: parameters.step(parameters, fail),
        lambda: parameters.step_each(parameters, fail),
        lambda: parameters.with_payloads(fail() for _ in range(1)),
        lambda: network.forward(parameters, (fail() for _ in range(1))),
        lambda: network.forward(parameters).field().map(fail),
        lambda: network.forward(parameters).field().zip(network.forward(parameters).field(), fail),
    ]
    for attempt in attempts:
        with pytest.raises(error, match="stop"):
            attempt()
    assert parameters.buffer.tobytes() == before
    assert network.forward(parameters).of(network.symbol("y")).scalar() == 2


def test_case_26_a_reader_that_fails_inside_a_composite() -> None:
    """An object whose conversion fails in the middle of a recording leaves nothing on the tape."""

    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

    tape = Tape()
    x = tape.parameter([1.0, 2.0])
    before = tape.describe()
    for record in (lambda: x.clamp(0.0, Broken()), lambda: x.elu(Broken()), lambda: x < Broken()):
        with pytest.raises(KeyboardInterrupt):
            record()
        assert tape.describe() == before
    assert positions(2, 3, F32).is_selection
    assert (x + 1).index == 3
