"""The matrix product."""

from typing import Any

import numpy as np

from topos.kernels import rows
from topos.ops import objects
from topos.ops.emit import Emitter, Operand, collapse, compute_element
from topos.ops.opcode import Cotangents, Opcode
from topos.payload import Element, Shape, Tensor


def swap(value: Any) -> Any:
    """Return `value` with its last two axes swapped."""
    rank = len(value.shape)
    return value.permute((*range(rank - 2), rank - 1, rank - 2))


class MatMul(Opcode):
    """``[..., m, k] @ [..., k, n] -> [..., m, n]``, per leading index."""

    arity = 2
    reads = frozenset({0, 1})

    def infer(self, a: Shape, b: Shape) -> Shape:
        if a.rank < 2 or b.rank < 2:
            raise self.fail("both operands need at least 2 axes; add one with unsqueeze(axis)", a, b)
        if a.rank != b.rank or a[:-2] != b[:-2]:
            raise self.fail("the leading axes have to be equal; repeat them with broadcast_along(axis, extent)", a, b)
        if a[-1] != b[-2]:
            inner = f"the last axis of operand 0 ({a[-1]})"
            raise self.fail(f"{inner} has to equal the second to last of operand 1 ({b[-2]})", a, b)
        return self.sized(Shape((*a[:-1], b[-1])), a, b)

    def rule(self, g: Any, out: Any, a: Any, b: Any) -> Cotangents:
        return (lambda: g.matmul(swap(b)), lambda: swap(a).matmul(g))

    def lower(self, emitter: Emitter, a: Operand, b: Operand) -> Operand:
        shape = self.infer(a.layout.shape, b.layout.shape)
        m, k, n = shape[-2], a.layout.shape[-1], shape[-1]
        out = emitter.allocate(shape, a.element if emitter.plain_products else compute_element(a.element))
        batch, strides = collapse(shape[:-2], [operand.layout.strides[:-2] for operand in (a, b, out)])
        if emitter.plain_products:
            sides = [(o.place, o.layout.strides[-2], o.layout.strides[-1]) for o in (a, b)]
            walks = strides[0], strides[1]
            emitter.append(rows.reference_matmul(a.element, (m, k, n), out.place, sides[0], sides[1], batch, walks))
            return out
        leading = list(zip(batch, *strides, strict=True))
        given = ((o.place, list(zip(o.layout.shape, o.layout.strides, strict=True))) for o in (a, b))
        left, right = ((place, [axes[-2]], [axes[-1]]) for place, axes in given)
        if n == 1:  # as one row of chains: its columns are the rows of a
            left, right = (right[0], right[2], right[1]), (left[0], left[2], left[1])
            leading = [(extent, y, x, z) for extent, x, y, z in leading]
            m, n = 1, m
        emitter.product(a.element, (out.place, n), left, right, (m, k, n), leading)
        return emitter.narrowed(out, a.element)

    def evaluate(self, element: Element, *operands: Tensor) -> Tensor:
        a, b = (operand.numpy() for operand in operands)
        out: Any = np.empty((*a.shape[:-1], b.shape[-1]), object)
        for index in np.ndindex(a.shape[:-2]):
            out[index] = objects.multiply(element, a[index], b[index])
        return objects.tensor(element, out)
