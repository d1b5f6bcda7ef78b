"""The contract of the opcodes, stated a second time in NumPy and plain Python, and two user number types."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import mpmath
import numpy as np

from tests.helpers import bits, drawn
from tests.kernels.interpreted import NumpyTable, exact_fma
from topos import Element, MapOperation, Opcode, Recordable, Shape, Tensor
from topos.kernels.maps import FUNCTIONS
from topos.ops import (
    Add,
    Broadcast,
    BroadcastAlong,
    Div,
    Fold,
    Gather,
    LogSoftmax,
    LogSumExp,
    Map,
    MatMul,
    Maximum,
    Mul,
    Narrow,
    Neg,
    Pad,
    Permute,
    Powf,
    Ratio,
    Reshape,
    Scale,
    Scatter,
    Select,
    Step,
    Sub,
    Sum,
    SumAlong,
    Unfold,
)

K_BLOCK, R_BLOCK, LANES = 384, 4096, 32


def width(element: Element) -> int:
    """Return the bits that an element computes at."""
    return 64 if element.name == "f64" else 32


def wide(tensor: Tensor) -> np.ndarray:
    """Return a tensor's numbers at compute precision."""
    return tensor.numpy().astype(f"f{width(tensor.element) // 8}")


def rounded(array: Any, element: Element) -> np.ndarray:
    """Round numbers at compute precision once to the element."""
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(element.dtype)


# ---- elementwise: decisions 2, one line each


def _maximum(a: Any, b: Any) -> Any:
    return np.where((a >= b) | np.isnan(a), a, b)


def _scale(a: Any, b: Any) -> Any:
    return np.where((a == 0) | (b == 0), a.dtype.type(0), a * b)


def _ratio(g: Any, d: Any) -> Any:
    return np.where(g == 0, g.dtype.type(0), g / d)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Maximum": _maximum,
    "Step": lambda a, b: (a >= b).astype(a.dtype),
    "Select": lambda m, a, b: np.where(m == 0, b, a),
    "Scale": _scale,
    "Ratio": _ratio,
}


def elementwise(opcode: Opcode, *operands: Tensor) -> np.ndarray:
    """Return an elementwise opcode's result: widened, computed, rounded once."""
    arrays = [wide(operand) for operand in operands]
    with np.errstate(all="ignore"):
        if opcode.name in ARITHMETIC:
            result = ARITHMETIC[opcode.name](*arrays)
        else:
            bits_ = width(operands[0].element)
            name = opcode.operation.value if isinstance(opcode, Map) else "powf"
            result = NumpyTable(bits_)(FUNCTIONS[name].at(bits_), *arrays)
        return rounded(np.reshape(result, operands[0].shape), operands[0].element)


# ---- products and reductions: decisions 1


def total(values: Sequence[Any], block: int = R_BLOCK, lanes: int = LANES) -> Any:
    """Sum by interleaved lanes, then halves; beyond a block, the sums of the blocks."""
    if len(values) > block:
        return total([total(values[i : i + block], block, lanes) for i in range(0, len(values), block)], block, lanes)
    partial = list(values[:lanes])
    for i, value in enumerate(values[lanes:]):
        partial[i % lanes] = partial[i % lanes] + value
    half = lanes // 2
    while half:
        for lane in range(half):
            if lane + half < len(partial):
                partial[lane] = partial[lane] + partial[lane + half]
        partial = partial[:half]
        half //= 2
    return partial[0]


