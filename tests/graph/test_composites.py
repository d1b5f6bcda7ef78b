"""Composites: values against NumPy and SciPy, gradients by differences to second order, what they record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special as sp

from tests.helpers import ELEMENTS, drawn
from tests.test_cases import gradient, orders
from topos import F32, F64, ShapeError, Tape, Tensor, UsageError, Value, where

Function = Callable[[Value], Value]
Reference = Callable[[np.ndarray], Any]


def lse(x: np.ndarray, axes: Any) -> Any:
    """Return SciPy's logsumexp."""
    return sp.logsumexp(x, axis=axes)


TABLE: dict[str, tuple[Function, Reference, tuple[int, ...]]] = {
    "abs": (lambda x: x.abs(), np.abs, (3, 4)),
    "abs()": (abs, np.abs, ()),
    "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0), (3, 4)),
    "leaky_relu": (lambda x: x.leaky_relu(0.25), lambda x: np.where(x > 0, x, 0.25 * x), (7,)),
    "elu": (lambda x: x.elu(1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)), (7,)),
    "softplus": (lambda x: x.softplus(), lambda x: np.logaddexp(0, x), (7,)),
    "sigmoid": (lambda x: x.sigmoid(), sp.expit, (7,)),
    "silu": (lambda x: x.silu(), lambda x: x * sp.expit(x), (7,)),
    "gelu": (lambda x: x.gelu(), lambda x: x * sp.ndtr(x), (7,)),
    "softmax 0": (lambda x: x.softmax(0), lambda x: sp.softmax(x, 0), (3, 4)),
    "softmax -1": (lambda x: x.softmax(-1), lambda x: sp.softmax(x, -1), (2, 3, 2)),
    "minimum": (lambda x: x.minimum(0.45), lambda x: np.minimum(x, 0.45), (7,)),
    "clamp": (lambda x: x.clamp(-0.4, 0.7), lambda x: np.clip(x, -0.4, 0.7), (7,)),
    "clamp low": (lambda x: x.clamp(low=-0.4), lambda x: np.maximum(x, -0.4), (7,)),
    "clamp high": (lambda x: x.clamp(high=0.7), lambda x: np.minimum(x, 0.7), ()),
    "where": (lambda x: where(x > 0.2, x.exp(), x * x), lambda x: np.where(x > 0.2, np.exp(x), x * x), (7,)),
    "mean": (lambda x: x.mean(), np.mean, (2, 3, 2)),
    "mean 1": (lambda x: x.mean(1), lambda x: x.mean(1), (2, 3, 2)),
    "mean (0, -1)": (lambda x: x.mean((0, -1)), lambda x: x.mean((0, 2)), (2, 3, 2)),
    "mean ()": (lambda x: x.mean(()), lambda x: x, (2, 3)),
    "mean_along": (lambda x: x.mean_along(-2), lambda x: x.mean(-2), (2, 3, 2)),
    "var": (lambda x: x.var(), np.var, (2, 3)),
    "var 0": (lambda x: x.var(0), lambda x: x.var(0), (4, 2)),
    "var [0, 2]": (lambda x: x.var([0, 2], 1), lambda x: x.var((0, 2), ddof=1), (2, 3, 2)),
    "std": (lambda x: x.std(1, correction=1), lambda x: x.std(1, ddof=1), (2, 5)),
    "max_along": (lambda x: x.max_along(1), lambda x: x.max(1), (2, 7)),
    "max_along 0": (lambda x: x.max_along(0), lambda x: x.max(0), (6, 2)),
    "max_along 1": (lambda x: x.max_along(-1), lambda x: x.max(-1), (3, 1)),
    "min_along": (lambda x: x.min_along(-1), lambda x: x.min(-1), (2, 3, 5)),
    "logsumexp": (lambda x: x.logsumexp(), lambda x: lse(x, None), (2, 3)),
    "logsumexp 1": (lambda x: x.logsumexp(1), lambda x: lse(x, 1), (2, 3)),
    "logsumexp [0, 2]": (lambda x: x.logsumexp([0, 2]), lambda x: lse(x, (0, 2)), (2, 3, 2)),
    "logsumexp (2, 1)": (lambda x: x.logsumexp((2, 1)), lambda x: lse(x, (1, 2)), (2, 3, 2)),
    "broadcast_like": (
        lambda x: x.broadcast_like(x.tape.leaf(np.ones((2, 3)))),
        lambda x: np.full((2, 3), x.item()),
        (1,),
    ),
    "broadcast_along_like": (
        lambda x: x.broadcast_along_like(1, x.tape.leaf(np.ones((2, 4, 3)))),
        lambda x: np.repeat(x[:, None], 4, 1),
        (2, 3),
    ),
    "broadcast_to row": (lambda x: x.broadcast_to([2, 3]), lambda x: np.broadcast_to(x, (2, 3)), (3,)),
    "broadcast_to middle": (
        lambda x: x.broadcast_to([2, 4, 3]),
        lambda x: np.broadcast_to(x, (2, 4, 3)),
        (2, 1, 3),
    ),
    "broadcast_to single": (lambda x: x.broadcast_to([2, 2]), lambda x: np.broadcast_to(x, (2, 2)), (1, 1)),
    "broadcast_to same": (lambda x: x.broadcast_to([2, 3]), lambda x: x, (2, 3)),
    "transpose": (lambda x: x.transpose(), np.transpose, (2, 3)),
    "T": (lambda x: x.T, np.transpose, (2, 3, 4)),
    "T of a row": (lambda x: x.T, np.transpose, (3,)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), lambda x: x[..., None], (2, 3)),
    "squeeze": (lambda x: x.squeeze(-2), lambda x: x[:, 0], (2, 1, 3)),
    "flatten": (lambda x: x.flatten(), np.ravel, (2, 3, 2)),
    "flatten 1": (lambda x: x.flatten(1), lambda x: x.reshape(2, 6), (2, 3, 2)),
    "flatten end": (lambda x: x.flatten(2), lambda x: x[..., None], (2, 3)),
    "x[1]": (lambda x: x[1], lambda x: x[1], (3, 4)),
    "x[-1]": (lambda x: x[-1], lambda x: x[-1], (3, 4)),
    "x[1:3, 0]": (lambda x: x[1:3, 0], lambda x: x[1:3, 0], (4, 3)),
    "x[..., 1:]": (lambda x: x[..., 1:], lambda x: x[..., 1:], (2, 2, 3)),
    "x[None, :, -2]": (lambda x: x[None, :, -2], lambda x: x[None, :, -2], (2, 3)),
    "x[::2]": (lambda x: x[::2], lambda x: x[::2], (5, 2)),
    "x[1:-1:2, ...]": (lambda x: x[1:-1:2, ..., None], lambda x: x[1:-1:2, ..., None], (7, 2)),
    "x[:]": (lambda x: x[:], lambda x: x, (3,)),
    "x[-99:99]": (lambda x: x[-99:99], lambda x: x, (3,)),
    "x[np.int64]": (lambda x: x[np.int64(1)], lambda x: x[1], (3,)),
    "x[...]": (lambda x: x[...], lambda x: x, ()),
    "**": (lambda x: abs(x) ** 1.5, lambda x: np.abs(x) ** 1.5, (5,)),
    "r**": (lambda x: 2.0**x, lambda x: 2.0**x, (5,)),
    "@": (lambda x: x @ x.T, lambda x: x @ x.T, (2, 3)),
    "array @": (lambda x: np.eye(3)[:2] @ x, lambda x: x[:2], (3, 2)),
    "@ array": (lambda x: x @ np.eye(3)[:, :2], lambda x: x[:, :2], (2, 3)),
    "r-": (lambda x: 1 - x, lambda x: 1 - x, (2, 3)),
    "r/": (lambda x: 1 / (x * x + 1), lambda x: 1 / (x * x + 1), (2, 3)),
    "np.float64 *": (lambda x: np.float64(3) * x, lambda x: 3 * x, (2, 3)),
    "array +": (lambda x: np.arange(6.0).reshape(2, 3) + x, lambda x: np.arange(6.0).reshape(2, 3) + x, (2, 3)),
    "list *": (lambda x: x * [1.0, 2.0, 3.0], lambda x: x * [1.0, 2.0, 3.0], (3,)),
}  # fmt: skip


