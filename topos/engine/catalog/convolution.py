"""Convolution as its formula records it: the product, both gradients, and the padding before them."""

from functools import partial
from typing import NamedTuple

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import UnmatchedError, kinds, require, walk, windows_of
from topos.graph.columns import Columns
from topos.ops import Fold, MatMul, Narrow, Pad, Permute, Reshape, windowed
from topos.ops.windowed import Windows
from topos.payload.shape import Shape


class _Form(NamedTuple):
    """How a convolution is recorded as a product.

    `laid` are the axes of windows as a matrix of patches has them, `planes` those of the product as planes of filters
    have them, by rank.
    """

    laid: tuple[int, ...]
    planes: dict[int, tuple[int, ...]]


# By rank: patches ``[batch * windows, channels * positions]`` on the left of a kernel, or on the right of one for each
# group of channels ``[groups, channels / groups * positions, batch * windows]``.
FORMS = {
    2: _Form((0, 2, 4, 1, 3, 5), {3: (0, 2, 1), 4: (0, 3, 1, 2)}),
    3: _Form((1, 3, 5, 0, 2, 4), {3: (1, 0, 2), 4: (1, 0, 2, 3)}),
}


def _is_cut(columns: Columns, node: int, cut: int) -> bool:
    """Return whether a node of either form is a value of six axes, three and three, the first one in groups."""
    found, shape = columns.shapes[node], columns.shapes[cut]
    groups = found[0] if found.rank == 3 else 1
    rows, across = Shape(shape[:3]).volume, Shape(shape[3:]).volume
    return shape[0] % groups == 0 and found[-2:] == (rows // groups, across)


def patches(columns: Columns, node: int, form: _Form) -> tuple[int, Windows, tuple[int, ...]]:
    """Recognise patches of a form. Returns the source, the windows, and the nodes between."""
    source, windows, nodes = windows_of(columns, node, form.laid)
    require(_is_cut(columns, node, nodes[1]))
    return source, windows, nodes


def _product(columns: Columns, node: int) -> tuple[int, int, _Form]:
    """Return the operands of a product of matrices, in the order of one without groups, and its form."""
    form = FORMS.get(columns.shapes[node].rank)
    if form is None or not isinstance(columns.opcodes[node], MatMul):
        raise UnmatchedError
    left, right = columns.operands[node]
    return (left, right, form) if form is FORMS[2] else (right, left, form)


def window_product(columns: Columns, root: int) -> Group:
    """Recognise a product of patches and a kernel, or what lays that out as planes of filters."""
    node, shape = root, columns.shapes[root]
    over: tuple[int, ...] = ()
    if isinstance(columns.opcodes[root], Permute):
        _, cut, node = walk(columns, root, Permute, Reshape)
        over = (cut, node)
    left, kernel, form = _product(columns, node)
    source, windows, nodes = patches(columns, left, form)
    places = windows.counts if shape.rank == 4 else (Shape(windows.counts).volume,)
    if over:
        require(kinds(columns, root)[0].order == form.planes.get(shape.rank))
        require((shape[0], *shape[2:]) == (columns.shapes[source][0], *places))
    require(bool(over) or form is FORMS[2])
    lower = partial(windowed.product, windows=windows, shape=shape)
    return Group(Formula.WINDOW_PRODUCT, root, (source, kernel), (*over, *nodes), over, lower)


def _planes(columns: Columns, node: int, batch: int, form: _Form) -> tuple[int, ...]:
    """Return the planes of filters that a matrix of cotangents was laid out from, and the nodes that did it.

    The matrix itself where it was made in another way, if there are no groups.
    """
    try:
        matrix, moved, source = walk(columns, node, Reshape, Permute)
        shape, found = columns.shapes[source], columns.shapes[node]
        filters = found[1] if form is FORMS[2] else found[0] * found[1]
        require(kinds(columns, moved)[0].inverse == form.planes.get(shape.rank) and shape[:2] == (batch, filters))
    except UnmatchedError:
        require(form is FORMS[2])
        return (node,)
    return source, matrix, moved


def window_weights(columns: Columns, root: int) -> Group:
    """Recognise a kernel's gradient: transposed patches times the cotangent, by groups the other way round."""
    turned, right, form = _product(columns, root)
    _, left = walk(columns, turned, Permute)
    require(kinds(columns, turned)[0].order[-2:] == ((1, 0) if form is FORMS[2] else (2, 1)))
    source, windows, nodes = patches(columns, left, form)
    cotangent, *laid = _planes(columns, right, columns.shapes[source][0], form)
    groups = 0 if form is FORMS[2] else columns.shapes[root][0]
    lower = partial(windowed.kernel_gradient, windows=windows, groups=groups)
    return Group(Formula.WINDOW_PRODUCT, root, (source, cotangent), (turned, *nodes, *laid), (), lower)


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
    matrix, kernel, form = _product(columns, product)
    y, x = kinds(columns, node, across)
    require((y.axis, x.axis) == (2, 4) and kinds(columns, moved)[0].inverse == form.laid)
    require(_is_cut(columns, product, cut))
    height, width = columns.shapes[node][2:]
    inside = columns.shapes[root]
    windows = Windows.of(y, x, (height, width), start, (inside[2], inside[3]))
    cotangent, *laid = _planes(columns, matrix, inside[0], form)
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
