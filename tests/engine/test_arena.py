"""Arena memory: offsets that never overlap, blocks that come back, arenas that are reused when nobody looks."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topos import Network, Plan, Symbol, Tape
from topos.engine.arena import LeanEmitter, Offsets
from topos.engine.frames import SPARE
from topos.ops.emit import ALIGNMENT
from topos.payload.shape import Shape


# ---- Offsets
@settings(max_examples=200, derandomize=True)
@given(
    st.lists(
        st.one_of(st.tuples(st.just("take"), st.integers(1, 6)), st.tuples(st.just("give"), st.integers(0, 99))),
        max_size=60,
    )
)
def test_offsets_against_a_brute_force_model(actions: list[tuple[str, int]]) -> None:
    """No two blocks overlap; free neighbours merge; the free spans are what the blocks leave below the top."""
    offsets, held = Offsets(), []
    for action, number in actions:
        if action == "take":
            size = number * ALIGNMENT
            before = {start: end - start for start, end in offsets.spans}
            top = offsets.top
            start = offsets.take(size)
            fitting = [span for span in before.values() if span >= size]
            if fitting:  # best fit, and no growth
                assert before[start] == min(fitting)
                assert offsets.top == top
            else:  # the last span grows the arena
                assert offsets.top == start + size
            held.append((start, size))
        elif held:
            offsets.give(*held.pop(number % len(held)))
        cells = np.zeros(offsets.top // ALIGNMENT, int)
        for start, size in held:
            cells[start // ALIGNMENT : (start + size) // ALIGNMENT] += 1
        assert (cells <= 1).all()
        spans, position = {}, 0
        for cell, used in enumerate(cells):
            if used:
                position = cell + 1
            else:
                spans[position * ALIGNMENT] = (cell + 1) * ALIGNMENT
        assert offsets.spans == list(spans.items())


def test_offsets_reuse_everything() -> None:
    """After all is given back there is one span, and the same blocks fit again without growth."""
    offsets = Offsets()
    blocks = [(offsets.take(size), size) for size in (64, 256, 128, 64)]
    assert [start for start, _ in blocks] == [0, 64, 320, 448]
    for block in (blocks[1], blocks[3], blocks[0], blocks[2]):
        offsets.give(*block)
    assert offsets.spans == [(0, 512)]
    assert offsets.take(512) == 0
    assert offsets.top == 512
    assert offsets.take(64) == 512


# ---- LeanEmitter
def emitted(poison: bool = False) -> tuple[LeanEmitter, Any, Any]:
    """Return an emitter with two live values of one shape."""
    emitter = LeanEmitter(release=True, poison=poison)
    made = []
    for node in (0, 1):
        emitter.begin(node, [])
        made.append(emitter.zeros(Shape((4, 4)), "f32"))
        emitter.end([made[-1]], [])
    return emitter, *made


def test_many_free_spans_cost_little() -> None:
    """Every second of many blocks comes back: each offset is found by bisection, whatever the number of spans."""
    looked = []

    class Watched(tuple):  # type: ignore[type-arg]
        __slots__ = ()

        def __lt__(self, other: Any) -> bool:
            looked.append(1)
            return tuple.__lt__(self, other)

    offsets = Offsets()
    count = 1000
    blocks = [offsets.take(64) for _ in range(count)]
    for start in blocks[::2]:
        offsets.give(start, 64)
    offsets.sizes[:] = [Watched(pair) for pair in offsets.sizes]
    assert offsets.take(128) == 64 * count
    assert len(looked) < 20


def test_a_dying_operand_is_overwritten() -> None:
    """An elementwise result takes the block of an operand that dies; one that lives on keeps its own."""
    emitter, a, b = emitted()
    emitter.begin(2, [b])
    c = emitter.elementwise("add", a, b)
    emitter.end([c], [b])
    assert c.base == b.base
    emitter.begin(3, [])
    d = emitter.elementwise("add", a, c)
    emitter.end([d], [])
    assert d.base not in (a.base, c.base)
    assert emitter.size == 3 * ALIGNMENT


def test_a_dying_operand_is_not_overwritten_in_another_order() -> None:
    """Not where it is read through another layout, has another size, or shares its block with a live view."""
    emitter, a, _ = emitted()
    turned = a.view(a.layout.permute((1, 0)))
    emitter.begin(2, [])
    emitter.end([turned], [])
    emitter.begin(3, [a, turned])
    c = emitter.elementwise("add", a, turned)
    emitter.end([c], [a, turned])
    assert c.base != a.base
    emitter.begin(4, [c])
    again = emitter.elementwise("add", c, c.view(c.layout.permute((1, 0))))
    emitter.end([again], [c])
    assert again.base != c.base
    emitter.begin(5, [again])
    narrow = emitter.elementwise("narrow", again, out="bf16")
    emitter.end([narrow], [again])
    assert narrow.base != again.base
    emitter.begin(6, [])  # several rows may read the operand
    other = emitter.elementwise("neg", narrow)
    assert other.base != narrow.base


def test_scratch_and_the_dead_are_given_back() -> None:
    """What a node allocates beside its result is free after it; poison fills what is freed."""
    for poison in (False, True):
        emitter, a, b = emitted(poison)
        emitter.begin(2, [])
        scratch = emitter.zeros(Shape((64,)), "f64")
        result = emitter.zeros(Shape((4, 4)), "f32")
        emitter.end([result], [a])
        fills = [row for row, node in zip(emitter.rows, emitter.nodes, strict=True) if node == 2]
        assert len(fills) == (4 if poison else 2)
        emitter.begin(3, [])
        assert emitter.zeros(Shape((4, 4)), "f32").base == a.base
        assert emitter.zeros(Shape((64,)), "f64").base == scratch.base
        assert b.base not in (a.base, scratch.base)


def test_without_release_only_scratch_comes_back() -> None:
    """In backward posture values stay."""
    emitter = LeanEmitter(release=False)
    emitter.begin(0, [])
    a = emitter.zeros(Shape((4,)), "f32")
    emitter.end([a], [])
    emitter.begin(1, [a])
    b = emitter.elementwise("neg", a)
    emitter.end([b], [a])
    assert b.base != a.base


# ---- memory that comes back
def plan_of() -> tuple[Plan, Network, Symbol]:
    """Return a plan whose result is an array of its arena."""

    def build(tape: Tape) -> Any:
        x = tape.parameter(np.arange(512.0))
        return (x * 2.0).exp() - 1.0

    network, y = Tape.record(build)
    return network.entry(y).lower(), network, y


def test_arenas_of_a_plan_come_back() -> None:
    """Hundreds of runs use one or two arenas, with the garbage collector on and off."""
    plan, network, y = plan_of()
    parameters = network.parameters()
    try:
        for _ in range(2):
            for _ in range(300):
                plan.forward(parameters).of(y).numpy()
            assert len(plan.lowered.pool) <= 2
            gc.disable()
    finally:
        gc.enable()


def test_what_is_held_keeps_its_arena() -> None:
    """A run, a tensor, a NumPy view, a view of that, and a DLPack capsule each keep their numbers."""
    plan, network, y = plan_of()
    parameters = network.parameters()
    fresh = plan.forward(parameters).of(y).numpy().tobytes()
    other = parameters.scale(3.0)
    holders = {
        "run": lambda run: run,
        "tensor": lambda run: run.of(y),
        "array": lambda run: run.of(y).numpy(),
        "part": lambda run: run.of(y).numpy()[:].view(np.uint8),
        "memory": lambda run: memoryview(run.of(y).numpy()),
        "dlpack": lambda run: np.from_dlpack(run.of(y)),
        "turned": lambda run: run.of(y).reshape([2, 256]).permute([1, 0]),
    }
    held = {name: hold(plan.forward(parameters)) for name, hold in holders.items()}
    for _ in range(20):
        plan.forward(other)
    assert held["run"].of(y).numpy().tobytes() == fresh
    assert held["tensor"].numpy().tobytes() == fresh
    for name in ("array", "part", "memory", "dlpack"):
        assert bytes(memoryview(held[name]).cast("B")) == fresh
    assert held["turned"].permute([1, 0]).numpy().tobytes() == fresh
    assert len(plan.lowered.pool) <= SPARE
    held.clear()
    for _ in range(20):
        plan.forward(other)
    assert len(plan.lowered.pool) <= SPARE


def test_a_small_result_does_not_keep_its_arena() -> None:
    """Losses that are kept over many runs are copies: the pool stays small."""
    network, (big, loss) = Tape.record(lambda t: (v := t.parameter(np.ones(5000)) * 2.0, v.sum()))
    plan = network.entry([big, loss]).lower()
    losses = [plan.forward(network.parameters()).of(loss) for _ in range(50)]
    assert len({float(kept.scalar()) for kept in losses}) == 1
    assert len(plan.lowered.pool) <= 2
