"""`Tensor.apply`: an opcode over tensors is a program of one node, run at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from topos.errors import DataError, ShapeError
from topos.ops import objects, offer
from topos.ops.contraction import MatMul
from topos.ops.emit import CONSTANT, Emitter, address_of, result_tensor
from topos.ops.opcode import Opcode
from topos.payload.layout import Layout
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor


def apply(self: Tensor, opcode: Opcode, operands: tuple[Tensor, ...]) -> Tensor:
    """Compute `opcode` over tensors of one element.

    Raises:
        ShapeError: the shapes break the opcode's rule.
        ElementError: the operands are of several elements.
        DataError: a selection is not one-hot.
    """
    operands = tuple(map(self.operand, operands))
    shape = opcode.infer(*(operand.shape for operand in operands))
    if self.element.kernel is None:
        return of_objects(
            self, opcode.evaluate(self.element, *(operand.numpy() for operand in operands)), shape
        )
    if isinstance(opcode, MatMul):
        product = offer.product(*operands)
        if product is not None:
            return product
    emitter = Emitter()
    given = [emitter.constant(operand) for operand in operands]
    result = opcode.lower(emitter, *given)
    if not emitter.rows:
        return _viewed(operands[0], result.layout)
    program = emitter.finish()
    bound = [
        address_of(program.constants[CONSTANT - key], form, dense=False) for key, form in program.sources
    ]
    if any(address == 0 for address, _ in bound):
        selection = operands[1]
        row = next(i for i in range(selection.shape[0]) if selection.narrow(0, i, 1).indices() is None)
        raise DataError(f"{opcode.name}: row {row} of the selection is not one-hot")
    arena, _ = program.run(np.array([0, 0, 0, *(address for address, _ in bound)], np.int64))
    return result_tensor(result, arena, self.element)


def _viewed(tensor: Tensor, layout: Layout) -> Tensor:
    dense = tensor.dense()
    return Tensor.of_buffer(dense.element, dense.buffer, layout)


def of_objects(like: Tensor, array: Any, shape: Shape) -> Tensor:
    """Return an object array as a tensor."""
    values = np.empty(tuple(shape), object)
    values[...] = array
    return Tensor.of_buffer(like.element, values.reshape(-1), Layout.dense(shape))


def max_along(self: Tensor, axis: int) -> Tensor:
    """Return the maxima along an axis, which is removed: ties to the earliest, NaN propagates."""
    axis = self.axis(axis)
    if not 0 <= axis < self.shape.rank:
        raise ShapeError(f"max_along({self.shape}, axis={axis}): axis {axis} is outside the rank")
    shape = self.shape.without_axis(axis)
    if self.element.kernel is None:
        return of_objects(self, objects.reduce("greatest", self.numpy(), axis), shape)
    emitter = Emitter()
    result = emitter.reduce("max", emitter.constant(self), axis)
    program = emitter.finish()
    address, held = address_of(self, "values", dense=False)
    arena, _ = program.run(np.array([0, 0, 0, address], np.int64))
    del held
    return result_tensor(result, arena, self.element)


Tensor._compute = apply
Tensor.max_along = max_along  # type: ignore[assignment]
