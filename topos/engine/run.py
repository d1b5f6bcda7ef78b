"""`Run`: what one forward computed, and the reverse scan over it. The verbs of `Network` are attached here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from topos.engine.program import Bound, Lowered, lower
from topos.errors import ElementError, FeedError, ParametersError, ShapeError, SymbolError
from topos.graph.columns import Columns
from topos.graph.field import Field
from topos.graph.network import Network
from topos.graph.parameters import Parameters
from topos.graph.symbol import SymbolLike, symbol_of
from topos.graph.tape import Tape
from topos.graph.trace import Trace, reverse_scan
from topos.graph.value import Value
from topos.ops import Input, Parameter
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor

Feeds: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None
"""``{symbol: array}`` or pairs; the last feed of an input counts."""


class Run:
    """The values of one run; immutable, and independent of later changes to anything fed."""

    __slots__ = ("__weakref__", "_columns", "_read", "_reverse")

    def __init__(
        self,
        columns: Columns,
        read: Callable[[int], Tensor],
        reverse: Callable[[int], Callable[[int], Tensor | None]],
    ) -> None:
        self._columns, self._read, self._reverse = columns, read, reverse

    def of(self, symbol: SymbolLike) -> Tensor:
        """Return a value.

        Raises:
            SymbolError: the symbol is foreign, or newer than this run.
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
        cotangent = self._reverse(target)

        def read(node: int) -> Tensor:
            found = cotangent(node)
            return (
                found
                if found is not None
                else Tensor.counted(columns.shapes[node], 0, element=columns.element)
            )

        return Field(columns.family, columns.element, len(columns), read)

    def __repr__(self) -> str:
        return f"Run({len(self._columns)} values)"


def bind_feeds(columns: Columns, feeds: Feeds) -> dict[int, Tensor]:
    """Return the fed tensors by node: own copies of foreign arrays, of the network's element.

    Raises:
        FeedError: a symbol is foreign, newer, or no input; a payload has another shape or element.
    """
    bound: dict[int, Tensor] = {}
    if feeds is None:
        return bound
    for given, data in feeds.items() if isinstance(feeds, Mapping) else feeds:
        try:
            symbol = symbol_of(given)
            node = columns.index(symbol, "feed")
        except SymbolError as error:
            raise FeedError(str(error)) from None
        if not isinstance(columns.opcodes[node], Input):
            raise FeedError(f"{columns.label(node)} is no input: only what tape.input recorded can be fed")
        try:
            tensor = data if isinstance(data, Tensor) else Tensor(data, element=columns.element)
        except (ElementError, ShapeError) as error:
            raise FeedError(f"{columns.label(node)} cannot take this feed: {error}") from error
        if tensor.element is not columns.element:
            raise FeedError(
                f"{columns.label(node)} holds {columns.element.name}, the feed {tensor.element.name}: "
                f"convert it, e.g. tensor.convert({columns.element.name!r})"
            )
        expected: Shape = columns.shapes[node]
        if tensor.shape != expected:
            raise FeedError(f"{columns.label(node)} has shape {expected}, the feed {tensor.shape}")
        bound[node] = tensor
    return bound


def check_parameters(network: Network, parameters: Parameters, exact: bool = True) -> None:
    """Raise `ParametersError` unless the table is of this family and covers the network's slots."""
    if not isinstance(parameters, Parameters):
        raise ParametersError(f"a Parameters table is needed, not {type(parameters).__name__}")
    if parameters.slots.family is not network.columns.family:
        raise ParametersError("the parameters belong to another recording: start from network.parameters()")
    have, need = len(parameters), len(network.slots)
    if have != need if exact else have < need:
        raise ParametersError(
            f"the network has {need} parameter slots, the table {have}: extend it with parameters.carried(network)"
        )


def forward(network: Network, parameters: Parameters, feeds: Feeds = None) -> Run:
    """Evaluate every node under `Numerics.EXACT`: the oracle.

    Arguments:
        parameters: a table that covers exactly the network's slots.
        feeds: ``{symbol: payload}`` or pairs; inputs that are not fed keep their recorded payload.

    Raises:
        ParametersError: a foreign table, or another count of slots.
        FeedError: a feed names no input or does not fit it.
        DataError: the data broke a rule that shapes cannot express.
    """
    columns = network.columns
    check_parameters(network, parameters)
    tensors = bind_feeds(columns, feeds)
    if columns.element.kernel is None:
        return _walk(columns, parameters, tensors)
    lowered = cached(network, "forward", lambda: lower(columns, network.slots))
    bound = Bound(lowered, parameters.buffer, tensors)
    return Run(columns, bound.read, lambda target: _reverse(network, columns, bound, target))


def cached(network: Network, key: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` makes, once per network and key."""
    found = network.cache.get(key)
    if found is None:
        with network.lock:
            found = network.cache.get(key)
            if found is None:
                found = network.cache[key] = make()
    return found


def _reverse(network: Network, columns: Columns, bound: Bound, target: int) -> Callable[[int], Tensor | None]:
    """Run the reverse scan of a target: recorded and lowered once per (network, target)."""
    program, cotangents = cached(network, ("reverse", target), lambda: _record_reverse(bound.lowered, target))
    reverse = Bound(program, bound.table, bound.tensors, bound)

    def cotangent(node: int) -> Tensor | None:
        spoken = cotangents.get(node)
        return None if spoken is None else reverse.read(spoken)

    return cotangent


def _record_reverse(forward_: Lowered, target: int) -> tuple[Lowered, dict[int, int]]:
    """Let the rules record themselves behind a copy of the spec, and lower what they recorded."""
    tape = Tape.of_columns(forward_.columns.fork())
    seed = Trace(Value(tape, target)).one_like()
    spoken = reverse_scan(tape.columns, target, seed, lambda node: Trace(Value(tape, node)))
    cotangents = {node: trace.value.index for node, trace in spoken.items()}
    return lower(tape.columns, forward_.slots, forward_), cotangents


def _walk(columns: Columns, parameters: Parameters, tensors: Mapping[int, Tensor]) -> Run:
    """Evaluate a user's number type in Python, node by node, and scan backward over the tensors."""
    values: list[Tensor] = []
    for node, opcode in enumerate(columns.opcodes):
        if isinstance(opcode, Parameter):
            slots = parameters.slots
            layout = slots.layouts[slots.by_node[node]]
            values.append(Tensor.of_buffer(slots.element, parameters.buffer, layout))
        elif opcode.is_source:
            values.append(tensors.get(node, columns.payloads[node]))
        else:
            values.append(opcode.express([values[i] for i in columns.operands[node]]))
    for node in columns.checks:
        from topos.engine.program import _data_error
        from topos.ops.objects import is_zero

        if is_zero(values[node].scalar()):
            raise _data_error(columns, node, 0)

    def reverse(target: int) -> Callable[[int], Tensor | None]:
        seed = values[target].one_like()
        return reverse_scan(columns, target, seed, values.__getitem__).get

    return Run(columns, values.__getitem__, reverse)


Network.forward = forward  # type: ignore[assignment]
