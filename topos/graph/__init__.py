"""The spec: columns, the tape that records them, symbols, tables aligned to them."""

from topos.graph import storage as _storage  # attaches Network.save and Network.load
from topos.graph.adjoints import Adjoints
from topos.graph.columns import Columns, Node
from topos.graph.field import Field, Gradients
from topos.graph.formulas import concat, stack
from topos.graph.network import Network
from topos.graph.parameters import Parameters, Slots
from topos.graph.symbol import Symbol, SymbolLike, detach, symbol_of
from topos.graph.tape import Tape
from topos.graph.trace import Trace, reverse_scan
from topos.graph.value import Value

__all__ = [
    "Adjoints", "Columns", "Field", "Gradients", "Network", "Node", "Parameters", "Slots", "Symbol", "SymbolLike",
    "Tape", "Trace", "Value", "concat", "detach", "reverse_scan", "stack", "symbol_of",
]  # fmt: skip

del _storage
