"""`Run`: what one forward computed, and the reverse scan over it. The verbs of `Network` are attached here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from topos.engine.entry import Entry
from topos.engine.program import Bound, data_error, lower
from topos.engine.schedule import closure
from topos.errors import (
    ElementError,
    FeedError,
    ParametersError,
    PositionError,
    ShapeError,
    SymbolError,
    UnreadableError,
)
from topos.graph.adjoints import Adjoints
from topos.graph.columns import Columns
from topos.graph.field import Field
from topos.graph.network import Network
from topos.graph.parameters import Parameters, Slots
from topos.graph.symbol import SymbolLike, symbol_of
from topos.graph.trace import reverse_scan
from topos.ops import Input, Parameter
from topos.ops.objects import is_zero
from topos.payload.element import Element
from topos.payload.layout import Layout
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor

Feeds: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None
"""``{symbol: array}`` or pairs; the last feed of an input counts."""


class Run:
    """The values of one run; immutable, and independent of later changes to anything fed."""

    __slots__ = ("__weakref__", "_columns", "_read", "_reverse", "_slots")

    def __init__(
        self,
        columns: Columns,
        slots: Slots,
        read: Callable[[int], Tensor],
        reverse: Callable[[int], Callable[[int], Tensor | None]],
    ) -> None:
        self._columns, self._slots, self._read, self._reverse = columns, slots, read, reverse

    def of(self, symbol: SymbolLike) -> Tensor:
        """Return a value.

        Raises:
            SymbolError: the symbol is foreign, or newer than this run.
            UnreadableError: the value was not computed, or not declared as a result.
        """
        return self._read(self._columns.index(symbol, "Run.of"))

    def field(self) -> Field:
        """Return all values as a table aligned to the nodes."""
        return Field(self._columns.family, self._columns.element, len(self._columns), self._read)

    def backward(self, symbol: SymbolLike) -> Field:
        """Return the derivative of a rank-0 value with respect to every node: the engine's reverse scan.

        Raises:
            SymbolError: the symbol is foreign, or newer than this run.
            ShapeError: the value is not rank 0.
        """
        columns = self._columns
        target = columns.index(symbol, "Run.backward")
        if columns.shapes[target].rank != 0:
            raise ShapeError(
                f"backward of {columns.label(target)} with shape {columns.shapes[target]}: the target has rank 0; "
                f"reduce it first, e.g. with sum()"
            )
        self._read(target)
        cotangent = self._reverse(target)

        def read(node: int) -> Tensor:
            found = cotangent(node)
            return (
                found
                if found is not None
                else Tensor.counted(columns.shapes[node], 0, element=columns.element)
            )

        return Field(columns.family, columns.element, len(columns), read)

    def recorded_gradients(self, adjoints: Adjoints) -> Parameters:
        """Return recorded gradients as a table: each in its parameter's slot, other slots zero.

        Raises:
            SymbolError: an entry of ``wrt`` is no parameter.
            UnreadableError: a gradient was not declared as a result.
            ShapeError: a gradient (rewritten by `map_gradients`) has another shape than its parameter.
        """
        slots = self._slots
        tensors = [Tensor.counted(layout.shape, 0, element=slots.element) for layout in slots.layouts]
        for wrt, gradient in adjoints.pairs:
            node = self._columns.index(wrt, "recorded_gradients")
            if node not in slots.by_node:
                raise SymbolError(f"recorded_gradients: {self._columns.label(node)} is no parameter")
            slot, found = slots.by_node[node], self.of(gradient)
            if found.shape != tensors[slot].shape:
                raise ShapeError(
                    f"recorded_gradients: {self._columns.label(node)} has shape {tensors[slot].shape}, "
                    f"its gradient {found.shape}"
                )
            tensors[slot] = found
        return Parameters.of_tensors(slots, tensors)

    def __repr__(self) -> str:
        return f"Run({len(self._columns)} values)"


def bind_feeds(
    columns: Columns, feeds: Feeds, may_borrow: Callable[[int], bool] | None = None
) -> dict[int, Tensor]:
    """Return the fed tensors by node, of the network's element: copies of foreign arrays, unless `may_borrow`.

    Raises:
        FeedError: a symbol is foreign, newer, or no input; a payload has another shape or element.
    """
    bound: dict[int, Tensor] = {}
    if feeds is None:
        return bound
    for given, data in feeds.items() if isinstance(feeds, Mapping) else feeds:
        node = input_node(columns, given)
        tensor = borrowed(columns.element, data) if may_borrow is not None and may_borrow(node) else None
        if tensor is None:
            tensor = feed_tensor(columns, node, data)
        expected: Shape = columns.shapes[node]
        if tensor.shape != expected:
            raise FeedError(f"{columns.label(node)} has shape {expected}, the feed {tensor.shape}")
        bound[node] = tensor
    return bound


def input_node(columns: Columns, given: SymbolLike) -> int:
    """Return the input that a feed names.

    Raises:
        FeedError: the symbol is foreign, newer, or no input.
    """
    try:
        node = columns.index(symbol_of(given), "feed")
    except SymbolError as error:
        raise FeedError(str(error)) from None
    if not isinstance(columns.opcodes[node], Input):
        raise FeedError(f"{columns.label(node)} is no input: only what tape.input recorded can be fed")
    return node


def borrowed(element: Element, data: Any) -> Tensor | None:
    """Return a float, or a tensor over an array's own memory; None where its form does not allow it.

    Only for the time of a run that keeps nothing of it: the caller may change the array afterwards.
    """
    if type(data) is float and element.raw.kind == "f":
        with np.errstate(over="ignore"):
            single = np.array([data], element.raw)
        return Tensor.of_buffer(element, single, Layout.dense(Shape.scalar()))
    if type(data) is not np.ndarray or data.dtype != element.dtype:
        return None
    if not data.flags.c_contiguous or not data.flags.aligned or data.size == 0:
        return None
    return Tensor.of_buffer(element, data.reshape(-1).view(element.raw), Layout.dense(Shape(data.shape)))


def feed_tensor(columns: Columns, node: int, data: Any) -> Tensor:
    """Return fed data as a tensor of the recording's element; foreign arrays are copied.

    An input whose own payload is a selection takes integer ids, one per row.

    Raises:
        FeedError: the data holds no numbers of the element, or ids are outside the vocabulary.
    """
    element = columns.element
    try:
        if columns.payloads[node].is_selection and not isinstance(data, Tensor):
            ids = np.asarray(data)
            if ids.dtype.kind in "iu" and ids.size == columns.shapes[node][0]:
                return Tensor.selection(ids, columns.shapes[node][1], element=element)  # type: ignore[arg-type]
        tensor = data if isinstance(data, Tensor) else Tensor(data, element=element)
    except (ElementError, PositionError, ShapeError) as error:
        raise FeedError(f"{columns.label(node)} cannot take this feed: {error}") from error
    if tensor.element is not element:
        raise FeedError(
            f"{columns.label(node)} holds {element.name}, the feed {tensor.element.name}: "
            f"convert it, e.g. tensor.convert({element.name!r})"
        )
    return tensor


def check_parameters(slots: Slots, parameters: Parameters, exact: bool = True) -> None:
    """Raise `ParametersError` unless the table is of this family and covers the slots (`exact`: no more)."""
    if not isinstance(parameters, Parameters):
        raise ParametersError(f"a Parameters table is needed, not {type(parameters).__name__}")
    if parameters.slots.family is not slots.family:
        raise ParametersError("the parameters belong to another recording: start from network.parameters()")
    have, need = len(parameters), len(slots)
    if have < need or (exact and have > need):
        raise ParametersError(
            f"the network has {need} parameter slots, the table {have}: extend it with parameters.carried(network)"
        )


def forward(network: Network, parameters: Parameters, feeds: Feeds = None) -> Run:
    """Evaluate every node under `Numerics.EXACT`: the oracle.

    Arguments:
        network: the spec.
        parameters: a table that covers exactly the network's slots.
        feeds: ``{symbol: payload}`` or pairs; inputs that are not fed keep their recorded payload.

    Raises:
        ParametersError: a foreign table, or another count of slots.
        FeedError: a feed names no input or does not fit it.
        DataError: the data broke a rule that shapes cannot express.
    """
    return _evaluate(network, parameters, feeds, None)


def interpret(network: Network, entry: Entry, parameters: Parameters, feeds: Feeds) -> Run:
    """Evaluate the ancestors of an entry's results; all of them are readable."""
    columns = network.columns
    wanted = closure(columns, [columns.index(symbol, "interpret") for symbol in entry.results])
    return _evaluate(network, parameters, feeds, wanted)


