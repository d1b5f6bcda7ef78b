"""`Field`: one payload per node of a recording; `Gradients` is another name for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from topos.errors import ParametersError, SymbolError
from topos.graph.parameters import Parameters, scaling
from topos.graph.symbol import Family, SymbolLike, position
from topos.payload import Element, Tensor


class Field:
    """A table aligned to the nodes of a recording. Entries are read when they are asked for.

    Arguments:
        family: whose nodes they are.
        element: of the entries.
        count: how many; newer nodes have no entry.
        read: the payload of a position.

    >>> network, (w, loss) = Tape.record(lambda tape: (lambda w: (w, w * w))(tape.parameter(3.0)))
    >>> gradients = network.forward(network.parameters()).backward(loss)
    >>> print(gradients.of(w))
    6.0
    """

    __slots__ = ("_at", "count", "element", "family")

    def __init__(self, family: Family, element: Element, count: int, read: Callable[[int], Tensor]) -> None:
        self.family, self.element, self.count = family, element, count
        self._at = functools.cache(read)

    def of(self, symbol: SymbolLike) -> Tensor:
        """Return the entry of a node.

        Raises:
            SymbolError: the symbol is foreign, or newer than this field.
        """
        return self._at(position(symbol, self.family, self.count, "Field.of", "field"))

    def payloads(self) -> list[Tensor]:
        """Return all entries in recording order."""
        return [self._at(index) for index in range(self.count)]

    def map(self, function: Callable[[Tensor], Tensor]) -> Field:
        """Return the field of ``function(entry)``."""
        return self._of([function(entry) for entry in self.payloads()])

    def zip(self, other: Field, function: Callable[[Tensor, Tensor], Tensor]) -> Field:
        """Return the field of ``function(own, other's)``.

        Raises:
            SymbolError: another family or length.
        """
        if other.family is not self.family or other.count != self.count:
            raise SymbolError(f"zip: fields of {self.count} and {other.count} nodes of one recording are needed")
        return self._of(list(map(function, self.payloads(), other.payloads())))

    def scale(self, factor: Any) -> Field:
        """Return the field times a single value."""
        return self.map(scaling(factor, self.element))

    def __add__(self, other: Field) -> Field:
        return self.zip(other, lambda a, b: a + b)

    def _of(self, entries: list[Tensor]) -> Field:
        return Field(self.family, self.element, self.count, entries.__getitem__)

    def parameters(self, parameters: Parameters) -> Parameters:
        """Return the entries of the parameters, as a table like `parameters`.

        Raises:
            ParametersError: the table is foreign, or has a slot newer than this field.
        """
        slots = parameters.slots
        if slots.family is not self.family:
            raise ParametersError("Field.parameters: the table belongs to another recording")
        if slots.nodes and slots.nodes[-1] >= self.count:
            newest = f"parameter n#{slots.nodes[-1]}"
            raise ParametersError(f"Field.parameters: {newest} is newer than this field of {self.count} nodes")
        return Parameters.of_tensors(slots, [self._at(node) for node in slots.nodes])

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"Field({self.count} nodes, {self.element.name})"


Gradients = Field
