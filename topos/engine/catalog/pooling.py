"""Max pooling as its formula records it, and its gradient."""

from __future__ import annotations

from functools import partial

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import Expected, expect, kinds, meets, order, require, walk
from topos.graph.columns import Columns
from topos.ops import Add, Fold, Maximum, Narrow, Pad, Permute, Reshape, Select, Step, Unfold, windowed
from topos.ops.windowed import Windows
from topos.payload.shape import Shape

LONGEST = 100
"""Positions of the largest window that is recognised."""

_ORDER = (0, 1, 2, 4, 3, 5)


def _windows(columns: Columns, lanes: int) -> tuple[int, Windows, tuple[int, ...]]:
    """Return the source of ``[batch, channels, rows, columns, positions]``, its windows, and the nodes between."""
    _, moved, across, down, source = walk(columns, lanes, Reshape, Permute, Unfold, Unfold)
    y, x = kinds(columns, down, across)
    shape, cut = columns.shapes[source], columns.shapes[moved]
    require((y.axis, x.axis, y.dilation, x.dilation, shape.rank) == (2, 4, 1, 1, 4) and order(columns, moved) == _ORDER)
    count = y.size * x.size
    require(columns.shapes[lanes] == (*cut[:4], count) and 1 < count <= LONGEST)
    return source, Windows.of(y, x, (shape[2], shape[3])), (lanes, moved, across, down)


def _maxima(lanes: int, count: int) -> tuple[list[Expected], list[Expected]]:
    """Return the lanes, and the maxima of the first 1, 2, ... of them."""
    each = [expect(Narrow(4, lane, 1), lanes) for lane in range(count)]
    best = each[:1]
    for lane in each[1:]:
        best.append(expect(Maximum(), best[-1], lane))
    return each, best


def pool(columns: Columns, root: int) -> Group:
    """Recognise the maxima of windows: a left fold over their positions, row-major."""
    _, best, _ = walk(columns, root, Reshape, Maximum)
    require(columns.shapes[best] == (*columns.shapes[root], 1))
    _, lanes = walk(columns, columns.operands[best][1], Narrow)
    source, windows, cut = _windows(columns, lanes)
    nodes: dict[Expected, int] = {}
    require(meets(columns, best, _maxima(lanes, windows.positions)[1][-1], nodes))
    lower = partial(windowed.pool, windows=windows)
    return Group(Formula.REDUCE_WINDOW, root, (source,), (*nodes.values(), *cut), (best,), lower)


def pool_gradient(columns: Columns, root: int) -> Group:
    """Recognise the gradient of the maxima of windows by their source.

    The cotangent passes from the last maximum to the first; each sends it to one side. The lanes' shares are
    padded to their places and added up, the last lane's first, and two folds add the windows up.
    """
    # Down the left sides to the last lane's share, down the right side to the first lane.
    _, across, _, _, total, last = walk(columns, root, Fold, Fold, Permute, Reshape, Add)
    while isinstance(columns.opcodes[last], Add):
        last = columns.operands[last][0]
    _, share, _ = walk(columns, last, Pad, Select)
    *_, cut = walk(columns, columns.operands[total][1], Pad, Select, Select, Step, Narrow)
    _, seed = walk(columns, columns.operands[share][2], Reshape)
    source, windows, between = _windows(columns, cut)
    count = windows.positions
    lanes, best = _maxima(cut, count)
    flow = expect(Reshape(Shape((*columns.shapes[seed], 1))), seed)
    added: Expected | None = None
    for lane in reversed(range(count)):
        part = flow
        if lane > 0:
            held, tap = best[lane - 1], lanes[lane]
            stays = expect(Select(), expect(Step(), held, held), expect(Step(), held, tap), 1.0)
            part = expect(Select(), stays, 0.0, flow)
            flow = expect(Select(), stays, flow, 0.0)
        place = expect(Pad(4, lane, count), part)
        added = place if added is None else expect(Add(), added, place)
    shape = columns.shapes[source]
    cut_shape = columns.shapes[between[1]]
    assert added is not None
    laid = expect(Permute(_ORDER), expect(Reshape(cut_shape), added))
    sizes, steps = windows.size, windows.step
    over = expect(Fold(4, sizes[1], steps[1], 1, shape[3]), laid)
    nodes: dict[Expected, int] = {}
    require(meets(columns, root, expect(Fold(2, sizes[0], steps[0], 1, shape[2]), over), nodes))
    lower = partial(windowed.pool_gradient, windows=windows)
    interiors = tuple(node for node in (*nodes.values(), *between) if node != root)
    return Group(Formula.REDUCE_WINDOW, root, (source, seed), interiors, (across,), lower)