def points(shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers away from 0 and from each other, of both signs."""
    count = int(np.prod(shape))
    steps = np.random.default_rng(count).permutation(count)
    return ((steps - count / 2 + 0.37) / max(count, 3) * 2.3).reshape(shape)


@pytest.mark.parametrize("name", TABLE)
def test_values_and_gradients_to_second_order(name: str) -> None:
    """The value is NumPy's; the gradient and the Hessian times a vector are those of central differences."""
    function, reference, shape = TABLE[name]
    at = points(shape)
    direction = np.random.default_rng(5).normal(size=shape)

    def build(tape: Tape) -> Any:
        x = tape.parameter(at)
        y = function(x)
        weights = np.cos(np.arange(y.shape.volume)).reshape(tuple(y.shape))
        loss = (y * weights).sum()
        slope = gradient(tape, loss, x)
        bend = gradient(tape, (slope * direction).sum(), x)
        return x, y, loss, slope, bend

    network, (x, y, loss, slope, bend) = Tape.record(build, element=F64)
    initial = network.parameters()
    run = network.forward(initial)
    expected = np.asarray(reference(at))
    assert run.of(y).shape == expected.shape
    np.testing.assert_allclose(_floats(run.of(y)), expected, rtol=1e-13, atol=1e-14)
    by = _floats(run.backward(loss).of(x))
    np.testing.assert_array_equal(by, _floats(run.of(slope)))

    def stencil(read: Callable[[Any], Any], step: np.ndarray) -> Any:
        """Return the derivative along `step` by a five-point difference."""
        h = 1e-3
        reads = [_floats(read(network.forward(initial.with_payloads({x: at + k * h * step})))) for k in (-2, -1, 1, 2)]
        return (reads[0] - 8 * reads[1] + 8 * reads[2] - reads[3]) / (12 * h)

    for index in np.ndindex(shape):
        unit = np.zeros(shape)
        unit[index] = 1
        moved = stencil(lambda r: r.of(loss), unit)
        np.testing.assert_allclose(by[index], moved, rtol=1e-7, atol=1e-7)
    bent = stencil(lambda r: r.backward(loss).of(x), direction)
    np.testing.assert_allclose(_floats(run.of(bend)), bent, rtol=1e-6, atol=1e-6)


def _floats(tensor: Tensor) -> np.ndarray:
    return tensor.numpy().astype(float)


RECORDED = {
    "abs": "Leaf Maximum Neg Maximum Add",
    "abs()": "Leaf Maximum Neg Maximum Add",
    "relu": "Leaf Maximum",
    "leaky_relu": "Leaf Step Leaf Broadcast Mul Select",
    "elu": "Leaf Step Expm1 Leaf Broadcast Mul Select",
    "softplus": "Neg Maximum Neg Leaf Maximum Exp Log1p Add",
    "sigmoid": "Neg Maximum Neg Exp Leaf Leaf Step Select Add Div",
    "silu": "Neg Maximum Neg Exp Leaf Leaf Step Select Add Div Mul",
    "gelu": "Leaf Sqrt Broadcast Mul Broadcast Leaf Erf Add Mul Mul",
    "softmax 0": "LogSoftmax Exp",
    "softmax -1": "LogSoftmax Exp",
    "minimum": "Neg Leaf Broadcast Neg Maximum Neg",
    "clamp": "Leaf Broadcast Maximum Neg Leaf Broadcast Neg Maximum Neg",
    "clamp low": "Leaf Broadcast Maximum",
    "clamp high": "Neg Leaf Neg Maximum Neg",
    "where": "Leaf Broadcast Step Step Leaf Select Exp Mul Select",
    "mean": "Sum Leaf Div",
    "mean 1": "SumAlong Leaf Div",
    "mean (0, -1)": "SumAlong SumAlong Leaf Div",
    "mean ()": "Leaf Div",
    "mean_along": "SumAlong Leaf Div",
    "var": "Sum Leaf Div Broadcast Sub Mul Sum Leaf Div",
    "var 0": "SumAlong Leaf Div BroadcastAlong Sub Mul SumAlong Leaf Div",
    "var [0, 2]": "SumAlong SumAlong Leaf Div BroadcastAlong BroadcastAlong Sub Mul SumAlong SumAlong Leaf "
    "Div",
    "std": "SumAlong Leaf Div BroadcastAlong Sub Mul SumAlong Leaf Div Sqrt",
    "max_along": "Narrow Narrow Reshape Narrow Narrow Maximum Reshape Narrow Narrow Reshape Narrow Narrow Maximum Reshape "
    "Maximum Maximum Reshape",
    "max_along 0": "Reshape Narrow Narrow Maximum Reshape Narrow Narrow Reshape Narrow Narrow Maximum Reshape "
    "Maximum Reshape",
    "max_along 1": "Reshape",
    "min_along": "Neg Narrow Narrow Reshape Narrow Narrow Maximum Reshape Reshape Narrow Narrow Maximum Reshape "
    "Maximum Reshape Neg",
    "logsumexp": "Permute Reshape LogSumExp",
    "logsumexp 1": "LogSumExp",
    "logsumexp [0, 2]": "Permute Reshape LogSumExp",
    "logsumexp (2, 1)": "Permute Reshape LogSumExp",
    "broadcast_like": "Leaf Broadcast",
    "broadcast_along_like": "Leaf BroadcastAlong",
    "broadcast_to row": "Reshape Reshape BroadcastAlong",
    "broadcast_to middle": "Reshape BroadcastAlong",
    "broadcast_to single": "Broadcast",
    "broadcast_to same": "",
    "transpose": "Permute",
    "T": "Permute",
    "T of a row": "Permute",
    "unsqueeze": "Reshape",
    "squeeze": "Reshape",
    "flatten": "Reshape",
    "flatten 1": "Reshape",
    "flatten end": "Reshape",
    "x[1]": "Narrow Reshape",
    "x[-1]": "Narrow Reshape",
    "x[1:3, 0]": "Narrow Narrow Reshape",
    "x[..., 1:]": "Narrow",
    "x[None, :, -2]": "Reshape Narrow Reshape",
    "x[::2]": "Narrow Unfold Reshape",
    "x[1:-1:2, ...]": "Narrow Unfold Reshape Reshape",
    "x[:]": "",
    "x[-99:99]": "",
    "x[np.int64]": "Narrow Reshape",
    "x[...]": "",
    "**": "Leaf Maximum Neg Maximum Add Leaf Broadcast Powf",
    "r**": "Leaf Broadcast Powf",
    "@": "Permute MatMul",
    "array @": "Leaf MatMul",
    "@ array": "Leaf MatMul",
    "r-": "Leaf Broadcast Sub",
    "r/": "Mul Leaf Broadcast Add Leaf Broadcast Div",
    "np.float64 *": "Leaf Broadcast Mul",
    "array +": "Leaf Add",
    "list *": "Leaf Mul",
}  # fmt: skip


def recorded(function: Function, shape: tuple[int, ...]) -> str:
    """Return the names of the nodes that a composite appends."""
    tape = Tape(F64)
    x = tape.input(np.ones(shape))
    function(x)
    return " ".join(node.name for node in tape.nodes()[1:])


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_composite_records(name: str) -> None:
    """The nodes, in order: the bits of a composite are those of this formula."""
    function, _, shape = TABLE[name]
    assert recorded(function, shape) == RECORDED[name]


@pytest.mark.parametrize("extent", [1, 2, 3, 4, 7, 8, 100, 1000, 1023])
def test_max_along_records_a_logarithm_of_nodes(extent: int) -> None:
    """At most eight nodes per halving, and the right maximum."""
    tape = Tape()
    row = np.random.default_rng(extent).permutation(extent).astype(float)
    best = tape.leaf(row[None]).max_along(1).symbol
    assert len(tape) <= 3 + 8 * max(1, int(np.ceil(np.log2(extent + 1))))
    network = tape.into_network()
    assert network.forward(network.parameters()).of(best).to_list() == [extent - 1]


@pytest.mark.parametrize("axes", [None, (0, 1)])
def test_max_along_takes_one_axis(axes: Any) -> None:
    """Several axes are refused, not cut down to the first."""
    with pytest.raises(ShapeError, match="give one axis"):
        Tape().input(np.ones((2, 3))).max_along(axes)


def test_first_winner_of_max_along() -> None:
    """Among equals, wherever they lie, the first takes the gradient."""
    for extent in (2, 3, 5, 6, 7, 9, 11):
        for seed in range(4):
            row = np.random.default_rng(seed).integers(0, 2, extent).astype(float)

            def build(tape: Tape, row: np.ndarray = row) -> Any:
                x = tape.parameter(row)
                return x, x.max_along(0), x.min_along(0)

            network, (x, most, least) = Tape.record(build)
            run = network.forward(network.parameters())
            for target, pick in ((most, np.argmax), (least, np.argmin)):
                by = run.backward(target).of(x).numpy()
                assert by.sum() == 1
                assert by[pick(row)] == 1


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_the_listed_values(element: Any) -> None:
    """Values and gradients that surface 14 and decisions 2 list."""
    value, slope = orders(lambda x: x.abs(), [-2.0, 0.0, 3.0], element, 1)
    assert (value.tolist(), slope.tolist()) == ([2, 0, 3], [-1, 0, 1])
    value, slope = orders(lambda x: x.relu(), [-2.0, -0.0, 0.0, 3.0], element, 1)
    assert (value.tolist(), slope.tolist()) == ([0, 0, 0, 3], [0, 0, 0, 1])
    halves = orders(lambda x: x.softmax(0), [1000.0, 1000.0], element, 0)[0]
    np.testing.assert_allclose(halves, [0.5, 0.5], rtol=1e-15 if element is F64 else 2e-7)
    value, slope = orders(lambda x: x.broadcast_to([2, 3]), [1.0, 2.0, 3.0], element, 1)
    assert (value.tolist(), slope.tolist()) == ([[1, 2, 3]] * 2, [2, 2, 2])
    assert orders(lambda x: x.broadcast_to([2, 2, 3]), [[1.0, 2.0, 3.0]], element, 1)[1].tolist() == [[4, 4, 4]]
    value, slope = orders(lambda x: x.mean_along(0), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], element, 1)
    assert (value.tolist(), slope.tolist()) == ([2.5, 3.5, 4.5], [[0.5] * 3] * 2)
    assert orders(lambda x: x.gelu(), 0.0, element, 1)[1] == 0.5
    assert orders(lambda x: x.softplus(), 0.0, element, 1)[1] == 0.5
    assert orders(lambda x: x.sigmoid(), 0.0, element, 1)[1] == 0.25
    assert [float(a) for a in orders(lambda x: x.relu(), 0.0, element, 2)] == [0, 0, 0]
    assert orders(lambda x: (x * x * x).sum(), [1.0, 2.0], element, 2)[2].tolist() == [6, 12]


