"""Layers record what one would write by hand, refuse what does not fit, and serve every element."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import topos
from tests.helpers import ELEMENTS, same_bits
from topos import (
    Activation,
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    FeedError,
    Flatten,
    GruCell,
    LayerNorm,
    Linear,
    LstmCell,
    Mlp,
    MultiHeadAttention,
    RmsNorm,
    RunningBatchNorm,
    Sequential,
    ShapeError,
    SymbolError,
    Tape,
    Tensor,
    UnreadableError,
    UsageError,
    Value,
    init,
)

W, B, G = np.arange(6.0).reshape(3, 2) / 7, np.array([0.5, -1.0]), np.array([1.0, 2.0, 0.5])
X = np.sin(np.arange(12.0)).reshape(4, 3)
IMAGES = np.cos(np.arange(96.0)).reshape(2, 3, 4, 4)
KERNEL = np.sin(np.arange(54.0)).reshape(2, 3, 3, 3)


def standardized(t: Tape, x: Value, axis: int, count: int) -> tuple[Value, Value, Value]:
    """Return what a user writes for (centered, mean, variance) along an axis of a matrix."""
    extent = x.shape[axis]
    mean = x.sum_along(axis)
    mean = mean / mean.constant_like(count)
    centered = x - mean.broadcast_along(axis, extent)
    variance = (centered * centered).sum_along(axis)
    return centered, mean, variance / variance.constant_like(count)


def by_hand_linear(t: Tape, x: Value) -> Value:
    """Record a linear by hand."""
    w, b = t.parameter(W), t.parameter(B)
    return x.matmul(w) + b.broadcast_along(0, 4)


def by_hand_mlp(t: Tape, x: Value) -> Value:
    """Record a mlp by hand."""
    w1, b1, w2, b2 = (t.parameter(a) for a in (W, B, W.T, G))
    hidden = (x.matmul(w1) + b1.broadcast_along(0, 4)).tanh()
    return hidden.matmul(w2) + b2.broadcast_along(0, 4)


def by_hand_layer_norm(t: Tape, x: Value) -> Value:
    """Record a layer norm by hand."""
    scale, shift, epsilon = t.parameter(G), t.parameter(G), t.leaf(1e-5)
    centered, _, variance = standardized(t, x, 1, 3)
    deviation = (variance + epsilon.broadcast([4])).sqrt()
    normal = centered / deviation.broadcast_along(1, 3)
    return normal * scale.broadcast_along(0, 4) + shift.broadcast_along(0, 4)


def by_hand_rms_norm(t: Tape, x: Value) -> Value:
    """Record a rms norm by hand."""
    scale, epsilon = t.parameter(G), t.leaf(1e-5)
    square = (x * x).sum_along(1)
    root = (square / square.constant_like(3) + epsilon.broadcast([4])).sqrt()
    return x / root.broadcast_along(1, 3) * scale.broadcast_along(0, 4)


def by_hand_batch_norm(t: Tape, x: Value) -> Value:
    """Record a batch norm by hand."""
    scale, shift, epsilon = t.parameter(G), t.parameter(G), t.leaf(1e-5)
    centered, _, variance = standardized(t, x, 0, 4)
    deviation = (variance + epsilon.broadcast([3])).sqrt().broadcast_along(0, 4)
    return centered / deviation * scale.broadcast_along(0, 4) + shift.broadcast_along(0, 4)


def by_hand_dropout(t: Tape, x: Value) -> Value:
    """Record a dropout by hand."""
    return x * t.input(Tensor.counted([4, 3], 1, element=t.element))


def by_hand_embedding(t: Tape, x: Value) -> Value:
    """Record a embedding by hand."""
    table, ids = t.parameter(W), t.input(Tensor.selection([0, 0], 3, element=t.element))
    return table.gather(ids)


def by_hand_conv(t: Tape, x: Value) -> Value:
    """Record a conv by hand."""
    return topos.conv2d(t.leaf(IMAGES), t.parameter(KERNEL), t.parameter(B), 1, 1)


def by_hand_dot(t: Tape, x: Value) -> Value:
    """Record a dot by hand."""
    mask, scale = t.leaf(topos.causal_mask(4, element=t.element)), t.leaf(0.5)
    scores = x.matmul(x.transpose())
    scores = scores * scale.broadcast([4, 4]) + mask
    return scores.softmax(1).matmul(x)


def facade_embedding(t: Tape, x: Value) -> Value:
    """Record a embedding by the facade."""
    table = Embedding(t, W)
    return table.express(table.ids(t, 2))


def facade_conv(t: Tape, x: Value) -> Value:
    """Record a conv by the facade."""
    images = t.leaf(IMAGES)
    return Conv2d(t, KERNEL, B, padding=1).express(images)


def bare_conv(t: Tape, x: Value) -> Value:
    """Record a conv without a bias by hand."""
    kernel = t.parameter(KERNEL)
    windows = t.leaf(IMAGES).unfold(2, 3, 1).unfold(4, 3, 1).permute([0, 2, 4, 1, 3, 5])
    product = windows.reshape([8, 27]).matmul(kernel.permute([1, 2, 3, 0]).reshape([27, 2]))
    return product.reshape([2, 4, 2]).permute([0, 2, 1]).reshape([2, 2, 2, 2])


def facade_bare_conv(t: Tape, x: Value) -> Value:
    """Record a conv without a bias by the facade."""
    layer = Conv2d(t, KERNEL)
    assert layer.parameters() == [layer.weights]
    return layer.express(t.leaf(IMAGES))


def facade_dot(t: Tape, x: Value) -> Value:
    """Record a dot by the facade."""
    mask, scale = t.leaf(topos.causal_mask(4, element=t.element)), t.leaf(0.5)
    return topos.scaled_dot_product(x, x, x, mask, scale)


def in_order(*arrays: Any) -> Callable[[Any], Any]:
    """Return an initializer that hands out arrays."""
    left = iter(arrays)
    return lambda _: next(left)


HAND: dict[str, tuple[Callable[[Tape, Value], Value], Callable[[Tape, Value], Value]]] = {
    "linear": (by_hand_linear, lambda t, x: Linear(t, W, B).express(x)),
    "mlp": (by_hand_mlp, lambda t, x: Mlp(t, [3, 2, 3], Activation.TANH, in_order(W, B, W.T, G)).express(x)),
    "layer norm": (by_hand_layer_norm, lambda t, x: LayerNorm(t, G, G).express(x)),
    "rms norm": (by_hand_rms_norm, lambda t, x: RmsNorm(t, G).express(x)),
    "batch norm": (by_hand_batch_norm, lambda t, x: BatchNorm(t, G, G).express(x).output),
    "dropout": (by_hand_dropout, lambda t, x: Dropout(t, [4, 3]).express(x)),
    "embedding": (by_hand_embedding, facade_embedding),
    "activation": (lambda t, x: x.relu(), lambda t, x: Activation.RELU.express(x)),
    "sequential": (lambda t, x: x.relu().tanh(), lambda t, x: Sequential(Activation.RELU, Activation.TANH)(x)),
    "empty sequential": (lambda t, x: x, lambda t, x: Sequential()(x)),
    "conv2d": (by_hand_conv, facade_conv),
    "conv2d without bias": (bare_conv, facade_bare_conv),
    "scaled dot product": (by_hand_dot, facade_dot),
    "mse": (lambda t, x: ((x - t.leaf(X)) * (x - t.leaf(X))).mean(), lambda t, x: topos.mse(x, t.leaf(X))),
}  # fmt: skip


def recording(build: Callable[[Tape, Value], Value], element: Any) -> tuple[list[Any], Tensor, list[Tensor]]:
    """Return opcodes and operands, the output and the gradients of a model over X."""

    def whole(tape: Tape) -> Any:
        x = tape.input(X)
        y = build(tape, x)
        return y, (y * y).sum()

    network, (y, loss) = Tape.record(whole, element=element)
    parameters = network.parameters()
    run = network.forward(parameters)
    nodes = [(node.opcode, node.operands, node.shape) for node in network.nodes()]
    simple = [(opcode, [o.index for o in operands], shape) for opcode, operands, shape in nodes]
    return simple, run.of(y), run.backward(loss).parameters(parameters).payloads()


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("name", [name for name in HAND if name != "mse"])
def test_a_layer_is_what_one_would_write(name: str, element: Any) -> None:
    """A facade has no private access: by hand come the same nodes, the same bits, the same gradients."""
    hand, facade = HAND[name]
    nodes, output, gradients = recording(hand, element)
    its_nodes, its_output, its_gradients = recording(facade, element)
    assert nodes == its_nodes
    assert same_bits(output, its_output)
    assert all(same_bits(a, b) for a, b in zip(gradients, its_gradients, strict=True))


def block(tape: Tape, draw: Any) -> Sequential:
    """Return a model of most layers over [2, 3, 8, 8] images."""
    kernels = init.normal(5, 0.3, tape.element)
    return Sequential(
        Conv2d(tape, kernels([4, 3, 3, 3]), np.zeros(4), padding=1),
        RunningBatchNorm(tape, np.ones(4), np.zeros(4)),
        Activation.SILU,
        topos.MaxPool(2),
        Conv2d(tape, kernels([4, 1, 3, 3]), np.zeros(4), padding=1, groups=4),
        topos.AveragePool((2, 1)),
        Flatten(),
        LayerNorm(tape, np.ones(32), np.zeros(32)),
        Linear(tape, draw([32, 5]), draw([5])),
    )


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_plans_keep_the_bits(element: Any) -> None:
    """A model of layers in a plan, with recorded gradients, has the interpreter's bits in every element."""

    def build(tape: Tape) -> Any:
        x = tape.input(np.sin(np.arange(384.0)).reshape(2, 3, 8, 8))
        model = block(tape, init.xavier(3, tape.element))
        loss = topos.mse(model(x), tape.leaf(np.ones((2, 5))))
        return model, tape.differentiate(loss, model.parameters())

    network, (_, adjoints) = Tape.record(build, element=element)
    parameters = network.parameters()
    run, planned = network.forward(parameters), network.entry(adjoints.roots).lower().forward(parameters)
    backward = run.backward(adjoints.target)
    for wrt, gradient in adjoints.pairs:
        assert same_bits(run.of(gradient), planned.of(gradient))
        assert same_bits(run.of(gradient), backward.of(wrt))


