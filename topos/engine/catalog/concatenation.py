"""Concatenation as its formula records it: every part padded to its place, the pads added up.

The gradient of slices that cover an axis has the same form: that of gates, of joint projections, of a sequence's steps.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate

from topos.backend.formula import Formula
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import require
from topos.graph.columns import Columns
from topos.ops import Add, Pad, movement

MOST = 1024
"""Parts of the longest concatenation: how far its matcher looks before it gives up."""


def concatenation(columns: Columns, root: int) -> Group:
    """Recognise a sum of pads whose parts cover an axis side by side, in any order."""
    added: list[int] = []
    pads: list[tuple[int, int, Pad]] = []  # where a part starts, its node and pad
    waiting = [root]
    while waiting:
        node = waiting.pop()
        opcode = columns.opcodes[node]
        if isinstance(opcode, Add):
            require(len(added) < MOST)
            # What is no sum is looked at first: of a long one that is no concatenation, little is walked.
            waiting += sorted(columns.operands[node], key=lambda operand: not isinstance(columns.opcodes[operand], Add))
            added.append(node)
        else:
            require(isinstance(opcode, Pad) and len(pads) < MOST)
            pads.append((opcode.start, node, opcode))  # type: ignore[attr-defined, arg-type]
    pads.sort(key=lambda pad: pad[0])
    shape, axis = columns.shapes[root], pads[0][2].axis
    parts = [columns.operands[node][0] for _, node, _ in pads]
    starts = [0, *accumulate(columns.shapes[part][axis] for part in parts)]
    require(all(pad == Pad(axis, at, shape[axis]) for at, (_, _, pad) in zip(starts, pads, strict=False)))
    require(starts[-1] == shape[axis])
    owned = (*added[1:], *(node for _, node, _ in pads))
    lower = partial(movement.concatenation, axis=axis, shape=shape)
    return Group(Formula.CONCATENATION, root, tuple(parts), owned, owned, lower)
