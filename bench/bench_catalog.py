"""Groups of the catalog: a plan with them, without them, and PyTorch; fused and plain have one digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from topos import Entry, Tape, Tensor, causal_mask, concat, conv2d, cross_entropy, max_pool, scaled_dot_product
from topos.engine.plan import Plan
from topos.proof import digest

SYSTEMS = ("topos.fused", "topos.plain", "torch", "torch_compile", "jax")


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normally distributed f32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer_norm(x: Any) -> Any:
    """Record rows less their mean over their deviation."""
    n = x.shape[1]
    off = x - x.mean_along(1).broadcast_along(1, n)
    return off / ((off * off).mean_along(1) + 1e-5).sqrt().broadcast_along(1, n)


def gradient(form: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
    """Record the gradient of a form by one operand, for a cotangent given last."""
    return lambda *given: given[at].tape.vjp(form(*given[:-1]), given[-1], [given[at]]).of(given[at])


def convolution(x: Any, w: Any) -> Any:
    """Record a convolution whose images keep their size."""
    return conv2d(x, w, padding=1)


def slices(x: Any) -> Any:
    """Record a product of slices that cover an axis."""
    return x[:, :256].tanh() * x[:, 256:512] * x[:, 512:]


def attention(query: Any, key: Any, value: Any) -> Any:
    """Record what each position takes from itself and those before it."""
    return scaled_dot_product(query, key, value, causal_mask(query.shape[-2]))


LINE, ROWS = (1 << 20,), (512, 768)
IMAGES, KERNEL, POOLED = (16, 16, 32, 32), (32, 16, 3, 3), (16, 16, 16, 16)
PLANES, HEADS = (16, 32, 32, 32), (4, 4, 512, 32)

CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "maps": (lambda x, y: ((x.exp() * y).tanh() + x).sigmoid() * y, [values(*LINE), values(*LINE, seed=1)]),
    "arithmetic": (lambda x, y: ((x * y + x) * y - x).maximum(y) * x, [values(*LINE), values(*LINE, seed=1)]),
    "bias and gelu": (lambda x, b: (x + b.broadcast_along(0, ROWS[0])).gelu(), [values(*ROWS), values(ROWS[1])]),
    "softmax": (lambda x: x.softmax(1), [values(*ROWS)]),
    "softmax gradient": (gradient(lambda x: x.softmax(1)), [values(*ROWS), values(*ROWS, seed=1)]),
    "layer norm": (layer_norm, [values(*ROWS)]),
    "layer norm gradient": (gradient(layer_norm), [values(*ROWS), values(*ROWS, seed=1)]),
    "cross-entropy": (lambda x, t: cross_entropy(x, t * t), [values(*ROWS), values(*ROWS, seed=1)]),
    "convolution": (convolution, [values(*IMAGES), values(*KERNEL, seed=1)]),
    "convolution by input": (gradient(convolution), [values(*IMAGES), values(*KERNEL), values(*PLANES, seed=1)]),
    "convolution by kernel": (gradient(convolution, 1), [values(*IMAGES), values(*KERNEL), values(*PLANES, seed=1)]),
    "max pool": (lambda x: max_pool(x, 2), [values(*IMAGES)]),
    "max pool gradient": (gradient(lambda x: max_pool(x, 2)), [values(*IMAGES), values(*POOLED, seed=1)]),
    "concatenation": (lambda *parts: concat(parts, 1), [values(512, 192, seed=i) for i in range(4)]),
    "gradient of slices": (gradient(slices), [values(*ROWS), values(512, 256, seed=1)]),
    "attention": (attention, [values(*HEADS, seed=i) for i in range(3)]),
}


CHAINS = "maps", "arithmetic"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own


def torch_forms(torch: Any) -> dict[str, Callable[..., Any]]:
    """Return the cases in PyTorch."""
    f = torch.nn.functional

    def grad(form: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            wanted = given[at].requires_grad_()
            return torch.autograd.grad(form(*given[:-1]), wanted, given[-1])

        return run

    def conv(x: Any, w: Any) -> Any:
        return f.conv2d(x, w, padding=1)

    def norm(x: Any) -> Any:
        return f.layer_norm(x, x.shape[1:])

    return {
        "maps": lambda x, y: ((x.exp() * y).tanh() + x).sigmoid() * y,
        "arithmetic": lambda x, y: torch.maximum((x * y + x) * y - x, y) * x,
        "bias and gelu": lambda x, b: f.gelu(x + b),
        "softmax": lambda x: torch.softmax(x, 1),
        "softmax gradient": grad(lambda x: torch.softmax(x, 1)),
        "layer norm": norm,
        "layer norm gradient": grad(norm),
        "cross-entropy": lambda x, t: -(t * t * f.log_softmax(x, 1)).sum() / (t * t).sum(),
        "convolution": conv,
        "convolution by input": grad(conv),
        "convolution by kernel": grad(conv, 1),
        "max pool": lambda x: f.max_pool2d(x, 2),
        "max pool gradient": grad(lambda x: f.max_pool2d(x, 2)),
        "concatenation": lambda *parts: torch.cat(parts, 1),
        "gradient of slices": grad(slices),
        "attention": lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def in_jax(case: str, jax: Any, arrays: list[np.ndarray]) -> Callable[[], Any]:
    """Return a chain in JAX."""
    numpy = jax.numpy
    forms = {
        "maps": lambda x, y: jax.nn.sigmoid(numpy.tanh(numpy.exp(x) * y) + x) * y,
        "arithmetic": lambda x, y: numpy.maximum((x * y + x) * y - x, y) * x,
    }
    compiled, held = jax.jit(forms[case]), [numpy.asarray(array) for array in arrays]
    return lambda: compiled(*held).block_until_ready()


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("case", CASES)
def bench_catalog(case: str, system: str, timed: Any, request: Any) -> None:
    """Time one run of a case; plans with and without groups have the same bits."""
    form, arrays = CASES[case]
    if system in ("torch_compile", "jax") and case not in CHAINS:
        pytest.skip("compilers are timed where a chain is all there is")
    if system == "jax":
        timed(system, in_jax(case, request.getfixturevalue("jax"), arrays))
        return
    if system.startswith("torch"):
        torch = request.getfixturevalue("torch")
        held, peer = [torch.from_numpy(array) for array in arrays], torch_forms(torch)[case]
        if system == "torch_compile":
            peer = torch.compile(peer)
        timed(system, lambda: peer(*held))
        return

    def record(tape: Tape) -> tuple:
        inputs = [tape.input(array) for array in arrays]
        return inputs, form(*inputs)

    network, (inputs, result) = Tape.record(record)
    plans = [Plan(network, Entry((result,)), fuse=fuse) for fuse in (True, False)]
    state, feeds = network.parameters(), dict(zip(inputs, map(Tensor, arrays), strict=True))
    fused, plain = (digest(plan.forward(state, feeds).of(result)) for plan in plans)
    assert fused == plain
    kinds = ", ".join(dict.fromkeys(match.kind.value for match in plans[0].patterns()))
    request.getfixturevalue("benchmark").extra_info.update(kinds=kinds, digest=fused)
    plan = plans[system == "topos.plain"]
    timed(system, lambda: plan.forward(state, feeds))