def test_expressed_again_at_another_batch_size() -> None:
    """One call gives a network for the new batch; parameters carry over, each row keeps its bits."""

    def build(tape: Tape) -> Any:
        x = tape.input(X)
        model = Mlp(tape, [3, 5, 2], Activation.GELU, init.xavier(1))
        return model, x, model(x)

    network, (model, x, y) = Tape.record(build)
    parameters = network.parameters()
    plan = network.entry([y]).lower()
    with pytest.raises(ShapeError, match="has to hold 3 features"):
        topos.expressed(network, model, [1, 4])
    extended, one, answer = topos.expressed(network, model, [1, 3])
    rows = plan.forward(parameters, {x: X}).of(y)
    row = extended.forward(parameters, {one: X[2:3]}).of(answer)
    assert same_bits(row, rows.narrow(0, 2, 1))
    assert same_bits(extended.forward(parameters).of(y), rows)


def test_dropout() -> None:
    """Unfed it is the identity; fed, the mask decides; under inference nothing is recorded."""

    def build(tape: Tape) -> Any:
        x, dropout = tape.input(X), Dropout(tape, [4, 3])
        assert dropout.parameters() == []
        with topos.inference():
            assert dropout(x) == x
        return dropout, dropout(x)

    network, (dropout, y) = Tape.record(build)
    parameters = network.parameters()
    assert same_bits(network.forward(parameters).of(y), Tensor(X, element="f32"))
    mask = init.dropout(9, 0.5)([4, 3])
    dropped = network.forward(parameters, {dropout.mask: mask}).of(y)
    assert same_bits(dropped, Tensor(X, element="f32") * mask)
    assert 0 < np.count_nonzero(dropped.numpy()) < 12


