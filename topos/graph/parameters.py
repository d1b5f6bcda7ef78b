"""`Parameters`: one payload per parameter slot, in one flat buffer. Weights, gradients and moments are all this."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from topos.errors import ParametersError, ShapeError, SymbolError
from topos.graph.symbol import Counted, Family, Symbol, SymbolLike, position
from topos.kernels import runtime
from topos.payload import Element, Layout, Shape, Tensor, dense_strides

if TYPE_CHECKING:
    from topos.graph.columns import Columns
    from topos.graph.network import Network


class Slots:
    """Where each parameter lies in a table: node, shape and offset in elements, in recording order."""

    __slots__ = ("by_node", "element", "family", "layouts", "nodes", "total")

    def __init__(self, columns: Columns) -> None:
        self.family: Family = columns.family
        self.element: Element = columns.element
        self.nodes = list(columns.parameters)
        self.by_node = {node: slot for slot, node in enumerate(self.nodes)}
        shapes = [columns.shapes[node] for node in self.nodes]
        *starts, self.total = itertools.accumulate((shape.volume for shape in shapes), initial=0)
        self.layouts = [Layout(s, dense_strides(s), start) for s, start in zip(shapes, starts, strict=True)]

    def __len__(self) -> int:
        return len(self.nodes)

    def check(self, given: Any, what: str, exact: bool = True) -> None:
        """Raise `ParametersError` unless a table is of this family and has these slots, or more if not `exact`."""
        if not isinstance(given, Parameters):
            raise ParametersError(f"{what}: a Parameters table is needed, not {type(given).__name__}")
        if given.slots.family is not self.family:
            raise ParametersError(f"{what}: the table belongs to another recording: start from network.parameters()")
        if len(given) < len(self) or (exact and len(given) > len(self)):
            rule = f"{len(self)} parameter slots are needed, the table has {len(given)}"
            raise ParametersError(f"{what}: {rule}: extend the older table, parameters.carried(network)")


Rule = Callable[[Tensor, Tensor], Any]


class Parameters(Counted):
    """A table of payloads aligned to the parameter slots of one network family; never changed in place.

    >>> network, w = Tape.record(lambda tape: tape.parameter([1.0, 2.0]))
    >>> parameters = network.parameters()
    >>> print(parameters.map(lambda payload: payload * 2).of(w), parameters.of(w))
    [2.0, 4.0] [1.0, 2.0]
    """

    __slots__ = ("__weakref__", "_address", "buffer", "slots")

    def __init__(self, slots: Slots, buffer: Any, address: int = 0) -> None:
        """Take a buffer; it is read-only already where its `address` is given."""
        if address == 0:
            buffer.flags.writeable = False
        self.slots, self.buffer, self._address = slots, buffer, address

    @classmethod
    def of_tensors(cls, slots: Slots, tensors: Iterable[Tensor]) -> Parameters:
        """Return the table that holds these tensors, one per slot."""
        buffer = np.empty(slots.total, slots.element.raw)
        for layout, tensor in zip(slots.layouts, tensors, strict=True):
            buffer[layout.offset : layout.offset + layout.shape.volume] = tensor.dense_buffer()
        return cls(slots, buffer)

    # ---- readers
    def __len__(self) -> int:
        return len(self.slots)

    @property
    def address(self) -> int:
        """Where the buffer starts, for kernels."""
        if self._address == 0:
            self._address = runtime.address(self.buffer)
        return self._address

    def payloads(self) -> list[Tensor]:
        """Return the payloads in slot order."""
        return [self._slot(slot) for slot in range(len(self.slots))]

    def symbols(self) -> list[Symbol]:
        """Return the parameters' symbols in slot order."""
        return [Symbol(self.slots.family, node) for node in self.slots.nodes]

    def of(self, symbol: SymbolLike) -> Tensor:
        """Return the payload of one parameter.

        Raises:
            SymbolError: the symbol is foreign, or no parameter of this table.
        """
        return self._slot(self._find(symbol, "Parameters.of"))

    def _slot(self, slot: int) -> Tensor:
        return Tensor.of_buffer(self.slots.element, self.buffer, self.slots.layouts[slot])

    def _find(self, symbol: SymbolLike, what: str) -> int:
        node = position(symbol, self.slots.family, sys.maxsize, what, "table")
        slot = self.slots.by_node.get(node)
        if slot is None:
            raise SymbolError(f"{what}: n#{node} is no parameter of this table of {len(self)} slots")
        return slot

    # ---- algebra
    def map(self, function: Callable[[Tensor], Any]) -> Parameters:
        """Return the table of ``function(payload)``; shapes are kept."""
        return self._rebuilt("map", (function(payload) for payload in self.payloads()))

    def zip(self, other: Parameters, function: Rule) -> Parameters:
        """Return the table of ``function(own, other's)``; shapes are kept.

        Raises:
            ParametersError: another family or count of slots.
        """
        self.match(other, "zip")
        return self._rebuilt("zip", map(function, self.payloads(), other.payloads()))

    def scale(self, factor: Any) -> Parameters:
        """Return the table times a single value.

        Raises:
            ShapeError: the factor holds more than one value.
        """
        return self.map(scaling(factor, self.slots.element))

    def __add__(self, other: Parameters) -> Parameters:
        return self.zip(other, lambda a, b: a + b)

    def step(self, direction: Parameters, rule: Rule) -> Parameters:
        """Return the table of ``rule(current, direction)`` per slot, in slot order.

        Raises:
            ParametersError: the direction is of another family or count of slots.
            ShapeError: the rule changes a payload's shape.
        """
        self.match(direction, "step")
        return self._rebuilt("step", map(rule, self.payloads(), direction.payloads()))

    def step_each(self, direction: Parameters, rule: Callable[[Symbol, Tensor, Tensor], Any]) -> Parameters:
        """Like `step` with ``rule(symbol, current, direction)``, called in slot order."""
        self.match(direction, "step_each")
        return self._rebuilt("step_each", map(rule, self.symbols(), self.payloads(), direction.payloads()))

    def carried(self, network: Network) -> Parameters:
        """Return this table for a network that was reopened and grew: new slots get their initials.

        Raises:
            ParametersError: another family, or a network with fewer slots.
        """
        slots = network.slots
        if slots.family is not self.slots.family:
            raise ParametersError("carried: the network belongs to another recording")
        if len(slots) < len(self):
            raise ParametersError(f"carried: the network has {len(slots)} slots, this table {len(self)}")
        added = [network.columns.payloads[node] for node in slots.nodes[len(self) :]]
        return Parameters.of_tensors(slots, [*self.payloads(), *added])

    def with_payloads(self, pairs: Any) -> Parameters:
        """Return the table with some slots replaced: a mapping or pairs of (symbol, payload).

        Raises:
            SymbolError: a symbol is foreign or no parameter.
            ShapeError: a payload's shape differs from the slot's.
        """
        tensors: list[Any] = list(self.payloads())
        for symbol, payload in pairs.items() if hasattr(pairs, "items") else pairs:
            tensors[self._find(symbol, "with_payloads")] = payload
        return self._rebuilt("with_payloads", tensors)

    def copy(self) -> Parameters:
        """Return a table of its own memory."""
        return Parameters(self.slots, self.buffer.copy())

    def match(self, other: Parameters, what: str) -> None:
        """Raise `ParametersError` unless `other` is a table of the same family and count of slots."""
        self.slots.check(other, what)

    def _rebuilt(self, what: str, results: Iterable[Any]) -> Parameters:
        element = self.slots.element
        tensors = []
        for slot, result in enumerate(results):
            tensor = result if isinstance(result, Tensor) else Tensor(result, element=element)
            expected: Shape = self.slots.layouts[slot].shape
            if tensor.shape != expected:
                place = f"slot {slot} (n#{self.slots.nodes[slot]})"
                raise ShapeError(f"{what}: {place} has shape {expected}, the rule gave {tensor.shape}")
            tensors.append(tensor.convert(element))
        return Parameters.of_tensors(self.slots, tensors)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parameters):
            return NotImplemented
        return self.slots.family is other.slots.family and self.payloads() == other.payloads()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Parameters({len(self)} slots, {self.slots.total} numbers of {self.slots.element.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Parameters, (self.slots, np.array(self.buffer))


def scaling(factor: Any, element: Element) -> Callable[[Tensor], Tensor]:
    """Return what multiplies an entry of a table by a number or one-element tensor.

    Raises:
        ShapeError: the factor holds more than one value.
    """
    single = Tensor.single(factor, element, "scale")
    return lambda entry: entry * Tensor.filled(entry.shape, single)
