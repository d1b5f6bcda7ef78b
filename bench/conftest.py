"""Benchmarks: threads are pinned before any library starts its own, and peers are used where they import."""

from __future__ import annotations

import os

THREADS = int(os.environ.get("BENCH_THREADS", "1"))
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[name] = str(THREADS)
for name in (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
):  # some machines set them, and they slow a current NumPy
    os.environ.pop(name, None)
os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if THREADS > 1 else 'false'}"

from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

import topos  # noqa: E402

topos.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """Return PyTorch with its threads pinned; skip the case where it is not installed."""
    module = pytest.importorskip("torch", reason="PyTorch is not installed: make bench installs it")
    module.set_num_threads(THREADS)
    return module


@pytest.fixture(scope="session")
def jax() -> ModuleType:
    """Return JAX; skip the case where it is not installed."""
    module = pytest.importorskip("jax", reason="JAX is not installed: make bench installs it")
    module.config.update("jax_enable_x64", True)
    return module


@pytest.fixture
def timed(benchmark: Any, request: pytest.FixtureRequest) -> Any:
    """Return a function that times a callable for `system` in the test's group, after a warm-up."""

    def run(system: str, body: Any, rounds: int = 9, iterations: int = 1) -> None:
        benchmark.group = " ".join(
            [request.node.originalname.removeprefix("bench_"), *request.node.callspec.id.split("-")[1:]]
        )
        benchmark.extra_info.update(system=system, threads=THREADS)
        body()
        benchmark.pedantic(body, rounds=rounds, iterations=iterations, warmup_rounds=1)

    return run
