"""Benchmarks: processors and threads are pinned before any library starts its own; peers are used where they import.

``BENCH_THREADS`` is how many threads every system may use. OpenBLAS and XLA read it once, when they start, so
`make bench` gives each count a process of its own.

The systems of a case take turns: each gives one round, then again, in the opposite order. So a neighbour on a shared
machine, or a core that slows down, meets all of them, and rounds in which other processes held the cores are dropped.
pytest-benchmark's own table shows the first round of each; `bench/report.py` reads all of them.
"""

from __future__ import annotations

import os

THREADS = int(os.environ.get("BENCH_THREADS", "1"))
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[name] = str(THREADS)
for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # where they are set, they slow a current NumPy
    os.environ.pop(name, None)
os.environ["OPENBLAS_THREAD_TIMEOUT"] = "22"  # 2^22 cycles, 2 ms; else its threads spin 110 ms after a product
os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if THREADS > 1 else 'false'}"
os.environ["JAX_PLATFORMS"] = "cpu"
if hasattr(os, "sched_setaffinity"):  # XLA's own threads heed nothing else
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-THREADS:])

import contextlib  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import pytest  # noqa: E402

import topos  # noqa: E402
from topos.kernels import beside  # noqa: E402

topos.set_num_threads(THREADS)

ROUND = 2e-3
"""Seconds that a round lasts at least: a body that is shorter is repeated within it."""

ENOUGH = 1.0
"""Seconds after which a case ends, when every system has given its rounds."""

MOST = 25
"""Rounds that a system gives at most."""

WAIT = 0.03
"""The share of a round that its threads may have waited for a core."""

REST = 3e-2
"""Seconds between the rounds of two systems that have threads, which spin on for some ms after their last work."""

AWAKE = 2e-2
"""Seconds for which a system that has threads works before a round: the kernel gives those that slept one core at first."""

Timed = Callable[..., None]


class Entrant(NamedTuple):
    """A system in a case: what it runs, how often in a round, how many rounds it gives, and where they go."""

    body: Callable[[], Any]
    iterations: int
    rounds: int
    seconds: list[float]


CASE: list[Entrant] = []
"""The systems of the case at hand."""


def case(item: pytest.Item) -> tuple[str, list[str]]:
    """Return the function and the parameters of a benchmark without its system: what it shares with the peers."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return item.name, []
    system = str(callspec.params.get("system"))
    return item.function.__name__, [part for part in callspec.id.split("-") if part != system]  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the systems of a case follow one another."""
    first: dict[str, int] = {}
    places = [first.setdefault(f"{item.path} {case(item)}", place) for place, item in enumerate(items)]
    items[:] = [items[i] for i in sorted(range(len(items)), key=places.__getitem__)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Time a case when all of its systems are ready."""
    try:
        if nextitem is None or case(nextitem) != case(item):
            entrants, CASE[:] = [*CASE], []
            take_turns(entrants)
    finally:
        yield


def waited() -> float:
    """Return the seconds for which this process's threads were ready to run, and had no core (Linux says so)."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread may end at any time
            total += int(path.read_text().split()[1])
    return total * 1e-9


def take_turns(entrants: list[Entrant]) -> None:
    """Time the systems of a case in turns; drop what other processes disturbed, if more than two rounds are left."""
    shares: list[list[float]] = [[] for _ in entrants]
    order = [*zip(entrants, shares, strict=True)]
    started, turn, least = time.perf_counter(), 0, max((each.rounds for each in entrants), default=0)
    while turn < least or (turn < MOST and time.perf_counter() - started < ENOUGH):
        for each, waits in order:
            if THREADS > 1:
                time.sleep(REST)
            ready = time.perf_counter() + AWAKE * (THREADS > 1)
            each.body()
            while time.perf_counter() < ready:
                each.body()
            before, start = waited(), time.perf_counter()
            for _ in range(each.iterations):
                each.body()
            seconds = time.perf_counter() - start
            waits.append((waited() - before) / seconds)
            each.seconds.append(seconds / each.iterations)
        order.reverse()
        turn += 1
    for each, waits in zip(entrants, shares, strict=True):
        clean = [seconds for seconds, share in zip(each.seconds, waits, strict=True) if share < WAIT]
        if len(clean) > 2:
            each.seconds[:] = clean


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
    """Return a function that enters a callable for `system` in the test's case, warm.

    ``per`` says how many units (nodes, steps) one call does: the report divides by it.
    """

    def run(system: str, body: Callable[[], Any], rounds: int = 9, per: int = 1) -> None:
        function, others = case(request.node)
        seconds: list[float] = []
        benchmark.group = " ".join([function.removeprefix("bench_"), *others])
        benchmark.extra_info.update(system=system, threads=THREADS, per=per, seconds=seconds)
        body()
        beside.settle()
        started = time.perf_counter()
        body()
        iterations = max(1, min(10_000, round(ROUND / (time.perf_counter() - started))))
        if not benchmark.disabled:
            CASE.append(Entrant(body, iterations, rounds, seconds))
        benchmark.pedantic(body, iterations=iterations if CASE else 1)

    return run
