"""What tests share: bits to compare, elements, drawn tensors, strided variants of an operand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from topos import F16, F32, F64, Bf16, Element, Tensor
from topos.engine import run
from topos.kernels import runtime
from topos.payload.layout import Layout
from topos.payload.shape import Shape

ELEMENTS = [F32, F64, Bf16, F16]
"""The built-in elements; parametrise with ``ids=str``."""

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -2.0, np.inf, -np.inf, np.nan, 1e-30, -1e-40, 3e38, -1e4, 65504.0, 6e-8, 88.0,
]  # fmt: skip
"""Numbers at which an operation may go wrong: zeros, infinities, NaN, subnormals and overflows."""


def bits(given: Any) -> np.ndarray:
    """Return the storage bits of an array or tensor as unsigned integers, every NaN as one pattern."""
    array = np.asarray(given.numpy() if isinstance(given, Tensor) else given)
    if array.dtype.kind in "iub":
        return array
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        is_nan = np.isnan(array)
    canonical = np.array(np.nan, array.dtype).view(unsigned)
    return np.where(is_nan, canonical, np.ascontiguousarray(array).view(unsigned).reshape(array.shape))


def same_bits(left: Any, right: Any) -> bool:
    """Return whether two arrays or tensors have one shape and the same bits."""
    a, b = bits(left), bits(right)
    return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())


def drawn(shape: Sequence[int], element: Element, seed: int = 0) -> Tensor:
    """Return normally distributed numbers."""
    return Tensor(np.random.default_rng(seed).normal(size=tuple(shape)), element=element)


def special(shape: Sequence[int], element: Element, seed: int = 0) -> Tensor:
    """Return numbers of all magnitudes, a third of them `SPECIAL`."""
    generator = np.random.default_rng(seed)
    size = tuple(shape)
    wide = generator.normal(size=size) * 10.0 ** generator.integers(-8, 5, size)
    chosen = np.where(generator.random(size) < 1 / 3, generator.choice(SPECIAL, size), wide)
    return Tensor(chosen, element=element)


def whole(shape: Sequence[int], element: Element, seed: int = 0) -> Tensor:
    """Return small integers, so that sums and products of a few are exact in every element."""
    return Tensor(np.random.default_rng(seed).integers(-4, 5, tuple(shape)), element=element)


def positions(count: int, vocabulary: int, element: Element, seed: int = 0) -> Tensor:
    """Return a one-hot selection with repeated rows."""
    drawn_positions = np.random.default_rng(seed).integers(0, vocabulary, count)
    return Tensor.selection(drawn_positions.tolist(), vocabulary, element=element)


def dense_copy(tensor: Tensor) -> Tensor:
    """Return a tensor of the same numbers in row-major memory of its own."""
    return Tensor(np.array(tensor.numpy()), element=tensor.element)


def strided(shape: Sequence[int], element: Element, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of one shape and of every kind of layout: same rank, other strides."""
    extents = tuple(shape)
    rank = len(extents)
    yield "dense", special(extents, element, seed)
    yield "constant", Tensor.filled(extents, special((), element, seed))
    if rank == 0:
        return
    backwards = tuple(reversed(range(rank)))
    yield "transposed", special(extents[::-1], element, seed).permute(backwards)
    wider = special([extent + 2 for extent in extents], element, seed)
    for axis, extent in enumerate(extents):
        wider = wider.narrow(axis, 1, extent)
    yield "narrowed", wider
    doubled = special([2 * extent for extent in extents], element, seed)
    layout = Layout(Shape(extents), tuple(2 * stride for stride in doubled.layout.strides))
    yield "every second", Tensor.of_buffer(element, doubled.buffer, layout)
    for axis in range(rank):
        row = special(extents[:axis] + extents[axis + 1 :], element, seed)
        yield f"stride 0 at {axis}", row.broadcast_along(axis, extents[axis])
    if rank > 1:
        line = special((sum(extents) - rank + 1,), element, seed)
        yield "overlapping", Tensor.of_buffer(element, line.buffer, Layout(Shape(extents), (1,) * rank))


__all__ = [
    "ELEMENTS", "SPECIAL", "bits", "dense_copy", "drawn", "positions", "same_bits", "special",
    "strided", "whole",
]  # fmt: skip


def native_entries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every native entry of programs made from now on: by the bytes of what is walked."""
    entered: list[int] = []
    enter, finish = runtime.enter, run._finish

    def entering(code: int, end: int, *rest: Any) -> int:
        entered.append(end - code)
        return enter(code, end, *rest)

    def finishing(program: Any) -> Any:
        native = finish(program)

        def finished(*given: Any) -> Any:
            entered.append(program.code.nbytes)
            return native(*given)

        return finished

    monkeypatch.setattr(runtime, "enter", entering)
    monkeypatch.setattr(run, "_finish", finishing)
    return entered
