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

GROUPED_PLANES = {3: (1, 0, 2), 4: (1, 0, 2, 3)}
"""How ``[filters, batch, windows]`` becomes planes of filters, by rank, and the way back."""

MATRIX = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The way back from planes to ``[batch, windows, filters]``."""

LAID, TAPS = (0, 2, 4, 1, 3, 5), (0, 3, 1, 4, 2, 5)
"""The axes of windows as a row of patches has them, and the way back."""

GROUPED_LAID, GROUPED_TAPS = (1, 3, 5, 0, 2, 4), (3, 0, 4, 1, 5, 2)
"""The same where patches are columns, a matrix for each group of channels."""


def patches(columns: Columns, node: int) -> tuple[int, Windows, tuple[int, ...]]:
    """Recognise patches, the matrix of all windows of a source.

    They are ``[batch * windows, channels * positions]``, or by groups of channels
    ``[groups, channels / groups * positions, batch * windows]``. Returns the source, the windows, and the nodes
    between.
    """
    found = columns.shapes[node]
    source, windows, nodes = windows_of(columns, node, GROUPED_LAID if found.rank == 3 else LAID)
    shape = columns.shapes[nodes[1]]
    rows, across = Shape(shape[:3]).volume, Shape(shape[3:]).volume
    require(found == (rows, across) if found.rank == 2 else shape[0] % found[0] == 0 and found[2] == across)
    return source, windows, nodes


def _product(columns: Columns, node: int) -> tuple[int, int, bool]:
    """Return the operands of a product of matrices, and whether there is one for each group."""
    require(isinstance(columns.opcodes[node], MatMul) and columns.shapes[node].rank <= 3)
    left, right = columns.operands[node]
    return left, right, columns.shapes[node].rank == 3


def window_product(columns: Columns, root: int) -> Group:
    """Recognise a product of patches and a kernel, or what lays that out as planes of filters."""
    node = root
    over: tuple[int, ...] = ()
    if isinstance(columns.opcodes[root], Permute):
        _, cut, node = walk(columns, root, Permute, Reshape)
        over = (cut, node)
    left, kernel, is_grouped = _product(columns, node)
    if is_grouped:
        left, kernel = kernel, left
    source, windows, nodes = patches(columns, left)
    batch, counts, shape = columns.shapes[source][0], windows.counts, columns.shapes[node]
    if over:
        form = GROUPED_PLANES if is_grouped else PLANES
        require(order(columns, root) == form.get(columns.shapes[over[0]].rank))
        for places in (counts, (counts[0] * counts[1],)):
            laid = (shape[0] * shape[1], batch, *places) if is_grouped else (batch, *places, shape[1])
            if columns.shapes[over[0]] == laid:
                break
        else:
            raise UnmatchedError
    require(bool(over) or not is_grouped)
    lower = partial(windowed.product, windows=windows, shape=columns.shapes[root])
    return Group(Formula.WINDOW_PRODUCT, root, (source, kernel), (*over, *nodes), over, lower)


def _planes(columns: Columns, node: int, batch: int) -> tuple[int, ...]:
    """Return the planes of filters that a matrix of cotangents was laid out from, and the nodes that did it.

    The matrix itself where it was made in another way, if there are no groups.
    """
    is_grouped = columns.shapes[node].rank == 3
    try:
        matrix, moved, source = walk(columns, node, Reshape, Permute)
    except UnmatchedError:
        require(not is_grouped)
        return (node,)
    shape, found = columns.shapes[source], columns.shapes[node]
    filters = found[0] * found[1] if is_grouped else found[1]
    is_laid_out = order(columns, moved) == (GROUPED_PLANES if is_grouped else MATRIX).get(shape.rank)
    if is_laid_out and shape[:2] == (batch, filters):
        return source, matrix, moved
    require(not is_grouped)
    return (node,)


def window_weights(columns: Columns, root: int) -> Group:
    """Recognise a kernel's gradient: transposed patches times the cotangent, by groups the other way round."""
    left, right, is_grouped = _product(columns, root)
    turn, seeds = (right, left) if is_grouped else (left, right)
    _, turned = walk(columns, turn, Permute)
    require(order(columns, turn) == ((0, 2, 1) if is_grouped else (1, 0)))
    source, windows, nodes = patches(columns, turned)
    cotangent, *laid = _planes(columns, seeds, columns.shapes[source][0])
    groups = columns.shapes[root][0] if is_grouped else None
    lower = partial(windowed.kernel_gradient, windows=windows, groups=groups)
    return Group(Formula.WINDOW_PRODUCT, root, (source, cotangent), (turn, *nodes, *laid), (), lower)


def window_input(columns: Columns, root: int) -> Group:
    """Recognise an input's gradient: two folds over the taps of all windows, and what cuts the padding off."""
    node, start = root, (0, 0)
    over: tuple[int, ...] = ()
    if isinstance(columns.opcodes[root], Narrow):
        _, upper, node = walk(columns, root, Narrow, Narrow)
        y, x = kinds(columns, root, upper)
        require((y.axis, x.axis) == (2, 3))
        start, over = (y.start, x.start), (upper, node)
    _, across, moved, cut, product = walk(columns, node, Fold, Fold, Permute, Reshape)
    left, right, is_grouped = _product(columns, product)
    matrix, kernel = (right, left) if is_grouped else (left, right)
    y, x = kinds(columns, node, across)
    shape, taps = columns.shapes[cut], columns.shapes[product]
    require((y.axis, x.axis) == (2, 4) and order(columns, moved) == (GROUPED_TAPS if is_grouped else TAPS))
    rows = Shape(shape[:3]).volume
    require(taps[-2:] == (rows // taps[0] if is_grouped else rows, Shape(shape[3:]).volume))
    height, width = columns.shapes[node][2:]
    inside = columns.shapes[root]
    require(not is_grouped or shape[0] % taps[0] == 0)
    windows = Windows.of(y, x, (height, width), start, (inside[2], inside[3]))
    cotangent, *laid = _planes(columns, matrix, inside[0])
    lower = partial(windowed.input_gradient, windows=windows, shape=inside)
    reads, owned = (cotangent, kernel), (*over[1:], across, product)
    return Group(Formula.WINDOW_PRODUCT, root, reads, (*over, across, moved, cut, product, *laid), owned, lower)


def padding(columns: Columns, root: int) -> Group:
    """Recognise zeros around the last two axes of rank 4: one pass."""
    _, rows, source = walk(columns, root, Pad, Pad)
    x, y = kinds(columns, root, rows)
    require((y.axis, x.axis, columns.shapes[root].rank) == (2, 3, 4))
    lower = partial(windowed.padded, start=(y.start, x.start), shape=columns.shapes[root])
    return Group(Formula.WINDOW_PRODUCT, root, (source,), (rows,), (rows,), lower)