def test_softmax_and_logsumexp_values() -> None:
    """softmax([0, ln 3]) is [.25, .75]; logsumexp([1000, 1000]) is 1000 + ln 2; masked lanes get 0."""
    eps = 4 * np.finfo(np.float32).eps
    np.testing.assert_allclose(orders(lambda x: x.softmax(0), [0.0, np.log(3)], F32, 0)[0], [0.25, 0.75], eps)
    np.testing.assert_allclose(orders(lambda x: x.logsumexp(0), [1000.0, 1000.0], F32, 0)[0], 1000 + np.log(2), eps)
    value, slope = orders(lambda x: x.softmax(0)[0], [1.0, -np.inf, 1.0], F32, 1)
    assert value == 0.5
    assert np.isfinite(slope).all()
    assert slope[1] == 0


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_comparisons_are_masks(element: Any) -> None:
    """`<, <=, >, >=` are 0/1 over every pair of numbers, infinities, zeros and NaN, with numbers on the right."""
    numbers = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan]
    a, b = (np.array(c).ravel() for c in np.meshgrid(numbers, numbers))

    def build(tape: Tape) -> Any:
        x, y = tape.leaf(a), tape.leaf(b)
        return [x < y, x <= y, x > y, x >= y], [x < 1, x <= 1.0, x > np.float32(1), x >= 1], 1 > x  # noqa: SIM300

    network, (pairs, literals, reflected) = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    expected = [a < b, a <= b, a > b, a >= b]
    for symbol, mask in zip(pairs, expected, strict=True):
        assert run.of(symbol).to_list() == mask.tolist()
    for symbol, mask in zip(literals, [a < 1, a <= 1, a > 1, a >= 1], strict=True):
        assert run.of(symbol).to_list() == mask.tolist()
    assert run.of(reflected).to_list() == (a < 1).tolist()


