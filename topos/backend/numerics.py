"""What a run may do with the bits: `Numerics` (asked for) and `Fidelity` (certified)."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any


class Fidelity(Enum):
    """How a kernel's bits relate to the reference."""

    BIT_IDENTICAL = "bit-identical"
    COMPOSED = "composed"
    ENVELOPE = "envelope"

    def meets(self, required: Fidelity) -> bool:
        """Return whether this certificate satisfies a requirement: an envelope satisfies only itself."""
        return self is not Fidelity.ENVELOPE or required is Fidelity.ENVELOPE


class Numerics(Enum):
    """The posture of a run: EXACT, the default, keeps the contract; FAST admits envelope kernels."""

    EXACT = "exact"
    FAST = "fast"

    @property
    def fidelity(self) -> Fidelity:
        """What every kernel has to meet."""
        return Fidelity.BIT_IDENTICAL if self is Numerics.EXACT else Fidelity.ENVELOPE

    @staticmethod
    def current() -> Numerics:
        """Return the ambient posture of this context."""
        return AMBIENT.get()

    @staticmethod
    def exactly(body: Callable[[], Any] | None = None) -> Any:
        """Run a callable, or a ``with`` block, under EXACT, whatever surrounds it."""
        return _under(Numerics.EXACT, body)

    @staticmethod
    def fast(body: Callable[[], Any] | None = None) -> Any:
        """Run a callable, or a ``with`` block, under FAST."""
        return _under(Numerics.FAST, body)


AMBIENT: contextvars.ContextVar[Numerics] = contextvars.ContextVar("topos_numerics", default=Numerics.EXACT)


@contextmanager
def _posture(numerics: Numerics) -> Iterator[Numerics]:
    token = AMBIENT.set(numerics)
    try:
        yield numerics
    finally:
        AMBIENT.reset(token)


def _under(numerics: Numerics, body: Callable[[], Any] | None) -> Any:
    if body is None:
        return _posture(numerics)
    with _posture(numerics):
        return body()
