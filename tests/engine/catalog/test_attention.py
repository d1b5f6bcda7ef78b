"""Attention as a group: the bits of its formula, blocks of query rows, and what stays as it was recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine.catalog.plans import check, kernels
from tests.helpers import ELEMENTS, drawn, special
from topos import (
    F32,
    F64,
    Element,
    Formula,
    Linear,
    MultiHeadAttention,
    Network,
    PatternKind,
    Plan,
    Symbol,
    Tape,
    Tensor,
    Value,
    causal_mask,
    scaled_dot_product,
    where,
)
from topos.engine.catalog import attention
from topos.kernels import rows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small scores be worth it, in blocks of few rows."""
    for name, value in (("LARGE", 1), ("WIDE", 1), ("KEYS", 1), ("ROWS", 5), ("FEWEST", 2)):
        monkeypatch.setattr(attention, name, value)


def is_fused(plan: Plan) -> bool:
    """Return whether attention is all that a plan elected."""
    return [match.kind for match in plan.patterns()] == [PatternKind.ATTENTION]


def masked(extent: int, length: int, element: Element, share: float = 0.4, seed: int = 4) -> Tensor:
    """Return a mask of normal numbers and a share of -inf; its first row is -inf throughout."""
    generator = np.random.default_rng(seed)
    hidden = generator.random((extent, length)) < share
    hidden[0] = True
    return Tensor(np.where(hidden, -np.inf, generator.normal(size=hidden.shape)), element=element)


def recorded(
    lead: tuple[int, ...], extents: tuple[int, int, int, int], element: Element, make: Any, mask: bool
) -> tuple[Network, Symbol]:
    """Record attention of ``[*lead, t, d]`` to ``[*lead, s, d]`` with values ``[*lead, s, e]``."""
    t, s, d, e = extents

    def build(tape: Tape) -> Value:
        given = [make((*lead, *pair), element, i) for i, pair in enumerate(((t, d), (s, d), (s, e)))]
        return scaled_dot_product(*map(tape.input, given), masked(t, s, element) if mask else None)

    return Tape.record(build, element=element)


SHAPES = [((), (13, 9, 4, 3)), ((3,), (10, 33, 8, 1)), ((2, 3), (7, 70, 1, 20)), ((2, 1, 2), (1, 5, 3, 4))]
"""Leading axes, then (t, s, d, e): blocks with and without a shorter last one, single rows, columns, steps."""


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(("lead", "extents"), SHAPES)
@pytest.mark.parametrize(("make", "mask"), [(drawn, False), (drawn, True), (special, True)])
def test_blocks_have_the_bits_of_the_formula(element: Element, lead: Any, extents: Any, make: Any, mask: bool) -> None:
    """Every element, with and without a mask of -inf, infinities and NaNs, on 1 to 3 threads: rows for blocks alone."""
    network, y = recorded(lead, extents, element, make, mask)
    for threads in (1, 2, 3):
        plan = check(network, [y], threads)
        assert is_fused(plan)
        assert set(kernels(plan)) == {"matmul"}  # of the rows for blocks: what each begins with
        assert len(kernels(plan)) <= 2


def test_drawn_shapes() -> None:
    """Whatever the extents."""
    generator = np.random.default_rng(9)
    for _ in range(12):
        lead = tuple(generator.integers(1, 4, generator.integers(0, 3)).tolist())
        extents = tuple(generator.integers(1, 40, 4).tolist())
        network, y = recorded(lead, extents, F32, drawn, bool(generator.integers(2)))
        assert is_fused(check(network, [y], 2)), (lead, extents)


@pytest.mark.parametrize(("key_width", "base"), [(12, None), (4, None), (12, 1e4)])
def test_heads_are_views(key_width: int, base: float | None) -> None:
    """Queries, keys and values as the layer cuts them, shared ones, and turned ones."""

    def build(tape: Tape) -> Value:
        widths = (12, key_width, key_width, 12)
        stages = [Linear(tape, drawn((12, width), F32, i)) for i, width in enumerate(widths)]
        layer = MultiHeadAttention(tape, *stages, heads=3, mask=causal_mask(8), base=base)
        return layer.express(tape.input(drawn((2, 8, 12), F32, 7)))

    network, y = Tape.record(build)
    plan = check(network, [y], 2)
    assert PatternKind.ATTENTION in [match.kind for match in plan.patterns()]


KEYS = 400
"""More than one block of k."""

MASKS: dict[str, tuple[np.ndarray, int]] = {
    "causal": (np.triu(np.ones((KEYS, KEYS), bool), 1), 1),
    "the last keys of all rows": (np.arange(KEYS) >= 150, 1),
    "one block behind some rows": (np.arange(KEYS) >= np.where(np.arange(KEYS) < 130, 170, 300)[:, None], 1),
    "rows that see nothing": (np.triu(np.ones((KEYS, KEYS), bool), 1) | (np.arange(KEYS) >= 390)[:, None], 1),
    "no block as a whole": (np.arange(KEYS) % 2 == np.ones(KEYS)[:, None], 0),
    "the first keys": (np.tril(np.ones((KEYS, KEYS), bool), -1), 0),
}
"""What is hidden, of all rows or of each, and whether blocks of keys are."""


