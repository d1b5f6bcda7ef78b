"""The published reference kernels against the formulas that a graph records, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, drawn, same_bits, special
from topos import F64, Backend, GemmTask, ShapeError, Tape, Tensor, conv2d, max_pool, reference


def recorded(build: Any, element: Any, *payloads: Tensor) -> list[Tensor]:
    """Record a formula over inputs, run it, and return its results."""
    network, symbols = Tape.record(lambda t: list(build(*map(t.input, payloads))), element=element)
    run = network.forward(network.parameters())
    return [run.of(symbol) for symbol in symbols]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_multiply(element: Any) -> None:
    """Any strides of flat operands: the bits of the product of their dense copies."""
    m, k, n = 3, 5, 4
    a, b = special((m * k + 7,), element, 1), special((k * n * 2,), element, 2)
    for a_strides, b_strides in (((k, 1), (n, 1)), ((1, m), (1, k)), ((0, 1), (2 * n, 2)), ((1, 1), (0, 0))):
        task = GemmTask(a.numpy(), a_strides, b.numpy(), b_strides, m, k, n)
        left = np.array([[a.numpy()[i * a_strides[0] + p * a_strides[1]] for p in range(k)] for i in range(m)])
        right = np.array([[b.numpy()[p * b_strides[0] + j * b_strides[1]] for j in range(n)] for p in range(k)])
        (expected,) = recorded(
            lambda x, y: [x @ y], element, Tensor(left, element=element), Tensor(right, element=element)
        )
        found = reference.multiply(task)
        assert found.element is element
        assert same_bits(found, expected)


def test_multiply_runs_the_plain_loops() -> None:
    """What a fast kernel is compared with is no fast kernel: nobody but the reference path serves it, at any size."""
    size = 70
    a, b = drawn((size * size,), F64, 1), drawn((size * size,), F64, 2)
    task = GemmTask(a.numpy(), (size, 1), b.numpy(), (size, 1), size, size, size)
    found, services = Backend.tallied(lambda: reference.multiply(task))
    assert {service.backend for service in services} == {None}
    fast, served = Backend.tallied(lambda: a.reshape([size, size]) @ b.reshape([size, size]))
    assert {service.backend for service in served} == {Backend.SIMD}
    assert same_bits(found, fast)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_windowed_patches_are_convolutions(element: Any) -> None:
    """Patches times filters is the recorded convolution, with padding, strides and other heights."""
    for (kh, kw), stride, padding in (((3, 2), 1, 0), ((2, 2), 2, 1), ((3, 3), 3, 2)):
        x, w = drawn((2, 3, 5, 6), element, 1), drawn((4, 3, kh, kw), element, 2)
        zero = Tensor.filled([4], Tensor(-0.0, element=element))
        (expected,) = recorded(lambda x, w, b, s=stride, p=padding: [conv2d(x, w, b, s, p)], element, x, w, zero)
        patches = reference.composed_windowed_patches(x, kh, kw, stride, padding)
        filters, rows, columns = expected.shape[1:]
        assert tuple(patches.shape) == (2 * rows * columns, 3 * kh * kw)
        product = patches.matmul(w.reshape([filters, 3 * kh * kw]).permute([1, 0]))
        arranged = product.reshape([2, rows, columns, filters]).permute([0, 3, 1, 2])
        assert np.array_equal(arranged.numpy(), expected.numpy())


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_max_pool(element: Any) -> None:
    """NaN, ties of zeros and overlapping windows: the bits of the recorded formula."""
    x = special((2, 3, 6, 5), element, 4)
    for size, stride in ((2, 2), (3, 1), (2, 3), (1, 1)):
        (expected,) = recorded(lambda v, a=size, b=stride: [max_pool(v, a, b)], element, x)
        assert same_bits(reference.composed_max_pool(x, size, stride), expected)
    zeros = Tensor([[[[0.0, -0.0], [-0.0, 0.0]]]], element=element)
    assert same_bits(reference.composed_max_pool(zeros, 2, 2), Tensor([[[[0.0]]]], element=element))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_batch_norm(element: Any) -> None:
    """The bits of the same formula recorded; one sample gives the shift, with variance 0."""

    def formula(x: Any, scale: Any, shift: Any, epsilon: Any) -> Any:
        batch, features = x.shape
        mean = x.sum_along(0) / float(batch)
        centered = x - mean.broadcast_along(0, batch)
        variance = (centered * centered).sum_along(0) / float(batch)
        deviation = (variance + epsilon.broadcast([features])).sqrt()
        normalized = centered / deviation.broadcast_along(0, batch)
        out = normalized * scale.broadcast_along(0, batch) + shift.broadcast_along(0, batch)
        return out, mean, variance

    for batch in (5, 1):
        given = [
            drawn((batch, 3), element, 1),
            *(drawn((3,), element, i) for i in (2, 3)),
            Tensor(1e-3, element=element),
        ]
        found = reference.composed_batch_norm(*given)
        for tensor, expected in zip(found, recorded(formula, element, *given), strict=True):
            assert same_bits(tensor, expected)
    assert found[0] == given[2].reshape([1, 3])
    assert found[2].to_list() == [0, 0, 0]


def test_errors() -> None:
    """Ranks, windows, strides and operands that do not fit."""
    x, flat = drawn((1, 1, 3, 3), F64), drawn((3, 3), F64)
    one = Tensor(1.0, element=F64)
    for refused, message in (
        (lambda: reference.composed_windowed_patches(flat, 1, 1, 1, 0), r"rank 4 is needed, not \[3, 3\]"),
        (lambda: reference.composed_windowed_patches(x, 4, 1, 1, 0), "a window spans 4"),
        (lambda: reference.composed_windowed_patches(x, 1, 1, 0, 0), "step has to be positive"),
        (lambda: reference.composed_windowed_patches(x, 2, 2, 1, -1), "Pad"),
        (lambda: reference.composed_max_pool(flat, 1, 1), "rank 4 is needed"),
        (lambda: reference.composed_max_pool(x, 4, 1), "a window spans 4"),
        (lambda: reference.composed_max_pool(x, 0, 1), "has to be positive"),
        (lambda: reference.composed_batch_norm(x, one, one, one), "rank 2 is needed"),
        (lambda: reference.composed_batch_norm(flat, one, one, one), "operands of one shape"),
        (lambda: reference.composed_batch_norm(flat, one, one, flat), "one element"),
    ):
        with pytest.raises(ShapeError, match=message):
            refused()
