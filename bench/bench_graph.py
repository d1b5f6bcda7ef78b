"""Recording, running and differentiating chains of scalars, where a framework's time is not arithmetic."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from typing import Any

import pytest

from topos import Network, Symbol, Tape

NODES = 10_000
THREADS = int(os.environ.get("BENCH_THREADS", "1"))


def chain(nodes: int) -> tuple[Network, Symbol]:
    """Record ``v = tanh(v * w)`` over and over."""
    tape = Tape("f64")
    w, v = tape.parameter(0.999), tape.input(0.5)
    for _ in range(nodes // 2):
        v = (v * w).tanh()
    end = v.symbol
    return tape.into_network(), end


@pytest.mark.parametrize("system", ["topos"])
def bench_record(system: str, timed: Any) -> None:
    """Record 10,000 nodes; the time of one."""
    timed(system, lambda: chain(NODES), rounds=5, per=NODES)


@pytest.mark.parametrize("system", ["topos", "torch", "jax"])
def bench_chain_forward_and_backward(system: str, timed: Any, request: Any) -> None:
    """Forward and backward of a chain of 10,000 scalar nodes; the time of one.

    PyTorch records the chain each time: it is eager. JAX compiles 1,000 nodes and runs them ten times.
    """
    if system == "topos":
        network, end = chain(NODES)
        parameters = network.parameters()
        timed(system, lambda: network.forward(parameters).backward(end), per=NODES)
    elif system == "torch":
        torch = request.getfixturevalue("torch")
        w = torch.tensor(0.999, dtype=torch.float64, requires_grad=True)
        start = torch.tensor(0.5, dtype=torch.float64)

        def run() -> None:
            v = start
            for _ in range(NODES // 2):
                v = (v * w).tanh()
            v.backward()

        timed(system, run, rounds=5, per=NODES)
    else:
        jax = request.getfixturevalue("jax")

        def body(w: Any) -> Any:
            v = 0.5
            for _ in range(NODES // 20):
                v = jax.numpy.tanh(v * w)
            return v

        compiled = jax.jit(jax.grad(body))
        timed(system, lambda: [compiled(0.999).block_until_ready() for _ in range(10)], rounds=5, per=NODES)


@pytest.mark.parametrize("system", ["topos"])
def bench_record_run_free(system: str, benchmark: Any) -> None:
    """Record 100,000 nodes, run, scan backward, free: seconds in all, and the memory of shorter chains."""

    def run(nodes: int) -> None:
        network, end = chain(nodes)
        network.forward(network.parameters()).backward(end)
        del network
        gc.collect()

    benchmark.group = "record, run, scan back, free 100000 nodes"
    benchmark.extra_info.update(system=system, threads=THREADS, per=1)
    benchmark.pedantic(run, (10 * NODES,), rounds=1)
    kept, peaks = [], []
    for nodes in (NODES // 8, NODES // 4, NODES // 2):  # traced allocations cost a multiple of the time
        gc.collect()
        tracemalloc.start()
        try:
            run(nodes)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        kept.append(held / nodes)
        peaks.append(peak / nodes)
    benchmark.extra_info["note"] = (
        f"bytes per node at 1/80, 1/40 and 1/20 of it: {', '.join(f'{peak:.0f}' for peak in peaks)} at the peak, "
        f"{', '.join(f'{held:.0f}' for held in kept)} afterwards"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("nodes", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("system", ["topos", "torch_compile", "jax"])
def bench_lower(system: str, nodes: int, timed: Any, benchmark: Any, request: Any) -> None:
    """Lower a chain to a plan; the time of one node. What compilers take for the same is measured once.

    JAX stops at 10,000 nodes and torch.compile at 1,000: more takes them minutes.
    """
    if system == "topos":
        network, end = chain(nodes)
        timed(system, lambda: network.entry(end).lower(), rounds=3, per=nodes)
        return
    if nodes > (10_000 if system == "jax" else 1_000):
        pytest.skip(f"{system} takes minutes to compile {nodes} nodes")
    library = request.getfixturevalue("jax" if system == "jax" else "torch")
    tanh = library.numpy.tanh if system == "jax" else library.tanh

    def body(w: Any, v: Any) -> Any:
        for _ in range(nodes // 2):
            v = tanh(v * w)
        return v

    def compiled() -> None:
        if system == "jax":
            library.jit(body).lower(0.999, 0.5).compile()
        else:
            library.compiler.reset()
            number = library.tensor(0.5, dtype=library.float64)
            library.compile(body)(number, number)

    benchmark.group = f"lower {nodes}"
    benchmark.extra_info.update(system=system, threads=THREADS, per=nodes)
    benchmark.pedantic(compiled, rounds=1)


def main() -> None:
    """Print the cost per node of each phase."""
    for phase in ("record", "forward", "backward"):
        started = time.perf_counter()
        network, end = chain(NODES)
        if phase != "record":
            run = network.forward(network.parameters())
            started = time.perf_counter()
            run = network.forward(network.parameters())
            if phase == "backward":
                run.backward(end)
                started = time.perf_counter()
                run.backward(end)
        print(f"{phase}: {(time.perf_counter() - started) / NODES * 1e9:.0f} ns per node")


if __name__ == "__main__":
    main()
