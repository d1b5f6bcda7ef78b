"""Offered work: a product under FAST is offered along its formula's chain before our own kernel takes it."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from topos.backend import backend, tally
from topos.backend.backend import Backend
from topos.backend.formula import Formula, Precision
from topos.backend.tasks import MapOperation
from topos.kernels.rows import Row
from topos.payload import Layout, Shape, Tensor

_MAPS = {operation.value for operation in MapOperation}

# What a kernel serves, by the first part of its name; a row may hold others.
_FAMILIES: dict[str, tuple[Formula, Backend | None]] = {
    "matmul": (Formula.GEMM, Backend.SIMD),
    "reference_matmul": (Formula.GEMM, None),
    **dict.fromkeys(("pool", "pool_slope", "pool_scatter"), (Formula.REDUCE_WINDOW, Backend.FUSED)),
}


def services(rows: Iterable[Row]) -> list[tally.Key]:
    """Return what each row serves, as a tally counts it: products, maps and groups of the catalog."""
    served: list[tally.Key] = []
    for row in rows:
        for name in (row.kernel, *row.routines.values()):
            family, _, element = name.removeprefix("small_").removeprefix("tensor_").partition(".")
            if family in _FAMILIES:
                formula, by = _FAMILIES[family]
                served.append((formula, Precision(element), by))
            elif family in _MAPS:
                served.append((Formula.MAP, Precision(element), Backend.SIMD))
    return served


def product(a: Tensor, b: Tensor) -> Tensor | None:
    """Return the product under FAST by the BLAS inside NumPy, where the chain and the size admit it."""
    precision, flops = Precision(a.element.name), 2 * a.shape[-2] * a.shape[-1] * b.shape[-1]
    is_enough = backend.BLAS_FLOPS is not None and flops >= backend.BLAS_FLOPS
    if not is_enough or not Backend.BLAS.serves(Formula.GEMM, precision):
        return None
    result: Any = np.matmul(a.numpy(), b.numpy())
    tally.serve_all([(Formula.GEMM, precision, Backend.BLAS)])
    return Tensor.of_buffer(a.element, result.reshape(-1), Layout.dense(Shape(result.shape)))