def _evaluate(network: Network, parameters: Parameters, feeds: Feeds, wanted: list[int] | None) -> Run:
    columns = network.columns
    check_parameters(network.slots, parameters)
    tensors = bind_feeds(columns, feeds)
    if columns.element.kernel is None:
        return walk(columns, parameters, tensors, wanted)
    chosen = None if wanted is None else frozenset(wanted)
    lowered = cached(network, chosen, lambda: lower(columns, network.slots, wanted=chosen))
    bound = Bound.run(lowered, parameters.buffer, tensors)

    def read(node: int) -> Tensor:
        if lowered.operands[node] is None:
            raise UnreadableError(f"{columns.label(node)} was not computed: no result of the entry needs it")
        return bound.read(node)

    return Run(columns, network.slots, read, bound.cotangents)


def cached(network: Network, key: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` makes, once per network and key."""
    found = network.cache.get(key)
    if found is None:
        with network.lock:
            found = network.cache.get(key)
            if found is None:
                found = network.cache[key] = make()
    return found


def walk(
    columns: Columns, parameters: Parameters, tensors: Mapping[int, Tensor], wanted: list[int] | None
) -> Run:
    """Evaluate a user's number type in Python, node by node, and scan backward over the tensors."""
    values: dict[int, Tensor] = {}
    for node in range(len(columns)) if wanted is None else wanted:
        opcode = columns.opcodes[node]
        if isinstance(opcode, Parameter):
            slots = parameters.slots
            layout = slots.layouts[slots.by_node[node]]
            values[node] = Tensor.of_buffer(slots.element, parameters.buffer, layout)
        elif opcode.is_source:
            values[node] = tensors.get(node, columns.payloads[node])
        else:
            values[node] = opcode.express([values[i] for i in columns.operands[node]])
    for node in columns.checks:
        if node in values and is_zero(values[node].scalar()):
            raise data_error(columns, node, 0)

    def read(node: int) -> Tensor:
        if node not in values:
            raise UnreadableError(f"{columns.label(node)} was not computed: no result of the entry needs it")
        return values[node]

    def reverse(target: int) -> Callable[[int], Tensor | None]:
        return reverse_scan(columns, target, values[target].one_like(), values.__getitem__).get

    return Run(columns, parameters.slots, read, reverse)


Network.forward = forward
