"""The card over a driver that keeps its memory in this process: what is called, in which order, and every failure."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels.cuda.test_simulation import needs_package
from topos import (
    Activation,
    Adam,
    Backend,
    BackendUnavailable,
    Conv2d,
    DeviceError,
    DeviceMemoryError,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool,
    Sequential,
    Sgd,
    Tape,
    Tensor,
    cross_entropy,
    parameters,
)
from topos.engine.catalog.pattern import PatternKind
from topos.kernels import rows, store
from topos.kernels.reference import R_BLOCK

pytestmark = needs_package

COPY = rows.EACH, (), ((0, 1),), ()
"""A phase that loads and stores."""


class Driver(ModuleType):
    """Answers like the driver's bindings: a status, then results. `failing` says which call fails, and how."""

    def __init__(self, real: Any) -> None:
        super().__init__("driver")
        self.CUresult, self.CUdevice_attribute = real.CUresult, real.CUdevice_attribute
        self.CUstream_flags, self.CUstreamCaptureMode = real.CUstream_flags, real.CUstreamCaptureMode
        self.CUmemPool_attribute, self.cuuint64_t, self.version = real.CUmemPool_attribute, real.cuuint64_t, 13_000
        self.calls: list[str] = []
        self.launches: list[tuple[Any, ...]] = []
        self.blocks: dict[int, Any] = {}
        self.failing: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name in self.failing:
                return (self.failing[name],)
            return self.CUresult.CUDA_SUCCESS, *self.answer(name, *arguments)

        return call

    def answer(self, name: str, *given: Any) -> tuple[Any, ...]:
        """Return the results of a call."""
        if name == "cuDeviceGetAttribute":
            return (9 if given[0] == self.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR else 0,)
        if name == "cuDriverGetVersion":
            return (self.version,)
        if name == "cuMemAllocAsync":
            block = np.zeros(given[0] + 64, np.uint8)
            self.blocks[block.ctypes.data] = block
            return (block.ctypes.data,)
        if name == "cuMemFreeAsync":
            del self.blocks[given[0]]
        elif name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            ctypes.memmove(*given[:3])
        elif name == "cuLaunchKernel":
            self.launches.append(given)
        return () if name.startswith(("cuInit", "cuMem", "cuLaunch", "cuCtx", "cuGraphLaunch")) else (name,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Put a driver in place of the real one, and a compiler that makes no assembly."""
    from cuda import bindings
    from cuda.bindings import driver as real

    from topos.kernels.cuda import card

    made = Driver(real)
    monkeypatch.setattr(bindings, "driver", made)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    monkeypatch.setattr(store, "kept", lambda name, make: (name.replace(".", "_"), name.encode()))
    card.card.cache_clear()
    yield made
    made.failing.clear()
    card.card.cache_clear()


def plan_of(backend: Backend) -> tuple[Any, Any, Any]:
    """Return a network, its result, and a plan of it."""
    network, total = Tape.record(lambda tape: (tape.parameter([1.0, 2.0]) * 3.0).sum())
    return network, total, network.entry(total).lower(backend=backend)


def test_a_run_is_one_copy_and_one_graph(driver: Driver) -> None:
    """Rows are captured by the first run and replayed by all; a result is copied back when it is read."""
    network, _, plan = plan_of(Backend.CUDA)
    table = plan.to_device(network.parameters())
    assert Backend.CUDA.status() is None
    rounds = []
    for _ in range(2):
        driver.calls.clear()
        run = plan.forward(table)
        rounds.append([call for call in driver.calls if call != "cuCtxSetCurrent"])
        del run
    launches = ["cuLaunchKernel"] * len(plan.lowered.program.launches)
    capture = ["cuStreamBeginCapture", *launches, "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy"]
    assert rounds == [["cuMemAllocAsync", "cuMemcpyHtoDAsync", *capture, "cuGraphLaunch"],
                      ["cuMemcpyHtoDAsync", "cuGraphLaunch"]]  # fmt: skip
    driver.calls.clear()
    assert table.of(network.parameters().symbols()[0]).numpy().tolist() == [1.0, 2.0]
    assert driver.calls.count("cuMemcpyDtoHAsync") == 1
    assert all(launch[4] in (256, 32 * 8) for launch in driver.launches)


def test_out_of_memory(driver: Driver) -> None:
    """A card whose memory is used up raises a `MemoryError`; the CPU goes on, and the card when there is room again."""
    network, total, plan = plan_of(Backend.CUDA)
    driver.failing["cuMemAllocAsync"] = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        plan.forward(network.parameters())
    assert isinstance(caught.value, MemoryError)
    assert network.forward(network.parameters()).of(total).scalar() == 9.0
    driver.failing.clear()
    plan.forward(network.parameters())


def test_a_lost_device(driver: Driver) -> None:
    """What the driver reports is raised, and the status says so; the CPU goes on."""
    network, total, plan = plan_of(Backend.CUDA)
    run = plan.forward(network.parameters())
    driver.failing["cuStreamSynchronize"] = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        run.of(total)
    found = Backend.CUDA.status()
    assert isinstance(found, BackendUnavailable)
    assert "new process" in str(found)
    assert network.forward(network.parameters()).of(total).scalar() == 9.0


def test_no_device(driver: Driver) -> None:
    """A driver without a device, and none at all, are said plainly."""
    driver.failing["cuInit"] = driver.CUresult.CUDA_ERROR_NO_DEVICE
    found = Backend.CUDA.status()
    assert isinstance(found, BackendUnavailable)
    assert "CUDA_ERROR_NO_DEVICE" in str(found)
    with pytest.raises(BackendUnavailable, match="NVIDIA driver"):
        plan_of(Backend.CUDA)


def test_memory_goes_back(driver: Driver) -> None:
    """Nothing of a plan stays on the card once nobody refers to it."""
    network, _, plan = plan_of(Backend.CUDA)
    run = plan.forward(network.parameters())
    assert driver.blocks
    del run, plan
    assert not driver.blocks
    assert driver.calls.count("cuGraphExecDestroy") == driver.calls.count("cuGraphInstantiate") == 1
    assert network


def test_a_failed_capture_ends(driver: Driver) -> None:
    """A launch that fails leaves no stream capturing: the next run captures again."""
    network, _, plan = plan_of(Backend.CUDA)
    driver.failing["cuLaunchKernel"] = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match="INVALID_VALUE"):
        plan.forward(network.parameters())
    assert driver.calls[-2:] == ["cuCtxSetCurrent", "cuStreamEndCapture"]
    driver.failing.clear()
    driver.calls.clear()
    plan.forward(network.parameters())
    assert driver.calls.count("cuStreamBeginCapture") == driver.calls.count("cuGraphLaunch") == 1


def test_an_old_driver(driver: Driver) -> None:
    """A driver that cannot take the assembly is said to be too old, before a plan is lowered."""
    driver.version = 12_080
    assert "older than CUDA 13.0" in str(Backend.CUDA.status())


def test_a_thread_per_result() -> None:
    """Every row is launched with a thread for each of its results, a long scatter with fewer."""
    from topos.kernels.cuda.kernels import Shape, launch

    place, shape = (1, 0), Shape()
    fold = rows.fold("reference_fold.f32", (6, 50, 70), (24, 3, 2, 1), place, place)
    scatter = rows.scatter("reference_scatter.f32", (10, 300, 50), place, place, place)
    spread = rows.positions([50, 100], 1, [("f32", place, [0, 0, 0]), ("f32", place, [100, 1, 0])], [COPY])
    geometry = rows.Geometry(24, 2, 2, 8, 9, 2, 2, 1, 1, 0, 0, 17, 18)
    pools = [(rows.windows("pool.f32", geometry, place, place), 24 * 8 * 9)]
    pools.append((rows.windows("pool_slope.f32", geometry, place, place, place), 24 * 17 * 18))
    for row, results in ((fold, 6 * 50 * 70), (scatter, 50 * 300), (spread, 5000), *pools):
        _, blocks, threads = launch(row, shape)
        assert results <= blocks * threads < results + threads
    vocabulary = rows.scatter("reference_scatter.f32", (10, 300, 50_000), place, place, place)
    assert launch(vocabulary, shape)[1] == shape.lookers  # a thread more would be another look through the indices


def test_threads_of_lines() -> None:
    """A line has 32 threads, of every block of values that a sum is made of."""
    from topos.kernels.cuda.kernels import Shape, launch

    total = rows.TOTAL, (), (), (0, 1)
    for n, blocks in ((7, 1), (R_BLOCK, 1), (R_BLOCK + 1, 2)):
        row = rows.positions([100], n, [("f32", (1, 0), [n, 1]), ("f32", (1, 0), [blocks, 1])], [total])
        name, count, threads = launch(row, Shape())
        assert name.startswith("lines.f32.")
        assert 100 * blocks * 32 <= count * threads < 100 * blocks * 32 + threads


def test_launches_of_a_training_step(driver: Driver) -> None:
    """What a plan elects on a CPU is single launches on a card; the two differ by the sums of blocks of k alone."""

    def build(tape: Tape) -> Any:
        generator = np.random.default_rng(0)
        image, target = tape.input(np.zeros((2, 3, 16, 16))), tape.input(Tensor.selection([1, 0], 10))
        model = Sequential(
            Conv2d(tape, generator.normal(size=(4, 3, 3, 3)), np.zeros(4), padding=1), Activation.GELU, MaxPool(2),
            Conv2d(tape, generator.normal(size=(8, 4, 3, 3)), np.zeros(8), padding=1), Activation.RELU,
            MaxPool(3, stride=2), Flatten(), LayerNorm(tape, np.ones(72), np.zeros(72)),
            Linear(tape, generator.normal(size=(72, 10)), np.zeros(10)),
        )  # fmt: skip
        loss = cross_entropy(model.express(image), target)
        return loss, tape.differentiate(loss, parameters(model))

    network, (loss, adjoints) = Tape.record(build)
    entry = network.entry([loss, *adjoints.roots])
    host, card = entry.lower(), entry.lower(backend=Backend.CUDA)
    assert host.patterns() == card.patterns()
    assert {match.kind for match in card.patterns()} == {
        PatternKind.WINDOW_PRODUCT, PatternKind.REDUCE_WINDOW, PatternKind.CHAIN, PatternKind.ROWS,
    }  # fmt: skip
    made = card.lowered.program
    by_node = Counter(made.nodes)
    for match in card.patterns():
        kernels = [name for name, node in zip(made.row_kernels, made.nodes, strict=True) if node == match.root.index]
        if match.kind in (PatternKind.CHAIN, PatternKind.ROWS):
            assert [name.partition(".")[0] in ("elementwise", "lines") for name in kernels] == [True]
    assert len(made.launches) == sum(by_node.values()) <= len(host.lowered.program.starts) + 6
    for optimizer in (Sgd(), Adam()):
        card.step(network.parameters(), {}, optimizer, 0.1)
        launches, rows_of = len(card.latest.lowered.program.launches), len(made.launches)
        assert launches <= rows_of + len(network.parameters().symbols()) + 8  # gradients are gathered, one by one