def test_embedding_takes_integer_ids() -> None:
    """Ids of any integer type are a selection made at the feed: value, gradient, plan; others are refused."""

    def build(tape: Tape) -> Any:
        table = Embedding(tape, W)
        ids = table.ids(tape, 4, name="ids")
        loss = (table(ids) * np.arange(8.0).reshape(4, 2)).sum()
        return ids, tape.differentiate(loss, table.table)

    network, (ids, adjoints) = Tape.record(build)
    plan, parameters = network.entry(adjoints.roots).lower(), network.parameters()
    chosen = Tensor.selection([2, 0, 2, 1], 3)
    for feed in (np.array([2, 0, 2, 1], np.int32), [2, 0, 2, 1], np.array([[2, 0], [2, 1]], np.uint8)):
        for run in (network.forward(parameters, {ids: feed}), plan.forward(parameters, {ids: feed})):
            expected = network.forward(parameters, {ids: chosen})
            for symbol in adjoints.roots:
                assert same_bits(run.of(symbol), expected.of(symbol))
    many = np.array([[2, 0, 2, 1], [1, 1, 0, 0]])
    selections = [Tensor.selection(row, 3) for row in many]
    expected = plan.steps(parameters, {ids: selections}, topos.Sgd(), 0.1)
    for feeds in (many, many.reshape(2, 2, 2).tolist()):
        assert plan.steps(parameters, {ids: feeds}, topos.Sgd(), 0.1) == expected
    for feed in ([0, 1, 2, 3], [0, 0, 0, -1], [0, 1], [0.0, 1.0, 2.0, 0.0]):
        with pytest.raises(FeedError, match="named 'ids'"):
            network.forward(parameters, {ids: feed})
    assert network.node(ids).shape == (4, 3)
    assert network.symbol("ids") == ids


