"""Max pooling as its formula records it, and its gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import Expected, expect, meets, order, walk
from topos.graph.columns import Columns
from topos.ops import Add, Fold, Maximum, Narrow, Pad, Permute, Reshape, Select, Step, Unfold, windowed
from topos.ops.windowed import Windows
from topos.payload.shape import Shape

LONGEST = 100
"""Positions of the largest window that is recognised."""

_ORDER = (0, 1, 2, 4, 3, 5)


def _windows(columns: Columns, lanes: int) -> tuple[int, Windows, tuple[int, ...]] | None:
    """Return the source of ``[batch, channels, rows, columns, positions]``, its windows, and the nodes between."""
    found = walk(columns, lanes, Reshape, Permute, Unfold, Unfold)
    if found is None:
        return None
    _, moved, across, down, source = found
    y: Any = columns.opcodes[down]
    x: Any = columns.opcodes[across]
    shape, cut = columns.shapes[source], columns.shapes[moved]
    if (y.axis, x.axis, y.dilation, x.dilation, shape.rank) != (2, 4, 1, 1, 4) or order(columns, moved) != _ORDER:
        return None
    count = y.size * x.size
    if columns.shapes[lanes] != (*cut[:4], count) or not 1 < count <= LONGEST:
        return None
    return source, Windows.of(y, x, (shape[2], shape[3])), (lanes, moved, across, down)


def _maxima(lanes: int, count: int) -> tuple[list[Expected], list[Expected]]:
    """Return the lanes, and the maxima of the first 1, 2, ... of them."""
    each = [expect(Narrow(4, lane, 1), lanes) for lane in range(count)]
    best = each[:1]
    for lane in each[1:]:
        best.append(expect(Maximum(), best[-1], lane))
    return each, best


def pool(columns: Columns, root: int) -> Group | None:
    """Recognise the maxima of windows: a left fold over their positions, row-major."""
    found = walk(columns, root, Reshape, Maximum)
    if found is None or columns.shapes[found[1]] != (*columns.shapes[root], 1):
        return None
    last = walk(columns, columns.operands[found[1]][1], Narrow)
    known = None if last is None else _windows(columns, last[1])
    if last is None or known is None:
        return None
    source, windows, cut = known
    nodes: dict[Expected, int] = {}
    if not meets(columns, found[1], _maxima(last[1], windows.positions)[1][-1], nodes):
        return None
    lower = partial(windowed.pool, windows=windows)
    return Group(Formula.REDUCE_WINDOW, root, (source,), (*nodes.values(), *cut), (found[1],), lower)


def pool_gradient(columns: Columns, root: int) -> Group | None:
    """Recognise the gradient of the maxima of windows by their source.

    The cotangent passes from the last maximum to the first; each sends it to one side. The lanes' shares are
    padded to their places and added up, the last lane's first, and two folds add the windows up.
    """
    found = walk(columns, root, Fold, Fold, Permute, Reshape, Add)
    if found is None:
        return None
    # Down the left sides to the last lane's share, down the right side to the first lane.
    _, across, _, _, total, last = found
    while isinstance(columns.opcodes[last], Add):
        last = columns.operands[last][0]
    share = walk(columns, last, Pad, Select)
    first = walk(columns, columns.operands[total][1], Pad, Select, Select, Step, Narrow)
    if share is None or first is None:
        return None
    seed = walk(columns, columns.operands[share[1]][2], Reshape)
    known = _windows(columns, first[-1])
    if seed is None or known is None:
        return None
    source, windows, between = known
    count = windows.positions
    lanes, best = _maxima(first[-1], count)
    flow = expect(Reshape(Shape((*columns.shapes[seed[1]], 1))), seed[1])
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
    if not meets(columns, root, expect(Fold(2, sizes[0], steps[0], 1, shape[2]), over), nodes):
        return None
    lower = partial(windowed.pool_gradient, windows=windows)
    interiors = tuple(node for node in (*nodes.values(), *between) if node != root)
    return Group(Formula.REDUCE_WINDOW, root, (source, seed[1]), interiors, (across,), lower)
