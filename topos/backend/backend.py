"""`Backend`: who computes what, with which bits, in which order asked, and whether it can run here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from topos.backend import tally
from topos.backend.formula import Coverage, Dispatch, Formula, Precision
from topos.backend.numerics import Fidelity
from topos.errors import BackendUnavailable

BLAS_FLOPS: int | None = 1 << 13 if sys.platform == "darwin" else None
"""2·m·n·k from which on the BLAS inside NumPy is offered a product under FAST; None: never.

Apple's BLAS runs on matrix units that no vector kernel reaches. OpenBLAS was measured level with ours on x86
(`make bench`, docs/performance.md), so there it would cost bits and win nothing.
"""


class Backend(Enum):
    """The implementers. The set is closed: the open seams are the element, `Recordable` and emission."""

    ALL: ClassVar[tuple[Backend, ...]]

    SIMD = "simd"
    BLAS = "blas"
    CUDA = "cuda"
    FUSED = "fused"
    STABLEHLO = "stablehlo"

    def coverage(self, formula: Formula) -> Coverage:
        """Return how this backend serves a formula."""
        return _COVERAGE[self].get(formula, Coverage())

    def serves(self, formula: Formula, precision: Precision) -> bool:
        """Return whether this backend serves a formula for a precision."""
        return self.coverage(formula).admits(precision)

    def dispatch(self) -> Dispatch:
        """Return when this backend gets its work."""
        return _DISPATCH[self]

    def compiled(self) -> bool:
        """Return whether the packages that this backend needs are installed; nothing is probed."""
        return all(importlib.util.find_spec(name) is not None for name, _ in _PACKAGES.get(self, ()))

    def status(self) -> BackendUnavailable | None:
        """Return None where this backend can run here, else what is missing and how to get it."""
        for name, remedy in _PACKAGES.get(self, ()):
            if importlib.util.find_spec(name) is None:
                return BackendUnavailable(f"{self.name} needs the package {name}: {remedy}")
        return importlib.import_module(_PROBES[self]).status() if self in _PROBES else None

    @staticmethod
    def tallied(body: Callable[[], Any] | None = None) -> Any:
        """Count who serves what: ``result, services = Backend.tallied(body)``, or a ``with`` block.

        The block's target is a list that holds one `Service` per distinct (formula, precision, backend) when
        the block ends, in first-served order. Scopes nest, the innermost counts; each context has its own.
        """
        if body is None:
            return tally.scope()
        with tally.scope() as services:
            result = body()
        return result, services


Backend.ALL = tuple(Backend)

_EVERY = frozenset(Precision)
_EXACT = Coverage(Fidelity.BIT_IDENTICAL, _EVERY)
_COMPOSED = Coverage(Fidelity.COMPOSED, _EVERY)

_COVERAGE: dict[Backend, dict[Formula, Coverage]] = {
    Backend.SIMD: {Formula.GEMM: _EXACT, Formula.MAP: _EXACT},
    Backend.BLAS: {Formula.GEMM: Coverage(Fidelity.ENVELOPE, frozenset({Precision.F32, Precision.F64}))},
    Backend.CUDA: {Formula.GEMM: _EXACT, Formula.MAP: _EXACT},
    Backend.FUSED: {
        Formula.WINDOW_PRODUCT: _COMPOSED,
        **dict.fromkeys((Formula.REDUCE_WINDOW, Formula.CONCATENATION, Formula.CHAIN), _EXACT),
    },
    Backend.STABLEHLO: {formula: Coverage(Fidelity.ENVELOPE, _EVERY) for formula in Formula},
}

_DISPATCH = {
    Backend.SIMD: Dispatch.OFFERED,
    Backend.BLAS: Dispatch.OFFERED,
    Backend.CUDA: Dispatch.ELECTED,
    Backend.FUSED: Dispatch.ELECTED,
    Backend.STABLEHLO: Dispatch.TRANSLATED,
}

_PACKAGES: dict[Backend, tuple[tuple[str, str], ...]] = {
    Backend.CUDA: (("numba_cuda", "pip install 'topos[cuda]'"),),
    Backend.STABLEHLO: (("jax", "pip install 'topos[stablehlo]'"),),
}

_PROBES: dict[Backend, str] = {Backend.CUDA: "topos.kernels.cuda.card"}
"""The module whose status is asked once the packages are there: a device, a driver."""


def _chain(formula: Formula, precision: Precision) -> tuple[Backend, ...]:
    order = (Backend.BLAS, Backend.SIMD) if BLAS_FLOPS is not None else (Backend.SIMD, Backend.BLAS)
    return tuple(backend for backend in order if backend.serves(formula, precision))


Formula.chain = _chain  # type: ignore[assignment]
