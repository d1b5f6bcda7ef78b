"""Convolution as its formula records it: the product, both gradients, and the padding before them."""

from __future__ import annotations

from functools import partial

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import UnmatchedError, kinds, order, require, walk, windows_of
from topos.graph.columns import Columns
from topos.ops import Fold, MatMul, Narrow, Pad, Permute, Reshape, windowed
from topos.ops.windowed import Windows
from topos.payload.shape import Shape

PLANES = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
"""How ``[batch, windows, filters]`` becomes planes of filters, by rank."""

MATRIX = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The way back."""


def patches(columns: Columns, node: int) -> tuple[int, Windows, tuple[int, ...]]:
    """Recognise patches, ``[batch * windows, channels * positions]``, the matrix of all windows of a source.

    Returns the source, the windows, and the nodes between.
    """
    source, windows, nodes = windows_of(columns, node, (0, 2, 4, 1, 3, 5))
    shape = columns.shapes[nodes[1]]
    require(columns.shapes[node] == (Shape(shape[:3]).volume, Shape(shape[3:]).volume))
    return source, windows, nodes


def _product(columns: Columns, node: int) -> tuple[int, int]:
    """Return the operands of a product of matrices."""
    require(isinstance(columns.opcodes[node], MatMul) and columns.shapes[node].rank == 2)
    left, right = columns.operands[node]
    return left, right


def window_product(columns: Columns, root: int) -> Group:
    """Recognise a product of patches and a kernel, or what lays that out as planes of filters."""
    node = root
    over: tuple[int, ...] = ()
    if isinstance(columns.opcodes[root], Permute):
        _, cut, node = walk(columns, root, Permute, Reshape)
        over = (cut, node)
        require(order(columns, root) == PLANES.get(columns.shapes[cut].rank))
    left, kernel = _product(columns, node)
    source, windows, nodes = patches(columns, left)
    batch, counts, filters = columns.shapes[source][0], windows.counts, columns.shapes[node][1]
    laid_out = (batch, counts[0] * counts[1], filters), (batch, *counts, filters)
    require(not over or columns.shapes[over[0]] in laid_out)
    lower = partial(windowed.product, windows=windows, shape=columns.shapes[root])
    return Group(Formula.WINDOW_PRODUCT, root, (source, kernel), (*over, *nodes), over, lower)


def _planes(columns: Columns, node: int, batch: int) -> tuple[int, ...]:
    """Return the planes of filters that a matrix of cotangents was laid out from, and the nodes that did it.

    The matrix itself where it was made in another way.
    """
    try:
        matrix, moved, source = walk(columns, node, Reshape, Permute)
    except UnmatchedError:
        return (node,)
    shape = columns.shapes[source]
    is_laid_out = order(columns, moved) == MATRIX.get(shape.rank) and shape[0] == batch
    return (source, matrix, moved) if is_laid_out and columns.shapes[node][-1] == shape[1] else (node,)


def window_weights(columns: Columns, root: int) -> Group:
    """Recognise a kernel's gradient: transposed patches times the cotangent."""
    left, right = _product(columns, root)
    _, turned = walk(columns, left, Permute)
    source, windows, nodes = patches(columns, turned)
    cotangent, *laid = _planes(columns, right, columns.shapes[source][0])
    lower = partial(windowed.kernel_gradient, windows=windows)
    return Group(Formula.WINDOW_PRODUCT, root, (source, cotangent), (left, *nodes, *laid), (), lower)


def window_input(columns: Columns, root: int) -> Group:
    """Recognise an input's gradient: two folds over the taps of all windows, and what cuts the padding off."""
    node, start = root, (0, 0)
    over: tuple[int, ...] = ()
    if isinstance(columns.opcodes[root], Narrow):
        _, upper, node = walk(columns, root, Narrow, Narrow)
        y, x = kinds(columns, root, upper)
        require((y.axis, x.axis) == (2, 3))
        start, over = (y.start, x.start), (upper, node)
    _, across, moved, cut, product, matrix = walk(columns, node, Fold, Fold, Permute, Reshape, MatMul)
    y, x = kinds(columns, node, across)
    shape, taps = columns.shapes[cut], columns.shapes[product]
    require((y.axis, x.axis) == (2, 4) and order(columns, moved) == (0, 3, 1, 4, 2, 5))
    require(taps == (Shape(shape[:3]).volume, Shape(shape[3:]).volume))
    height, width = columns.shapes[node][2:]
    inside = columns.shapes[root]
    windows = Windows.of(y, x, (height, width), start, (inside[2], inside[3]))
    cotangent, *laid = _planes(columns, matrix, shape[0])
    lower = partial(windowed.input_gradient, windows=windows, shape=inside)
    reads, owned = (cotangent, columns.operands[product][1]), (*over[1:], across, product)
    return Group(Formula.WINDOW_PRODUCT, root, reads, (*over, across, moved, cut, product, *laid), owned, lower)


def padding(columns: Columns, root: int) -> Group:
    """Recognise zeros around the last two axes of rank 4: one pass."""
    _, rows, source = walk(columns, root, Pad, Pad)
    x, y = kinds(columns, root, rows)
    require((y.axis, x.axis, columns.shapes[root].rank) == (2, 3, 4))
    lower = partial(windowed.padded, start=(y.start, x.start), shape=columns.shapes[root])
    return Group(Formula.WINDOW_PRODUCT, root, (source,), (rows,), (rows,), lower)
