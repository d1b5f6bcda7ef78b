"""Formulas over several values: values against NumPy and SciPy, gradients by differences, what they record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import signal
from scipy import special as sp

from tests.helpers import ELEMENTS, drawn, whole
from topos import (
    F32,
    F64,
    ShapeError,
    Tape,
    TapeError,
    Tensor,
    Value,
    concat,
    conv2d,
    cross_entropy,
    einsum,
    max_pool,
    stack,
    where,
)


def correlate(x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Return the cross-correlation by SciPy, filter by filter."""
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    full = [
        [
            sum(signal.correlate2d(image[c], kernel[c], "valid") for c in range(len(kernel))) + bias
            for kernel, bias in zip(w, b, strict=True)
        ]
        for image in padded
    ]
    return np.array(full)[:, :, ::stride, ::stride]


def pooled(x: np.ndarray, size: int, stride: int) -> np.ndarray:
    """Return the window maxima by a sliding view."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return windows.max((-1, -2))[:, :, ::stride, ::stride]


def nll(x: np.ndarray, t: np.ndarray) -> Any:
    """Return the mass-normalised cross-entropy."""
    return -(t * sp.log_softmax(x, 1)).sum() / t.sum()


EINSUMS: dict[str, list[Any]] = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bjk->bik": [(2, 2, 3), (2, 3, 2)],
    "ij,ij->ij": [(2, 3), (2, 3)],
    "ij,ij->": [(2, 3), (2, 3)],
    "i,j->ji": [(2,), (3,)],
    "ijk,kl->jl": [(2, 3, 2), (2, 2)],
    "bqhd,bkhd->bhqk": [(1, 2, 2, 3), (1, 3, 2, 3)],
    "ab,cb->ca": [(2, 3), (2, 3)],
    "i,->i": [(3,), ()],
}
POSITIVE = np.array([[0.2, 0.5, 1.0], [2.0, 0.25, 0.75]])
TABLE: dict[str, tuple[Callable[..., Value], Callable[..., Any], list[Any]]] = {
    "concat 0": (lambda a, b, c: concat([a, b, c], 0), lambda *g: np.concatenate(g, 0), [(2, 3), (1, 3), (4, 3)]),
    "concat -1": (lambda a, b: concat([a, b], -1), lambda *g: np.concatenate(g, -1), [(2, 3), (2, 1)]),
    "concat of one": (lambda a: concat([a], 0), lambda a: a, [(2, 3)]),
    "concat twice": (lambda a: concat([a, a * 2], 0), lambda a: np.concatenate([a, a * 2]), [(3,)]),
    "stack 0": (lambda a, b: stack([a, b], 0), lambda *g: np.stack(g, 0), [(2, 3), (2, 3)]),
    "stack -1": (lambda a, b: stack([a, b], -1), lambda *g: np.stack(g, -1), [(2, 3), (2, 3)]),
    "stack of scalars": (lambda a, b: stack([a, b, a], 0), lambda a, b: np.stack([a, b, a]), [(), ()]),
    "where": (lambda a, b: where(a > b, a * b, a - b), lambda a, b: np.where(a > b, a * b, a - b), [(5,), (5,)]),
    "conv2d": (conv2d, lambda x, w, b: correlate(x, w, b, 1, 0), [(2, 3, 4, 5), (2, 3, 3, 2), (2,)]),
    "conv2d padded": (
        lambda x, w, b: conv2d(x, w, b, 1, 1),
        lambda x, w, b: correlate(x, w, b, 1, 1),
        [(1, 2, 3, 4), (3, 2, 3, 3), (3,)],
    ),
    "conv2d strided": (
        lambda x, w, b: conv2d(x, w, b, stride=2, padding=2),
        lambda x, w, b: correlate(x, w, b, 2, 2),
        [(1, 1, 6, 4), (2, 1, 3, 2), (2,)],
    ),
    "conv2d 1x1": (conv2d, lambda x, w, b: correlate(x, w, b, 1, 0), [(1, 3, 2, 2), (2, 3, 1, 1), (2,)]),
    "max_pool": (lambda x: max_pool(x, 2), lambda x: pooled(x, 2, 2), [(1, 2, 4, 5)]),
    "max_pool overlapping": (lambda x: max_pool(x, 3, 1), lambda x: pooled(x, 3, 1), [(1, 1, 4, 4)]),
    "max_pool sparse": (lambda x: max_pool(x, 1, 2), lambda x: pooled(x, 1, 2), [(2, 1, 3, 3)]),
    "cross_entropy": (cross_entropy, nll, [(2, 3), POSITIVE]),
}


TABLE |= {
    f"einsum {text}": (
        lambda a, b, text=text: einsum(text, a, b),
        lambda a, b, text=text: np.einsum(text, a, b),
        shapes,
    )
    for text, shapes in EINSUMS.items()
}


@pytest.mark.parametrize("name", TABLE)
def test_values_and_gradients(name: str) -> None:
    """The value is NumPy's or SciPy's, and every operand's gradient that of central differences."""
    function, reference, shapes = TABLE[name]
    generator = np.random.default_rng(len(name))
    given = [s if isinstance(s, np.ndarray) else generator.normal(size=s) for s in shapes]

    def build(tape: Tape) -> Any:
        arguments = [tape.parameter(a) for a in given]
        y = function(*arguments)
        weights = np.cos(np.arange(y.shape.volume)).reshape(tuple(y.shape))
        return arguments, y, (y * weights).sum()

    network, (arguments, y, loss) = Tape.record(build, element=F64)
    initial = network.parameters()
    run = network.forward(initial)
    expected = np.asarray(reference(*given))
    assert run.of(y).shape == expected.shape
    np.testing.assert_allclose(run.of(y).numpy(), expected, rtol=1e-12, atol=1e-12)
    by = run.backward(loss)
    h = 1e-4
    for symbol, at in zip(arguments, given, strict=True):
        for index in np.ndindex(at.shape):
            unit = np.zeros(at.shape)
            unit[index] = h
            above, below = (
                network.forward(initial.with_payloads({symbol: at + s * unit})).of(loss).scalar() for s in (1, -1)
            )
            found = by.of(symbol).numpy()[index]
            np.testing.assert_allclose(found, (above - below) / (2 * h), rtol=1e-6, atol=1e-6)


