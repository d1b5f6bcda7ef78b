"""A user's number type on the reference path: element functions and loops over object arrays."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topos.backend.tasks import GemmTask, MapOperation, MapTask
from topos.errors import ElementError
from topos.kernels import reference
from topos.payload import Element, Layout, Shape, Tensor
from topos.payload.element import is_zero


def maximum(a: Any, b: Any) -> Any:
    """Return the larger number, the left one at a tie."""
    hook = getattr(a, "maximum", None)
    return hook(b) if hook is not None else reference.maximum(a, b)


def _step(a: Any, b: Any, element: Element) -> Any:
    hook = getattr(a, "step", None)
    return hook(b) if hook is not None else element.one if a >= b else element.zero


def _powf(a: Any, b: Any, element: Element) -> Any:
    hook = getattr(a, "powf", None)
    result = hook(b) if hook is not None else a**b
    if element.kind is not None and not isinstance(result, element.kind):
        raise ElementError(f"{element.name}: {a} ** {b} is no {element.name}; give the class a method powf(exponent)")
    return result


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return ``a*b + c``, by the class's hook where it has one."""
    hook = getattr(a, "fma", None)
    return hook(b, c) if hook is not None else a * b + c


# The element functions that are no maps, over numbers and their element.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": lambda a, e: -a,
    "select": lambda mask, on_true, on_false, e: on_false if is_zero(mask) else on_true,
    "add": lambda a, b, e: a + b,
    "sub": lambda a, b, e: a - b,
    "mul": lambda a, b, e: a * b,
    "div": lambda a, b, e: a / b,
    "maximum": lambda a, b, e: maximum(a, b),
    "step": _step,
    "scale": lambda a, b, e: e.zero if is_zero(a) or is_zero(b) else a * b,
    "ratio": lambda g, d, e: e.zero if is_zero(g) else g / d,
    "powf": _powf,
    "finite_or_zero": lambda m, e: e.zero if m in (e.negative_infinity, -e.negative_infinity) else m,
    "log_difference": lambda x, log, e: x if x == e.negative_infinity else x - log,
}


def offered(element: Element, hook: str, task: Any, count: int) -> Any:
    """Return what the class's hook answers to a task as an object array, or None where it declines.

    Raises:
        ElementError: the answer is not one value per result.
    """
    serve = getattr(element.kind, hook, None)
    answer = serve(task) if serve is not None else None
    if answer is None:
        return None
    if len(answer) != count:
        what = f"{element.name}.{hook} answered {len(answer)} values to a {type(task).__name__}"
        raise ElementError(f"{what}, {count} are needed")
    return np.fromiter(answer, object, count)


def multiply(element: Element, a: Any, b: Any) -> Any:
    """Return the product of two matrices: by the class's hook ``gemm``, or by the reference loop."""
    (m, k), n = a.shape, b.shape[1]
    left, right = flat(a), flat(b)
    if hasattr(element.kind, "gemm"):
        task = GemmTask(left.tolist(), (k, 1), right.tolist(), (n, 1), m, k, n)
        answered = offered(element, "gemm", task, m * n)
        if answered is not None:
            return answered.reshape(m, n)
    out, partial = np.empty(m * n, object), np.empty(2 * reference.TILE, object)
    for i in range(m):
        LOOPS["multiply"](out, i * n, left, i * k, 1, right, 0, n, 1, k, n, partial)
    return out.reshape(m, n)


# The reference loops over object arrays: bases are flat arrays, indices plain positions.
OBJECTS = reference.Arithmetic(operator.getitem, operator.setitem, operator.getitem, operator.setitem, fma, maximum)

LOOPS = {"multiply": reference.multiply(OBJECTS), "sum": reference.total(OBJECTS), "max": reference.greatest(OBJECTS)}


def zeros(shape: Sequence[int], element: Element) -> Any:
    """Return an object array of zeros."""
    array = np.empty(tuple(shape), object)
    array.fill(element.zero)
    return array


def flat(array: Any) -> Any:
    """Return the elements row-major."""
    return np.ascontiguousarray(array).reshape(-1)


def tensor(element: Element, array: Any) -> Tensor:
    """Return an object array as a tensor."""
    return Tensor.of_buffer(element, flat(array), Layout.dense(Shape(array.shape)))


class Evaluator:
    """What an `emit.Emitter` is to numbers with kernels: opcodes lower to it over tensors, and it computes at once."""

    reference = True

    def elementwise(self, function: str, *operands: Tensor) -> Tensor:
        """Apply an element function over equal shapes."""
        element, layout = operands[0].element, Layout.dense(operands[0].shape)
        numbers = [operand.dense_buffer() for operand in operands]
        if function in FUNCTIONS:
            compute = FUNCTIONS[function]
            found = np.frompyfunc(lambda *given: compute(*given, element), len(numbers), 1)(*numbers)
            return Tensor.of_buffer(element, found, layout)
        task = MapTask(MapOperation(function), numbers[0].tolist())
        found = offered(element, "map", task, len(numbers[0]))
        if found is None:
            if not hasattr(element.kind, function):
                raise ElementError(f"{element.name} has no map {function}: give the class a method {function}(self)")
            found = np.frompyfunc(operator.methodcaller(function), 1, 1)(numbers[0])
        return Tensor.of_buffer(element, found, layout)

    def reduce(self, loop: str, operand: Tensor, axis: int) -> Tensor:
        """Reduce one axis with ``sum`` or ``max``."""
        numbers, n = flat(np.moveaxis(operand.numpy(), axis, -1)), operand.shape[axis]
        lanes = np.empty(reference.LANES * reference.LEVELS, object)
        found = (LOOPS[loop](numbers, start, 1, n, lanes) for start in range(0, len(numbers), n))
        layout = Layout.dense(operand.shape.without_axis(axis))
        return Tensor.of_buffer(operand.element, np.fromiter(found, object), layout)

    def dense(self, operand: Tensor) -> Tensor:
        """Return the value in row-major memory."""
        return tensor(operand.element, operand.numpy())

    def widened(self, operand: Tensor) -> Tensor:
        """Return the value at compute precision: as it is."""
        return operand

    def narrowed(self, operand: Tensor, element: Element) -> Tensor:
        """Return a value at compute precision as `element`: as it is."""
        return operand
