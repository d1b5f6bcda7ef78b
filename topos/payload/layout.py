"""`Layout`: how a payload reads its buffer. Views change strides and never copy."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from topos.payload.shape import Shape

_BYTE = np.zeros((), np.uint8)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major buffer of `shape`."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def same_walk(axes: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two sequences of strides over the axes step alike."""
    return all(extent == 1 or own == other for extent, own, other in zip(axes, a, b, strict=True))


class Layout:
    """A shape, one stride per axis (in elements, 0 repeats), and the offset of the first element.

    `walk` is the shape and the strides: what a program depends on. Arguments of the view methods are trusted: the
    shape rules of `topos.ops` have checked them.
    """

    __slots__ = ("_dense", "offset", "shape", "strides", "walk")

    def __init__(self, shape: Shape, strides: tuple[int, ...], offset: int = 0, is_dense: bool | None = None) -> None:
        self.shape, self.strides, self.offset, self._dense = shape, strides, offset, is_dense
        self.walk = (shape, strides)

    @classmethod
    @functools.lru_cache(1024)
    def dense(cls, shape: Shape) -> Layout:
        """Return the row-major layout of `shape`; the latest are kept, so that calls know their walks."""
        return cls(shape, dense_strides(shape), is_dense=True)

    def moved(self, offset: int) -> Layout:
        """Return the same walk `offset` elements further."""
        moved = Layout(self.shape, self.strides, self.offset + offset, self._dense)
        moved.walk = self.walk
        return moved

    @property
    def is_dense(self) -> bool:
        """Whether elements lie row-major without gaps (axes of extent 1 do not matter)."""
        if self._dense is None:
            dense = dense_strides(self.shape)
            self._dense = self.strides == dense or same_walk(self.shape, self.strides, dense)
        return self._dense

    @property
    def is_constant(self) -> bool:
        """Whether every position reads one element."""
        return all(stride == 0 or extent == 1 for extent, stride in zip(self.shape, self.strides, strict=True))

    def broadcast(self, shape: Shape) -> Layout:
        """Repeat the one element over `shape`."""
        return Layout(shape, (0,) * len(shape), self.offset)

    def broadcast_along(self, axis: int, extent: int) -> Layout:
        """Insert an axis of stride 0."""
        shape = Shape((*self.shape[:axis], extent, *self.shape[axis:]))
        return Layout(shape, (*self.strides[:axis], 0, *self.strides[axis:]), self.offset)

    def permute(self, order: Sequence[int]) -> Layout:
        """Let axis i be axis ``order[i]``."""
        shape = Shape(self.shape[axis] for axis in order)
        return Layout(shape, tuple(self.strides[axis] for axis in order), self.offset)

    def narrow(self, axis: int, start: int, length: int) -> Layout:
        """Keep ``start .. start+length`` of an axis."""
        shape = Shape((*self.shape[:axis], length, *self.shape[axis + 1 :]))
        return Layout(shape, self.strides, self.offset + start * self.strides[axis])

    def unfold(self, axis: int, size: int, step: int, dilation: int) -> Layout:
        """Replace an axis by (windows, size): overlapping views of it."""
        extent, stride = self.shape[axis], self.strides[axis]
        count = (extent - dilation * (size - 1) - 1) // step + 1
        shape = Shape((*self.shape[:axis], count, size, *self.shape[axis + 1 :]))
        # A stride that no step is taken along is 0: it may be any number, also one beyond 64 bits.
        pair = (stride * step if count > 1 else 0, stride * dilation if size > 1 else 0)
        strides = (*self.strides[:axis], *pair, *self.strides[axis + 1 :])
        return Layout(shape, strides, self.offset)

    def reshape(self, shape: Shape) -> Layout | None:
        """Return the layout of another shape of the same volume, or None where only a copy has it."""
        if self.is_dense:
            return Layout(shape, dense_strides(shape), self.offset)
        # NumPy knows which axes walk as one. It is asked about bytes that nobody touches.
        walked = np.lib.stride_tricks.as_strided(_BYTE, self.shape, self.strides)
        try:
            strides = walked.reshape(shape, copy=False).strides
        except ValueError:
            return None
        walk = (0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))
        return Layout(shape, tuple(walk), self.offset)