def test_python_spellings_record_the_same_nodes() -> None:
    """`@`, `**`, `abs`, `.T` and `-x` are the methods."""

    def words(tape: Tape) -> None:
        x = tape.parameter(np.ones((2, 2)))
        x.matmul(x).powf(2.0).abs().transpose()

    def signs(tape: Tape) -> None:
        x = tape.parameter(np.ones((2, 2)))
        _ = abs((x @ x) ** 2.0).T

    first, second = Tape(), Tape()
    words(first)
    signs(second)
    assert first.describe() == second.describe()


FAILURES: dict[str, tuple[Callable[[Value], Any], type[Exception], str]] = {
    "clamp of nothing": (lambda x: x.clamp(), ShapeError, "give low, high, or both"),
    "clamp late": (lambda x: x.clamp(0.0, [1.0]), ShapeError, r"Maximum\(\[2, 3\], \[1\]"),
    "mean axis": (lambda x: x.mean(2), ShapeError, r"axes \[2\] of shape \[2, 3\]: name each of 0..1 at most once"),
    "mean of text": (lambda x: x.mean("a"), ShapeError, "axes 'a': give an int, several ints, or None for all"),
    "var of a float": (lambda x: x.var(1.0), ShapeError, "axes 1.0: give an int"),
    "mean twice": (lambda x: x.mean((0, -2)), ShapeError, "at most once"),
    "mean_along": (lambda x: x.mean_along(5), ShapeError, "axis 5 is outside the rank"),
    "var": (lambda x: x.var(0, correction=2), ShapeError, "var over 2 values with correction 2: nothing is left"),
    "std": (lambda x: x.std(None, correction=6), ShapeError, "nothing is left"),
    "max_along": (lambda x: x.max_along(2), ShapeError, "name each of 0..1"),
    "min_along late": (lambda x: x.min_along(-3), ShapeError, "name each of 0..1"),
    "logsumexp": (lambda x: x.logsumexp([0, 0]), ShapeError, "at most once"),
    "softmax": (lambda x: x.softmax(2), ShapeError, "axis 2 is outside the rank"),
    "leaky_relu late": (lambda x: x.leaky_relu([1.0]), ShapeError, "operands of one shape"),
    "elu late": (lambda x: x.elu([1.0]), ShapeError, "operands of one shape"),
    "minimum late": (lambda x: x.minimum([1.0]), ShapeError, "operands of one shape"),
    "less": (lambda x: x < [1.0], ShapeError, "operands of one shape"),
    "where late": (lambda x: where(x > 0, x, [1.0]), ShapeError, "operands of one shape"),
    "broadcast_to lower": (lambda x: x.broadcast_to([3]), ShapeError, r"broadcast_to\(\[3\]\) of \[2, 3\]"),
    "broadcast_to empty": (lambda x: x.broadcast_to([0, 2, 3]), ShapeError, "extent"),
    "broadcast_to huge": (lambda x: x.broadcast_to([2**62, 2, 3]), ShapeError, "4611686018427387904"),
    "broadcast_to other": (lambda x: x.broadcast_to([2, 4]), ShapeError, "every extent has to match or be 1"),
    "broadcast_like": (lambda x: x.broadcast_like(x.tape.resolve(x)), ShapeError, "has to hold one element"),
    "broadcast_along_like": (
        lambda x: x.broadcast_along_like(0, x),
        ShapeError,
        r"broadcast_along_like\(0, \[2, 3\]\) of \[2, 3\]",
    ),
    "broadcast_along_like axis": (lambda x: x.broadcast_along_like(2, x), ShapeError, "without axis 2"),
    "unsqueeze": (lambda x: x.unsqueeze(3), ShapeError, r"unsqueeze\(3\) of \[2, 3\]: axes run from 0 to 2"),
    "squeeze": (lambda x: x.squeeze(0), ShapeError, "has to exist and have extent 1"),
    "squeeze axis": (lambda x: x.squeeze(2), ShapeError, "has to exist and have extent 1"),
    "flatten": (lambda x: x.flatten(3), ShapeError, r"flatten\(3\) of \[2, 3\]"),
    "x[2]": (lambda x: x[2], IndexError, "index 2 is outside axis 0 of extent 2"),
    "x[0, 3] late": (lambda x: x[0, 3], IndexError, "index 3 is outside axis 0 of extent 3"),
    "x[0, 0, 0]": (lambda x: x[0, 0, 0], IndexError, r"value\[0, 0, 0\] of shape \[2, 3\]: 3 indices for 2 axes"),
    "x[..., ...]": (lambda x: x[..., ...], IndexError, r"value\[\.\.\., \.\.\.\]"),
    "x[1:1]": (lambda x: x[1:1], IndexError, "slice 1:1 of axis 0 with extent 2: needs a positive step"),
    "x[0, ::-1] late": (lambda x: x[0, ::-1], IndexError, "slice ::-1 of axis 0"),
    "x[array]": (lambda x: x[[0, 1]], IndexError, r"choose rows with gather\(selection\)"),
    "x[NumPy array]": (lambda x: x[np.array([0, 1])], IndexError, r"choose rows with gather\(selection\)"),
    "x[..., array]": (lambda x: x[..., np.array([0, 1])], IndexError, r"choose rows with gather\(selection\)"),
    "x[mask]": (lambda x: x[x], IndexError, "an index is an int, a slice"),
    "x[1.0]": (lambda x: x[1.0], IndexError, "an index is an int, a slice"),
    "pow late": (lambda x: (x @ x.T) ** [1.0], ShapeError, "operands of one shape"),
    "truth": (lambda x: x[0] if x else None, UsageError, r"the truth of Value\(n#0\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_composite_that_fails_leaves_nothing(name: str) -> None:
    """The error says what was wrong; nodes of the failed composite are gone, and the tape records on."""
    attempt, kind, message = FAILURES[name]
    tape = Tape()
    x = tape.parameter(np.ones((2, 3)))
    known = x * 2.0
    before, count = tape.describe(), len(tape)
    with pytest.raises(kind, match=message):
        attempt(x)
    if name in ("where late", "pow late"):  # a whole composite came first
        assert tape.describe().startswith(before.rpartition("\n")[0])
    else:
        assert tape.describe() == before
    symbol = (known + 1.0).symbol
    assert symbol.index >= count + 2
    network = tape.into_network()
    assert network.forward(network.parameters()).of(symbol).to_list() == [3] * 6


def test_a_failed_composite_takes_back_sources_too() -> None:
    """Leaves, payloads and literals recorded before the failure are forgotten with it."""
    tape = Tape()
    x = tape.parameter([1.0, 2.0])

    def fail() -> None:
        with tape.transaction():
            tape.input([1.0], name="late")
            tape.parameter([3.0])
            tape.require_nonzero(x.sum())
            x.matmul(x)

    with pytest.raises(ShapeError, match="MatMul"):
        fail()
    assert tape.describe().splitlines()[-1] == "tape: 1 node, 1 parameter, 0 inputs"
    columns = tape.columns
    assert (columns.inputs, columns.parameters, columns.checks) == ([], [0], [])
    assert list(columns.payloads) == [0]
    assert columns.names == {}
    assert tape.input([1.0], name="late").index == 1


def test_axes_may_count_from_the_end() -> None:
    """A negative axis is the one that NumPy means, in opcodes and in composites."""
    tape = Tape()
    x = tape.leaf(drawn((2, 3, 4), F32))
    assert x.sum_along(-1).shape == (2, 3)
    assert x.softmax(-3).shape == (2, 3, 4)
    assert x.broadcast_along(-1, 5).shape == (2, 3, 4, 5)
    assert x.unfold(-1, 2, 1).shape == (2, 3, 3, 2)
    assert x.unfold(-1, 2, 1).fold(-1, 2, 1, 1, 4).shape == (2, 3, 4)
    assert x.pad(-2, 1, 5).narrow(-2, 1, 3).shape == (2, 3, 4)
    assert x.unsqueeze(-1).shape == (2, 3, 4, 1)
    assert x.max_along(-2).shape == (2, 4)
    assert x.flatten(-2).shape == (2, 12)
    assert x.mean(np.int64(-1)).shape == x.logsumexp(np.int32(2)).shape == x.logsumexp(range(2, 3)).shape == (2, 3)