def matmul(a: Tensor, b: Tensor) -> np.ndarray:
    """Multiply by chains of fma over ascending k, in balanced blocks."""
    x, y = wide(a), wide(b)
    table, k = NumpyTable(width(a.element)), x.shape[-1]
    blocks = -(-k // K_BLOCK)
    size = -(-k // blocks)
    result = None
    with np.errstate(all="ignore"):
        for start in range(0, k, size):
            chain = x[..., :, start, None] * y[..., None, start, :]
            for p in range(start + 1, min(k, start + size)):
                chain = table.fma(x[..., :, p, None], y[..., None, p, :], chain)
            result = chain if result is None else result + chain
    return rounded(result, a.element)


def sum_along(values: np.ndarray, axis: int) -> np.ndarray:
    """Sum an axis of an array at compute precision."""
    with np.errstate(all="ignore"):
        return np.asarray(total(list(np.moveaxis(values, axis, 0))))


def _table(name: str, *arrays: np.ndarray) -> np.ndarray:
    bits_ = arrays[0].dtype.itemsize * 8
    return NumpyTable(bits_)(FUNCTIONS[name].at(bits_), *arrays).reshape(arrays[0].shape)


def log_domain(opcode: Any, a: Tensor) -> np.ndarray:
    """Return logsumexp or log_softmax: the shift is the row's maximum, or 0 where that is infinite."""
    x, axis = wide(a), opcode.axis
    with np.errstate(all="ignore"):
        rows = np.moveaxis(x, axis, 0)
        shift = rows[0]
        for row in rows[1:]:
            shift = _maximum(shift, row)
        shift = np.where(np.isinf(shift), shift.dtype.type(0), shift)
        shifted = rows - shift
        log = _table("ln", np.asarray(total(list(_table("exp", shifted)))))
        if isinstance(opcode, LogSumExp):
            return rounded(shift + log, a.element)
        result = np.where(shifted == -np.inf, shifted, shifted - log)
        return rounded(np.moveaxis(result, 0, axis), a.element)


def fold(opcode: Fold, a: Tensor) -> np.ndarray:
    """Add windows into zeros, ascending window index."""
    x = np.moveaxis(wide(a), (opcode.axis, opcode.axis + 1), (0, 1))
    out = np.zeros((opcode.extent, *x.shape[2:]), x.dtype)
    with np.errstate(all="ignore"):
        for window, tap in itertools.product(range(x.shape[0]), range(opcode.size)):
            out[window * opcode.step + tap * opcode.dilation] += x[window, tap]
    return rounded(np.moveaxis(out, 0, opcode.axis), a.element)


def scatter(rows: Tensor, selection: Tensor) -> np.ndarray:
    """Add rows into zeros, ascending row."""
    x = wide(rows)
    out = np.zeros((selection.shape[1], *x.shape[1:]), x.dtype)
    with np.errstate(all="ignore"):
        for row, target in zip(x, np.argmax(wide(selection), 1), strict=True):
            out[target] += row
    return rounded(out, rows.element)


def _padded(opcode: Pad, a: np.ndarray) -> np.ndarray:
    after = opcode.full_extent - opcode.start - a.shape[opcode.axis]
    widths = [(0, 0)] * a.ndim
    widths[opcode.axis] = (opcode.start, after)
    return np.pad(a, widths)


def _unfolded(opcode: Unfold, a: np.ndarray) -> np.ndarray:
    count = (a.shape[opcode.axis] - opcode.dilation * (opcode.size - 1) - 1) // opcode.step + 1
    at = [[w * opcode.step + t * opcode.dilation for t in range(opcode.size)] for w in range(count)]
    return a.take(at, opcode.axis)


MOVEMENT: dict[type, Callable[[Any, np.ndarray], np.ndarray]] = {
    Broadcast: lambda op, a: np.full(op.shape, a.reshape(-1)[0]),
    BroadcastAlong: lambda op, a: np.repeat(np.expand_dims(a, op.axis), op.extent, op.axis),
    Reshape: lambda op, a: a.reshape(op.shape),
    Permute: lambda op, a: a.transpose(op.order),
    Narrow: lambda op, a: a.take(range(op.start, op.start + op.length), op.axis),
    Pad: _padded,
    Unfold: _unfolded,
}


def expected(opcode: Any, operands: Sequence[Tensor]) -> np.ndarray:
    """Return the numbers that the contract states for any opcode."""
    first = operands[0]
    kind = type(opcode)
    if kind in MOVEMENT:
        return MOVEMENT[kind](opcode, first.numpy())
    if kind is MatMul:
        return matmul(*operands)
    if kind is Sum:
        return rounded(sum_along(wide(first).reshape(-1), 0), first.element)
    if kind is SumAlong:
        return rounded(sum_along(wide(first), opcode.axis), first.element)
    if kind in (LogSumExp, LogSoftmax):
        return log_domain(opcode, first)
    if kind is Fold:
        return fold(opcode, first)
    if kind is Scatter:
        return scatter(*operands)
    if kind is Gather:
        return first.numpy()[np.argmax(wide(operands[1]), 1)]
    return elementwise(opcode, *operands)


def check(opcode: Any, *operands: Tensor) -> Tensor:
    """Express an opcode, compare its bits with the contract, and return the result."""
    result = opcode.express(operands)
    wanted = expected(opcode, operands)
    assert result.element is operands[0].element
    assert result.shape == wanted.shape == opcode.infer(*(operand.shape for operand in operands))
    assert np.array_equal(bits(result), bits(wanted)), (opcode, result, wanted)
    return result


# ---- all opcodes, with shapes that fit them

SHAPES: list[tuple[Any, tuple[tuple[int, ...], ...]]] = [
    *((kind(), ((2, 3), (2, 3))) for kind in (Add, Sub, Mul, Div, Powf, Maximum, Step, Scale, Ratio)),
    (Neg(), ((2, 3),)),
    (Select(), ((2, 3), (2, 3), (2, 3))),
    *((Map(operation), ((2, 3),)) for operation in MapOperation),
    (MatMul(), ((2, 3), (3, 4))),
    (MatMul(), ((2, 2, 3), (2, 3, 2))),
    (Sum(), ((2, 3),)),
    (SumAlong(0), ((3, 2),)),
    (SumAlong(1), ((2, 3, 2),)),
    (LogSumExp(1), ((2, 3),)),
    (LogSoftmax(0), ((3, 2),)),
    (Broadcast(Shape([2, 3])), ((),)),
    (Broadcast(Shape([2])), ((1, 1),)),
    (BroadcastAlong(1, 3), ((2, 2),)),
    (Reshape(Shape([3, 2])), ((2, 3),)),
    (Permute((2, 0, 1)), ((2, 3, 2),)),
    (Narrow(1, 1, 2), ((2, 4),)),
    (Pad(0, 1, 4), ((2, 3),)),
    (Unfold(1, 2, 1, 2), ((2, 5),)),
    (Fold(0, 3, 2, 1, 8), ((3, 3, 2),)),
    (Gather(), ((4, 2), (3, 4))),
    (Scatter(), ((3, 2), (3, 4))),
]
"""Every kind with operands: an opcode and operand shapes."""

NAMES = [f"{opcode.name}-{index}" for index, (opcode, _) in enumerate(SHAPES)]

LINEAR = (
    Add, Sub, Neg, Sum, SumAlong, Broadcast, BroadcastAlong, Reshape, Permute, Narrow, Pad, Unfold, Fold,
    Gather, Scatter,
)  # fmt: skip
"""Kinds that are linear in their operands together (a selection is none)."""

RATIONAL = (*LINEAR, Mul, Div, Maximum, Select, Scale, Ratio, MatMul)
"""Kinds whose derivative stays among the rational numbers."""


def operands_for(opcode: Any, shapes: Sequence[Sequence[int]], element: Any, seed: int = 0) -> list[Tensor]:
    """Return operands inside an opcode's domain, away from the places where it is not smooth."""
    operands = [drawn(shape, element, 10 * seed + i) for i, shape in enumerate(shapes)]
    if isinstance(opcode, (Gather, Scatter)):
        generator = np.random.default_rng(seed)
        count, vocabulary = shapes[1]
        hot = generator.integers(0, vocabulary, count).tolist()
        operands[1] = Tensor.selection(hot, vocabulary, element=element)
    if isinstance(opcode, Select):
        operands[0] = Tensor(np.arange(operands[0].shape.volume) % 2, element=element).reshape(operands[0].shape)
    if isinstance(opcode, Powf) or opcode.name in ("Ln", "Sqrt", "Log1p"):
        positive = np.abs(operands[0].numpy().astype(np.float64)) + 0.5
        operands[0] = Tensor(positive, element=element)
    if isinstance(opcode, (Div, Ratio)):
        divisor = operands[1].numpy().astype(np.float64)
        operands[1] = Tensor(divisor + np.copysign(0.5, divisor), element=element)
    return operands


# ---- a user's interpretation: any order of derivatives over tensors


class Eager(Recordable):
    """A tensor that remembers how it was computed: reverse mode written over `Opcode.vjp` alone."""

    def __init__(self, tensor: Tensor, opcode: Any = None, operands: tuple[Eager, ...] = ()) -> None:
        self.tensor, self.opcode, self.operands = tensor, opcode, operands

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.tensor.shape

    def apply(self, opcode: Any, operands: tuple[Eager, ...]) -> Eager:
        """Compute, and remember."""
        return Eager(opcode.express([operand.tensor for operand in operands]), opcode, operands)

    def constant_like(self, count: int | None) -> Eager:
        """Return a constant of this shape."""
        return Eager(self.tensor.constant_like(count))

    def lift(self, literal: Any) -> Eager:
        """Return a number of this shape."""
        return literal if isinstance(literal, Eager) else Eager(self.tensor.lift(literal))

    def operand(self, given: Any) -> Eager:
        """Return an array of its own shape."""
        return given if isinstance(given, Eager) else Eager(self.tensor.operand(given))


def gradients(target: Eager, wanted: Sequence[Eager], seed: Eager | None = None) -> list[Eager]:
    """Return the gradients of a target, as `Eager` values that can be differentiated again."""
    order: list[Eager] = []
    seen: set[int] = set()

    def visit(node: Eager) -> None:
        if id(node) not in seen:
            seen.add(id(node))
            for operand in node.operands:
                visit(operand)
            order.append(node)

    visit(target)
    found = {id(target): seed or target.one_like()}
    for node in reversed(order):
        if node.opcode is None or id(node) not in found:
            continue
        for operand, cotangent in zip(
            node.operands, node.opcode.vjp(node.operands, node, found[id(node)]), strict=True
        ):
            if cotangent is not None:
                before = found.get(id(operand))
                found[id(operand)] = cotangent if before is None else before + cotangent
    return [found.get(id(value), value.zero_like()) for value in wanted]


# ---- two number types


class Multi:
    """Numbers of 50 digits with every map: derivatives by differences, to any accuracy."""

    __slots__ = ("value",)
    context: ClassVar[Any] = mpmath.mp.clone()
    context.dps = 50

    def __init__(self, value: Any) -> None:
        self.value = self.context.mpf(value.value if isinstance(value, Multi) else value)

    def __float__(self) -> float:
        return float(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Multi) else other)

    __hash__ = None  # type: ignore[assignment]

    def __ge__(self, other: Multi) -> bool:
        return self.value >= other.value

    def __neg__(self) -> Multi:
        return Multi(-self.value)

    @staticmethod
    def negative_infinity() -> Multi:
        """The identity of maximum."""
        return Multi("-inf")

    def powf(self, exponent: Multi) -> Multi:
        """A real power."""
        return Multi(self.value**exponent.value)

    def erf_derivative(self) -> Multi:
        """The bell curve."""
        c = self.context
        return Multi(2 / c.sqrt(c.pi) * c.exp(-(self.value**2)))


for _name in ("add", "sub", "mul", "truediv"):

    def _binary(self: Multi, other: Multi, _name: str = f"__{_name}__") -> Multi:
        return Multi(getattr(self.value, _name)(other.value))

    setattr(Multi, f"__{_name}__", _binary)
for _name in ("exp", "ln", "sqrt", "tanh", "sin", "cos", "log1p", "expm1", "erf"):

    def _map(self: Multi, _name: str = _name) -> Multi:
        return Multi(getattr(self.context, _name)(self.value))

    setattr(Multi, _name, _map)


class Wrapped:
    """A user's type that delegates to f64: it has to have the bits of F64 itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = np.float64(value.value if isinstance(value, Wrapped) else value)

    def __float__(self) -> float:
        return float(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Wrapped) else other))

    __hash__ = None  # type: ignore[assignment]

    def __ge__(self, other: Wrapped) -> bool:
        return bool(self.value >= other.value)

    def __neg__(self) -> Wrapped:
        return Wrapped(-self.value)

    def is_zero(self) -> bool:
        """Whether this is the additive identity."""
        return bool(self.value == 0)

    def fma(self, b: Wrapped, c: Wrapped) -> Wrapped:
        """One rounding."""
        return Wrapped(exact_fma(float(self.value), float(b.value), float(c.value)))

    def maximum(self, other: Wrapped) -> Wrapped:
        """The rule of decisions 2."""
        return self if self.value >= other.value or math.isnan(self.value) else other

    def step(self, threshold: Wrapped) -> Wrapped:
        """One or zero."""
        return Wrapped(float(self.value >= threshold.value))

    @classmethod
    def from_count(cls, n: int) -> Wrapped:
        """An integer."""
        return cls(float(n))

    @staticmethod
    def negative_infinity() -> Wrapped:
        """The identity of maximum."""
        return Wrapped(-math.inf)

    def powf(self, exponent: Wrapped) -> Wrapped:
        """The kernel's own power."""
        return Wrapped(_table("powf", *(np.array([x.value]) for x in (self, exponent)))[0])


for _name in ("add", "sub", "mul", "truediv"):

    def _delegated(self: Wrapped, other: Wrapped, _name: str = f"__{_name}__") -> Wrapped:
        with np.errstate(all="ignore"):
            return Wrapped(getattr(self.value, _name)(other.value))

    setattr(Wrapped, f"__{_name}__", _delegated)
for _name in (operation.value for operation in MapOperation):

    def _through(self: Wrapped, _name: str = _name) -> Wrapped:
        return Wrapped(_table(_name, np.array([self.value]))[0])

    setattr(Wrapped, _name, _through)


def floats(tensor: Tensor) -> np.ndarray:
    """Return the numbers of any element as f64."""
    return np.array([float(x) for x in tensor]).reshape(tuple(tensor.shape))
