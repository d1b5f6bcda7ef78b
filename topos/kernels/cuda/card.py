"""The card: memory, copies and launches, in order on one stream. The one module that knows the driver."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from topos.errors import BackendUnavailable, DeviceError, DeviceMemoryError
from topos.kernels import runtime, store
from topos.kernels.cuda import kernels
from topos.kernels.rows import Row

# The least capability, and that which later devices are served with: their drivers compile its assembly on.
OLDEST, NEWEST = [8, 0], [9, 0]

# The first driver that takes the assembly, as it numbers itself.
DRIVER = 13_000

# Whether the launches of a program are captured and replayed as one graph.
GRAPHS = os.environ.get("TOPOS_CUDA_GRAPHS", "") != "off"


# A loaded kernel, its blocks, the threads of each, and the address of its row.
Launch: TypeAlias = tuple[Any, int, int, int]


class Memory:
    """Numbers on a card: what an array is here, until `view` copies it back; given back when nobody refers to it.

    With `whole` they are part of other memory.
    """

    __slots__ = ("__weakref__", "_whole", "address", "card", "dtype", "itemsize", "size")

    def __init__(self, card: Card, size: int, dtype: Any, whole: Any = None, address: int = 0) -> None:
        self.card, self.size, self.dtype, self._whole = card, size, np.dtype(dtype), whole
        self.itemsize = self.dtype.itemsize
        self.address = 0  # where there is no room: nothing to give back
        self.address = address or card.allocate(max(1, size * self.itemsize))

    def __del__(self) -> None:
        if self._whole is None and self.address:
            self.card.release(self.address)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Memory:
        first, end, _ = part.indices(self.size)
        address = self.address + first * self.itemsize
        return Memory(self.card, end - first, self.dtype, self._whole or self, address)

    def view(self, dtype: Any) -> Any:
        """Return the numbers, copied back after everything that was launched."""
        return self.card.download(self.address, self.size * self.itemsize).view(dtype)


class Card:
    """The first device of the driver.

    Raises:
        BackendUnavailable: there is no driver or no device.
    """

    shape = kernels.Shape()

    def __init__(self) -> None:
        self._context: Any = None
        self._functions: dict[str, Any] = {}
        self._recording = threading.Lock()
        try:
            os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # nothing is loaded while launches are captured
            from cuda.bindings import driver

            self._driver = driver
            self.call("cuInit", 0)
            if self.call("cuDriverGetVersion") < DRIVER:
                raise RuntimeError("the driver is older than CUDA 13.0")
            device = self.call("cuDeviceGet", 0)
            capability = driver.CUdevice_attribute(75), driver.CUdevice_attribute(76)  # major and minor
            found = [self.call("cuDeviceGetAttribute", attribute, device) for attribute in capability]
            if found < OLDEST:
                needed = f"{OLDEST[0]}.{OLDEST[1]} is needed"
                raise RuntimeError(f"the device's capability is {found[0]}.{found[1]}, {needed}")
            self.capability = min(found, NEWEST)
            self._context = self.call("cuDevicePrimaryCtxRetain", device)
            apart = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            self._stream, self._recorder = (self.call("cuStreamCreate", apart) for _ in range(2))
            keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            pool = self.call("cuDeviceGetDefaultMemPool", device)
            self.call("cuMemPoolSetAttribute", pool, keep, driver.cuuint64_t(2**64 - 1))  # what is freed is used again
        except (ImportError, RuntimeError) as error:  # also what the bindings raise where there is no driver
            raise BackendUnavailable(f"CUDA needs topos[cuda], an NVIDIA driver and a device: {error}") from error

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the driver.

        Raises:
            DeviceMemoryError: the card's memory is used up.
            DeviceError: the driver reports anything else, now or of an earlier launch.
        """
        if self._context is not None:
            self._driver.cuCtxSetCurrent(self._context)  # this thread may be one that the driver has not seen
        status, *results = getattr(self._driver, name)(*arguments)
        if int(status) != 0:
            kind = DeviceMemoryError if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY else DeviceError
            raise kind(f"{name}: {status.name}; what lies in the memory of this process is intact")
        return results[0] if results else None

    def allocate(self, size: int) -> int:
        """Return the address of bytes."""
        return int(self.call("cuMemAllocAsync", size, self._stream))

    def release(self, address: int) -> None:
        """Give bytes back, after all that was launched; of a lost device there is nothing to give back."""
        with suppress(DeviceError):
            self.call("cuMemFreeAsync", address, self._stream)

    def place(self, array: Any) -> Memory:
        """Return a copy of a contiguous array on the card."""
        memory = Memory(self, array.size, array.dtype)
        self.upload(memory.address, array)
        return memory

    def upload(self, address: int, array: Any) -> None:
        """Copy a contiguous array to the card; it may change afterwards."""
        self.call("cuMemcpyHtoDAsync", address, runtime.address(array), array.nbytes, self._stream)

    def download(self, address: int, count: int) -> Any:
        """Return bytes, after all that was launched."""
        array = np.empty(count, np.uint8)
        self.call("cuMemcpyDtoHAsync", runtime.address(array), address, count, self._stream)
        self.synchronize()
        return array

    def synchronize(self) -> None:
        """Wait for all that was launched; raise what went wrong with it."""
        self.call("cuStreamSynchronize", self._stream)

    def prepared(self, row: Row, address: int) -> Launch:
        """Return how a row, whose words lie at an address, is launched: loaded kernel, blocks, threads, address."""
        name, blocks, threads = kernels.launch(row, self.shape)
        if name not in self._functions:
            from topos.kernels.cuda import lowering

            key = ".".join([name, importlib.metadata.version("numba-cuda"), *map(str, self.capability)])
            symbol, text = store.kept(key, lambda _: lowering.ptx(name, *self.capability))
            module = self.call("cuModuleLoadData", text)
            self._functions[name] = self.call("cuModuleGetFunction", module, symbol.encode())
        return self._functions[name], blocks, threads, address

    def launch(self, launches: Sequence[Launch], banks: int, stream: Any = None) -> None:
        """Carry out rows over a table of banks."""
        for function, blocks, threads, row in launches:
            words = (row, banks), (ctypes.c_int64, ctypes.c_int64)
            self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream or self._stream, words, 0)

    def record(self, launches: Sequence[Launch], banks: int) -> Callable[[], Any]:
        """Return what carries out rows over a table of banks: a captured graph, where graphs are on.

        They are captured on a stream of their own, where nothing else is allocated, copied or freed.
        """
        if not GRAPHS:
            return functools.partial(self.launch, launches, banks)
        relaxed = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self._recording:
            self.call("cuStreamBeginCapture", self._recorder, relaxed)
            try:
                self.launch(launches, banks, self._recorder)
            finally:
                captured = self.call("cuStreamEndCapture", self._recorder)
        graph = self.call("cuGraphInstantiate", captured, 0)
        self.call("cuGraphDestroy", captured)
        replay = functools.partial(self.call, "cuGraphLaunch", graph, self._stream)
        weakref.finalize(replay, self._driver.cuGraphExecDestroy, graph).atexit = False
        return replay


@functools.cache
def card() -> Card:
    """Return the card of this process.

    Raises:
        BackendUnavailable: there is none.
    """
    return Card()


def status() -> BackendUnavailable | None:
    """Return None where programs can run on the card, else what is missing."""
    try:
        card().synchronize()
    except (BackendUnavailable, DeviceError) as error:
        return BackendUnavailable(f"{error} (a device that was lost comes back with a new process)")
    return None