def behind_a_mask(
    hidden: np.ndarray, element: Element, scale: float, operand: int = 0, value: float = 0.0
) -> tuple[Network, Symbol]:
    """Record attention of two heads whose queries, keys or values hold a value, among those that few rows see."""
    given = [drawn((2, KEYS, width), element, seed).numpy().copy() for seed, width in enumerate((4, 4, 3))]
    if value:
        given[operand][0, -3, 1] = given[operand][1, KEYS // 2 + 1, 0] = value
    elif operand:
        given[operand][...] = -0.0  # sums of which the sign of a hidden zero decides
        given[operand][1, -1, 0] = 0.0
    mask = np.where(hidden, -np.inf, np.random.default_rng(5).normal(size=hidden.shape))

    def build(tape: Tape) -> Value:
        q, k, v = (tape.input(Tensor(array, element=element)) for array in given)
        scores = q @ k.permute([0, 2, 1]) * scale
        leaf = tape.leaf(Tensor(mask, element=element))
        for extent in scores.shape[: 3 - mask.ndim][::-1]:
            leaf = leaf.broadcast_along(0, extent)
        return (scores + leaf).softmax(2).matmul(v)

    return Tape.record(build, element=element)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Blocks of many rows; the rows that end a turn are gathered."""
    monkeypatch.setattr(attention, "ROWS", 64)
    found, leave = list[Any](), rows.leave
    monkeypatch.setattr(rows, "leave", lambda *given: (found.append(given), leave(*given))[1])
    return found


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_hidden_keys_are_left_out(element: Element, name: str, left: list[Any]) -> None:
    """Whole blocks of them, on 1 and 3 threads, for elements whose squares can be added up."""
    hidden, leaves_out = MASKS[name]
    network, y = behind_a_mask(hidden, element, 0.5)
    for threads in (1, 3):
        assert is_fused(check(network, [y], threads))
    assert bool(left) == (bool(leaves_out) and element in (F32, F64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 3e38, 0.0])
@pytest.mark.parametrize("operand", range(3))
def test_what_is_hidden_is_heard_operandthe_formula_hears_it(operand: int, value: float, left: list[Any]) -> None:
    """A NaN, an infinity and a product that overflows spoil the rows that do not see them; a zero's sign may count."""
    network, y = behind_a_mask(MASKS["causal"][0], F32, 1.0, operand, value)
    check(network, [y], 2)
    assert left


def test_scores_that_a_factor_may_overflow_are_all_computed(left: list[Any]) -> None:
    """A constant beyond 1, another operation before the mask, and a mask that is fed: nothing bounds the scores."""
    for scale in (2.0, np.nan):
        network, y = behind_a_mask(MASKS["causal"][0], F32, scale)
        check(network, [y])

    def build(tape: Tape) -> Value:
        q, k, v = (tape.input(drawn((KEYS, 3), F32, seed)) for seed in range(3))
        mask = causal_mask(KEYS)
        fed = (q @ k.T + tape.input(mask)).softmax(1) @ v
        return fed + ((q @ k.T).exp() + mask).softmax(1) @ v

    network, y = Tape.record(build)
    check(network, [y])
    assert not left


def weighing(form: Callable[[Value, Value], Value]) -> tuple[Network, Symbol]:
    """Record what a form makes of scores ``[2, 6, 9]`` and of another input ``[2, 9]``, times values."""

    def build(tape: Tape) -> Value:
        q, k, v = (tape.input(drawn(shape, F32, i)) for i, shape in enumerate(((2, 6, 4), (2, 9, 4), (2, 9, 3))))
        return form(q @ k.permute([0, 2, 1]), tape.input(drawn((2, 9), F32, 5))).matmul(v)

    return Tape.record(build)


FORMS: dict[str, Callable[[Value, Value], Value]] = {
    "bare": lambda scores, other: scores.softmax(2),
    "divided": lambda scores, other: (scores / 3.0).softmax(2),
    "a mask on the left": lambda scores, other: (other.broadcast_along(1, 6) + scores).softmax(2),
    "a choice": lambda scores, other: where(
        (other > 0.0).broadcast_along(1, 6), scores, scores.constant_like(-1e9)
    ).softmax(2),
    "a cap": lambda scores, other: ((scores / 5.0).tanh() * 5.0).softmax(2),
    "doubled": lambda scores, other: (scores + scores).softmax(2),
    "weights with a factor": lambda scores, other: scores.softmax(2) * other.broadcast_along(1, 6),
    "logarithms": lambda scores, other: scores.log_softmax(2),
}


@pytest.mark.parametrize("name", FORMS)
def test_any_elementwise_function_of_scores(name: str) -> None:
    """Scales, masks by keys, choices and caps before the softmax, factors behind it."""
    network, y = weighing(FORMS[name])
    assert PatternKind.ATTENTION in [match.kind for match in check(network, [y], 2).patterns()]


OTHERS: dict[str, Callable[[Value, Value], Value]] = {
    "no softmax": lambda scores, other: scores.exp() * 0.5,
    "a softmax of columns": lambda scores, other: scores.softmax(1),
    "no product": lambda scores, other: other.broadcast_along(1, 6).exp().softmax(2),
    "scores less their mean": lambda scores, other: (scores - scores.mean_along(2).broadcast_along(2, 9)).softmax(2),
    "too many steps": lambda scores, other: list(itertools.accumulate(range(20), lambda x, _: -x, initial=scores))[
        -1
    ].softmax(2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_left(name: str) -> None:
    """What is no softmax of rows of scores, or reads its scores elsewhere, has the rows that it had."""
    network, y = weighing(OTHERS[name])
    assert PatternKind.ATTENTION not in [match.kind for match in check(network, [y], 2).patterns()]


def test_what_is_read_elseoperandis_left() -> None:
    """Weights that are observed, or that a recorded gradient reads, are computed; a plan in backward posture fuses nothing."""

    def build(tape: Tape) -> Any:
        q, k, v = (tape.input(drawn((6, 6), F32, i)) for i in range(3))
        out = scaled_dot_product(q, k, v)
        return [out, *tape.differentiate(out.sum(), [q, k, v]).roots]

    network, (y, *roots) = Tape.record(build)
    assert is_fused(check(network, [y]))
    weights = network.node(y).operands[0]
    for wanted in ([y, *roots], [y, weights]):
        assert PatternKind.ATTENTION not in [match.kind for match in check(network, wanted).patterns()]
    assert network.entry(y).backward().lower().patterns() == []


def test_a_product_repeated_along_a_new_axis_is_left() -> None:
    """A value per row of a repeated product is no score, and has no softmax."""

    def build(tape: Tape) -> Value:
        a, b, c = (tape.input(drawn(shape, F32, i)) for i, shape in enumerate(((4, 3), (3, 5), (4, 8, 2))))
        return (a @ b).broadcast_along(2, 8) @ c

    network, y = Tape.record(build)
    assert check(network, [y]).patterns() == []


def test_weights_of_two_products_are_computed_once() -> None:
    """Two products that read the same weights elect no attention: it would compute them for each."""

    def build(tape: Tape) -> Any:
        q, k, v, u = (tape.input(drawn((6, 6), F32, i)) for i in range(4))
        weights = (q @ k.T).softmax(1)
        return weights @ v, weights @ u

    network, roots = Tape.record(build)
    assert PatternKind.ATTENTION not in [match.kind for match in check(network, roots).patterns()]


def test_small_scores_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that a cache holds as they are, many small ones, few keys: blocks would save nothing."""
    network, y = recorded((2,), (8, 8, 4, 4), F32, drawn, False)
    for name, least in (("LARGE", 8 * 8 * 2 * 4), ("WIDE", 8 * 8), ("KEYS", 8)):
        monkeypatch.setattr(attention, name, least)
        assert is_fused(network.entry(y).lower())
        monkeypatch.setattr(attention, name, least + 1)
        assert not is_fused(network.entry(y).lower())
        monkeypatch.setattr(attention, name, 1)


def test_rows_that_buffers_do_not_hold() -> None:
    """Where a chain has no room for its rows its steps run one by one, inside the block; longer rows are left."""

    def build(tape: Tape, length: int, *lead: int) -> Value:
        shapes = ((*lead, extent, 2) for extent in (7, length, length))
        q, k, v = (tape.input(drawn(shape, F32, i)) for i, shape in enumerate(shapes))
        row, axis = tape.input(drawn((*lead, length), F32, 3)).broadcast_along(len(lead), 7), len(lead)
        turned = k.permute([*range(axis), axis + 1, axis])
        return ((q @ turned) * 0.5 + row).softmax(axis + 1) @ v

    network, y = Tape.record(lambda tape: build(tape, 8192, 2))
    assert is_fused(check(network, [y], 2))
    network, y = Tape.record(lambda tape: build(tape, 8192))
    plan = check(network, [y], 2)
    assert is_fused(plan)
    network, y = Tape.record(lambda tape: build(tape, 8193))
    assert not is_fused(check(network, [y]))


def test_memory_and_what_a_plan_says() -> None:
    """The arena holds blocks of scores, not all; candidates, patterns and describe name the group, text has the formula."""
    network, y = recorded((4,), (128, 128, 4, 4), F32, drawn, True)
    plan, plain = network.entry(y).lower(), Plan(network, network.entry(y).lower().entry, fuse=False)
    assert plan.arena_bytes < plain.arena_bytes / 4
    (match,), (candidate,) = plan.patterns(), plan.candidates()
    assert match == candidate
    assert (match.formula, match.root) == (Formula.ATTENTION, y)
    assert [network.node(node).name for node in match.nodes] == ["MatMul", "Mul", "Add", "LogSoftmax", "Exp", "MatMul"]
    assert "fused: 1 group in place of 6 nodes" in plan.describe()
    assert plan.emit_stablehlo().count("dot_general") == 2
