"""Convolution and max pooling, forward and each gradient, as plans and in the peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from topos import Tape, Tensor, conv2d, max_pool

SYSTEMS = ["topos", "torch", "jax"]

CONVOLUTIONS = {
    "3-32 at 32": (64, 3, 32, 32, 1),
    "32-64 at 16": (64, 32, 16, 64, 1),
    "1-8 at 28": (64, 1, 28, 8, 1),
    "8-16 at 14": (64, 8, 14, 16, 1),
    "depthwise 32 at 32": (64, 32, 32, 32, 32),
    "4 groups 32-64 at 16": (64, 32, 16, 64, 4),
}
"""Batch, channels, extent, filters and groups; kernels are 3 by 3, the padding is 1."""

POOLS = {"2 at 32": (64, 32, 32, 2, 2), "2 at 16": (64, 64, 16, 2, 2), "3 by 2 at 28": (64, 32, 28, 3, 2)}
"""Batch, channels, extent, size and stride."""


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return normally distributed f32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plan_of(build: Callable[..., Any], *arrays: np.ndarray) -> Callable[[], Any]:
    """Return a call that runs ``build(tape, *inputs)`` as a plan."""

    def record(tape: Tape) -> tuple:
        inputs = [tape.input(array) for array in arrays]
        return inputs, build(tape, *inputs)

    network, (inputs, result) = Tape.record(record)
    plan, state = network.entry(result).lower(), network.parameters()
    feeds = dict(zip(inputs, map(Tensor, arrays), strict=True))
    return lambda: plan.forward(state, feeds)


def gradient_of(form: Callable[..., Any], wrt: int, arrays: list[np.ndarray]) -> Callable[[], Any]:
    """Return a call that runs the gradient of a form by one operand, for a fed cotangent (the last array)."""
    return plan_of(lambda tape, *given: tape.vjp(form(*given[:-1]), given[-1], given[wrt]).of(given[wrt]), *arrays)


def jax_call(jax: Any, form: Callable[..., Any], arrays: list[np.ndarray], wrt: int | None) -> Callable[[], Any]:
    """Return the call of a jitted form, or of its gradient."""
    held = [jax.numpy.asarray(array) for array in arrays]

    def gradient(*given: Any) -> Any:
        return jax.vjp(lambda x: form(*given[:wrt], x, *given[wrt + 1 : -1]), given[wrt])[1](given[-1])

    compiled = jax.jit(form if wrt is None else gradient)
    return lambda: jax.block_until_ready(compiled(*held))


@pytest.mark.parametrize("work", ["forward", "by input", "by kernel"])
@pytest.mark.parametrize("size", list(CONVOLUTIONS))
@pytest.mark.parametrize("system", SYSTEMS)
def bench_convolution(system: str, size: str, work: str, timed: Any, request: Any) -> None:
    """A convolution of 3 by 3 windows without bias gradient, or one of its gradients."""
    batch, channels, extent, filters, groups = CONVOLUTIONS[size]
    arrays = [values((batch, channels, extent, extent), 1), values((filters, channels // groups, 3, 3), 2)]
    wrt = {"forward": None, "by input": 0, "by kernel": 1}[work]
    if wrt is not None:
        arrays.append(values((batch, filters, extent, extent), 3))
    if system == "topos":

        def form(x: Any, w: Any) -> Any:
            return conv2d(x, w, None, 1, 1, 1, groups)

        if wrt is None:
            return timed(system, plan_of(lambda _, x, w: form(x, w), *arrays))
        return timed(system, gradient_of(form, wrt, arrays))
    if system == "torch":
        torch = request.getfixturevalue("torch")
        x, w, *seed = map(torch.from_numpy, arrays)
        if wrt is None:
            return timed(system, lambda: torch.nn.functional.conv2d(x, w, None, 1, 1, 1, groups))
        mask = [wrt == 0, wrt == 1, False]
        backward = torch.ops.aten.convolution_backward
        form = [1, 1], [1, 1], [1, 1], False, [0, 0], groups
        return timed(system, lambda: backward(seed[0], x, w, [filters], *form, mask))
    jax = request.getfixturevalue("jax")

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)

    return timed(system, jax_call(jax, convolve, arrays, wrt))


@pytest.mark.parametrize("work", ["forward", "gradient"])
@pytest.mark.parametrize("size", list(POOLS))
@pytest.mark.parametrize("system", SYSTEMS)
def bench_max_pool(system: str, size: str, work: str, timed: Any, request: Any) -> None:
    """A max pool, or its gradient (PyTorch's backward reads positions that its forward kept)."""
    batch, channels, extent, window, stride = POOLS[size]
    count = (extent - window) // stride + 1
    arrays = [values((batch, channels, extent, extent), 1)]
    wrt = None if work == "forward" else 0
    if wrt is not None:
        arrays.append(values((batch, channels, count, count), 2))
    if system == "topos":
        if wrt is None:
            return timed(system, plan_of(lambda _, x: max_pool(x, window, stride), *arrays))
        return timed(system, gradient_of(lambda x: max_pool(x, window, stride), 0, arrays))
    if system == "torch":
        torch = request.getfixturevalue("torch")
        x = torch.from_numpy(arrays[0]).requires_grad_(wrt is not None)
        out = torch.nn.functional.max_pool2d(x, window, stride)
        if wrt is None:
            return timed(system, lambda: torch.nn.functional.max_pool2d(x, window, stride))
        seed = torch.from_numpy(arrays[1])
        return timed(system, lambda: torch.autograd.grad(out, x, seed, retain_graph=True))
    jax = request.getfixturevalue("jax")

    def pool(x: Any) -> Any:
        sizes, strides = (1, 1, window, window), (1, 1, stride, stride)
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, sizes, strides, "VALID")

    return timed(system, jax_call(jax, pool, arrays, wrt))
