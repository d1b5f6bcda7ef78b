"""Layers, losses and optimizers against PyTorch in f64: values and gradients to 1e-12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import topos
from topos import Activation, Linear, MultiHeadAttention, Tape, Value

torch = pytest.importorskip("torch")
F = torch.nn.functional

Case = tuple[Callable[..., Any], Callable[..., Any], list[Any]]


def numbers(shapes: Sequence[Any]) -> list[np.ndarray]:
    """Return normal numbers of each shape; arrays as they are."""
    generator = np.random.default_rng(len(shapes) + len(str(shapes)))
    return [s if isinstance(s, np.ndarray) else generator.normal(size=s) for s in shapes]


def compare(ours: Callable[..., Value], theirs: Callable[..., Any], given: list[np.ndarray]) -> None:
    """Compare the output, and the gradient of every operand for a seed of unlike weights."""

    def build(tape: Tape) -> Any:
        values = [tape.parameter(a) for a in given]
        output = ours(*values)
        seed = np.cos(np.arange(output.shape.volume)).reshape(tuple(output.shape))
        return values, output, tape.vjp(output, seed, values)

    network, (values, output, adjoints) = Tape.record(build, element="f64")
    run = network.forward(network.parameters())
    tensors = [torch.tensor(a, requires_grad=True) for a in given]
    expected = theirs(*tensors)
    seed = np.cos(np.arange(expected.numel())).reshape(tuple(expected.shape))
    gradients = torch.autograd.grad(expected, tensors, torch.tensor(seed), allow_unused=True)
    close(run.of(output).numpy(), expected.detach().numpy())
    for value, gradient in zip(values, gradients, strict=True):
        found = run.of(adjoints.of(value)).numpy()
        close(found, np.zeros_like(found) if gradient is None else gradient.numpy())


def close(found: Any, expected: Any) -> None:
    """Compare to 1e-12 of the largest number: sums cancel, and no order of them is the right one."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * max(1.0, np.abs(expected).max()))


def layer(make: Callable[..., Any], *options: Any) -> Callable[..., Value]:
    """Return a function of the input and a layer's parameters, which replace what it recorded."""

    def express(x: Value, *parameters: Value) -> Value:
        made = make(x.tape, *[np.zeros(tuple(p.shape)) for p in parameters], *options)
        for name, symbol in list(vars(made).items()):
            if isinstance(symbol, topos.Symbol) and symbol in made.parameters():
                setattr(made, name, parameters[made.parameters().index(symbol)].symbol)
        return made.express(x)

    return express


def normalized(x: Value, scale: Value, shift: Value) -> Value:
    """Return what the batch norm layer answers as its output."""
    norm = topos.BatchNorm(x.tape, np.zeros(x.shape[1]), np.zeros(x.shape[1]), 1e-3)
    norm.scale, norm.shift = scale.symbol, shift.symbol
    return norm.express(x).output


