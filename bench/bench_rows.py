"""Reductions, log-domain rows and data movement, as plans and in the peers: layouts that a network meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from topos import BatchNorm, Tape, Tensor

SYSTEMS = ["topos", "numpy", "torch", "jax"]

SHAPES = {"square": (1024, 1024), "images": (64, 32, 28, 28)}


def plan_of(build: Callable[..., Any], *arrays: np.ndarray) -> Callable[[], Any]:
    """Return a call that runs `build` as a plan, fed with tensors of the same arrays."""

    def record(tape: Tape) -> tuple:
        inputs = [tape.input(array) for array in arrays]
        return inputs, build(tape, *inputs)

    network, (inputs, result) = Tape.record(record, element=arrays[0].dtype)
    plan, state = network.entry(result).lower(), network.parameters()
    feeds = dict(zip(inputs, map(Tensor, arrays), strict=True))
    return lambda: plan.forward(state, feeds)


def peer(system: str, form: Callable[..., Any], arrays: list[np.ndarray], request: Any) -> Callable[[], Any]:
    """Return the call that times ``form(module, *operands)`` in NumPy, PyTorch or JAX."""
    if system == "numpy":
        return lambda: form(np, *arrays)
    if system == "torch":
        torch = request.getfixturevalue("torch")
        operands = [torch.from_numpy(array) for array in arrays]
        return lambda: form(torch, *operands)
    jax = request.getfixturevalue("jax")
    held = [jax.numpy.asarray(array) for array in arrays]
    compiled = jax.jit(lambda *operands: form(jax.numpy, *operands))
    return lambda: compiled(*held).block_until_ready()


def values(shape: tuple[int, ...]) -> np.ndarray:
    """Return f32 values in -1 to 1."""
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("system", SYSTEMS)
def bench_sum_along(system: str, shape: str, axis: int, timed: Any, request: Any) -> None:
    """The sums along each axis."""
    array = values(SHAPES[shape])
    if axis >= array.ndim:
        pytest.skip("no such axis")
    if system == "topos":
        return timed(system, plan_of(lambda _, x: x.sum_along(axis), array))
    return timed(system, peer(system, lambda _, x: x.sum(axis), [array], request))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_max_along(system: str, axis: int, timed: Any, request: Any) -> None:
    """The maxima of the rows and of the columns of a square: a method of `Tensor`."""
    array = values((1024, 1024))
    tensor = Tensor(array)
    if system == "topos":
        return timed(system, lambda: tensor.max_along(axis))
    form = (lambda _, x: x.amax(axis)) if system == "torch" else (lambda _, x: x.max(axis))
    return timed(system, peer(system, form, [array], request))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1024, 1000), (64, 10)])
@pytest.mark.parametrize("name", ["log_softmax", "logsumexp"])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_log_rows(system: str, name: str, shape: tuple[int, int], axis: int, timed: Any, request: Any) -> None:
    """Logarithms of softmax along each axis of logits."""
    array = values(shape)
    if system == "topos":
        return timed(system, plan_of(lambda _, x: getattr(x, name)(axis), array))

    def form(module: Any, x: Any) -> Any:
        if system == "torch":
            return getattr(module, name)(x, axis)
        shift = x.max(axis, keepdims=True)
        log = module.log(module.exp(x - shift).sum(axis, keepdims=True)) + shift
        return log if name == "logsumexp" else x - log

    return timed(system, peer(system, form, [array], request))


@pytest.mark.parametrize("system", SYSTEMS)
def bench_layer_norm(system: str, timed: Any, request: Any) -> None:
    """Rows less their mean over their deviation, spelled out."""
    array = values((1024, 1024))

    def build(_: Tape, x: Any) -> Any:
        centred = x - (x.sum_along(1) * (1 / 1024)).broadcast_along(1, 1024)
        variance = (centred * centred).sum_along(1) * (1 / 1024)
        return centred / (variance + 1e-5).sqrt().broadcast_along(1, 1024)

    def form(module: Any, x: Any) -> Any:
        if system == "torch":
            return module.nn.functional.layer_norm(x, (1024,))
        centred = x - x.mean(1, keepdims=True)
        return centred / module.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)

    if system == "topos":
        return timed(system, plan_of(build, array))
    return timed(system, peer(system, form, [array], request))


@pytest.mark.parametrize("work", ["forward", "gradients"])
@pytest.mark.parametrize(
    "shape", [(64, 32, 32, 32), (64, 64, 16, 16), (64, 512)], ids=lambda shape: "x".join(map(str, shape))
)
@pytest.mark.parametrize("system", ["topos", "torch", "jax"])
def bench_batch_norm(system: str, shape: tuple[int, ...], work: str, timed: Any, request: Any) -> None:
    """A batch norm in training, or its output and its gradients by input, scale and shift."""
    features = shape[1]
    arrays = [values(shape), values((features,)) + 2, values((features,))]
    if work == "gradients":
        arrays.append(values(shape) + 1)
    if system == "topos":

        def build(tape: Tape, x: Any, scale: Any, shift: Any, *seed: Any) -> Any:
            norm = BatchNorm(tape, arrays[1], arrays[2])
            norm.scale, norm.shift = scale.symbol, shift.symbol
            output = norm.express(x).output
            return [output, *(tape.vjp(output, seed[0], [x, scale, shift]).gradients if seed else ())]

        return timed(system, plan_of(build, *arrays))
    if system == "torch":
        torch = request.getfixturevalue("torch")
        x, scale, shift, *seed = map(torch.from_numpy, arrays)
        if not seed:
            return timed(system, lambda: torch.nn.functional.batch_norm(x, None, None, scale, shift, True))
        wanted = [tensor.requires_grad_() for tensor in (x, scale, shift)]

        def run() -> Any:
            output = torch.nn.functional.batch_norm(*wanted[:1], None, None, *wanted[1:], True)
            return output, torch.autograd.grad(output, wanted, seed)

        return timed(system, run)
    jax = request.getfixturevalue("jax")
    over, spread = tuple(axis for axis in range(len(shape)) if axis != 1), (features, *[1] * (len(shape) - 2))

    def form(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(over, keepdims=True)
        deviation = jax.numpy.sqrt((centred * centred).mean(over, keepdims=True) + 1e-5)
        return centred / deviation * scale.reshape(spread) + shift.reshape(spread)

    def both(*given: Any) -> Any:
        output, back = jax.vjp(form, *given[:3])
        return output, back(given[3])

    held, compiled = [jax.numpy.asarray(array) for array in arrays], jax.jit(both if arrays[3:] else form)
    return timed(system, lambda: jax.block_until_ready(compiled(*held)))


@pytest.mark.parametrize("length", [8, 256])
@pytest.mark.parametrize("name", ["gather", "scatter"])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_index(system: str, name: str, length: int, timed: Any, request: Any) -> None:
    """4096 rows chosen from, or added into, 10,000."""
    ids = np.random.default_rng(1).integers(0, 10_000, 4096)
    given = values((10_000 if name == "gather" else 4096, length))
    if system == "topos":
        one_hot = Tensor.selection(ids, 10_000)
        return timed(system, plan_of(lambda tape, x: getattr(x, name)(tape.leaf(one_hot)), given))

    def form(module: Any, x: Any, at: Any) -> Any:
        if name == "gather":
            return x[at]
        if system == "torch":
            return module.zeros(10_000, length).index_add_(0, at, x)
        out = module.zeros((10_000, length), x.dtype)
        if system == "jax":
            return out.at[at].add(x)
        np.add.at(out, at, x)
        return out

    return timed(system, peer(system, form, [given, ids], request))


@pytest.mark.parametrize("order", ["10", "0213", "0231", "1032"])
@pytest.mark.parametrize("system", SYSTEMS)
def bench_transpose(system: str, order: str, timed: Any, request: Any) -> None:
    """A permuted array, written in row-major order."""
    axes = tuple(map(int, order))
    array = values(SHAPES["square"] if len(axes) == 2 else SHAPES["images"])
    if system == "topos":
        return timed(system, plan_of(lambda _, x: x.permute(axes).reshape([array.size]), array))
    form = {
        "numpy": lambda m, x: m.ascontiguousarray(x.transpose(axes)),
        "torch": lambda _, x: x.permute(axes).contiguous(),
        "jax": lambda m, x: m.transpose(x, axes),
    }[system]
    return timed(system, peer(system, form, [array], request))
