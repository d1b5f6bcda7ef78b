"""`prove`: a user's own model through every reading, and the digests that show they agree."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from topos.engine.entry import Entry
from topos.engine.feeds import bind_feeds
from topos.engine.run import Walked
from topos.graph import Adjoints, Network, Parameters, Symbol, Tape, reverse_scan
from topos.kernels.runtime import grain, num_threads, set_grain, set_num_threads
from topos.payload import Tensor

__all__ = ["Proof", "digest", "prove"]


def digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of the bits of tensors, every NaN counted as one."""
    state = hashlib.sha256()
    for tensor in tensors:
        array = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        state.update(f"{tensor.element.name}{tensor.shape}".encode())
        if array.dtype == object:
            state.update(repr(array.tolist()).encode())
            continue
        bits = array.view(f"u{array.itemsize}")
        state.update(np.where(array != array, ~bits.dtype.type(0), bits).tobytes())
    return state.hexdigest()


class Proof(NamedTuple):
    """What `prove` found: per declared result, the digest of each reading.

    Attributes:
        digests: ``{(symbol, reading): digest}``.
    """

    digests: Mapping[tuple[Symbol, str], str]

    @property
    def holds(self) -> bool:
        """Whether every result has one digest in all readings."""
        return not self.differing()

    def differing(self) -> list[Symbol]:
        """Return the results whose readings differ."""
        found: dict[Symbol, set[str]] = {}
        for (symbol, _), value in self.digests.items():
            found.setdefault(symbol, set()).add(value)
        return [symbol for symbol, values in found.items() if len(values) > 1]

    def __str__(self) -> str:
        lines = [f"{symbol!r:>8}  {reading:<28} {value[:16]}" for (symbol, reading), value in self.digests.items()]
        verdict = "one digest per result" if self.holds else f"DIFFERENT: {self.differing()}"
        return "\n".join([*lines, verdict])


def prove(
    network: Network, entry: Entry | Any, parameters: Parameters, feeds: Any = None, threads: Sequence[int] = (1, 2, 3)
) -> Proof:
    """Run a model through the interpreter, a hand walk, its plan and both reverse scans; compare the bits.

    Every reading runs at each thread count with small work shared too. The gradients of rank-0 roots by all parameters are
    recorded beside the network, and are results as well, which the engine and a hand scan with `Opcode.vjp` say too. (With
    a number type of your own: where the network holds gradients of the root, since such a type may have none.) The symbols
    of these are newer than the network: the names of their scans say of what they are the gradients, and by what.

    Arguments:
        network: the spec, which stays as it is.
        entry: an `Entry`, or its roots.
        parameters: the state to run with.
        feeds: the data to run with.
        threads: thread counts to run at.
    """
    recorded = _differentiated(network, entry if isinstance(entry, Entry) else Entry(entry))
    digests: dict[tuple[Symbol, str], str] = {}
    before = num_threads(), grain()
    try:
        for count in threads:
            set_num_threads(count)
            set_grain(0)
            for symbol, reading, tensor in _read(*recorded, parameters, feeds):
                digests[symbol, f"{reading} ({count} threads)"] = digest(tensor)
    finally:
        set_num_threads(before[0])
        set_grain(before[1])
    return Proof(digests)


def _differentiated(network: Network, entry: Entry) -> tuple[Network, Entry, list[Adjoints]]:
    """Return them with the gradients of the rank-0 roots by all parameters recorded, and as further roots; and the gradients."""
    columns, known = network.columns, {adjoints.target for adjoints in network.columns.adjoints}
    tape, parameters = Tape.of_columns(columns.fork()), [Symbol(columns.family, node) for node in columns.parameters]
    found = [
        tape.differentiate(root, parameters)
        for root in dict.fromkeys(entry.roots)
        if network.node(root).shape.rank == 0 and (columns.element.kernel is not None or root in known)
    ]
    roots = [*entry.roots, *(gradient for adjoints in found for gradient in adjoints.gradients)]
    return tape.into_network(), replace(entry, roots=tuple(roots)), found


def _read(
    network: Network, entry: Entry, scanned: list[Adjoints], parameters: Parameters, feeds: Any
) -> Iterator[tuple[Symbol, str, Tensor]]:
    """Yield each result of an entry with the name of each reading, and what it says; gradients in `scanned` have more."""
    run = network.forward(parameters, feeds)
    values = Walked(parameters, network.columns, bind_feeds(network.columns, feeds), range(len(network))).values
    plan = network.compile(entry).forward(parameters, feeds)
    sliced = network.entry(entry.roots, entry.observe).interpret(parameters, feeds)
    for symbol in entry.results:
        yield symbol, "interpreter", run.of(symbol)
        yield symbol, "sliced interpreter", sliced.of(symbol)
        yield symbol, "hand walk", values[symbol.index]
        yield symbol, "plan", plan.of(symbol)
    for adjoints in scanned:
        field = run.backward(adjoints.target)
        seed = values[adjoints.target.index].one_like()
        hand = reverse_scan(network.columns, adjoints.target.index, seed, values.__getitem__)
        for wrt, gradient in adjoints.pairs:
            what = f"{adjoints.target!r} by {wrt!r}"
            yield gradient, f"engine scan of {what}", field.of(wrt)
            if wrt.index in hand:
                yield gradient, f"hand scan of {what}", hand[wrt.index]
