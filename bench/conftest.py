"""Benchmarks: processors and threads are pinned before any library starts its own; peers are used where they import.

``BENCH_THREADS`` is how many threads every system may use. OpenBLAS and XLA read it once, when they start, so
`make bench` gives each count a process of its own.
"""

from __future__ import annotations

import os

THREADS = int(os.environ.get("BENCH_THREADS", "1"))
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[name] = str(THREADS)
for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # where they are set, they slow a current NumPy
    os.environ.pop(name, None)
os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if THREADS > 1 else 'false'}"
os.environ["JAX_PLATFORMS"] = "cpu"
if hasattr(os, "sched_setaffinity"):  # XLA's own threads heed nothing else
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-THREADS:])

import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

import topos  # noqa: E402
from topos.kernels import beside  # noqa: E402

topos.set_num_threads(THREADS)

ROUND = 2e-3
"""Seconds that a round lasts at least: a body that is shorter is repeated within it."""

Timed = Callable[..., None]


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
def timed(benchmark: Any, request: pytest.FixtureRequest) -> Timed:
    """Return a function that times a callable for `system` in the test's group, after a warm-up.

    ``per`` says how many units (nodes, steps) one call does: the report divides by it.
    """

    def run(system: str, body: Callable[[], Any], rounds: int = 9, per: int = 1) -> None:
        others = [part for part in request.node.callspec.id.split("-") if part != system]
        benchmark.group = " ".join([request.function.__name__.removeprefix("bench_"), *others])
        benchmark.extra_info.update(system=system, threads=THREADS, per=per)
        body()
        beside.settle()
        started = time.perf_counter()
        body()
        seconds = time.perf_counter() - started
        iterations = 1 if benchmark.disabled else max(1, min(10_000, round(ROUND / seconds)))
        benchmark.pedantic(body, rounds=rounds, iterations=iterations, warmup_rounds=1)

    return run
