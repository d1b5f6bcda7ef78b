"""The index pair: rows chosen, and rows added, by a one-hot selection ``[count, vocabulary]``."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from topos.errors import DataError
from topos.kernels import rows
from topos.kernels.rows import Place
from topos.ops import objects
from topos.ops.emit import Emitter, Operand, compute_element
from topos.ops.opcode import Cotangents, Opcode
from topos.payload import Element, Shape, Tensor


def _positions(opcode: str, element: Element, selection: Any) -> Any:
    """Return the hot positions of a one-hot object matrix."""
    hot = np.array([[x == element.one for x in row] for row in selection])
    clean = np.array([[x == element.one or objects.is_zero(x) for x in row] for row in selection])
    bad = np.flatnonzero((hot.sum(axis=1) != 1) | ~clean.all(axis=1))
    if bad.size:
        raise DataError(f"{opcode}: row {bad[0]} of the selection is not one-hot")
    return hot.argmax(axis=1)


class Indexed(Opcode):
    """A kind over rows and a selection ``[count, vocabulary]``, which is data.

    Axis `along` of the selection counts the rows that are given, the other one those of the result.
    """

    arity = 2
    reads = frozenset({1})
    data = frozenset({1})
    along: ClassVar[int]
    needed: ClassVar[str]

    def infer(self, *shapes: Shape) -> Shape:
        given, selection = shapes
        if selection.rank != 2:
            raise self.fail(
                "the selection (operand 1) has to be [count, vocabulary]: Tensor.selection(ids, vocabulary) is one",
                *shapes,
            )
        if given.rank < 1 or given[0] != selection[self.along]:
            raise self.fail(self.needed.format(selection[self.along]), *shapes)
        return self.sized(Shape((selection[1 - self.along], *given[1:])), *shapes)

    def placed(self, emitter: Emitter, given: Operand, selection: Operand) -> tuple[Shape, Operand, Place]:
        """Return the shape of the result, the given rows in dense memory, and the indices."""
        shape = self.infer(given.layout.shape, selection.layout.shape)
        return shape, emitter.dense(given), emitter.indices(selection)


class Gather(Indexed):
    """The rows of a table that a selection names."""

    along = 1
    needed = "the table (operand 0) needs {} rows, one per vocabulary entry"

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.scatter(operands[1]), None)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        shape, table, indices = self.placed(emitter, *operands)
        out = emitter.allocate(shape, table.element)
        length = table.size * (shape.volume // shape[0])
        emitter.append(rows.gather(length, shape[0], out.place, table.place, indices))
        return out

    def evaluate(self, element: Element, *operands: Tensor) -> Tensor:
        table, selection = (operand.numpy() for operand in operands)
        return objects.tensor(element, table[_positions(self.name, element, selection)])


class Scatter(Indexed):
    """Rows added into zeros at the positions a selection names: ascending row."""

    along = 0
    needed = "operand 0 needs {} rows, one per row of the selection"

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g.gather(operands[1]), None)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        shape, given, indices = self.placed(emitter, *operands)
        # The plain loop begins with zeros itself.
        out = (emitter.allocate if emitter.reference else emitter.zeros)(shape, compute_element(given.element))
        extents = given.layout.shape[0], shape.volume // shape[0], shape[0]
        places = out.place, given.place, indices
        name = "reference_scatter" if emitter.reference else "accumulate"
        emitter.append(rows.scatter(f"{name}.{given.element}", extents, *places))
        return emitter.narrowed(out, given.element)

    def evaluate(self, element: Element, *operands: Tensor) -> Tensor:
        given, selection = (operand.numpy() for operand in operands)
        out = objects.zeros((selection.shape[1], *given.shape[1:]), element)
        for row, target in enumerate(_positions(self.name, element, selection)):
            out[target] = out[target] + given[row]  # `+=` may be a number's own, and the zeros are one object
        return objects.tensor(element, out)
