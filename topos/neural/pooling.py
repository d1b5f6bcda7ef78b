"""Pooling: maxima and means of rectangular windows."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topos.graph import Value
from topos.neural.convolution import Pair
from topos.neural.layers import axes_pair, check, padded, recorded, repeated
from topos.neural.module import Module

# Positions of the largest window whose maxima plans carry out as one row.
LARGEST = 100


@recorded
def max_pool(input: Value, size: Pair, stride: Pair | None = None, padding: Pair = 0) -> Value:
    """Record the maxima of windows of ``[batch, channels, height, width]``; a tie goes to the earliest position.

    Arguments:
        input: ``[batch, channels, height, width]``.
        size: rows and columns of a window.
        stride: between windows; the size by default.
        padding: on each side; it counts as minus infinity.

    Raises:
        ShapeError: the rank is not 4, a number is out of range, or a window lies in the padding alone.

    >>> print(max_pool(Tape().input(np.zeros((1, 1, 4, 6))), (2, 3)).shape)
    [1, 1, 2, 2]
    """
    sizes, strides, pads = _geometry("max_pool", input, size, stride, padding)
    source = padded(input, 2, pads)
    if pads != (0, 0):
        inside = np.pad(np.ones(input.shape[2:]), [(pad, pad) for pad in pads])
        mask = repeated(input.tape.leaf(inside), input.shape[:2])
        source = mask.select(source, source.constant_like(None))
    if sizes[0] * sizes[1] > LARGEST:
        return _pooled(source, sizes, strides, Value.maximum)
    return _maxima(source, sizes, strides)


@recorded
def average_pool(input: Value, size: Pair, stride: Pair | None = None, padding: Pair = 0) -> Value:
    """Record the means of windows of ``[batch, channels, height, width]``; padding counts as zeros.

    Arguments:
        input: ``[batch, channels, height, width]``.
        size: rows and columns of a window.
        stride: between windows; the size by default.
        padding: zeros on each side, counted in the mean.

    Raises:
        ShapeError: the rank is not 4, a number is out of range, or a window lies in the padding alone.

    >>> print(average_pool(Tape().input(np.zeros((1, 1, 4, 6))), 2).shape)
    [1, 1, 2, 3]
    """
    sizes, strides, pads = _geometry("average_pool", input, size, stride, padding)
    total = _pooled(padded(input, 2, pads), sizes, strides, Value.__add__)
    return total / total.constant_like(sizes[0] * sizes[1])


def _maxima(source: Value, sizes: Sequence[int], strides: Sequence[int]) -> Value:
    """Record the maxima of windows, position by position, as the catalog recognises them."""
    windows = source.unfold(2, sizes[0], strides[0], 1).unfold(4, sizes[1], strides[1], 1)
    batch, channels, rows, height, columns, width = windows.shape
    lanes = windows.permute([0, 1, 2, 4, 3, 5]).reshape([batch, channels, rows, columns, height * width])
    parts = (lanes.narrow(4, lane, 1) for lane in range(height * width))
    return functools.reduce(Value.maximum, parts).squeeze(4)


def _pooled(source: Value, sizes: Sequence[int], strides: Sequence[int], combine: Callable[..., Value]) -> Value:
    """Combine the columns of every window, then its rows: views all along, and the first of equals wins."""
    for axis, size, stride in ((3, sizes[1], strides[1]), (2, sizes[0], strides[0])):
        extent = source.shape[axis]
        if size == stride and extent % size == 0:  # tiles, whose gradient needs no fold
            tiled = [*source.shape[:axis], extent // size, size, *source.shape[axis + 1 :]]
            windows = source.reshape(tiled)
        else:
            windows = source.unfold(axis, size, stride)
        lanes = [windows.narrow(axis + 1, lane, 1) for lane in range(size)]
        source = functools.reduce(combine, lanes).squeeze(axis + 1)
    return source


def _geometry(name: str, input: Value, size: Any, stride: Any, padding: Any) -> list[tuple[int, int]]:
    """Return sizes, strides and padding by axis, checked."""
    call = {"input": input, "size": size, "stride": stride, "padding": padding}
    given = (size, size if stride is None else stride, padding)
    sizes, strides, pads = (axes_pair(pair, name, **call) for pair in given)
    check(input.shape.rank == 4, name, "needs [B, C, H, W]", **call)
    check(min(*sizes, *strides) >= 1 and min(pads) >= 0, name, "size and stride are positive", **call)
    axes = list(zip(input.shape[2:], pads, sizes, strides, strict=True))
    fits = all(e + 2 * p >= s for e, p, s, _ in axes)
    check(fits, name, "the window does not fit the padded input", **call)
    reached = all(s > p and (e + 2 * p - s) // t * t < p + e for e, p, s, t in axes)
    check(reached, name, "a window lies in the padding alone: use less padding", **call)
    return [sizes, strides, pads]


@dataclass(frozen=True)
class _Pool(Module):
    size: Pair
    stride: Pair | None = None
    padding: Pair = 0


class MaxPool(_Pool):
    """`max_pool` as a stage.

    >>> MaxPool(2).express(Tape().input(np.zeros((1, 1, 4, 4)))).shape
    [1, 1, 2, 2]
    """

    def express(self, input: Value) -> Value:
        """Record the maxima of windows."""
        return max_pool(input, self.size, self.stride, self.padding)


class AveragePool(_Pool):
    """`average_pool` as a stage.

    >>> AveragePool(2).express(Tape().input(np.zeros((1, 1, 4, 4)))).shape
    [1, 1, 2, 2]
    """

    def express(self, input: Value) -> Value:
        """Record the means of windows."""
        return average_pool(input, self.size, self.stride, self.padding)