def test_batch_norm_over_one_sample() -> None:
    """Case 9: the output equals the shift, gradients are finite; a constant feature too."""
    for given in (np.ones((1, 3)), np.ones((5, 3))):

        def build(tape: Tape, given: Any = given) -> Any:
            x = tape.parameter(given)
            norm = BatchNorm(tape, G, [1.0, 2.0, 3.0])
            return x, norm, norm.express(x), norm.express(x).output.sum()

        network, (x, norm, result, loss) = Tape.record(build)
        run = network.forward(network.parameters())
        assert (run.of(result.output).numpy() == [1.0, 2.0, 3.0]).all()
        assert (run.of(result.variance).numpy() == 0).all()
        gradients = run.backward(loss)
        assert all(np.isfinite(gradients.of(s).numpy()).all() for s in (x, norm.scale, norm.shift))


def test_batch_norm_by_given_statistics() -> None:
    """The inference twin shares the parameters and takes statistics as inputs."""

    def build(tape: Tape) -> Any:
        x, norm = tape.input(X), BatchNorm(tape, G, G)
        training = norm.express(x)
        mean, variance = tape.input(np.zeros(3)), tape.input(np.ones(3))
        return norm, training, mean, variance, norm.express_with(x, mean, variance)

    network, (norm, training, mean, variance, y) = Tape.record(build)
    assert norm.parameters() == [norm.scale, norm.shift]
    parameters = network.parameters()
    first = network.forward(parameters)
    second = network.forward(parameters, {mean: first.of(training.mean), variance: first.of(training.variance)})
    assert same_bits(second.of(y), first.of(training.output))


