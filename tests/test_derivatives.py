"""Forward mode and higher derivatives as readings over the public vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.drawn import KINDS, drawn_graph
from tests.helpers import same_bits
from topos import F64, Dual, MapOperation, ShapeError, Tape, TapeError, Tensor, Trace, hessian, hvp, jacobian, jvp
from topos.graph.trace import reverse_scan


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return positive numbers away from kinks and singularities."""
    return Tensor(np.random.default_rng(seed).uniform(0.2, 0.9, size=shape), element=F64)


ROWS = Tensor.selection([2, 0, 2], 4, element=F64)
ONES = Tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], element=F64)

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "Add": (lambda a, b: a + b, [(2, 3), (2, 3)]),
    "Sub": (lambda a, b: a - b, [(2, 3), (2, 3)]),
    "Mul": (lambda a, b: a * b, [(2, 3), (2, 3)]),
    "Div": (lambda a, b: a / b, [(2, 3), (2, 3)]),
    "Neg": (lambda a: -a, [(2, 3)]),
    "Powf": (lambda a, b: a.powf(b), [(2, 3), (2, 3)]),
    "Maximum": (lambda a, b: a.maximum(b), [(2, 3), (2, 3)]),
    "Step": (lambda a, b: a.step(b) * b, [(2, 3), (2, 3)]),
    "Select": (lambda a, b: a.step(0.5).select(a, b), [(2, 3), (2, 3)]),
    "Scale": (lambda a, b: a.scale(b), [(2, 3), (2, 3)]),
    "Ratio": (lambda a, b: a.ratio(b), [(2, 3), (2, 3)]),
    "MatMul": (lambda a, b: a @ b, [(2, 2, 3), (2, 3, 4)]),
    "Sum": (lambda a: a.sum(), [(2, 3)]),
    "SumAlong": (lambda a: a.sum_along(1), [(2, 3)]),
    "Broadcast": (lambda a: a.broadcast([2, 2]), [(1, 1)]),
    "BroadcastAlong": (lambda a: a.broadcast_along(1, 4), [(2, 3)]),
    "Reshape": (lambda a: a.reshape([3, 2]), [(2, 3)]),
    "Permute": (lambda a: a.permute([2, 0, 1]), [(2, 3, 4)]),
    "Narrow": (lambda a: a.narrow(1, 1, 2), [(2, 3)]),
    "Pad": (lambda a: a.pad(0, 1, 4), [(2, 3)]),
    "Unfold": (lambda a: a.unfold(0, 3, 2), [(8,)]),
    "Fold": (lambda a: a.fold(0, 3, 2, 1, 8), [(3, 3)]),
    "Gather": (lambda a: a.gather(ROWS), [(4, 2)]),
    "Scatter": (lambda a: a.scatter(ROWS), [(3, 2)]),
    "LogSoftmax": (lambda a: a.log_softmax(1), [(2, 3)]),
    "LogSumExp": (lambda a: a.logsumexp(0), [(2, 3)]),
    **{m.title: (lambda a, m=m: getattr(a, m.value)(), [(2, 3)]) for m in MapOperation},
}


def test_every_kind_has_a_case() -> None:
    """The table names the closed set."""
    assert set(CASES) == {kind for kind in KINDS if kind != "Map"} | {m.title for m in MapOperation}


