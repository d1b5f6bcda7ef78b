"""One digest of all values and gradients of graphs that cover every opcode and element.

As a script, it prints the digests as JSON, by way of running: ``python -m tests.kernels.digest_program``.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.drawn import drawn_graph
from tests.helpers import ELEMENTS, SPECIAL, bits, drawn, positions
from tests.kernels.calls import call_routine
from topos import Element, MapOperation, Tape
from topos.kernels import elements, runtime, store
from topos.kernels.maps import FUNCTIONS
from topos.kernels.target import target
from topos.payload.element import element_of

SEEDS = range(14)
"""Drawn graphs for each element; together they hold every kind of opcode."""


def _large(element: Element) -> Any:
    """Return (network, loss) with extents beyond every block size, so that each thread gets a share."""

    def build(tape: Tape) -> Any:
        a, b = tape.parameter(drawn((5, 800), element, 1)), tape.input(drawn((800, 70), element, 2))
        long = tape.parameter(drawn((9001,), element, 3))
        image = tape.leaf(drawn((3, 41, 6), element, 4))
        product = (a @ b) * 0.05
        hidden = product.tanh().maximum(product.powf(2.0)) + product.sin().erf()
        rows = hidden.gather(tape.leaf(positions(9, 5, element, 5)))
        spread = rows.scatter(tape.leaf(positions(9, 4, element, 6)))
        windows = image.unfold(1, 5, 2, 3)
        folded = (windows * windows).fold(1, 5, 2, 3, 41)
        terms = [
            spread.log_softmax(1).sum(),
            (long.exp() / (long.cos() + 2.0)).sum(),
            long.logsumexp(0),
            folded.permute((2, 0, 1)).sum_along(1).sqrt().sum(),
        ]
        few = tape.parameter(drawn((37,), element, 7))
        terms += [getattr(few, operation.value)().sum() for operation in MapOperation]
        loss = terms[0]
        for term in terms[1:]:
            loss = loss + term
        return loss.symbol

    return Tape.record(build, element=element)


def recorded(seeds: Sequence[int] = SEEDS) -> list[tuple[Any, Any, Any]]:
    """Return (network, loss, feeds) of every graph."""
    graphs = []
    for element in ELEMENTS:
        graphs.append((*_large(element), {}))
        for seed in seeds:
            graph = drawn_graph(seed, element)
            graphs.append((graph.network, graph.loss, graph.feeds))
    return graphs


def control() -> int:
    """Return the floating-point control word of this thread, without the flags of past exceptions."""
    store.address("native")
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(store.address("control_read"))()) & ~0x3F


def set_control(word: int) -> None:
    """Set the control word of this thread."""
    store.address("native")
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(store.address("control_write"))(word)


@contextmanager
def flush_to_zero() -> Iterator[None]:
    """Flush subnormals to zero on this thread, as some libraries do when they are loaded."""
    before = control()
    set_control(before | (0x8040 if target().family == "x86" else 1 << 24))
    flushed = control()
    assert flushed != before
    try:
        yield
        assert control() == flushed, "a run did not restore the control word"
    finally:
        set_control(before)


def digest(graphs: Sequence[tuple[Any, Any, Any]]) -> str:
    """Return the SHA-256 of every value and every gradient, NaN canonicalised."""
    state = hashlib.sha256()
    for network, loss, feeds in graphs:
        run = network.forward(network.parameters(), feeds)
        gradients = run.backward(loss)
        for node in network.nodes():
            state.update(np.ascontiguousarray(bits(run.of(node.symbol))).tobytes())
            state.update(np.ascontiguousarray(bits(gradients.of(node.symbol))).tobytes())
    return state.hexdigest()


def routines() -> str:
    """Return the SHA-256 of every element function of every element, over drawn bits and special numbers."""
    state = hashlib.sha256()
    for name, kind in elements.MEMORY.items():
        generator = np.random.default_rng(1)
        dtype = element_of(name).dtype
        operands = []
        for _ in range(3):
            wild = generator.integers(0, 1 << (8 * kind.size), 700, dtype=f"u{kind.size}").view(dtype)
            with np.errstate(all="ignore"):
                tame = np.concatenate([generator.normal(size=700) * 4, np.resize(SPECIAL, 105)]).astype(dtype)
            operands.append(generator.permutation(np.concatenate([wild, tame])))
        for family, function in FUNCTIONS.items():
            out = np.empty(operands[0].size, dtype)
            call_routine(store.address(f"{family}.{name}"), out, *operands[: function.arity])
            state.update(bits(out).tobytes())
    return state.hexdigest()


def digests(graphs: Sequence[tuple[Any, Any, Any]]) -> dict[str, str]:
    """Return the digests of 1, 2 and 3 threads, every row shared, and of a process that flushes to zero."""
    found = {"routines": routines()}
    runtime.set_grain(0)
    for threads in (1, 2, 3):
        runtime.set_num_threads(threads)
        found[f"{threads} threads"] = digest(graphs)
    with flush_to_zero():
        found["flushed, 3 threads"] = digest(graphs)
    runtime.set_num_threads(1)
    with flush_to_zero():
        found["flushed, 1 thread"] = digest(graphs)
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(digests(recorded())))
