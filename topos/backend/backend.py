"""`Backend`: who computes what, with which bits, in which order asked, and whether it can run here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from topos.backend import tally
from topos.backend.formula import Coverage, Dispatch, Formula, Precision
from topos.backend.numerics import Fidelity
from topos.errors import BackendUnavailable

# 2·m·n·k from which on the BLAS inside NumPy is offered a product under FAST; None: never.
#
# Apple's BLAS runs on matrix units that no vector kernel reaches. OpenBLAS was measured level with ours on x86
# (`make bench`, docs/performance.md), so there it would cost bits and win nothing.
BLAS_FLOPS: int | None = 1 << 13 if sys.platform == "darwin" else None


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
        return _FACTS[self].coverage.get(formula, Coverage())

    def serves(self, formula: Formula, precision: Precision) -> bool:
        """Return whether this backend serves a formula for a precision."""
        return self.coverage(formula).admits(precision)

    def dispatch(self) -> Dispatch:
        """Return when this backend gets its work."""
        return _FACTS[self].dispatch

    def compiled(self) -> bool:
        """Return whether the packages that this backend needs are installed; nothing is probed."""
        package = _FACTS[self].package
        return package is None or importlib.util.find_spec(package) is not None

    def status(self) -> BackendUnavailable | None:
        """Return None where this backend can run here, else what is missing and how to get it."""
        facts = _FACTS[self]
        if not self.compiled():
            extra = f"pip install '.[{self.value}]' in a checkout of topos"
            return BackendUnavailable(f"{self.name} needs the package {facts.package}: {extra}")
        return None if facts.probe is None else importlib.import_module(facts.probe).status()

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


@dataclass(frozen=True)
class _Facts:
    """What is declared of a backend.

    Attributes:
        dispatch: when it gets its work.
        coverage: how it serves a formula; one that is absent not at all.
        package: what has to be installed, by the extra of the backend's name.
        probe: the module whose status is asked once the package is there: a device, a driver.
    """

    dispatch: Dispatch
    coverage: dict[Formula, Coverage]
    package: str | None = None
    probe: str | None = None


_NATIVE = {Formula.GEMM: _EXACT, Formula.MAP: _EXACT}
_GROUPS = dict.fromkeys((Formula.REDUCE_WINDOW, Formula.CONCATENATION, Formula.CHAIN), _EXACT)
_GROUPS[Formula.WINDOW_PRODUCT] = Coverage(Fidelity.COMPOSED, _EVERY)
_BLAS = Coverage(Fidelity.ENVELOPE, frozenset({Precision.F32, Precision.F64}))
_TEXT = Coverage(Fidelity.ENVELOPE, _EVERY)

_FACTS = {
    Backend.SIMD: _Facts(Dispatch.OFFERED, _NATIVE),
    Backend.BLAS: _Facts(Dispatch.OFFERED, {Formula.GEMM: _BLAS}),
    Backend.CUDA: _Facts(Dispatch.ELECTED, {**_NATIVE, **_GROUPS}, "numba_cuda", "topos.kernels.cuda.card"),
    Backend.FUSED: _Facts(Dispatch.ELECTED, {Formula.ATTENTION: _EXACT, **_GROUPS}),
    Backend.STABLEHLO: _Facts(Dispatch.TRANSLATED, dict.fromkeys(Formula, _TEXT), "jax"),
}


def _chain(formula: Formula, precision: Precision) -> tuple[Backend, ...]:
    order = (Backend.BLAS, Backend.SIMD) if BLAS_FLOPS is not None else (Backend.SIMD, Backend.BLAS)
    return tuple(backend for backend in order if backend.serves(formula, precision))


Formula.chain = _chain  # type: ignore[assignment]
