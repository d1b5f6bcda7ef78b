"""A user's number type on the reference path: element functions and loops over object arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from topos.backend.tasks import GemmTask, MapOperation, MapTask
from topos.errors import ElementError
from topos.kernels import reference
from topos.payload.element import Element


def is_zero(x: Any) -> bool:
    """Return whether `x` is the additive identity in every component."""
    hook = getattr(x, "is_zero", None)
    return bool(hook()) if hook is not None else bool(x == type(x)(0))


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
}
"""The element functions that are no maps, over numbers and their element."""


def elementwise(function: str, element: Element, *arrays: Any) -> Any:
    """Apply an element function to object arrays of one shape."""
    if function in FUNCTIONS:
        compute = FUNCTIONS[function]
        return _objects(np.frompyfunc(lambda *x: compute(*x, element), len(arrays), 1)(*arrays))
    task = MapTask(MapOperation(function), arrays[0].reshape(-1).tolist())
    answered = offered(element, "map", task, len(task.elements))
    if answered is not None:
        return answered.reshape(arrays[0].shape)
    if not hasattr(element.kind, function):
        raise ElementError(f"{element.name} has no map {function}: give the class a method {function}(self)")
    return _objects(np.frompyfunc(lambda a: getattr(a, function)(), 1, 1)(arrays[0]))


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
        raise ElementError(
            f"{element.name}.{hook} answered {len(answer)} values to a {type(task).__name__}, {count} are needed"
        )
    values = np.empty(count, object)
    values[:] = list(answer)
    return values


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


def _objects(result: Any) -> Any:
    """Return an object array, also of rank 0 (where NumPy answers the bare number)."""
    if isinstance(result, np.ndarray):
        return result
    array = np.empty((), object)
    array[()] = result
    return array


def _read(base: Any, index: int) -> Any:
    return base[index]


def _write(base: Any, index: int, value: Any) -> None:
    base[index] = value


ARITHMETIC = reference.Arithmetic(_read, _write, _read, _write, fma, maximum)
"""The reference loops over object arrays: bases are flat arrays, indices plain positions."""

LOOPS = {
    "multiply": reference.multiply(ARITHMETIC),
    "total": reference.total(ARITHMETIC),
    "greatest": reference.greatest(ARITHMETIC),
}


def zeros(shape: Sequence[int], element: Element) -> Any:
    """Return an object array of zeros."""
    array = np.empty(tuple(shape), object)
    array.fill(element.zero)
    return array


def flat(array: Any) -> Any:
    """Return the elements row-major."""
    return np.ascontiguousarray(array).reshape(-1)


def reduce(loop: str, array: Any, axis: int) -> Any:
    """Reduce one axis with ``total`` or ``greatest``."""
    moved = np.moveaxis(array, axis, -1)
    out = np.empty(moved.shape[:-1], object)
    lanes = np.empty(reference.LANES * reference.LEVELS, object)
    for index in np.ndindex(out.shape):
        row = flat(moved[index])
        out[index] = LOOPS[loop](row, 0, 1, row.size, lanes)
    return out
