"""Who served what: counted while a scope is open, free while none is."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topos.backend.formula import Formula, Precision

if TYPE_CHECKING:
    from topos.backend.backend import Backend


@dataclass(frozen=True)
class Service:
    """How often a formula was served at a precision, and by whom (None: the reference path)."""

    formula: Formula
    precision: Precision
    backend: Backend | None
    count: int


Key = tuple[Formula, Precision, "Backend | None"]

OPEN: contextvars.ContextVar[dict[Key, int] | None] = contextvars.ContextVar("topos_tally", default=None)


def serve_all(services: Iterable[Key], times: int = 1) -> None:
    """Count services, each `times` times, where a scope is open."""
    counted = OPEN.get()
    if counted is not None:
        for key in services:
            counted[key] = counted.get(key, 0) + times


@contextmanager
def scope() -> Iterator[list[Service]]:
    """Open a scope; its list is filled when it ends."""
    counted: dict[Key, int] = {}
    services: list[Service] = []
    token = OPEN.set(counted)
    try:
        yield services
    finally:
        OPEN.reset(token)
        services += [Service(*key, count) for key, count in counted.items()]
