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


def test_an_observed_interior_bars() -> None:
    """A batch norm whose centred values are observed, or read by another node, is no candidate."""
    network, (output, mean, _) = normed()
    centred = Symbol(output.family, mean.index + 2)
    assert network.node(centred).name == "Sub"
    assert network.entry([output]).observe([centred]).lower().candidates() == []
    tape = network.into_tape()
    other = (tape.resolve(mean) * 2.0).symbol
    network = tape.into_network()
    assert network.entry([output, other]).lower().candidates() == []
    assert len(network.entry([output]).lower().candidates()) == 1


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
