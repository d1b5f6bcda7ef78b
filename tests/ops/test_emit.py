"""`Emitter` and `Program`: operands, rows, banks, and the error word, on programs written by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, dense_copy, same_bits, special, strided
from topos import F32, Element, Shape, Tensor
from topos.ops.emit import ALIGNMENT, ARENA, FIRST, Emitter, Operand, Program, collapse, memory_of, result_tensor
from topos.payload.layout import Layout


def walked(program: Program, raw: Any, *sources: tuple[Any, int]) -> tuple[Any, tuple[int, int] | None]:
    """Run a program over arrays, from an offset in bytes each, and return the arena and the error word."""
    memory = np.empty(program.size + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    arena = memory[skip : skip + program.size].view(raw)
    places = [array.ctypes.data + offset for array, offset in sources]
    error = program.run_all(np.array([[0, 0, 0, *places]], np.int64), arena)
    return arena, None if error is None else error[:2]


def run(emitter: Emitter, result: Operand, *tensors: Tensor) -> tuple[Tensor, tuple[int, int] | None]:
    """Run a program over its constants and return what an operand in the arena is, with the error word."""
    program = emitter.finish()
    arrays = [memory_of(tensor, form, dense=False) for tensor, (_, form) in zip(tensors, program.sources, strict=True)]
    arena, error = walked(program, tensors[0].element.raw, *[(array, 0) for array in arrays])
    return result_tensor(result, arena, tensors[0].element), error


# ---- collapse


@pytest.mark.parametrize(
    ("shape", "strides", "extents", "merged"),
    [
        ((), [()], [1], [[0]]),
        ((1, 1), [(5, 7), (0, 0)], [1], [[0], [0]]),
        ((2, 3, 4), [(12, 4, 1)], [24], [[1]]),
        ((2, 3, 4), [(12, 4, 1), (12, 4, 1)], [24], [[1], [1]]),
        ((2, 3, 4), [(12, 4, 1), (0, 4, 1)], [2, 12], [[12, 1], [0, 1]]),
        ((2, 3), [(3, 1), (1, 2)], [2, 3], [[3, 1], [1, 2]]),
        ((2, 1, 3), [(3, 99, 1)], [6], [[1]]),
        ((4, 5), [(0, 0)], [20], [[0]]),
        ((2, 3, 4), [(0, 0, 1)], [6, 4], [[0, 1]]),
    ],
)
def test_collapse(
    shape: tuple[int, ...], strides: list[tuple[int, ...]], extents: list[int], merged: list[list[int]]
) -> None:
    """Neighbouring axes that all operands walk as one become one; extent 1 goes; rank 1 remains."""
    assert collapse(shape, strides) == (extents, merged)


def test_collapse_keeps_every_offset() -> None:
    """The offsets that are visited, in order, do not change."""
    generator = np.random.default_rng(3)
    for _ in range(200):
        shape = tuple(generator.integers(1, 4, generator.integers(0, 5)).tolist())
        own = Layout.dense(Shape(shape)).strides
        walks = [own, tuple(generator.choice([0, 1, 2, 3, 6], len(shape)).tolist())]
        extents, merged = collapse(shape, walks)
        for walk, short in zip(walks, merged, strict=True):
            before = [sum(map(int.__mul__, i, walk)) for i in itertools.product(*map(range, shape))]
            after = [sum(map(int.__mul__, i, short)) for i in itertools.product(*map(range, extents))]
            assert before == after


# ---- operands and rows


def test_the_arena_is_aligned() -> None:
    """Values start at cache lines; sizes are bytes of the element."""
    emitter = Emitter()
    first, second = emitter.allocate(Shape([3]), "bf16"), emitter.allocate(Shape([]), "f64")
    assert (first.place, second.place, emitter.size) == ((ARENA, 0), (ARENA, ALIGNMENT), 2 * ALIGNMENT)
    assert (first.size, second.size) == (2, 8)


def test_sources_get_a_bank_when_asked_for() -> None:
    """One bank per source and form; a selection of which only indices are read has no bank of values."""
    emitter = Emitter()
    table, selection = emitter.constant(Tensor([[1.0], [2.0]])), emitter.constant(Tensor.selection([1], 2))
    assert not emitter.sources
    place = emitter.indices(selection)
    assert place == (FIRST, 0)
    assert emitter.indices(selection) == place
    assert table.place == table.place == (FIRST + 1, 0)
    assert [form for _, form in emitter.sources] == ["indices", "values"]
    assert table.view(table.layout).source is None


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_dense_copies_only_what_is_not(element: Element) -> None:
    """A dense operand is itself; any other layout is copied, bits unchanged."""
    for name, tensor in strided((3, 4), element):
        emitter = Emitter()
        operand = emitter.constant(tensor)
        result = emitter.dense(operand)
        assert (result is operand) == (name == "dense") == (emitter.rows == [])
        if result is not operand:
            found, error = run(emitter, result, tensor)
            assert (same_bits(found, tensor), error) == (True, None)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_widen_and_narrow(element: Element) -> None:
    """Conversions are rows for 16-bit elements, nothing for the others; a round trip keeps every bit."""
    tensor = special([5, 7], element).permute([1, 0])
    emitter = Emitter()
    wide = emitter.widened(emitter.constant(tensor))
    back = emitter.narrowed(wide, element.name)
    if element.raw.itemsize > 2:
        assert (emitter.rows, back) == ([], wide)
        return
    assert wide.element == "f32"
    found, _ = run(emitter, back, tensor)
    assert same_bits(found, tensor)


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_all_patterns_through_the_kernels(element: str) -> None:
    """The kernels widen and round all 65,536 patterns, and every f32 beside a tie, as NumPy does."""
    patterns = np.arange(1 << 16, dtype=np.uint16).view(Tensor(0.0, element=element).element.dtype)
    tensor = Tensor(patterns)
    assert same_bits(tensor.maximum(tensor), tensor)
    with np.errstate(all="ignore"):  # Arm says of a signalling NaN that it is invalid
        wide = patterns.astype(np.float32)
        quotient = (wide / np.float32(3)).astype(patterns.dtype)
    assert same_bits(tensor + tensor, (Tensor(wide) + Tensor(wide)).convert(element))
    half = Tensor.filled([1 << 16], 1.5, element=element)
    exact = Tensor(wide) * 1.5  # 16 bits times 2 bits: exact in f32, rounded once
    assert same_bits(tensor * half, exact.convert(element))
    assert np.array_equal(bits(tensor / 3), bits(quotient))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_zeros_and_copies(element: Element) -> None:
    """Zeros are +0 over old memory; a copy may have a strided target."""
    tensor = special([2, 3], element)
    emitter = Emitter()
    target = emitter.zeros(Shape([4, 5]), element.name)
    emitter.copy(emitter.constant(tensor), target.view(target.layout.narrow(0, 1, 2).narrow(1, 2, 3)))
    found, _ = run(emitter, target, tensor)
    wanted = np.zeros((4, 5), bits(tensor).dtype)
    wanted[1:3, 2:5] = bits(tensor)
    assert np.array_equal(bits(found), wanted)


@pytest.mark.parametrize("kernel", ["sum", "max"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reduce(kernel: str, axis: int) -> None:
    """One axis of any layout is reduced as its dense copy is."""
    for name, tensor in strided((2, 3, 4), ELEMENTS[0]):
        results = []
        for given in (tensor, dense_copy(tensor)):
            emitter = Emitter()
            results.append(run(emitter, emitter.reduce(kernel, emitter.constant(given), axis), given)[0])
        assert same_bits(*results), name


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_the_error_word(element: Element) -> None:
    """A computed one-hot is searched; the first bad row is reported with its node, and the run is defined."""
    rows = [[0, 1], [1, 0], [1, 1], [0, 0], [0, 1]]
    for good, wanted in ((2, None), (5, (17, 2))):
        tensor = Tensor(rows[:good], element=element)
        emitter = Emitter()
        emitter.node = 17
        computed = emitter.elementwise("maximum", *[emitter.constant(tensor)] * 2)
        place = emitter.indices(computed)
        program = emitter.finish()
        arena, error = walked(program, element.raw, (tensor.buffer, 0))
        assert error == wanted
        assert place[0] == ARENA
        assert arena.view(np.int64)[place[1] // 8 :][:2].tolist() == [1, 0]


def test_a_program_runs_more_than_once() -> None:
    """The rows hold no addresses of data: each run binds its own."""
    emitter = Emitter()
    result = emitter.elementwise("add", *[emitter.constant(Tensor([0.0, 0.0]))] * 2)
    program = emitter.finish()
    for values in ([1.0, 2.0], [3.0, 4.0]):
        arena, _ = walked(program, F32.raw, (np.array([9, *values], np.float32), 4))
        assert result_tensor(result, arena, F32).to_list() == [2 * values[0], 2 * values[1]]
    assert program.kernels == ["add.f32", "elementwise"]
    assert program.nodes == [0]
    assert len(program.starts) == 1


def test_an_empty_program_does_nothing() -> None:
    """No rows, no results."""
    arena, error = walked(Emitter().finish(), F32.raw)
    assert (len(arena), error) == (0, None)


def test_indices_of_a_tensor_that_is_none() -> None:
    """A tensor that is not one-hot has no memory as a selection."""
    assert memory_of(Tensor([[1.0, 1.0]]), "indices", dense=False) is None
    assert memory_of(Tensor([[0.0, 1.0]]), "indices", dense=False).tolist() == [1]
    view = Tensor([[1.0, 2.0], [3.0, 4.0]]).permute([1, 0])
    assert memory_of(view, "values", dense=True).tolist() == [1.0, 3.0, 2.0, 4.0]
