"""Max pooling as its formula records it, and its gradient."""

from functools import partial, reduce
from itertools import accumulate

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import Expected, meets, require, walk, windows_of
from topos.graph.columns import Columns
from topos.ops import Add, Fold, Maximum, Narrow, Pad, Permute, Reshape, Select, Step, windowed
from topos.ops.windowed import Windows
from topos.payload.shape import Shape

# Positions of the largest window that is recognised.
LONGEST = 100

_ORDER = (0, 1, 2, 4, 3, 5)


def _windows(columns: Columns, lanes: int) -> tuple[int, Windows, tuple[int, ...]]:
    """Return the source of ``[batch, channels, rows, columns, positions]``, its windows, and the nodes between."""
    source, windows, nodes = windows_of(columns, lanes, _ORDER)
    shape, count = columns.shapes[nodes[1]], windows.positions
    require(columns.shapes[lanes] == (*shape[:4], count) and 1 < count <= LONGEST and windows.dilation == (1, 1))
    return source, windows, nodes


def _maxima(lanes: int, count: int) -> tuple[list[Expected], list[Expected]]:
    """Return the lanes, and the maxima of the first 1, 2, ... of them."""
    each = [Expected(Narrow(4, lane, 1), lanes) for lane in range(count)]
    return each, list(accumulate(each, partial(Expected, Maximum())))


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
    flow = Expected(Reshape(Shape((*columns.shapes[seed], 1))), seed)
    places = []
    for lane in reversed(range(count)):
        part = flow
        if lane > 0:
            held, tap = best[lane - 1], lanes[lane]
            stays = Expected(Select(), Expected(Step(), held, held), Expected(Step(), held, tap), 1.0)
            part = Expected(Select(), stays, 0.0, flow)
            flow = Expected(Select(), stays, flow, 0.0)
        places.append(Expected(Pad(4, lane, count), part))
    added = reduce(partial(Expected, Add()), places)
    laid = Expected(Permute(_ORDER), Expected(Reshape(columns.shapes[between[1]]), added))
    folds = [Fold(axis, windows.size[i], windows.step[i], 1, windows.padded[i]) for i, axis in enumerate((2, 4))]
    nodes: dict[Expected, int] = {}
    require(meets(columns, root, Expected(folds[0], Expected(folds[1], laid)), nodes))
    lower = partial(windowed.pool_gradient, windows=windows)
    interiors = tuple(node for node in (*nodes.values(), *between) if node != root)
    return Group(Formula.REDUCE_WINDOW, root, (source, seed), interiors, (across,), lower)
