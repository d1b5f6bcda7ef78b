"""`Tensor.apply`: an opcode over tensors is a program of one node, run at once."""

from __future__ import annotations

from typing import Any

from topos.backend.numerics import Numerics
from topos.errors import DataError
from topos.ops import offer
from topos.ops.contraction import MatMul
from topos.ops.emit import Emitter, memory_of, result_tensor
from topos.ops.opcode import Opcode
from topos.ops.reduction import MaxAlong
from topos.payload.layout import Layout
from topos.payload.tensor import Tensor


class _Ready:
    """An opcode lowered for operands of given layouts: its program, or the view that it is."""

    __slots__ = ("program", "result", "sources")

    def __init__(self, opcode: Opcode, operands: tuple[Tensor, ...]) -> None:
        opcode.infer(*(operand.shape for operand in operands))
        emitter, kernel = Emitter(), operands[0].element.kernel
        assert kernel is not None
        given = [
            emitter.input(i, kernel, Layout(operand.shape, operand.layout.strides))
            for i, operand in enumerate(operands)
        ]
        self.result = opcode.lower(emitter, *given)
        self.program = emitter.finish() if emitter.rows else None
        self.sources = list(emitter.sources)

    def run(self, opcode: Opcode, operands: tuple[Tensor, ...]) -> Tensor:
        """Return the result over operands of those layouts."""
        first = operands[0]
        if self.program is None:
            dense, layout = first.dense(), self.result.layout
            offset = first.layout.offset + layout.offset
            return Tensor.of_buffer(first.element, dense.buffer, Layout(layout.shape, layout.strides, offset))
        given: list[Any] = []
        for position, form in self.sources:
            operand = operands[position]
            memory = operand.buffer if form == "values" else None
            if memory is None:
                memory = memory_of(operand, form, dense=False)
            if memory is None:
                rows = range(operand.shape[0])
                row = next(i for i in rows if operand.narrow(0, i, 1).indices() is None)
                raise DataError(f"{opcode.name}: row {row} of the selection is not one-hot")
            given += memory, operand.layout.offset * self.result.size if form == "values" else 0
        arena, _ = self.program.run(first.element.raw, given)
        return result_tensor(self.result, arena, first.element)


READY = 1024
"""Lowered opcodes that are kept, the latest."""

_ready: dict[Any, _Ready] = {}


def apply(self: Tensor, opcode: Opcode, operands: tuple[Any, ...]) -> Tensor:
    """Compute `opcode` over tensors of one element.

    Raises:
        ShapeError: the shapes break the opcode's rule.
        ElementError: the operands are of several elements.
        DataError: a selection is not one-hot.
    """
    element = self.element
    key: Any = (opcode, element.kernel)
    for operand in operands:
        if not isinstance(operand, Tensor) or operand.element is not element:
            return apply(self, opcode, tuple(map(self.operand, operands)))
        key += (operand.layout.walk,)
    if element.kernel is None:
        opcode.infer(*(operand.shape for operand in operands))
        return opcode.evaluate(element, *(operand.dense() for operand in operands))
    if type(opcode) is MatMul and Numerics.current() is Numerics.FAST:
        opcode.infer(*(operand.shape for operand in operands))
        product = offer.product(*operands)
        if product is not None:
            return product
    ready = _ready.get(key)
    if ready is None:
        ready = _Ready(opcode, operands)
        while len(_ready) >= READY:
            _ready.pop(next(iter(_ready)), None)
        _ready[key] = ready
    return ready.run(opcode, operands)


def max_along(self: Tensor, axis: int) -> Tensor:
    """Return the maxima along an axis, which is removed: ties to the earliest, NaN propagates."""
    return apply(self, MaxAlong(self.axis(axis)), (self,))


Tensor.apply = apply  # type: ignore[method-assign]
Tensor.max_along = max_along  # type: ignore[assignment]
