"""Concatenation as its formula records it: every part padded to its place, the pads added up.

The gradient of slices that cover an axis has the same form: that of gates, of joint projections, of a sequence's steps.
"""

from functools import partial
from itertools import accumulate

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import kinds, require
from topos.graph.columns import Columns
from topos.ops import Add, Pad, movement

# Parts of the longest concatenation: how far its matcher looks before it gives up.
MOST = 1024


def concatenation(columns: Columns, root: int) -> Group:
    """Recognise a sum of pads whose parts cover an axis side by side, in any order."""
    added: list[int] = []
    pads: list[int] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(columns.opcodes[node], Add):
            require(len(added) < MOST - 1)
            # What is no sum is looked at first: of a long one that is no concatenation, little is walked.
            waiting += sorted(columns.operands[node], key=lambda operand: not isinstance(columns.opcodes[operand], Add))
            added.append(node)
        else:
            require(isinstance(columns.opcodes[node], Pad))
            pads.append(node)
    pads.sort(key=lambda pad: kinds(columns, pad)[0].start)
    found, shape = kinds(columns, *pads), columns.shapes[root]
    axis, parts = found[0].axis, tuple(columns.operands[pad][0] for pad in pads)
    *starts, end = accumulate((columns.shapes[part][axis] for part in parts), initial=0)
    require(found == [Pad(axis, start, shape[axis]) for start in starts] and end == shape[axis])
    owned = (*added[1:], *pads)
    lower = partial(movement.concatenation, axis=axis, shape=shape)
    return Group(Formula.CONCATENATION, root, parts, owned, owned, lower)
