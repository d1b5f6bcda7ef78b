"""Sums, products and elementwise work over arrays, results allocated by every system: as users call them.

``topos.eager`` is a method of `Tensor`; ``topos.plan`` the same opcode as a plan, fed with the same array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from topos import Tape, Tensor, Value

SYSTEMS = ["topos.eager", "topos.plan", "numpy", "torch", "jax"]
KINDS = {"f32": np.float32, "f64": np.float64}


def drawn(element: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Return arrays of values in 0.1 to 1."""
    rng = np.random.default_rng(0)
    return [rng.uniform(0.1, 1, shape).astype(KINDS[element]) for shape in shapes]


def compare(system: str, form: str | Callable[..., Any], arrays: list[np.ndarray], request: Any) -> Callable[[], Any]:
    """Return the call to time, over operands that are already the system's own.

    `form` computes with operators alone, or is the name of an elementwise function.
    """
    library, _, way = system.partition(".")

    def of(module: Any) -> Callable[..., Any]:
        return getattr(module, form) if isinstance(form, str) else form

    if way == "eager":
        tensors = [Tensor(array) for array in arrays]
        return lambda: of(Tensor)(*tensors)
    if way == "plan":

        def build(tape: Tape) -> tuple:
            inputs = [tape.input(array) for array in arrays]
            return inputs, of(Value)(*inputs)

        network, (inputs, result) = Tape.record(build, element=arrays[0].dtype)
        plan, state = network.entry(result).lower(), network.parameters()
        feeds = dict(zip(inputs, arrays, strict=True))
        return lambda: plan.forward(state, feeds)
    if library == "numpy":
        return lambda: of(np)(*arrays)
    if library == "torch":
        torch = request.getfixturevalue("torch")
        operands = [torch.from_numpy(array) for array in arrays]
        return lambda: of(torch)(*operands)
    jax = request.getfixturevalue("jax")
    compiled, held = jax.jit(of(jax.numpy)), [jax.numpy.asarray(array) for array in arrays]
    return lambda: compiled(*held).block_until_ready()


@pytest.mark.parametrize("over", ["all", "rows", "columns"])
@pytest.mark.parametrize("side", [32, 1024])
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_sum(system: str, element: str, side: int, over: str, timed: Any, request: Any) -> None:
    """The sum of a square matrix: of all of it, of each row (the last axis), of each column (the first)."""
    axis = {"all": None, "rows": 1, "columns": 0}[over]

    def form(x: Any) -> Any:
        if axis is None:
            return x.sum()
        return x.sum_along(axis) if system.startswith("topos") else x.sum(axis)

    timed(system, compare(system, form, drawn(element, (side, side)), request))


PRODUCTS = [
    *(f"{side}x{side}x{side}" for side in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)),
    *("64x784x128", "32x512x512", "784x64x128", "50176x27x32", "12544x288x64", "27x50176x32"),
    *("1x4096x4096", "4096x4096x1"),
]
"""m x k x n: square, those of a perceptron, those of convolutions, a vector from either side."""


@pytest.mark.parametrize("shape", PRODUCTS)
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_matmul(system: str, element: str, shape: str, timed: Any, request: Any) -> None:
    """A product of shape m x k x n."""
    m, k, n = map(int, shape.split("x"))
    timed(system, compare(system, operator.matmul, drawn(element, (m, k), (k, n)), request), rounds=7)


@pytest.mark.parametrize("side", [64, 512])
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("system", ["topos.plain", "topos.left", "topos.right", "topos.both", "numpy", "torch"])
def bench_transposed(system: str, element: str, side: int, timed: Any, request: Any) -> None:
    """A product whose operands are transposed views: the left one, the right one, both."""
    library, _, way = system.partition(".")
    arrays = drawn(element, (side, side), (side, side))
    if library != "topos":
        return timed(system, compare(system, operator.matmul, arrays, request))
    a, b = map(Tensor, arrays)
    left, right = (a.T if way in ("left", "both") else a), (b.T if way in ("right", "both") else b)
    return timed(system, lambda: left @ right)


@pytest.mark.parametrize("side", [64, 1024])
@pytest.mark.parametrize("system", ["topos.bf16", "topos.f16", "our f32"])
def bench_matmul_of_16_bits(system: str, side: int, timed: Any) -> None:
    """A product in 16 bits, beside our own in f32 (PyTorch's in bf16 takes 90 times as long on a CPU without units for it)."""
    operands = drawn("f32", (side, side), (side, side))
    left, right = (Tensor(operand, element=system[-4:].strip(" .")) for operand in operands)
    timed(system, lambda: left @ right, rounds=7)


@pytest.mark.parametrize("name", ["add", "mul", "exp", "tanh"])
@pytest.mark.parametrize("size", [1 << 15, 1 << 20])
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_elementwise(system: str, element: str, size: int, name: str, timed: Any, request: Any) -> None:
    """One elementwise operation over contiguous arrays."""
    form = getattr(operator, name) if name in ("add", "mul") else name
    arrays = drawn(element, *[(size,)] * (2 if form is not name else 1))
    timed(system, compare(system, form, arrays, request))