def convolution(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return both convolutions with the same options."""
    return (lambda x, w, b=None: topos.conv2d(x, w, b, **options), lambda x, w, b=None: F.conv2d(x, w, b, **options))


def heads(rotated: bool = False, causal: bool = False) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return attention of 4 query and 2 key heads of width 2 over [batch, 3, features]."""

    def ours(x: Value, q: Value, k: Value, v: Value, o: Value) -> Value:
        parts = [Linear(x.tape, np.zeros(tuple(w.shape))) for w in (q, k, v, o)]
        for part, w in zip(parts, (q, k, v, o), strict=True):
            part.weights = w.symbol
        mask = topos.causal_mask(3, element="f64") if causal else None
        return MultiHeadAttention(x.tape, *parts, heads=4, mask=mask, base=100.0 if rotated else None)(x)

    def turn(x: Any) -> Any:
        angles = torch.arange(3)[:, None] * torch.tensor([1.0], dtype=torch.float64)
        left, right = x[..., :1], x[..., 1:]
        return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)

    def theirs(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
        split = lambda y, n: y.reshape(*x.shape[:2], n, 2).transpose(1, 2)  # noqa: E731
        query, key, value = split(x @ q, 4), split(x @ k, 2), split(x @ v, 2)
        if rotated:
            query, key = turn(query), turn(key)
        mixed = F.scaled_dot_product_attention(
            query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=causal
        )
        return mixed.transpose(1, 2).reshape(*x.shape[:2], 8) @ o

    return ours, theirs


def cell(make: Any, reference: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a cell unrolled over [batch, steps, in], and PyTorch's one-layer network."""

    def ours(x: Value, *parameters: Value) -> Value:
        made = make(x.tape, *[np.zeros(tuple(p.shape)) for p in parameters])
        for name, parameter in zip(made.members, parameters, strict=True):
            setattr(made, name, parameter.symbol)
        return made.express(x)

    def theirs(x: Any, wi: Any, wh: Any, bi: Any, bh: Any) -> Any:
        net = reference(wi.shape[0], wh.shape[0], batch_first=True, dtype=torch.float64)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        call = dict(zip(names, (wi.T, wh.T, bi, bh), strict=True))
        return torch.func.functional_call(net, call, (x,))[0]

    return ours, theirs


ATTENTION = [(2, 3, 5), (5, 8), (5, 4), (5, 4), (8, 5)]
IMAGE = (2, 4, 6, 5)
PROBABLE = np.random.default_rng(1).random((4, 3))
HOT = np.eye(3)[[0, 2, 1, 1]]
CASES: dict[str, Case] = {
    "linear": (layer(Linear), lambda x, w, b: x @ w + b, [(3, 4), (4, 2), (2,)]),
    "linear, leading axes": (layer(Linear), lambda x, w, b: x @ w + b, [(2, 3, 4), (4, 2), (2,)]),
    "linear, one row": (layer(Linear), lambda x, w: x @ w, [(4,), (4, 2)]),
    "layer norm": (layer(topos.LayerNorm), lambda x, g, b: F.layer_norm(x, (5,), g, b, 1e-5), [(3, 5), (5,), (5,)]),
    "layer norm, leading axes": (
        layer(topos.LayerNorm, 0.1),
        lambda x, g, b: F.layer_norm(x, (5,), g, b, 0.1),
        [(2, 3, 5), (5,), (5,)],
    ),
    "rms norm": (layer(topos.RmsNorm), lambda x, g: F.rms_norm(x, (5,), g, 1e-5), [(2, 2, 3, 5), (5,)]),
    "rms norm, one row": (layer(topos.RmsNorm), lambda x, g: F.rms_norm(x, (5,), g, 1e-5), [(5,), (5,)]),
    "batch norm": (normalized, lambda x, g, b: F.batch_norm(x, None, None, g, b, True, eps=1e-3), [(6, 3), (3,), (3,)]),
    "batch norm of images": (
        normalized,
        lambda x, g, b: F.batch_norm(x, None, None, g, b, True, eps=1e-3),
        [IMAGE, (4,), (4,)],
    ),
    "conv2d rectangular": (*convolution(stride=(2, 1), padding=(0, 2)), [IMAGE, (3, 4, 2, 3), (3,)]),
    "conv2d without bias": (*convolution(stride=2, padding=1), [IMAGE, (3, 4, 3, 3)]),
    "conv2d grouped without bias": (*convolution(groups=2), [IMAGE, (6, 2, 3, 3)]),
    "conv2d dilated": (*convolution(dilation=(2, 1), padding=1), [IMAGE, (3, 4, 3, 2), (3,)]),
    "conv2d grouped": (*convolution(groups=2, padding=1), [IMAGE, (6, 2, 3, 3), (6,)]),
    "conv2d depthwise": (*convolution(groups=4, stride=2), [IMAGE, (4, 1, 3, 2), (4,)]),
    "conv2d depthwise, dilated": (
        *convolution(groups=4, dilation=2, padding=(2, 1), stride=(1, 2)),
        [IMAGE, (8, 1, 3, 2), (8,)],
    ),
    "max pool": (lambda x: topos.max_pool(x, 2), lambda x: F.max_pool2d(x, 2), [IMAGE]),
    "max pool rectangular": (
        lambda x: topos.max_pool(x, (3, 2), (2, 1), (1, 0)),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0)),
        [IMAGE],
    ),
    "max pool padded": (lambda x: topos.max_pool(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "average pool": (lambda x: topos.average_pool(x, 2), lambda x: F.avg_pool2d(x, 2), [IMAGE]),
    "average pool rectangular": (
        lambda x: topos.average_pool(x, (3, 2), (1, 2), (1, 1)),
        lambda x: F.avg_pool2d(x, (3, 2), (1, 2), (1, 1)),
        [IMAGE],
    ),
    "scaled dot product": (
        topos.scaled_dot_product, F.scaled_dot_product_attention, [(3, 4), (5, 4), (5, 2)]
    ),
    "scaled dot product, heads, mask, scale": (
        lambda q, k, v: topos.scaled_dot_product(q, k, v, topos.causal_mask(3, element="f64"), 0.3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        [(2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 5)],
    ),
    "multi-head attention": (*heads(), ATTENTION),
    "multi-head attention, causal, rotary": (*heads(True, True), ATTENTION),
    "lstm": (*cell(topos.LstmCell, torch.nn.LSTM), [(2, 4, 3), (3, 8), (2, 8), (8,), (8,)]),
    "gru": (*cell(topos.GruCell, torch.nn.GRU), [(2, 4, 3), (3, 6), (2, 6), (6,), (6,)]),
    "mse": (topos.mse, F.mse_loss, [(3, 4), (3, 4)]),
    "huber": (lambda a, b: topos.huber(a, b, 0.7), lambda a, b: F.huber_loss(a, b, delta=0.7), [(20,), (20,)]),
    "binary cross-entropy": (
        topos.binary_cross_entropy, F.binary_cross_entropy_with_logits, [(4, 3), PROBABLE]
    ),
    "nll": (
        lambda x: topos.nll(x.log_softmax(1), x.tape.leaf(HOT)),
        lambda x: F.nll_loss(F.log_softmax(x, 1), torch.tensor([0, 2, 1, 1])),
        [(4, 3)],
    ),
    "cross-entropy": (
        lambda x: topos.cross_entropy(x, x.tape.leaf(HOT)),
        lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1, 1])),
        [(4, 3)],
    ),
}  # fmt: skip
CASES |= {
    f"activation {one.name}": (one.express, getattr(F, one.name, None) or getattr(torch, one.name), [(4, 5)])
    for one in Activation.ALL
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    """The output and the gradient of every operand are PyTorch's."""
    ours, theirs, shapes = CASES[name]
    compare(ours, theirs, numbers(shapes))


OPTIMIZERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "sgd": (topos.Sgd, lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (lambda: topos.Momentum(0.8), lambda p: torch.optim.SGD(p, 0.1, momentum=0.8)),
    "nesterov": (lambda: topos.Nesterov(0.8), lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True)),
    "rmsprop": (lambda: topos.RmsProp(0.9, 1e-6), lambda p: torch.optim.RMSprop(p, 0.1, 0.9, 1e-6)),
    "adam": (lambda: topos.Adam(0.8, 0.95), lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.95))),
    "adamw": (lambda: topos.AdamW(decay=0.3), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.3)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    """Five steps over a matrix are PyTorch's."""
    ours, theirs = OPTIMIZERS[name]
    generator = np.random.default_rng(0)
    start = generator.normal(size=(3, 4))
    network, w = Tape.record(lambda tape: tape.parameter(start), element="f64")
    parameters, optimizer = network.parameters(), ours()
    weights = torch.tensor(start, requires_grad=True)
    reference = theirs([weights])
    for _ in range(5):
        gradient = generator.normal(size=(3, 4))
        parameters = optimizer.step(parameters, parameters.with_payloads({w: gradient}), 0.1)
        weights.grad = torch.tensor(gradient)
        reference.step()
    close(parameters.of(w).numpy(), weights.detach().numpy())


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping(limit: float) -> None:
    """The joint norm and the factor are PyTorch's, recorded or over payloads, with the same bits."""
    given = numbers([(3, 4), (4,)])

    def build(tape: Tape) -> Any:
        values = [tape.parameter(a) for a in given]
        loss = sum((v * v * v).sum() for v in values[1:]) + (values[0] * values[0]).sum()
        adjoints = tape.differentiate(loss, values)
        return adjoints, topos.clip_adjoints(tape, adjoints, limit)

    network, (adjoints, clipped) = Tape.record(build, element="f64")
    parameters = network.parameters()
    run = network.forward(parameters)
    table = topos.clip_by_norm(run.recorded_gradients(adjoints), limit)
    weights = [torch.tensor(a, requires_grad=True) for a in given]
    ((weights[0] ** 2).sum() + (weights[1] ** 3).sum()).backward()
    torch.nn.utils.clip_grad_norm_(weights, limit)
    for weight, found, symbol in zip(weights, table.payloads(), clipped.gradients, strict=True):
        close(found.numpy(), weight.grad.numpy())
        assert found.numpy().tobytes() == run.of(symbol).numpy().tobytes()