def test_running_statistics_want_to_be_observed() -> None:
    """A plan that keeps none says what to do; a recording that failed leaves none behind."""

    def build(tape: Tape) -> Any:
        norm = RunningBatchNorm(tape, G, G)
        with pytest.raises(ShapeError), tape.transaction():
            norm.express(tape.input(X)).matmul(tape.leaf(B))
        return norm, norm.express(tape.input(X))

    network, (norm, y) = Tape.record(build)
    assert len(norm.recordings) == 1
    parameters = network.parameters()
    plan = network.entry([y]).lower()
    with pytest.raises(UnreadableError, match="observe"):
        topos.update_statistics(parameters, plan.forward(parameters), norm)
    assert [str(path) for path, _ in topos.named_parameters(norm)] == ["scale", "shift"]
    names = [str(path) for path, _ in topos.checkpoint.named_snapshot(parameters, norm)]
    assert names == ["scale", "shift", "running_mean", "running_variance"]
    optimizer = topos.Adam()
    moved = optimizer.step(parameters, parameters.map(lambda p: p.zero_like()), 0.1)
    assert same_bits(moved.of(norm.running_variance), parameters.of(norm.running_variance))


def test_steps_of_a_cell_are_its_expression() -> None:
    """Unrolled over a sequence or a step at a time: the same bits."""
    draw = init.uniform(4, 0.5)
    shapes = {LstmCell: 4, GruCell: 3}
    for kind, gates in shapes.items():
        given = [draw(s) for s in ([2, 3 * gates], [3, 3 * gates], [3 * gates], [3 * gates])]

        def build(tape: Tape, kind: Any = kind, given: Any = given) -> Any:
            cell = kind(tape, *given)
            sequence = tape.input(np.sin(np.arange(40.0)).reshape(4, 5, 2))
            states = (tape.leaf(np.zeros((4, 3))),) * kind.states
            outputs = []
            for at in range(5):
                states = cell.step(sequence[:, at], *states)
                outputs.append(states[0])
            assert len(cell.parameters()) == 4
            return cell.express(sequence), outputs

        network, (whole, outputs) = Tape.record(build)
        run = network.forward(network.parameters())
        for at, output in enumerate(outputs):
            assert same_bits(run.of(output), run.of(whole).narrow(1, at, 1).reshape([4, 3]))


def test_certain_predictions_cost_nothing() -> None:
    """Infinite logits that are right contribute exactly 0, with finite gradients."""

    def build(tape: Tape) -> Any:
        x = tape.parameter([np.inf, -np.inf, 1000.0, -1000.0])
        loss = topos.binary_cross_entropy(x, tape.leaf([1.0, 0.0, 1.0, 0.0]))
        return x, loss

    network, (x, loss) = Tape.record(build)
    run = network.forward(network.parameters())
    assert run.of(loss).scalar() == 0
    assert (run.backward(loss).of(x).numpy() == 0).all()


def test_a_window_of_padding_counts_as_minus_infinity() -> None:
    """Max pooling of negative numbers never answers the padding."""

    def build(tape: Tape) -> Any:
        return topos.max_pool(tape.input(np.full((1, 1, 3, 3), -5.0)), 3, 2, 1)

    network, y = Tape.record(build)
    assert (network.forward(network.parameters()).of(y).numpy() == -5).all()


# ---- modules


def test_paths_and_tying() -> None:
    """Paths are dotted in visit order; a tied parameter has two; names find them in the network."""

    def build(tape: Tape) -> Any:
        first, second = Linear(tape, W, B), Linear(tape, np.ones((2, 2)))
        model = Sequential(first, Sequential(second, second))
        topos.name_parameters(tape, model)
        return model, first, second

    network, (model, first, second) = Tape.record(build)
    named = topos.named_parameters(model)
    assert [str(path) for path, _ in named] == ["0.weights", "0.bias", "1.0.weights", "1.1.weights"]
    assert named[2][0].segments[:2] == (topos.Segment.Index(1), topos.Segment.Index(0))
    assert model.parameters() == [first.weights, first.bias, second.weights, second.weights]
    assert network.symbol("1.1.weights") == network.symbol("1.0.weights") == second.weights
    assert model.then(Activation.TANH).then(Flatten()).is_empty is False
    assert Sequential().is_empty


