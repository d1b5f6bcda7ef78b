"""The index pair: rows chosen, and rows added, by a one-hot selection ``[count, vocabulary]``."""

from typing import Any, ClassVar

from topos.errors import DataError
from topos.kernels import rows
from topos.kernels.rows import Place
from topos.ops import objects
from topos.ops.emit import Emitter, Operand, compute_element
from topos.ops.opcode import Cotangents, Opcode
from topos.payload import Element, Shape, Tensor


def positions(what: str, selection: Tensor) -> Any:
    """Return the hot positions of a selection.

    Raises:
        DataError: a row is not one-hot.
    """
    found = selection.indices()
    if found is None:
        row = next(i for i in range(selection.shape[0]) if selection.narrow(0, i, 1).indices() is None)
        raise DataError(f"{what}: row {row} of the selection is not one-hot")
    return found


class Indexed(Opcode):
    """A kind over rows and a selection ``[count, vocabulary]``, which is data.

    Axis `along` of the selection counts the rows that are given, the other one those of the result.
    """

    arity = 2
    reads = frozenset({1})
    data = frozenset({1})
    along: ClassVar[int]
    needed: ClassVar[str]

    def infer(self, given: Shape, selection: Shape) -> Shape:
        if selection.rank != 2:
            remedy = "Tensor.selection(ids, vocabulary) is one"
            raise self.fail(f"the selection (operand 1) has to be [count, vocabulary]: {remedy}", given, selection)
        if given.rank < 1 or given[0] != selection[self.along]:
            raise self.fail(self.needed.format(selection[self.along]), given, selection)
        return self.sized(Shape((selection[1 - self.along], *given[1:])), given, selection)

    def placed(self, emitter: Emitter, given: Operand, selection: Operand) -> tuple[Shape, Operand, Place]:
        """Return the shape of the result, the given rows in dense memory, and the indices."""
        shape = self.infer(given.layout.shape, selection.layout.shape)
        return shape, emitter.dense(given), emitter.indices(selection)


class Gather(Indexed):
    """The rows of a table that a selection names."""

    along = 1
    needed = "the table (operand 0) needs {} rows, one per vocabulary entry"

    def rule(self, g: Any, out: Any, given: Any, selection: Any) -> Cotangents:
        return (lambda: g.scatter(selection), None)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        shape, table, indices = self.placed(emitter, *operands)
        out = emitter.allocate(shape, table.element)
        length = table.size * (shape.volume // shape[0])
        emitter.append(rows.gather(length, shape[0], out.place, table.place, indices))
        return out

    def evaluate(self, element: Element, table: Tensor, selection: Tensor) -> Tensor:
        return objects.tensor(element, table.numpy()[positions(self.name, selection)])


class Scatter(Indexed):
    """Rows added into zeros at the positions a selection names: ascending row."""

    along = 0
    needed = "operand 0 needs {} rows, one per row of the selection"

    def rule(self, g: Any, out: Any, given: Any, selection: Any) -> Cotangents:
        return (lambda: g.gather(selection), None)

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        shape, given, indices = self.placed(emitter, *operands)
        # The plain loop begins with zeros itself.
        out = (emitter.allocate if emitter.reference else emitter.zeros)(shape, compute_element(given.element))
        extents = given.layout.shape[0], shape.volume // shape[0], shape[0]
        places = out.place, given.place, indices
        name = "reference_scatter" if emitter.reference else "accumulate"
        emitter.append(rows.scatter(f"{name}.{given.element}", extents, *places))
        return emitter.narrowed(out, given.element)

    def evaluate(self, element: Element, given: Tensor, selection: Tensor) -> Tensor:
        out = objects.zeros((selection.shape[1], *given.shape[1:]), element)
        for row, target in zip(given.numpy(), positions(self.name, selection), strict=True):
            out[target] = out[target] + row  # `+=` may be a number's own, and the zeros are one object
        return objects.tensor(element, out)
