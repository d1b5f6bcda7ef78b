"""Attention as its formula records it: the softmax of scores, which are a product, times the values.

A block of query rows at a time: its scores stay in a near cache. The rows of a block are those that a plan has for the
whole, over views, so it has their bits.
"""

from collections.abc import Sequence
from functools import partial

from topos.backend.formula import Formula
from topos.engine.catalog.chains import Chain, step_of
from topos.engine.catalog.group import Group
from topos.engine.catalog.walk import require
from topos.graph.columns import Columns
from topos.kernels import runtime
from topos.kernels.chains import OVER
from topos.ops import LogSoftmax, MatMul
from topos.ops.arithmetic import Elementwise
from topos.ops.chain import Step
from topos.ops.emit import Emitter, Operand
from topos.payload.shape import Shape

# Bytes of all scores from which on a group pays: fewer stay in a cache as they are.
LARGE = 1 << 20

# Scores of one leading index from which on it pays: a block costs some 0.3 us beside its work.
WIDE = 1 << 13

# Keys from which on it pays: the products of fewer are short, and starting them is what a block costs.
KEYS = 64

# Query rows of a block, at most: enough that packing the keys for each of them is cheap.
ROWS = 128

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


def weighed(
    emitter: Emitter, query: Operand, keys: Operand, values: Operand, *others: Operand,
    columns: Columns, steps: Sequence[Step], reads: tuple[int, ...],
) -> Operand:  # fmt: skip
    """Return values weighed by what the steps make of the products of queries and keys; `reads` are what they read."""
    *lead, extent, _ = query.layout.shape
    axis, root = len(lead), steps[-1].node
    out = emitter.allocate(Shape((*lead, extent, values.layout.shape[-1])), query.element)

    def turn(inner: Emitter, keys: Operand, values: Operand, out: Operand, query: Operand, *others: Operand) -> None:
        scores = MatMul().lower(inner, query, keys)
        chain = Chain(scores.layout.shape, list(steps), reads, (root,))
        weights = chain.lower(inner, columns, {root: scores}, scores, *others)[root]
        inner.copy(MatMul().lower(inner, weights, values), out)

    few = 4 * (runtime.num_threads() - 1) // Shape(lead).volume
    turns = max(-(-extent // ROWS), min(-(-extent // FEWEST), few))
    block, by_rows = -(-extent // turns), (out, query, *others)
    for start, rows in ((0, block), (extent // block * block, extent % block)):
        if rows:
            count = (extent - start) // rows
            layouts = [o.layout.broadcast_along(axis, count) for o in (keys, values)]
            layouts += [o.layout.narrow(axis, start, count * rows).unfold(axis, rows, rows, 1) for o in by_rows]
            given = zip((keys, values, *by_rows), layouts, strict=True)
            emitter.repeat(axis + 1, turn, *(o.view(layout) for o, layout in given))
    return out