CONVOLUTION = (
    "Unfold Unfold Permute Reshape Permute Reshape MatMul Reshape Permute BroadcastAlong BroadcastAlong Add Reshape"
)

RECORDED: dict[str, str] = {
    "concat -1": "Pad Pad Add",
    "concat 0": "Pad Pad Add Pad Add",
    "concat of one": "",
    "stack 0": "Reshape Reshape Pad Pad Add",
    "where": "Step Step Leaf Select Mul Sub Select",
    "conv2d": CONVOLUTION,
    "conv2d padded": f"Pad Pad {CONVOLUTION}",
    "max_pool": "Unfold Unfold Permute Reshape Narrow Narrow Maximum Narrow Maximum Narrow Maximum Reshape",
    "cross_entropy": "Sum LogSoftmax Scale Sum Neg Div",
    "einsum ij,jk->ik": "Permute Reshape Permute Reshape MatMul Reshape Permute",
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_formula_records(name: str) -> None:
    """The nodes in order; convolution takes 13, or 15 with padding, pooling 4 + s*s + (s*s - 1) + 1."""
    function, _, shapes = TABLE[name]
    tape = Tape(F64)
    given = [tape.input(np.ones(s if isinstance(s, tuple) else s.shape)) for s in shapes]
    function(*given)
    names = [node.name for node in tape.nodes()[len(given) :]]
    assert " ".join(names) == RECORDED[name]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_node_count_of_pooling(size: int) -> None:
    """4 + s*s + (s*s - 1) + 1."""
    tape = Tape()
    max_pool(tape.input(np.ones((1, 1, 3, 3))), size)
    assert len(tape) == 1 + 4 + size * size + (size * size - 1) + 1


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_the_listed_convolutions(element: Any) -> None:
    """3x3 input 1..9, diagonal 2x2 kernel and bias 10 give 16, 18, 22, 24; channels mix; padding is zero."""

    def build(tape: Tape) -> Any:
        image = tape.input(np.arange(1.0, 10.0).reshape(1, 1, 3, 3))
        diagonal = tape.parameter(np.eye(2).reshape(1, 1, 2, 2))
        mixing = tape.parameter(np.array([[1.0, 10.0], [2.0, 0.0]]).reshape(2, 2, 1, 1))
        two = concat([image, image * 2.0], 1)
        bias = tape.parameter([10.0])
        return (
            conv2d(image, diagonal, bias),
            conv2d(two, mixing, tape.leaf([0.0, 1.0])),
            conv2d(image, diagonal, bias, 2),
            conv2d(image, diagonal, bias, 1, 1),
        )

    network, symbols = Tape.record(build, element=element)
    run = network.forward(network.parameters())
    plain, mixed, strided, padded = (run.of(s).numpy().astype(float)[0] for s in symbols)
    assert plain.tolist() == [[[16, 18], [22, 24]]]
    image = np.arange(1.0, 10.0).reshape(3, 3)
    assert mixed.tolist() == [(image * 21).tolist(), (image * 2 + 1).tolist()]
    assert strided.tolist() == [[[16]]]
    assert padded[0, 0].tolist() == [11, 12, 13, 10]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_uniform_logits_cost_the_logarithm_of_the_classes(element: Any) -> None:
    """With one-hot targets stored as indices or dense; the gradient is (softmax - targets) / batch."""
    network, (x, selected, dense) = Tape.record(
        lambda t: (
            (x := t.parameter(np.zeros((2, 4)))),
            cross_entropy(x, t.leaf(Tensor.selection([1, 3], 4, element=element))),
            cross_entropy(x, t.leaf(np.eye(4)[[1, 3]])),
        ),
        element=element,
    )
    run = network.forward(network.parameters())
    eps = float(np.finfo(np.float64).eps if element is F64 else 2.0**-7)
    np.testing.assert_allclose(float(run.of(selected).scalar()), np.log(4), rtol=4 * eps)
    assert run.of(selected) == run.of(dense)
    by = run.backward(selected).of(x).numpy().astype(float)
    np.testing.assert_allclose(by, (0.25 - np.eye(4)[[1, 3]]) / 2, rtol=4 * eps)


def test_convolution_of_an_extent_that_no_stride_fills() -> None:
    """Extent 16, kernel 7, stride 3, padding 2, and 8, 3, 2, 0: positions never read get gradient 0."""
    for extent, kernel, stride, padding in ((16, 7, 3, 2), (8, 3, 2, 0)):
        network, (x, loss) = Tape.record(
            lambda t, e=extent, k=kernel, s=stride, p=padding: (
                (x := t.parameter(np.ones((1, 1, e, e)))),
                conv2d(x, t.leaf(np.ones((1, 1, k, k))), t.leaf([0.0]), s, p).sum(),
            )
        )
        by = network.forward(network.parameters()).backward(loss).of(x).numpy()[0, 0]
        count = (extent + 2 * padding - kernel) // stride + 1
        reads = np.zeros(extent + 2 * padding)
        for window in range(count):
            reads[window * stride : window * stride + kernel] += 1
        reads = reads[padding : padding + extent]
        np.testing.assert_array_equal(by, np.outer(reads, reads))


FAILURES: dict[str, tuple[Callable[..., Any], str]] = {
    "concat none": (lambda t: concat([], 0), "concat of no values: give at least one"),
    "concat axis": (lambda t: concat([_(t, 2), _(t, 2)], 1), r"concat along axis 1 of \[2\]: axes run from 0 to 0"),
    "concat shapes": (
        lambda t: concat([_(t, 2, 3), _(t, 2, 2)], 0),
        r"concat along axis 0: operand 1 has \[2, 2\], operand 0 has \[2, 3\]",
    ),
    "concat ranks": (lambda t: concat([_(t, 2, 3), _(t, 2)], 0), "operand 1 has"),
    "stack none": (lambda t: stack([], 0), "stack of no values"),
    "stack shapes": (lambda t: stack([_(t, 2), _(t, 3)], 0), "operand 1 has"),
    "stack axis": (lambda t: stack([_(t, 2), _(t, 2)], 2), "axes run from 0 to 1"),
    "conv2d ranks": (lambda t: conv2d(_(t, 1, 4, 4), _(t, 1, 1, 2, 2), _(t, 1)), r"needs \[B, C, H, W\]"),
    "conv2d channels": (
        lambda t: conv2d(_(t, 1, 2, 4, 4), _(t, 1, 1, 2, 2), _(t, 1)),
        r"channels \(2, 1\) and filters \(1, 1\) have to agree",
    ),
    "conv2d filters": (lambda t: conv2d(_(t, 1, 1, 4, 4), _(t, 2, 1, 2, 2), _(t, 1)), r"filters \(2, 1\)"),
    "conv2d stride": (lambda t: conv2d(_(t, 1, 1, 4, 4), _(t, 1, 1, 2, 2), _(t, 1), 0), "the stride is positive"),
    "conv2d padding": (lambda t: conv2d(_(t, 1, 1, 4, 4), _(t, 1, 1, 2, 2), _(t, 1), 1, -1), "not negative"),
    "conv2d kernel": (lambda t: conv2d(_(t, 1, 1, 4, 4), _(t, 1, 1, 5, 2), _(t, 1)), "larger than the padded"),
    "max_pool rank": (lambda t: max_pool(_(t, 4, 4), 2), r"max_pool\(input=\[4, 4\], size=2, .*\): needs"),
    "max_pool window": (lambda t: max_pool(_(t, 1, 1, 4, 2), 3), "the window does not fit"),
    "max_pool stride": (lambda t: max_pool(_(t, 1, 1, 4, 4), 2, 0), "size and stride are positive"),
    "max_pool size": (lambda t: max_pool(_(t, 1, 1, 4, 4), 0), "size and stride are positive"),
    "cross_entropy rank": (lambda t: cross_entropy(_(t, 4), _(t, 4)), r"needs two values of one shape"),
    "cross_entropy shapes": (lambda t: cross_entropy(_(t, 2, 3), _(t, 3, 2)), r"logits=\[2, 3\], targets=\[3, 2\]"),
    "einsum form": (lambda t: einsum("ij,jk", _(t, 2, 3), _(t, 3, 2)), "write two operands and a result"),
    "einsum rank": (lambda t: einsum("ij,j->i", _(t, 2, 3), _(t, 3, 2)), r"'j' has to name the 2 axes"),
    "einsum twice": (lambda t: einsum("ii,ij->j", _(t, 2, 2), _(t, 2, 2)), "each once"),
    "einsum extents": (lambda t: einsum("ij,jk->ik", _(t, 2, 3), _(t, 2, 2)), "axis 'j' is 3 and 2"),
    "einsum result": (lambda t: einsum("ij,jk->iz", _(t, 2, 3), _(t, 3, 2)), "the result names axes"),
    "where late": (lambda t: where(_(t, 2), _(t, 2), _(t, 3)), r"Select\(\[2\], \[2\], \[3\]\)"),
}  # fmt: skip


def _(tape: Tape, *shape: int) -> Value:
    """Return the operand of a failing recording: known before it, so that nothing new is recorded."""
    return next(v for v in (tape.resolve(n.symbol) for n in tape.nodes()) if v.shape == shape)


@pytest.mark.parametrize("name", FAILURES)
def test_a_formula_that_fails_leaves_nothing(name: str) -> None:
    """The message shows the call; the tape is as it was."""
    attempt, message = FAILURES[name]
    tape = Tape()
    shapes = [
        (1,), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (4, 4), (1, 4, 4), (1, 1, 2, 2), (2, 1, 2, 2),
        (1, 1, 5, 2), (1, 1, 4, 4), (1, 2, 4, 4), (1, 1, 4, 2),
    ]  # fmt: skip
    for shape in shapes:
        tape.input(np.ones(shape))
    before = tape.describe()
    with pytest.raises(ShapeError, match=message):
        attempt(tape)
    assert tape.describe() == before


@pytest.mark.parametrize(
    "formula",
    [
        lambda a, b: concat([a, b], 0),
        lambda a, b: stack([a, b], 0),
        cross_entropy,
        lambda a, b: einsum("ij,jk->ik", a, b),
        lambda a, b: where(a, a, b),
        lambda a, b: where(b, a, a),
    ],
)
def test_a_formula_over_two_tapes_is_refused(formula: Any) -> None:
    """`TapeError`, and both tapes are as they were."""
    tapes = Tape(), Tape()
    a, b = (tape.input(np.ones((2, 2))) for tape in tapes)
    with pytest.raises(TapeError, match="different tapes"):
        formula(a, b)
    assert [len(tape) for tape in tapes] == [1, 1]


def test_convolution_over_two_tapes_is_refused() -> None:
    """A bias of another tape, too."""
    tapes = Tape(), Tape()
    with pytest.raises(TapeError, match="conv2d: the values belong to different tapes"):
        conv2d(
            tapes[0].input(drawn((1, 1, 2, 2), F32)), tapes[0].input(drawn((1, 1, 1, 1), F32)), tapes[1].input([1.0])
        )
    assert [len(tape) for tape in tapes] == [2, 1]


def test_concat_keeps_whole_numbers_and_turns_minus_zero() -> None:
    """Pads and adds: values are exact; -0 becomes +0, except where one value is returned as it is."""

    def build(tape: Tape) -> Any:
        a, b = tape.leaf([-0.0, 1.0]), tape.leaf(whole((3,), F32))
        return concat([a, b], 0), concat([a], 0)

    network, (joined, single) = Tape.record(build)
    run = network.forward(network.parameters())
    assert not np.signbit(run.of(joined).numpy()[0])
    assert np.signbit(run.of(single).numpy()[0])
    assert run.of(joined).to_list()[1:] == [1.0, *whole((3,), F32).to_list()]
