"""The index pair: rows chosen, and rows added, by a one-hot selection ``[count, vocabulary]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from topos.errors import DataError
from topos.kernels import rows
from topos.ops import objects
from topos.ops.emit import Emitter, Operand, compute_element
from topos.ops.opcode import Cotangents, Opcode
from topos.payload.element import Element
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor


def _positions(opcode: str, element: Element, selection: Any) -> Any:
    """Return the hot positions of a one-hot object matrix."""
    hot = np.array([[x == element.one for x in row] for row in selection])
    clean = np.array([[x == element.one or objects.is_zero(x) for x in row] for row in selection])
    bad = np.flatnonzero((hot.sum(axis=1) != 1) | ~clean.all(axis=1))
    if bad.size:
        raise DataError(f"{opcode}: row {bad[0]} of the selection is not one-hot")
    return hot.argmax(axis=1)


class Gather(Opcode):
    """The rows of a table that a selection names. The selection is data."""

    arity = 2
    reads = frozenset({1})
    data = frozenset({1})

    def infer(self, *shapes: Shape) -> Shape:
        table, selection = shapes
        if selection.rank != 2:
            raise self.fail("the selection (operand 1) has to be [count, vocabulary]", *shapes)
        if table.rank < 1 or table[0] != selection[1]:
            raise self.fail(f"the table (operand 0) needs {selection[1]} rows, one per vocabulary entry", *shapes)
        return self.sized(Shape((selection[0], *table[1:])), *shapes)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.scatter(operands[1]), None)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        table, selection = operands
        shape = self.infer(table.layout.shape, selection.layout.shape)
        dense = emitter.dense(table)
        indices = emitter.indices(selection)
        out = emitter.allocate(shape, table.element)
        length = table.size * (shape.volume // shape[0])
        emitter.append(rows.gather(length, shape[0], out.place, dense.place, indices))
        return out

    def evaluate(self, element: Element, *operands: Tensor) -> Tensor:
        table, selection = (operand.numpy() for operand in operands)
        return objects.tensor(element, table[_positions(self.name, element, selection)])


class Scatter(Opcode):
    """Rows added into zeros at the positions a selection names: ascending row. The selection is data."""

    arity = 2
    reads = frozenset({1})
    data = frozenset({1})

    def infer(self, *shapes: Shape) -> Shape:
        given, selection = shapes
        if selection.rank != 2:
            raise self.fail("the selection (operand 1) has to be [count, vocabulary]", *shapes)
        if given.rank < 1 or given[0] != selection[0]:
            raise self.fail(f"operand 0 needs {selection[0]} rows, one per row of the selection", *shapes)
        return self.sized(Shape((selection[1], *given[1:])), *shapes)

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.gather(operands[1]), None)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        given, selection = operands
        shape = self.infer(given.layout.shape, selection.layout.shape)
        dense = emitter.dense(given)
        indices = emitter.indices(selection)
        out = emitter.allocate(shape, compute_element(given.element))
        extents = given.layout.shape[0], shape.volume // shape[0], shape[0]
        places = out.place, dense.place, indices
        name = "reference_scatter" if emitter.reference else "accumulate"
        emitter.append(rows.scatter(f"{name}.{given.element}", extents, (given.size, out.size), *places))
        return emitter.narrowed(out, given.element)

    def evaluate(self, element: Element, *operands: Tensor) -> Tensor:
        given, selection = (operand.numpy() for operand in operands)
        out = objects.zeros((selection.shape[1], *given.shape[1:]), element)
        for row, target in enumerate(_positions(self.name, element, selection)):
            out[target] += given[row]
        return objects.tensor(element, out)
