"""`Run`: what one forward computed, and the reverse scan over it. The verbs of `Network` are attached here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from topos.backend import tally
from topos.engine.entry import Entry
from topos.engine.feeds import Fed, Feeds, bind_feeds
from topos.engine.frames import Frame
from topos.engine.program import Bound, Lowered, data_error, lower
from topos.engine.schedule import Schedule, closure
from topos.errors import ShapeError, SymbolError, UnreadableError
from topos.graph import Adjoints, Columns, Field, Network, Parameters, Slots, Symbol, SymbolLike, reverse_scan
from topos.kernels import runtime
from topos.ops import Parameter
from topos.ops.emit import TABLE, Program
from topos.payload import Tensor
from topos.payload.element import is_zero


class Run:
    """The values of one run; immutable, and independent of later changes to anything fed.

    >>> network, y = Tape.record(lambda tape: tape.input(3.0) * 2.0)
    >>> print(network.forward(network.parameters()).of(y))
    6.0
    """

    __slots__ = ("__weakref__", "_schedule", "_source")

    def __init__(self, source: Bound | Walked, schedule: Schedule | None = None) -> None:
        """Take what was computed, and the schedule of a plan: it says what of that may be read."""
        self._source, self._schedule = source, schedule

    def of(self, symbol: SymbolLike) -> Tensor:
        """Return a value.

        Raises:
            SymbolError: the symbol is foreign, or newer than this run.
            UnreadableError: the value was not computed, or not declared as a result.
        """
        return self._read(self._source.columns.index(symbol, "Run.of"))

    def _read(self, node: int) -> Tensor:
        if self._schedule is not None and node not in self._schedule.readable:
            rule = "the plan keeps its results alone; declare it with entry.observe([...])"
            raise UnreadableError(f"{self._source.columns.label(node)} is not readable: {rule}")
        return self._source.read(node)

    def field(self) -> Field:
        """Return all values as a table aligned to the nodes."""
        columns = self._source.columns
        return Field(columns.family, columns.element, len(columns), self._read)

    def backward(self, symbol: SymbolLike) -> Field:
        """Return the derivative of a rank-0 value with respect to every node: the engine's reverse scan.

        Raises:
            SymbolError: the symbol is foreign, or newer than this run.
            ShapeError: the value is not rank 0.
            UnreadableError: the plan is forward-only (`BoundEntry.backward` lowers one that is not).
        """
        columns = self._source.columns
        target = columns.index(symbol, "Run.backward")
        if columns.shapes[target].rank != 0:
            rule = "the target has rank 0; reduce it first, e.g. with sum()"
            raise ShapeError(f"backward of {columns.label(target)} with shape {columns.shapes[target]}: {rule}")
        self._read(target)
        if self._schedule is not None and not self._schedule.backward:
            remedy = "lower entry(...).backward(), or record the gradients with tape.differentiate"
            raise UnreadableError(f"backward of {columns.label(target)}: this plan is forward-only; {remedy}")
        cotangent, shapes = self._source.cotangents(target), columns.shapes

        def read(node: int) -> Tensor:
            found = cotangent(node)
            return Tensor.counted(shapes[node], 0, element=columns.element) if found is None else found

        return Field(columns.family, columns.element, len(columns), read)

    def recorded_gradients(self, adjoints: Adjoints) -> Parameters:
        """Return recorded gradients as a table: each in its parameter's slot, other slots zero.

        Raises:
            SymbolError: an entry of ``wrt`` is no parameter.
            UnreadableError: a gradient was not declared as a result.
            ShapeError: a gradient (rewritten by `map_gradients`) has another shape than its parameter.
        """
        slots, columns = self._source.slots, self._source.columns
        tensors = [Tensor.counted(layout.shape, 0, element=slots.element) for layout in slots.layouts]
        for wrt, gradient in adjoints.pairs:
            node = columns.index(wrt, "recorded_gradients")
            if node not in slots.by_node:
                raise SymbolError(f"recorded_gradients: {columns.label(node)} is no parameter")
            slot, found = slots.by_node[node], self.of(gradient)
            if found.shape != tensors[slot].shape:
                shapes = f"shape {tensors[slot].shape}, its gradient {found.shape}"
                raise ShapeError(f"recorded_gradients: {columns.label(node)} has {shapes}")
            tensors[slot] = found
        return Parameters.of_tensors(slots, tensors)

    def __repr__(self) -> str:
        return f"Run({len(self._source.columns)} values)"


def check_parameters(slots: Slots, parameters: Parameters, exact: bool = True) -> None:
    """Raise `ParametersError` unless the table is of this family and covers the slots (`exact`: no more)."""
    if type(parameters) is not Parameters or parameters.slots is not slots:
        slots.check(parameters, "a run", exact)


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
    if columns.element.kernel is None:
        nodes = range(len(columns)) if wanted is None else wanted
        return Run(Walked(parameters, columns, bind_feeds(columns, feeds), nodes))
    chosen = None if wanted is None else frozenset(wanted)
    lowered = cached(network, chosen, lambda: lower(columns, network.slots, wanted=chosen))
    return finished(lowered, lowered.start(feeds), parameters)


def finished(lowered: Lowered, frame: Frame, parameters: Parameters, schedule: Schedule | None = None) -> Run:
    """Run a frame in which all inputs are in place, in one native entry, and return what it computed.

    Raises:
        DataError: the data broke a rule; the message names the line that recorded the node.
    """
    if lowered.finish is None:
        lowered.finish = _finish(lowered.program) if lowered.is_here else lambda *_: None
    run: Run | None = lowered.finish(lowered, frame, parameters, schedule)
    if run is None:
        lowered.bring(frame, TABLE, parameters)
        lowered.enter(frame)
        run = Run(Bound(lowered, parameters, frame.tensors, frame), schedule)
    return run


def _finish(program: Program) -> Callable[..., Any]:
    """Return what walks a program and makes the run in native code (``native_runs.ll``)."""
    numbers = *runtime.walking(program, [(tally.OPEN, None)] * bool(program.services)), TABLE
    made = runtime.slots(Bound, "lowered", "parameters", "tensors", "frame"), runtime.slots(Run, "_source", "_schedule")
    read = runtime.slots(Parameters, "buffer"), runtime.slots(Frame, "address", "held", "tensors")
    slots = [slot for part in (*read, *made) for slot in part]
    return runtime.reading(["finish"], (None, Parameters, Bound, Run), slots, *numbers)[0]


# Programs that a network keeps for its interpreter: one for itself, and the latest sets of results.
CACHED = 32


def cached(network: Network, key: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` makes, once per network and key, as long as it is among the latest."""
    cache = network.cache
    found = cache.get(key)
    if found is None:
        with network.lock:
            found = cache.get(key)
            if found is None:
                for old in [old for old in cache if old is not None][: len(cache) - CACHED + 1]:
                    del cache[old]
                found = cache[key] = make()
    return found


