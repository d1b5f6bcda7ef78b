"""Attention as its formula records it: the softmax of scores, which are a product, times the values.

A block of query rows at a time: its scores stay in a near cache. The rows of a block are those that a plan has for the
whole, over views, so it has their bits.

Keys that a constant mask hides from all rows of a block are left out where that shows in no bit. Their scores become
-inf, unless one is NaN or +inf: the sum of all squares of queries and hidden keys bounds them, and where that is finite
the run of the block ends. Their weights are +0, and what these make of their values is added: a zero, whose sign may
count, or a NaN. The blocks of k of both products are those of all keys.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from topos.backend.formula import Formula
from topos.engine.catalog.chains import Chain, step_of
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import require
from topos.graph.columns import Columns
from topos.kernels import rows, runtime
from topos.kernels.chains import OVER
from topos.kernels.matmul import product
from topos.ops import Broadcast, BroadcastAlong, Leaf, LogSoftmax, MatMul, Sum
from topos.ops.arithmetic import Elementwise
from topos.ops.chain import Step
from topos.ops.emit import Emitter, Operand
from topos.payload import Layout, Shape

# Bytes of all scores from which on a group pays: fewer stay in a cache as they are.
LARGE = 1 << 20

# Scores of one leading index from which on it pays: a block costs some 0.3 us beside its work.
WIDE = 1 << 13

# Keys from which on it pays: the products of fewer are short, and starting them is what a block costs.
KEYS = 64

# Query rows of a block, at most: enough that packing the keys for each of them is cheap.
ROWS = 256

# Rows of a block where there are few for the threads: whole tiles of a product.
FEWEST = 24

# Steps between the products: how far the matcher looks before it gives up.
MOST = 16


def attention(columns: Columns, root: int) -> Group:
    """Recognise values weighed by the softmax of an elementwise function (a scale, a mask) of a product's rows."""
    weights, values = columns.operands[root]
    frame, path, node = columns.shapes[weights], list[int](), weights
    while not isinstance(columns.opcodes[node], MatMul):
        path.append(node)
        kinds = (MatMul, LogSoftmax, Elementwise)
        before = [operand for operand in columns.operands[node] if isinstance(columns.opcodes[operand], kinds)]
        require(bool(before) and len(path) <= MOST)
        node = before[0]
    steps = [step for each in reversed(path) if (step := step_of(columns, each, frame, True)) is not None]
    require(len(steps) == len(path) and columns.shapes[node] == frame and any(step.kind == OVER for step in steps))
    require(frame.volume * columns.element.raw.itemsize >= LARGE)
    require(frame[-1] >= KEYS and frame[-2] * frame[-1] >= WIDE)
    inside = (node, *reversed(path))
    others = dict.fromkeys(operand for step in steps for operand in step.sources if operand not in inside)
    lower = partial(weighed, columns=columns, steps=steps, reads=(node, *others))
    return Group(Formula.ATTENTION, root, (*columns.operands[node], values, *others), inside, inside, lower)


def held(columns: Columns, node: int) -> Any:
    """Return the array of the constant that a node is, or repeats along leading axes; a NaN if it is no constant."""
    while isinstance(opcode := columns.opcodes[node], Broadcast | BroadcastAlong) and getattr(opcode, "axis", 0) == 0:
        node = columns.operands[node][0]
    return columns.payloads[node].numpy() if isinstance(opcode, Leaf) else np.array(np.nan)


def seen(columns: Columns, steps: Sequence[Step], extent: int, length: int) -> Any:
    """Return how many keys each query row looks at: whole blocks of k, those behind being hidden by a constant mask.

    That is said of scores, times constants up to 1, that a mask is added to; not of 16 bits: squares add up to infinity.
    """
    *factors, mask = [held(columns, step.sources[-1]) for step in steps[:-2]] or [np.array(np.nan)]
    is_bounded = columns.element.raw.itemsize > 2 and all((abs(factor) <= 1).all() for factor in factors)
    is_known = [step.family for step in steps] == [*["mul"] * len(factors), "add", "log_softmax", "exp"]
    is_masked = is_bounded and is_known and mask.ndim <= 2
    hidden = np.isneginf(np.broadcast_to(mask if is_masked else 0.0, (extent, length)))[:, ::-1].argmin(1)
    depth = product.depth_of(length)
    return np.minimum(-(-(length - hidden) // depth) * depth, length)


def weighed(
    emitter: Emitter, query: Operand, keys: Operand, values: Operand, *others: Operand,
    columns: Columns, steps: Sequence[Step], reads: tuple[int, ...],
) -> Operand:  # fmt: skip
    """Return values weighed by what the steps make of the products of queries and keys; `reads` are what they read."""
    *lead, extent, _ = query.layout.shape
    axis, root, length = len(lead), steps[-1].node, keys.layout.shape[-1]
    out = emitter.allocate(Shape((*lead, extent, values.layout.shape[-1])), query.element)

    def weigh(inner: Emitter, keys: Operand, values: Operand, query: Operand, *others: Operand) -> Operand:
        scores = MatMul().lower(inner, query, keys)
        chain = Chain(scores.layout.shape, list(steps), reads, (root,))
        weights = chain.lower(inner, columns, {root: scores}, scores, *others)[root]
        return MatMul().lower(inner, weights, values)

    def turn(near: int, inner: Emitter, keys: Operand, values: Operand, out: Operand, *by_rows: Operand) -> None:
        if far := length - near:
            query, *others = by_rows
            near_others = (other.narrow(1, 0, near) for other in others)
            result = weigh(inner, keys.narrow(1, 0, near), values.narrow(0, 0, near), query, *near_others)
            rest = MatMul().lower(inner, inner.zeros(Shape((1, far)), keys.element), values.narrow(0, near, far))
            inner.copy(inner.elementwise("add", result, rest.view(Layout(result.layout.shape, (0, 1)))), out)
            squares = (inner.elementwise("mul", each, each) for each in (query, keys.narrow(1, near, far)))
            total = inner.elementwise("add", *(Sum().lower(inner, each) for each in squares))
            inner.append(rows.leave(inner.elementwise("sub", total, total).place, total.size))
        inner.copy(weigh(inner, keys, values, *by_rows), out)

    counts = seen(columns, steps, extent, length)
    parts, few = len(np.unique(counts)), 4 * (runtime.num_threads() - 1) // Shape(lead).volume
    height = -(-extent // parts)
    block, by_rows = -(-height // max(-(-height // ROWS), min(-(-height // FEWEST), few))), (out, query, *others)
    blocks = [(min(block, extent - at), int(counts[at : at + block].max())) for at in range(0, extent, block)]
    start = 0
    for (height, near), alike in itertools.groupby(blocks):
        count = len(list(alike))
        layouts = [o.layout.broadcast_along(axis, count) for o in (keys, values)]
        layouts += [o.layout.narrow(axis, start, count * height).unfold(axis, height, height, 1) for o in by_rows]
        given = zip((keys, values, *by_rows), layouts, strict=True)
        emitter.repeat(axis + 1, partial(turn, near), *(o.view(layout) for o, layout in given))
        start += count * height
    return out