@pytest.mark.parametrize("kind", CASES)
def test_forward_against_reverse_over_tensors(kind: str) -> None:
    """<J v, y> = <v, J' y> to 1e-12, each operand moving alone and all together."""
    function, shapes = CASES[kind]
    primals = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    moves = [normal(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    tape = Tape("f64")
    values = [tape.parameter(p) for p in primals]
    target = function(*values)
    y = normal(*target.shape, seed=20)
    adjoints = tape.vjp(target, y, values)
    expected_out, wrt = target.symbol, adjoints.gradients
    network = tape.into_network()
    run = network.forward(network.parameters())
    choices = [list(range(len(primals)))] + ([[i] for i in range(len(primals))] if len(primals) > 1 else [])
    for chosen in choices:
        tangents = [moves[i] if i in chosen else None for i in range(len(primals))]
        out, moved = jvp(function, primals, tangents)
        assert same_bits(out, run.of(expected_out))
        left = float((moved * y).sum().scalar())
        right = sum(float((moves[i] * run.of(wrt[i])).sum().scalar()) for i in chosen)
        assert left == pytest.approx(right, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", CASES)
def test_forward_over_values_records_the_same(kind: str) -> None:
    """Over values and traces forward mode is recorded: the bits of forward mode over tensors."""
    function, shapes = CASES[kind]
    primals = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    moves = [normal(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    out, moved = jvp(function, primals, moves)
    tape = Tape("f64")
    values = [tape.input(p) for p in primals]
    recorded = jvp(function, values, [tape.input(m) for m in moves])
    traced = jvp(function, [Trace(v) for v in values], moves)
    named = [v.symbol for v in (*recorded, *(t.value for t in traced))]
    network = tape.into_network()
    run = network.forward(network.parameters())
    for symbol, expected in zip(named, (out, moved, out, moved), strict=True):
        assert same_bits(run.of(symbol), expected)


def test_drawn_graphs_forward_against_reverse() -> None:
    """Whole graphs through `Dual`: the contraction with the reverse scan agrees where all is finite."""
    compared = 0
    for seed in range(80):
        graph = drawn_graph(seed, "f64", steps=8)
        network = graph.network
        parameters = network.parameters()
        generator = np.random.default_rng(seed)
        duals: dict[Any, Dual] = {}
        moves = {}
        for node in network.nodes():
            if node.is_source:
                payload = parameters.of(node.symbol) if node.name == "Parameter" else network.payload(node.symbol)
                is_moved = node.name == "Parameter"
                if is_moved:
                    moves[node.symbol] = Tensor(generator.normal(size=tuple(node.shape)), element=F64)
                duals[node.symbol] = Dual(payload, moves.get(node.symbol))
            else:
                duals[node.symbol] = node.opcode.express([duals[o] for o in node.operands])
        run = network.forward(parameters)
        field = run.backward(graph.loss)
        end = duals[graph.loss]
        assert same_bits(end.primal, run.of(graph.loss))
        terms = [np.array(m.numpy() * field.of(s).numpy()).reshape(-1) for s, m in moves.items()]
        cotangents = [field.of(s).numpy() for s in graph.symbols]
        tangents = [d.tangent.numpy() for d in duals.values() if d.tangent is not None]
        if not terms or end.tangent is None or not all(np.isfinite(a).all() for a in [*cotangents, *tangents]):
            continue
        flat = np.concatenate(terms)
        scale = max(1.0, *(np.abs(a).max() for a in [*cotangents, *tangents]))
        assert float(end.tangent.scalar()) == pytest.approx(flat.sum(), abs=1e-9 * scale**2, rel=1e-9)
        compared += 1
    assert compared >= 20


def test_literals_arrays_and_untouched_operands() -> None:
    """A number spreads, an array is an operand of its own shape; both have tangent zero."""

    def function(x: Any) -> Any:
        return (2.0 * x + 1.0) @ [[1.0], [2.0]] + (x.sum_along(1) * 0.0).reshape([2, 1])

    x, v = normal(2, 2), normal(2, 2, seed=1)
    tape = Tape("f64")
    recorded = [r.symbol for r in jvp(function, [tape.leaf(x)], [v])]
    traced = [r.value.symbol for r in jvp(function, [Trace(tape.leaf(x))], [Trace(tape.leaf(v))])]
    network = tape.into_network()
    run = network.forward(network.parameters())
    computed = jvp(function, [x], [v.numpy()])
    np.testing.assert_allclose(computed[1].numpy(), 2 * v.numpy() @ [[1.0], [2.0]], rtol=1e-14)
    for symbols in (recorded, traced):
        assert all(same_bits(run.of(s), t) for s, t in zip(symbols, computed, strict=True))
    out, moved = jvp(lambda x, y: y * 3.0, [x, v], [v, None])
    assert same_bits(moved, x.zero_like())
    assert same_bits(out, v * 3.0)
    assert jvp(lambda x: x.one_like(), [x], [v])[1].to_list() == [0] * 4
    out, moved = jvp(lambda x: x.gather(Tensor.selection([1], 2, element=F64)), [x], [None])
    assert moved.to_list() == [0, 0]
    assert jvp(lambda a, s: a.gather(s), [x, ONES.narrow(1, 0, 2)], [None, v])[1].to_list() == [0] * 4


def test_rows_of_minus_infinity() -> None:
    """Case 6 in forward mode: a dead row moves by 0, a dead entry of a live row too."""
    low = -np.inf
    x = Tensor([[low, low], [0.0, low], [0.0, 0.0]], element=F64)
    v = Tensor([[1.0, 2.0], [1.0, 5.0], [1.0, 3.0]], element=F64)
    assert jvp(lambda a: a.logsumexp(1), [x], [v])[1].to_list() == [0, 1, 2]
    assert jvp(lambda a: a.log_softmax(1), [x], [v])[1].to_list() == [0, 0, 0, 0, -1, 1]


def test_nested_duals() -> None:
    """Forward over forward: the second derivative of x^3 at 2 is 12; perturbations stay apart."""

    def slope(f: Any, x: Any) -> Any:
        return jvp(f, [x], [x.one_like()])[1]

    x = Tensor(2.0, element=F64)
    assert slope(lambda y: slope(lambda z: z * z * z, y), x).scalar() == 12
    for inner in (lambda y, z: y + z, lambda y, z: z + y):
        assert slope(lambda y, inner=inner: y * slope(lambda z: inner(y, z), y), x).scalar() == 1
        assert slope(lambda y, inner=inner: y * slope(lambda z: inner(y, z), x), x).scalar() == 1
    for inner in (lambda y, z: y * z, lambda y, z: z * y, lambda y, z: z.scale(y)):
        # d/dy [ y * d/dz (y z) at 3 ] = d/dy y^2
        assert slope(lambda y, i=inner: y * slope(lambda z: i(y, z), x + 1.0), x).scalar() == 4
    assert slope(lambda y: slope(lambda z: y * y, x), x).scalar() == 0
    assert jvp(lambda y: y, [jvp(lambda z: z, [x], [x])[0]], [x])[1].scalar() == 2


def test_fractions() -> None:
    """A user's number type moves exactly, and has Jacobians and Hessians."""
    x = Tensor([Fraction(1, 3), Fraction(2)])
    out, moved = jvp(lambda a: (a * a / (a + 1)).sum(), [x], [x.one_like()])
    assert out.scalar() == Fraction(1, 12) + Fraction(4, 3)
    assert moved.scalar() == sum((a * a + 2 * a) / (a + 1) ** 2 for a in x.to_list())

    def build(tape: Tape) -> Any:
        v = tape.parameter(x)
        return jacobian(v * v, v), hessian((v * v * v).sum(), v)

    network, (first, second) = Tape.record(build, element=Fraction)
    run = network.forward(network.parameters())
    assert run.of(first).to_list() == [Fraction(2, 3), 0, 0, 4]
    assert run.of(second).to_list() == [2, 0, 0, 12]


# ---- Jacobians and Hessians
def test_jacobian_shapes_and_values() -> None:
    """[*y.shape, *x.shape] for all ranks; the rows are those of finite differences."""
    for y_of, shape, expected in (
        (lambda x: x.sum(), (2, 3), (2, 3)),
        (lambda x: x * x.exp(), (3,), (3, 3)),
        (lambda x: x @ x.T, (2, 3), (2, 2, 2, 3)),
        (lambda x: x.sin(), (), ()),
        (lambda x: x.broadcast([2]), (), (2,)),
    ):
        start = normal(*shape)

        def build(tape: Tape, y_of: Any = y_of, start: Tensor = start) -> Any:
            x = tape.input(start)
            y = y_of(x)
            return x, y, jacobian(y, x)

        network, (x, y, j) = Tape.record(build, element="f64")
        parameters = network.parameters()
        found = network.forward(parameters).of(j)
        assert tuple(found.shape) == expected
        assert tuple(network.node(j).shape) == expected
        numeric = np.zeros(expected)
        for index in np.ndindex(shape):
            step = np.zeros(shape)
            step[index] = 1e-6
            up = network.forward(parameters, {x: start.numpy() + step}).of(y).numpy()
            down = network.forward(parameters, {x: start.numpy() - step}).of(y).numpy()
            numeric[(..., *index)] = (up - down) / 2e-6
        np.testing.assert_allclose(found.numpy(), numeric, rtol=1e-6, atol=1e-8)


def test_hessian() -> None:
    """Symmetric to rounding, that of finite differences of the gradient, and hvp is its product."""
    start, vector = normal(4), normal(4, seed=3)

    def build(tape: Tape) -> Any:
        x = tape.input(start)
        a = tape.leaf(normal(4, 4, seed=5))
        y = (a @ x.reshape([4, 1])).reshape([4])
        loss = (y.tanh() * x.exp()).sum().ln()
        return x, hessian(loss, x), hvp(loss, x, vector), tape.differentiate(loss, x).of(x)

    network, (x, h, product, gradient) = Tape.record(build, element="f64")
    parameters = network.parameters()
    run = network.forward(parameters)
    matrix = run.of(h).numpy()
    assert matrix.shape == (4, 4)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(run.of(product).numpy(), matrix @ vector.numpy(), rtol=1e-12)
    for i in range(4):
        step = np.eye(4)[i] * 1e-6
        up, down = (network.forward(parameters, {x: start.numpy() + s}).of(gradient).numpy() for s in (step, -step))
        np.testing.assert_allclose(matrix[:, i], (up - down) / 2e-6, rtol=1e-5, atol=1e-8)


def test_forward_over_reverse() -> None:
    """A jvp of the reverse scan over duals is the Hessian-vector product."""
    x, v = normal(3), normal(3, seed=1)

    def build(tape: Tape) -> Any:
        p = tape.input(x)
        loss = (p * p * p).exp().sum()
        return p, loss, hvp(loss, p, v)

    network, (p, loss, product) = Tape.record(build, element="f64")

    def gradient(dual: Any) -> Any:
        values = {p.index: dual}
        for node in network.nodes()[: loss.index + 1]:
            if not node.is_source:
                values[node.symbol.index] = node.opcode.express([values[o.index] for o in node.operands])
        target = values[loss.index]
        return reverse_scan(network.columns, loss.index, target.one_like(), values.__getitem__)[p.index]

    moved = jvp(gradient, [x], [v])[1]
    expected = network.forward(network.parameters()).of(product)
    np.testing.assert_allclose(moved.numpy(), expected.numpy(), rtol=1e-12)


def test_errors_leave_the_tape_as_it_was() -> None:
    """Shapes and counts that do not fit; a failed reading records nothing."""
    x = normal(2)
    with pytest.raises(ShapeError, match=r"Dual: the tangent has shape \[3\], the value \[2\]"):
        Dual(x, normal(3))
    with pytest.raises(ShapeError, match="jvp: 1 primals and 2 tangents: give one each"):
        jvp(lambda a: a, [x], [x, x])
    with pytest.raises(ShapeError, match="Dual: the tangent"):
        jvp(lambda a: a, [x], [normal(3)])
    assert repr(Dual(Tensor(1.0), Tensor(2.0))).startswith("Dual(Tensor(1.0")
    assert Dual(x).shape == x.shape
    tape, other = Tape("f64"), Tape("f64")
    value, foreign = tape.parameter(x), other.parameter(x)
    loss = (value * value).sum()
    before = tape.describe()
    for refused, error in (
        (lambda: hvp(loss, value, [1.0]), ShapeError),
        (lambda: hvp(loss, value, foreign), TapeError),
        (lambda: hvp(loss, foreign, x), LookupError),
        (lambda: hessian(value, value), ShapeError),
        (lambda: hessian(loss, foreign), LookupError),
        (lambda: jacobian(value, foreign), LookupError),
    ):
        with pytest.raises(error):
            refused()
        assert tape.describe() == before