def test_running_statistics() -> None:
    """Three training steps of batch norm over images leave PyTorch's running statistics and inference."""
    generator = np.random.default_rng(3)
    reference = torch.nn.BatchNorm2d(4, eps=1e-3, momentum=0.2, dtype=torch.float64)

    def build(tape: Tape) -> Any:
        x = tape.input(np.zeros(IMAGE))
        norm = topos.RunningBatchNorm(tape, np.ones(4), np.zeros(4), 1e-3, 0.2)
        y = norm.express(x)
        with topos.inference():
            return norm, x, y, norm.express(x)

    network, (norm, x, y, inferred) = Tape.record(build, element="f64")
    plan = network.entry([y]).observe(topos.statistics(norm)).lower()
    parameters = network.parameters()
    for _ in range(3):
        image = generator.normal(1.0, 2.0, IMAGE)
        run = plan.forward(parameters, {x: image})
        close(run.of(y).numpy(), reference(torch.tensor(image)).detach().numpy())
        parameters = topos.update_statistics(parameters, run, norm)
    close(parameters.of(norm.running_mean).numpy(), reference.running_mean.numpy())
    close(parameters.of(norm.running_variance).numpy(), reference.running_var.numpy())
    reference.eval()
    found = network.forward(parameters, {x: image}).of(inferred)
    close(found.numpy(), reference(torch.tensor(image)).detach().numpy())
