"""`Tensor.apply`: an opcode over tensors is a program of one node, run at once."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from topos.backend import tally
from topos.backend.numerics import AMBIENT, Numerics
from topos.kernels import runtime
from topos.ops import offer
from topos.ops.contraction import MatMul
from topos.ops.emit import Emitter
from topos.ops.indexing import positions
from topos.ops.opcode import Opcode
from topos.ops.reduction import LogSoftmax, LogSumExp, MaxAlong, SumAlong
from topos.payload import OPCODES, Element, Layout, Recordable, Shape, Tensor

# Where the slots of tensors and layouts lie that native code reads and writes.
_TENSOR = runtime.slots(Tensor, "element", "buffer", "layout", "_selection")
_WALK, _OFFSET = runtime.slots(Layout, "walk", "offset")

# What a product, and what is counted, has to look up before each call.
_EXACT, _UNCOUNTED = (AMBIENT, Numerics.EXACT), (tally.OPEN, None)


class _Ready:
    """An opcode lowered for operands of given layouts: what computes it, or the view that it is."""

    def __init__(self, opcode: Opcode, element: Element, *walks: tuple[Shape, tuple[int, ...]]) -> None:
        opcode.infer(*(shape for shape, _ in walks))
        emitter, kernel, raw = Emitter(), str(element.kernel), element.raw
        given = [emitter.input(i, kernel, Layout(*walk)) for i, walk in enumerate(walks)]
        result = opcode.lower(emitter, *given)
        first, _, layout = result.span
        self.layout = Layout(layout.shape, layout.strides, first, layout.is_dense)
        if layout.is_dense and first == 0:
            self.layout = Layout.dense(layout.shape)  # the layout of other calls
        self.sources = list(emitter.sources)
        self.is_plain = self.sources == [(i, "values") for i in range(len(walks))]
        self.program = emitter.finish() if emitter.rows else None
        if self.program is not None:
            made = np.empty, (emitter.size // raw.itemsize, raw), None, Tensor, self.layout, self.program
            guards = [_EXACT] * (type(opcode) is MatMul) + [_UNCOUNTED] * bool(self.program.services)
            numbers = *runtime.walking(self.program, guards), raw.itemsize
            self.launch, self.remember = runtime.reading(["launch", "remember"], made, (*_TENSOR, _OFFSET), *numbers)
            _install()

    def run(self, opcode: Opcode, operands: tuple[Tensor, ...]) -> Tensor:
        """Return the result over operands of those layouts."""
        program = self.program
        if program is None:
            first = operands[0]
            return Tensor.of_buffer(first.element, first.dense().buffer, self.layout.moved(first.layout.offset))
        tally.serve_all(program.services)
        launch: Callable[..., Tensor] = self.launch
        try:
            return launch(*(operands if self.is_plain else self._sourced(opcode, operands)))
        except TypeError:  # a selection has no memory until it is written out
            return launch(*self._sourced(opcode, operands))

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
    if not all(isinstance(operand, Tensor) and operand.element is element for operand in operands):
        return apply(self, opcode, tuple(map(self.operand, operands)))
    if element.kernel is None:
        opcode.infer(*(operand.shape for operand in operands))
        return opcode.evaluate(element, *(operand.dense() for operand in operands))
    ready = _ready(opcode, element, *[operand.layout.walk for operand in operands])
    if type(opcode) is MatMul and _posture() is FAST:
        product = offer.product(*operands)
        if product is not None:
            return product
    return ready.run(opcode, operands)


# The methods that native code calls, and the opcodes that they compute: of tensors, of those turned round, along an axis.
_STRAIGHT = {
    "__add__": "Add", "__sub__": "Sub", "__mul__": "Mul", "__truediv__": "Div", "__pow__": "Powf", "__neg__": "Neg",
    "__matmul__": "MatMul", "matmul": "MatMul", "powf": "Powf", "maximum": "Maximum", "step": "Step", "select": "Select",
    "scale": "Scale", "ratio": "Ratio", "exp": "Exp", "ln": "Ln", "sqrt": "Sqrt", "tanh": "Tanh", "sin": "Sin",
    "cos": "Cos", "log1p": "Log1p", "expm1": "Expm1", "erf": "Erf", "erf_derivative": "ErfDerivative", "sum": "Sum",
}  # fmt: skip
_TURNED = {"__radd__": "Add", "__rsub__": "Sub", "__rmul__": "Mul", "__rtruediv__": "Div", "__rpow__": "Powf"}
_ALONG = {"sum_along": SumAlong, "max_along": MaxAlong, "logsumexp": LogSumExp, "log_softmax": LogSoftmax}


@functools.cache
def _install() -> None:
    """Let native code call the methods of tensors, when the first is computed (by each thread that is then the first)."""
    makers = {name: OPCODES[kind] for name, kind in (_STRAIGHT | _TURNED).items()} | _ALONG
    pairs = {name: _learning(i, name, makers[name]) for i, name in enumerate(makers)}
    runtime.methods(Tensor, (_TENSOR[0], _TENSOR[2], _WALK), len(_STRAIGHT), len(makers) - len(_ALONG), pairs)


def _learning(index: int, name: str, kind: Callable[..., Opcode]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a method, and what computes a call of it that is new to native code, and lets it remember the program."""
    plain = _PLAIN[name]

    def learn(self: Tensor, *given: Any) -> Any:
        result = plain(self, *given)
        axes, others = (map(self.axis, given), []) if name in _ALONG else ((), list(map(self.lift, given)))
        if self.element.kernel is not None:
            walks = [operand.layout.walk for operand in ((*others, self) if name in _TURNED else (self, *others))]
            ready = _ready(kind(*axes), self.element, *walks)
            number = next((each for each, was in zip(others, given, strict=False) if each is not was), None)
            if ready.is_plain and ready.program is not None:
                ready.remember(index, (ready, self.element, number, *walks), number, self, *given)
        return result

    return plain, learn


def max_along(self: Tensor, axis: int) -> Tensor:
    """Return the maxima along an axis, which is removed: ties to the earliest, NaN propagates."""
    if not isinstance(self, Tensor):  # as the method in native code
        raise TypeError(f"max_along of Tensor does not apply to a {type(self).__name__}: call its own")
    return self.apply(MaxAlong(self.axis(axis)), (self,))


Tensor.apply = apply  # type: ignore[method-assign]
Tensor.max_along = max_along  # type: ignore[assignment]

# What the methods are in Python, before native code or anybody else takes their place.
_PLAIN = {name: getattr(Recordable, name, max_along) for name in (*_STRAIGHT, *_TURNED, *_ALONG)}
