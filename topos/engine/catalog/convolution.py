"""Convolution as its formula records it: the product, both gradients, and the padding before them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import order, walk
from topos.graph.columns import Columns
from topos.ops import Fold, MatMul, Narrow, Pad, Permute, Reshape, Unfold, windowed
from topos.ops.windowed import Windows
from topos.payload.shape import Shape

PLANES = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
"""How ``[batch, windows, filters]`` becomes planes of filters, by rank."""

MATRIX = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The way back."""


@dataclass(frozen=True)
class Patches:
    """``[batch * windows, channels * positions]``, the matrix of all windows of a source of rank 4."""

    source: int
    windows: Windows
    interiors: tuple[int, ...]


def patches(columns: Columns, node: int) -> Patches | None:
    """Recognise patches: a reshape of a permuted pair of unfolds."""
    found = walk(columns, node, Reshape, Permute, Unfold, Unfold)
    if found is None:
        return None
    matrix, moved, across, down, source = found
    y, x = _kinds(columns, down, across)
    shape = columns.shapes[source]
    if (y.axis, x.axis, shape.rank) != (2, 4, 4) or order(columns, moved) != (0, 2, 4, 1, 3, 5):
        return None
    cut = columns.shapes[moved]
    if columns.shapes[node] != (Shape(cut[:3]).volume, Shape(cut[3:]).volume):
        return None
    return Patches(source, Windows.of(y, x, (shape[2], shape[3])), (matrix, moved, across, down))


def _kinds(columns: Columns, *nodes: int) -> list[Any]:
    return [columns.opcodes[node] for node in nodes]


def window_product(columns: Columns, root: int) -> Group | None:
    """Recognise a product of patches and a kernel, or what lays that out as planes of filters."""
    node = root
    over: tuple[int, ...] = ()
    outer = walk(columns, root, Permute, Reshape)
    if outer is not None:
        _, cut, node = outer
        over = (cut, node)
        if order(columns, root) != PLANES.get(columns.shapes[cut].rank):
            return None
    if not isinstance(columns.opcodes[node], MatMul) or columns.shapes[node].rank != 2:
        return None
    left, kernel = columns.operands[node]
    found = patches(columns, left)
    if found is None:
        return None
    batch, counts, filters = columns.shapes[found.source][0], found.windows.counts, columns.shapes[node][1]
    if over and columns.shapes[over[0]] not in ((batch, counts[0] * counts[1], filters), (batch, *counts, filters)):
        return None
    lower = partial(windowed.product, windows=found.windows, shape=columns.shapes[root])
    return Group(Formula.WINDOW_PRODUCT, root, (found.source, kernel), (*over, *found.interiors), over, lower)


def _planes(columns: Columns, node: int, batch: int) -> tuple[int, ...]:
    """Return the planes of filters that a matrix of cotangents was laid out from, and the nodes that did it.

    The matrix itself where it was made in another way.
    """
    found = walk(columns, node, Reshape, Permute)
    if found is None:
        return (node,)
    matrix, moved, source = found
    shape = columns.shapes[source]
    is_laid_out = order(columns, moved) == MATRIX.get(shape.rank) and shape[0] == batch
    return (source, matrix, moved) if is_laid_out and columns.shapes[node][-1] == shape[1] else (node,)


def window_weights(columns: Columns, root: int) -> Group | None:
    """Recognise a kernel's gradient: transposed patches times the cotangent."""
    if not isinstance(columns.opcodes[root], MatMul) or columns.shapes[root].rank != 2:
        return None
    left, right = columns.operands[root]
    swapped = walk(columns, left, Permute)
    found = None if swapped is None else patches(columns, swapped[1])
    if found is None:
        return None
    cotangent, *laid = _planes(columns, right, columns.shapes[found.source][0])
    lower = partial(windowed.kernel_gradient, windows=found.windows)
    return Group(Formula.WINDOW_PRODUCT, root, (found.source, cotangent), (left, *found.interiors, *laid), (), lower)


def window_input(columns: Columns, root: int) -> Group | None:
    """Recognise an input's gradient: two folds over the taps of all windows, and what cuts the padding off."""
    node, start = root, (0, 0)
    over: tuple[int, ...] = ()
    outer = walk(columns, root, Narrow, Narrow)
    if outer is not None:
        _, upper, node = outer
        y, x = _kinds(columns, root, upper)
        if (y.axis, x.axis) != (2, 3):
            return None
        start, over = (y.start, x.start), (upper, node)
    found = walk(columns, node, Fold, Fold, Permute, Reshape, MatMul)
    if found is None:
        return None
    _, across, moved, cut, product, matrix = found
    y, x = _kinds(columns, node, across)
    shape, taps = columns.shapes[cut], columns.shapes[product]
    if (y.axis, x.axis) != (2, 4) or order(columns, moved) != (0, 3, 1, 4, 2, 5) or taps.rank != 2:
        return None
    if taps != (Shape(shape[:3]).volume, Shape(shape[3:]).volume):
        return None
    height, width = columns.shapes[node][2:]
    inside = columns.shapes[root]
    windows = Windows.of(y, x, (height, width), start, (inside[2], inside[3]))
    cotangent, *laid = _planes(columns, matrix, shape[0])
    lower = partial(windowed.input_gradient, windows=windows, shape=inside)
    reads = (cotangent, columns.operands[product][1])
    return Group(
        Formula.WINDOW_PRODUCT,
        root,
        reads,
        (*over, across, moved, cut, product, *laid),
        (*over[1:], across, product),
        lower,
    )


def padding(columns: Columns, root: int) -> Group | None:
    """Recognise zeros around the last two axes of rank 4: one pass."""
    found = walk(columns, root, Pad, Pad)
    if found is None or columns.shapes[root].rank != 4:
        return None
    outer, inner = _kinds(columns, root, found[1])
    if (inner.axis, outer.axis) != (2, 3):
        return None
    lower = partial(windowed.padded, start=(inner.start, outer.start), shape=columns.shapes[root])
    return Group(Formula.WINDOW_PRODUCT, root, (found[2],), (found[1],), (found[1],), lower)
