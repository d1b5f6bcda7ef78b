"""`Tensor.apply`: an opcode over tensors is a program of one node, run at once."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from topos.backend import tally
from topos.backend.numerics import Numerics
from topos.kernels import rows, runtime
from topos.ops import offer
from topos.ops.contraction import MatMul
from topos.ops.emit import Emitter
from topos.ops.indexing import positions
from topos.ops.opcode import Opcode
from topos.ops.reduction import MaxAlong
from topos.payload import F32, Element, Layout, Shape, Tensor

_example = Tensor.of_buffer(F32, np.empty(1), Layout(Shape(), (), 1 << 60))
# Where the slots of tensors and layouts lie that native code reads and writes.
SLOTS = *runtime.slots(_example, "element", "buffer", "layout", "_selection"), *runtime.slots(_example.layout, "offset")


class _Ready:
    """An opcode lowered for operands of given layouts: what computes it, or the view that it is."""

    __slots__ = ("is_plain", "launch", "layout", "program", "sources")
    launch: Callable[..., Tensor]

    def __init__(self, opcode: Opcode, element: Element, *walks: tuple[Shape, tuple[int, ...]]) -> None:
        opcode.infer(*(shape for shape, _ in walks))
        emitter, kernel, raw = Emitter(), str(element.kernel), element.raw
        given = [emitter.input(i, kernel, Layout(*walk)) for i, walk in enumerate(walks)]
        result = opcode.lower(emitter, *given)
        first, _, layout = result.span
        self.layout = Layout(layout.shape, layout.strides, first)
        self.sources = list(emitter.sources)
        self.is_plain = self.sources == [(i, "values") for i in range(len(walks))]
        self.program = emitter.finish() if emitter.rows else None
        if self.program is not None:
            made = np.empty, (emitter.size // raw.itemsize, raw), None, Tensor, self.layout
            work = sum(row.work * (rows.FUSED if row.kernel.startswith("matmul") else 1) for row in emitter.rows)
            self.launch = runtime.launcher(self.program.code, work, raw.itemsize, made, SLOTS)

    def run(self, opcode: Opcode, operands: tuple[Tensor, ...]) -> Tensor:
        """Return the result over operands of those layouts."""
        program = self.program
        if program is None:
            first, layout = operands[0], self.layout
            if offset := first.layout.offset:
                layout = Layout(layout.shape, layout.strides, offset + layout.offset)
            return Tensor.of_buffer(first.element, first.dense().buffer, layout)
        if program.services:
            tally.serve_all(program.services)
        shared = runtime.shared(program.work)
        try:
            return self.launch(*shared, operands if self.is_plain else self._sourced(opcode, operands))
        except TypeError:  # a selection has no memory until it is written out
            return self.launch(*shared, self._sourced(opcode, operands))

    def _sourced(self, opcode: Opcode, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the tensors that the program reads, with memory."""
        given = []
        for position, form in self.sources:
            operand = operands[position]
            memory = operand.dense().buffer if form == "values" else positions(opcode.name, operand)
            layout = operand.layout if form == "values" else Layout.dense(operand.shape)
            given.append(Tensor.of_buffer(operand.element, memory, layout))
        return tuple(given)


_ready = functools.lru_cache(1024)(_Ready)
FAST, _posture = Numerics.FAST, Numerics.current  # attributes of an enumeration are slow to read


def apply(self: Tensor, opcode: Opcode, operands: tuple[Any, ...]) -> Tensor:
    """Compute `opcode` over tensors of one element.

    Raises:
        ShapeError: the shapes break the opcode's rule.
        ElementError: the operands are of several elements.
        DataError: a selection is not one-hot.
    """
    element = self.element
    key: Any = (opcode, element)
    for operand in operands:
        if not isinstance(operand, Tensor) or operand.element is not element:
            return apply(self, opcode, tuple(map(self.operand, operands)))
        key += (operand.layout.walk,)
    if element.kernel is None:
        opcode.infer(*(operand.shape for operand in operands))
        return opcode.evaluate(element, *(operand.dense() for operand in operands))
    ready = _ready(*key)
    if type(opcode) is MatMul and _posture() is FAST:
        product = offer.product(*operands)
        if product is not None:
            return product
    return ready.run(opcode, operands)


def max_along(self: Tensor, axis: int) -> Tensor:
    """Return the maxima along an axis, which is removed: ties to the earliest, NaN propagates."""
    return apply(self, MaxAlong(self.axis(axis)), (self,))


Tensor.apply = apply  # type: ignore[method-assign]
Tensor.max_along = max_along  # type: ignore[assignment]
