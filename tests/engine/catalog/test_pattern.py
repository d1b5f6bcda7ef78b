"""What a plan says about its groups: candidates, patterns, describe."""

from __future__ import annotations

from typing import Any

from tests.helpers import drawn
from topos import F32, BatchNorm, Formula, Network, PatternKind, Symbol, Tape, conv2d, max_pool


def normed(epsilon: float = 1e-5, **given: bool) -> tuple[Network, list[Symbol]]:
    """Record a batch norm over ``[8, 3]``; with `inference` over given statistics."""

    def build(tape: Tape) -> list[Any]:
        x = tape.input(drawn((8, 3), F32, 1))
        norm = BatchNorm(tape, drawn((3,), F32, 2), drawn((3,), F32, 3), epsilon)
        if given.get("inference"):
            mean, variance = (tape.input(drawn((3,), F32, 4)), tape.input(drawn((3,), F32, 5) * drawn((3,), F32, 5)))
            return [norm.express_with(x, mean, variance)]
        found = norm.express(x)
        return [found.output, found.mean, found.variance]

    return Tape.record(build)


def test_batch_norms_are_candidates() -> None:
    """In training with its statistics, which may be read, and over given ones; at home they are chains."""
    network, (output, mean, variance) = normed()
    for roots in ([output], [output, mean, variance]):
        plan = network.entry(roots).lower()
        (found,) = plan.candidates()
        assert (found.kind, found.formula) == (PatternKind.BATCH_NORM_TRAINING, Formula.BATCH_NORM_TRAINING)
        assert found.root == output
        assert {mean, variance, output} <= set(found.nodes)
        assert list(found.nodes) == sorted(found.nodes, key=lambda symbol: symbol.index)
        assert all(match.formula is Formula.CHAIN for match in plan.patterns())
    network, (output,) = normed(inference=True)
    (found,) = network.entry([output]).lower().candidates()
    assert found.kind is PatternKind.BATCH_NORM_INFERENCE
    assert found.root == output


def test_gradients_of_batch_norms_are_candidates() -> None:
    """With those by scale and shift, over rows and over images; a node that reads them or the statistics bars nothing."""
    for shape in ((8, 3), (4, 3, 5), (2, 3, 4, 4)):

        def build(tape: Tape, shape: Any = shape) -> list[Any]:
            x = tape.input(drawn(shape, F32, 1))
            norm = BatchNorm(tape, drawn((3,), F32, 2), drawn((3,), F32, 3))
            found = norm.express(x)
            seed = tape.leaf(drawn(shape, F32, 4))
            wanted = [x, tape.resolve(norm.scale), tape.resolve(norm.shift)]
            gradients = [tape.resolve(symbol) for symbol in tape.vjp(found.output, seed, wanted).gradients]
            return [found.output, *gradients, found.mean * 2.0, gradients[1] * 2.0]

        network, (output, *gradients, _, _) = Tape.record(build)
        matches = network.entry([output, *gradients]).lower().candidates()
        assert [match.kind for match in matches] == [PatternKind.BATCH_NORM_TRAINING] * 2
        assert set(gradients[1:]) < set(matches[1].nodes)


def test_an_observed_interior_bars() -> None:
    """A batch norm whose centred values are observed is no candidate."""
    network, (output, mean, _) = normed()
    centred = Symbol(output.family, mean.index + 2)
    assert network.node(centred).name == "Sub"
    assert network.entry([output]).observe([centred]).lower().candidates() == []


def test_patterns_and_describe_agree() -> None:
    """A convolution, a pool and what is between: groups in order, fused nodes marked, none in backward posture."""

    def build(tape: Tape) -> Any:
        x = tape.input(drawn((2, 3, 8, 8), F32, 1))
        w, b = tape.parameter(drawn((4, 3, 3, 3), F32, 2)), tape.parameter(drawn((4,), F32, 3))
        hidden = conv2d(x, w, b, 1, 1).relu() * 2.0
        return max_pool(hidden, 2).softmax(3).sum()

    network, loss = Tape.record(build)
    plan = network.entry(loss).lower()
    kinds = [match.kind for match in plan.patterns()]
    assert PatternKind.WINDOW_PRODUCT in kinds
    assert PatternKind.REDUCE_WINDOW in kinds
    assert PatternKind.CHAIN in kinds
    assert PatternKind.ROWS in kinds
    lines = plan.describe().splitlines()
    count = sum(len(match.nodes) for match in plan.patterns())
    assert lines[-2] == f"fused: {len(plan.patterns())} groups in place of {count} nodes"
    fused = [int(line.split()[0]) for line in lines if line.endswith("  fused")]
    inside = {symbol.index for match in plan.patterns() for symbol in match.nodes}
    assert fused
    assert set(fused) <= inside
    backward = network.entry(loss).backward().lower()
    assert backward.patterns() == []
    assert len(backward.candidates()) == len(plan.candidates())
