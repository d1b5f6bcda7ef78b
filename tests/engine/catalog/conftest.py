"""Groups and chains are tested with small work shared among threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topos.kernels import runtime


@pytest.fixture(autouse=True)
def small_work_is_shared() -> Iterator[None]:
    """Let the thread team take part in everything."""
    before = runtime.num_threads(), runtime.grain()
    runtime.set_grain(0)
    yield
    runtime.set_num_threads(before[0])
    runtime.set_grain(before[1])