class Walked:
    """A run of a user's number type, in Python, node by node; the scan backward goes over the tensors."""

    __slots__ = ("columns", "slots", "values")

    def __init__(self, parameters: Parameters, columns: Columns, tensors: Fed, wanted: Iterable[int]) -> None:
        self.columns, self.slots = columns, parameters.slots
        self.values: dict[int, Tensor] = {}
        for node in wanted:
            opcode = columns.opcodes[node]
            if isinstance(opcode, Parameter):
                self.values[node] = parameters.of(Symbol(columns.family, node))
            elif opcode.is_source:
                self.values[node] = tensors.get(node, columns.payloads[node])
            else:
                self.values[node] = opcode.express([self.values[i] for i in columns.operands[node]])
        for node in columns.checks:
            if node in self.values and is_zero(self.values[node].scalar()):
                raise data_error(columns, node, 0)

    def read(self, node: int) -> Tensor:
        """Return the value of a node.

        Raises:
            UnreadableError: it was not computed.
        """
        if node not in self.values:
            label = self.columns.label(node)
            raise UnreadableError(f"{label} was not computed: no result of the entry needs it")
        return self.values[node]

    def cotangents(self, target: int) -> Callable[[int], Tensor | None]:
        """Return what reads a node's cotangent (None: no ancestor)."""
        values = self.values
        return reverse_scan(self.columns, target, values[target].one_like(), values.__getitem__).get


Network.forward = forward