def test_scopes_of_inference() -> None:
    """The scope nests and ends with an error."""
    from topos.neural.module import is_inference

    with topos.inference():
        with contextlib.suppress(UsageError), topos.inference():
            Activation.GELU.gain()
        assert is_inference()
    assert not is_inference()


@pytest.mark.parametrize("name", ["a.b", "", "a:b", "0"])
def test_names_are_identifiers(name: str) -> None:
    """A name that would blur the dotted form is refused."""
    with pytest.raises(UsageError, match="identifier"):
        topos.Segment.Name(name)


REFUSALS: dict[str, tuple[Callable[[Tape, Value], Any], str]] = {
    "linear rank": (lambda t, x: Linear(t, [1.0], [1.0]), r"Linear\(weights=\[1\], bias=\[1\]\): needs weights"),
    "linear outputs": (lambda t, x: Linear(t, W, G), r"weights=\[3, 2\], bias=\[3\]"),
    "linear features": (lambda t, x: Linear(t, W.T).express(x), r"hold 2 features"),
    "mlp": (lambda t, x: Mlp(t, [3], Activation.RELU, init.xavier(1)), r"sizes=\[3\].*at least"),
    "conv rank": (lambda t, x: Conv2d(t, W, B), r"Conv2d\(weights=\[3, 2\]"),
    "conv filters": (lambda t, x: Conv2d(t, KERNEL, G), r"bias=\[3\]"),
    "conv stride": (lambda t, x: Conv2d(t, KERNEL, B, stride=(1, 0)), "are positive"),
    "conv pair": (lambda t, x: Conv2d(t, KERNEL, B, stride=(1, 2, 3)), "an int or two"),
    "conv channels": (lambda t, x: Conv2d(t, KERNEL[:, :2], B).express(t.leaf(IMAGES)), "have to agree"),
    "conv groups": (lambda t, x: Conv2d(t, KERNEL, B, groups=2).express(t.leaf(IMAGES)), "groups=2.*agree"),
    "conv input": (lambda t, x: Conv2d(t, KERNEL, B, dilation=2).express(x), "needs"),
    "conv size": (lambda t, x: Conv2d(t, KERNEL, B, dilation=3).express(t.leaf(IMAGES)), "does not fit"),
    "pool padding": (lambda t, x: topos.max_pool(t.leaf(IMAGES), 2, 1, 2), "padding alone"),
    "pool rank": (lambda t, x: topos.average_pool(x, 2), "needs"),
    "pool size": (lambda t, x: topos.max_pool(t.leaf(IMAGES), (5, 1)), "does not fit"),
    "pool stride": (lambda t, x: topos.average_pool(t.leaf(IMAGES), 2, 0), "positive"),
    "scale rank": (lambda t, x: LayerNorm(t, W, W), r"LayerNorm\(scale=\[3, 2\]"),
    "shift": (lambda t, x: BatchNorm(t, G, B), r"shift=\[2\]"),
    "epsilon": (lambda t, x: RmsNorm(t, G, [0.1, 0.1]), r"epsilon=\[2\]\): a single value"),
    "norm rank": (lambda t, x: BatchNorm(t, G, G).express(t.leaf(G)), "axis 1 has to hold 3"),
    "norm features": (lambda t, x: LayerNorm(t, B, B).express(x), "axis -1 has to hold 2"),
    "statistics": (
        lambda t, x: BatchNorm(t, G, G).express_with(x, t.leaf(B), t.leaf(G)),
        r"statistics of shape \[3\]",
    ),
    "dropout": (lambda t, x: Dropout(t, [3, 4]).express(x), r"the mask has shape \[3, 4\]"),
    "embedding": (lambda t, x: Embedding(t, G), "vocabulary, features"),
    "dot product": (lambda t, x: topos.scaled_dot_product(x, x, t.leaf(W)), r"query=\[4, 3\]"),
    "dot product scale": (lambda t, x: topos.scaled_dot_product(x, x, x, None, t.leaf(G)), "single value"),
    "dot product mask": (lambda t, x: topos.scaled_dot_product(x, x, x, W), "mask"),
    "rotary": (lambda t, x: topos.rotary(x), "even"),
    "heads": (lambda t, x: MultiHeadAttention(t, *[Linear(t, np.ones((3, 4)))] * 3, Linear(t, W.T), 2), "divide"),
    "lstm": (lambda t, x: LstmCell(t, W, W, B, B), "4 hidden"),
    "lstm states": (
        lambda t, x: GruCell(t, np.ones((3, 6)), np.ones((2, 6)), np.ones(6), np.ones(6)).step(x),
        "1 states",
    ),
    "gru input": (
        lambda t, x: GruCell(t, np.ones((3, 6)), np.ones((2, 6)), np.ones(6), np.ones(6)).express(x),
        r"needs \[batch, steps, 3\]",
    ),
    "mse": (lambda t, x: topos.mse(x, t.leaf(W)), r"mse\(prediction=\[4, 3\], target=\[3, 2\]\)"),
    "huber": (lambda t, x: topos.huber(x, x, 0.0), "delta has to be positive"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    """What does not fit raises with the call and its shapes; the tape keeps no half of it."""
    attempt, message = REFUSALS[name]
    tape = Tape()
    x = tape.input(X)
    with pytest.raises(ShapeError, match=message):
        attempt(tape, x)
    _ = x * x
    assert len(tape.nodes()) < 12


def test_other_refusals() -> None:
    """Foreign symbols, missing values, gains that nobody published."""
    layer = Linear(Tape(), W)
    with pytest.raises(SymbolError):
        layer.express(Tape().input(X))
    with pytest.raises(UsageError, match="give a recorded value"):
        layer.express(X)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no published gain"):
        Activation.GELU.gain()
    assert Activation.TANH.gain() == 5 / 3
    assert Activation.RELU.gain() == 2**0.5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, w, b: topos.max_pool(x, True), ShapeError, "give an int or two"),
        (lambda x, w, b: topos.max_pool(x, np.float64(2)), ShapeError, r"size=2\.0.*give an int or two"),
        (lambda x, w, b: topos.conv2d(x, w, b, groups="a"), ShapeError, "groups is an int"),
        (lambda x, w, b: topos.conv2d(x, w, b, groups=1.0), ShapeError, "groups is an int"),
        (lambda x, w, b: topos.Sequential([]), topos.UsageError, r"\[\] is no Module; give stages one by one"),
        (lambda x, w, b: topos.causal_mask(-1), ShapeError, "causal_mask.extent=-1.: the extent is positive"),
    ],
)
def test_arguments_of_another_kind_are_typed_errors(call: Any, error: type, message: str) -> None:
    """A bool, a float, a text or a list where an int or a module is meant; the value is shown."""
    tape = topos.Tape()
    x, w, b = (tape.input(np.ones(shape)) for shape in ((1, 1, 4, 4), (1, 1, 2, 2), (1,)))
    with pytest.raises(error, match=message):
        call(x, w, b)


def test_numpy_integers_are_ints() -> None:
    """Sizes, strides and padding may come from NumPy."""
    x = topos.Tape().input(np.ones((1, 1, 4, 4)))
    assert topos.max_pool(x, np.int64(2), stride=(np.int32(1), np.uint8(2))).shape == (1, 1, 3, 2)
