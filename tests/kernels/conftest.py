"""What the tests of the kernels share: the settings of the runtime, put back after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topos.kernels import runtime


@pytest.fixture
def settings() -> Iterator[None]:
    """Put the thread count and the grain back."""
    threads, grain = runtime._threads, runtime.grain()
    yield
    runtime._threads, runtime._told[1] = threads, 0
    runtime.set_grain(grain)
