"""Seeing what went wrong: the first NaN of a run, and zero cotangents that met infinite slopes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topos.graph import Columns, Network, Node, Parameters, Symbol, SymbolLike, Tape, symbol_of

__all__ = ["Finding", "first_nan", "meetings"]


@dataclass(frozen=True)
class Finding:
    """A node that something was found at.

    Attributes:
        symbol: the node.
        label: its index, opcode, name and recording line.
        count: how many of its elements are concerned.

    >>> network, w = Tape.record(lambda tape: tape.parameter([2.0, 3.0], name="w"))
    >>> print(debug.Finding(w, "Parameter w", 1))
    Parameter w: 1 elements
    """

    symbol: Symbol
    label: str
    count: int

    def __str__(self) -> str:
        return f"{self.label}: {self.count} elements"


# Where the products and quotients of derivative rules answer 0 although the textbook's would be NaN.
SILENT: dict[str, Callable[[Any, Any], Any]] = {
    "Scale": lambda a, b: ((a == 0) & ~np.isfinite(b)) | ((b == 0) & ~np.isfinite(a)),
    "Ratio": lambda a, b: (a == 0) & ((b == 0) | np.isnan(b)),
}


def _findings(columns: Columns, marked: Iterable[tuple[Node, Any]]) -> Iterator[Finding]:
    """Yield a finding for each node of which elements are marked."""
    for node, mask in marked:
        count = int(np.count_nonzero(mask))
        if count:
            yield Finding(node.symbol, columns.label(node.symbol.index), count)


def first_nan(network: Network, parameters: Parameters, feeds: Any = None) -> Finding | None:
    """Return the first node, in recording order, that holds a NaN, or None: the line that made one.

    >>> network, root = Tape.record(lambda tape: tape.parameter([4.0, -1.0]).sqrt().exp())
    >>> finding = debug.first_nan(network, network.parameters())
    >>> finding.count, finding.symbol == root, "Sqrt" in finding.label
    (1, False, True)
    """
    run = network.forward(parameters, feeds)
    arrays = ((node, run.of(node.symbol).numpy()) for node in network.nodes())
    return next(_findings(network.columns, ((node, array != array) for node, array in arrays)), None)


def meetings(network: Network, parameters: Parameters, target: SymbolLike, feeds: Any = None) -> list[Finding]:
    """Return where, in the derivative of a rank-0 target, an exact zero met an infinite or NaN factor.

    There `Scale` and `Ratio` answer 0: right for a branch that was not taken, silent where it was. Each finding
    is a node of the derivative, labelled with the line of the forward operation that it belongs to.

    >>> network, loss = Tape.record(lambda tape: (tape.parameter([0.0, 4.0]).sqrt() * 0.0).sum())
    >>> [finding.count for finding in debug.meetings(network, network.parameters(), loss)]
    [1]
    """
    tape = Tape.of_columns(network.columns.fork())
    sources = [*network.columns.parameters, *network.columns.inputs]
    tape.differentiate(symbol_of(target), [Symbol(network.columns.family, node) for node in sources])
    extended = tape.into_network()
    run = extended.forward(parameters, feeds)
    rules = [node for node in extended.nodes()[len(network) :] if node.name in SILENT]
    marked = ((node, SILENT[node.name](*(run.of(operand).numpy() for operand in node.operands))) for node in rules)
    return list(_findings(extended.columns, marked))
