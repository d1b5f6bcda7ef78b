"""Lowering: from columns to a `Program`, and from the operands of a program back to tensors."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Collection
from typing import Any, ClassVar, TypeAlias

import numpy as np

from topos.engine.feeds import Fed, Feeds, bound_feed, input_node, pairs
from topos.engine.frames import SPARE, Frame, Pool, Room, native, rooms_at
from topos.errors import DataError, UnreadableError
from topos.graph import Columns, Parameters, Slots, Tape, Value, symbol_of
from topos.graph.adjoints import recorded_scan
from topos.kernels import rows, runtime
from topos.ops import Input, Leaf, Parameter
from topos.ops.emit import ARENA, CONSTANT, FIRST, TABLE, Emitter, Operand, Program, memory_of, result_tensor
from topos.payload import Element, Layout, Shape, Tensor

# Bytes up to which a result is copied out, so that who keeps a loss does not keep the arena it lay in.
SMALL = 1024

# Bytes up to which a fed array is copied into the frame: faster than to borrow it.
ROOM = 4096

# Bytes up to which the memory of an interpreter's run is kept for the next one.
KEPT = 1 << 20

# Steps per native entry of a sequence: between entries Python looks for Ctrl-C.
CHUNK = 256

# The source that stands for the arena of the forward run, in the program of its reverse scan.
EARLIER = -1


class Source:
    """An input of a program: its banks, and its room in a frame if it has one.

    Attributes:
        bit: its own among those of all inputs.
        bank: the only bank, where its values are all that is read; else -1.
        offset: of its room, in bytes behind the first, where small feeds are copied into one; else -1.
        lends: whether a fed array may be read where it lies: nothing of it is asked for after the run.
        pattern: the feeds that native code puts in place (`begin` in ``native_runs.ll``).
    """

    pattern: Any

    def __init__(self, node: int, bit: int, shape: Shape, lends: bool) -> None:
        self.node, self.bit, self.shape, self.lends = node, bit, shape, lends
        self.bank = self.offset = -1


# What feeds of some keys share: the keys (symbols, or the inputs themselves), the inputs and those that are not fed, the address
# of the addresses of their patterns, a bit for each that is fed and has a room, the payloads of those that are not fed, and
# the addresses.
Order: TypeAlias = tuple[tuple[Any, ...], tuple[Source, ...], int, int, tuple[Tensor, ...], Any]


class Lowered:
    """A program with the operand of every node that it computes or reads (None for the others).

    Addresses of leaves are bound here, once; a run adds those of inputs and of an earlier arena.

    Arguments:
        singles: sources beside inputs that are one number each, with a room of their own.
        spare: frames that are kept for later runs.
        kept: inputs of which a run has to keep what it was fed; None for all.
    """

    frame: ClassVar[type[Frame]] = Frame
    # What walks and makes a run at once, if anything does.
    finish: Callable[..., Any] | None
    order: Order | None
    tables: ClassVar[type[Parameters]] = Parameters
    # What a table and a single number that training returns are.
    singles: ClassVar[type[Tensor]] = Tensor
    # Whether kernels read the memory of this process.
    is_here: ClassVar[bool] = True

    def __init__(
        self, columns: Columns, slots: Slots, operands: list[Operand | None], program: Program,
        singles: Collection[int] = (), spare: int = SPARE, kept: Collection[int] | None = None,
    ) -> None:  # fmt: skip
        self.columns, self.slots, self.operands, self.program = columns, slots, operands, program
        self._held: list[Any] = []
        self._lock = threading.Lock()
        self._reverse: dict[int, tuple[Lowered, dict[int, int]]] = {}
        self.positions: dict[int, list[tuple[int, str]]] = {}
        banks = np.zeros(FIRST + len(program.sources), np.int64)
        for position, (key, form) in enumerate(program.sources, FIRST):
            if key > CONSTANT:
                self.positions.setdefault(key, []).append((position, form))
            else:
                memory = memory_of(program.constants[CONSTANT - key], form, dense=False)
                if memory is None:
                    raise DataError("a row of a constant selection is not one-hot")
                banks[position], held = program.placed(memory)
                self._held.append(held)
        kept, shapes = set(columns.inputs) if kept is None else kept, columns.shapes
        self.inputs = {n: Source(n, 1 << i, shapes[n], n not in kept) for i, n in enumerate(columns.inputs)}
        raw, size, self.dtype = columns.element.raw, 0, columns.element.dtype
        rooms: list[Room] = []
        for key in dict.fromkeys((*self.positions, *singles)):
            forms, source, shape = self.positions.get(key, []), self.inputs.get(key), Shape.scalar()
            bank = forms[0][0] if forms and all(form == "values" for _, form in forms) else -1
            if source is not None:
                source.bank, shape = bank, source.shape
            if key in singles or (bank >= 0 and source is not None and shape.volume * raw.itemsize <= ROOM):
                rooms.append((key, bank, size, shape))
                if source is not None:
                    source.offset = size
                size += -(-shape.volume * raw.itemsize // 8) * 8
        letter = ord(raw.char) if raw is self.dtype else 0  # no array of NumPy's own holds bf16
        first = rooms_at(len(banks))
        for source in self.inputs.values():
            source.lends = source.lends and source.bank >= 0
            room = first + source.offset if source.offset >= 0 else -1 if source.lends and self.is_here else -2
            shape, length = source.shape, source.shape.volume * raw.itemsize
            facts = letter, shape.rank, length, room, source.bank, id(self.dtype), id(columns.element), raw.itemsize
            source.pattern = np.array([*facts, *shape], np.int64)
        self.begin, self.finish, self.order = native()[1], None, None
        self.pool = Pool(functools.partial(self.frame, program, banks, rooms, size, raw), spare)

    def reverse(self, target: int) -> tuple[Lowered, dict[int, int]]:
        """Return the reverse scan of a target: its program, and the node of each cotangent.

        The rules record themselves once behind a copy of the spec, and what they recorded is lowered.
        """
        with self._lock:
            if target not in self._reverse:
                tape = Tape.of_columns(self.columns.fork())
                spoken = recorded_scan(tape, target, Value(tape, target).one_like())
                cotangents = {node: value.index for node, value in spoken.items()}
                self._reverse[target] = lower(tape.columns, self.slots, self), cotangents
            return self._reverse[target]

    def start(self, feeds: Feeds) -> Frame:
        """Return a frame with every input in place.

        Raises:
            FeedError: a symbol is foreign, newer, or no input; a payload has another shape or element.
            DataError: a selection is needed and the payload is not one-hot.
        """
        feeds = {} if feeds is None else feeds
        frame: Frame | None = self.begin(self, self.pool, self.order, feeds)
        return frame or self.begin(self, self.pool, *self.ordered(feeds))

    def ordered(self, feeds: Feeds) -> tuple[Order, dict[Source, Any]]:
        """Return what feeds of these inputs share, and the feeds by input; with their symbols, it is remembered.

        `begin` compares inputs by what they are: it takes these feeds whatever the == of symbols does.

        Raises:
            FeedError: a symbol is foreign, newer, or no input.
        """
        given = [(self.inputs[input_node(self.columns, key)], key, data) for key, data in list(pairs(feeds))]
        fed = {source: data for source, _, data in given}
        named = {source: symbol_of(key) for source, key, _ in given}
        bare = [source for node, source in self.inputs.items() if node in self.positions and source not in fed]
        addresses = np.array([runtime.address(source.pattern) for source in (*fed, *bare)], np.int64)
        bits = sum(source.bit for source in fed if source.offset >= 0)
        payloads = tuple(self.columns.payloads[source.node] for source in bare)
        shared = (*fed, *bare), runtime.address(addresses), bits, payloads, addresses
        self.order = (*named.values(),), *shared
        return ((*fed,), *shared), fed

    def take(self, frame: Frame, source: Source, data: Any) -> None:
        """Let a run read a feed that native code does not put in place; it is among the frame's tensors if it is asked for.

        Raises:
            FeedError, DataError: as `start`.
        """
        frame.fed &= ~source.bit
        lies = type(data) is np.ndarray and data.dtype is self.dtype and data.shape == source.shape
        if lies and source.lends and data.flags.c_contiguous and data.flags.aligned:
            self.lend(frame, source.bank, data.view(self.columns.element.raw))
        else:
            tensor = bound_feed(self.columns, source.node, data)
            frame.tensors = {source.node: tensor} | (frame.tensors or {})
            self.place(frame, source.node, tensor)

    def place(self, frame: Frame, node: int, tensor: Tensor) -> None:
        """Let an input read a tensor in every form that is needed; its memory is kept for the run.

        Raises:
            DataError: a selection is needed and the tensor is not one-hot.
        """
        for position, form in self.positions.get(node, ()):
            memory = memory_of(tensor, form, dense=True)
            if memory is None:
                remedy = "feed Tensor.selection(indices, vocabulary) or rows with a single 1"
                raise DataError(f"{self.columns.label(node)}: a row of the selection is not one-hot; {remedy}")
            self.lend(frame, position, memory)

    # ---- where memory lies: here, and elsewhere for a device
    def lend(self, frame: Frame, bank: int, array: Any) -> None:
        """Let a run read an array."""
        frame.words[bank], held = self.program.placed(array)
        frame.held.append(held)

    def bring(self, frame: Frame, bank: int, entry: Parameters | Tensor, key: int = 0) -> None:
        """Let a run read a table where it lies, or a single number in the room of its key."""
        if isinstance(entry, Parameters):
            frame.words[bank] = entry.address
        else:
            frame.rooms[key][...] = entry.buffer[entry.layout.offset]

    def walk(self, frame: Frame, banks: Any) -> None:
        """Run once per row of a table of banks, some hundred in a native entry.

        Raises:
            DataError: the data of a step broke a rule.
        """
        for first in range(0, len(banks), CHUNK):
            error = self.program.run_all(banks[first : first + CHUNK], frame.arena)
            if error is not None:
                raise data_error(self.columns, *error[:2], first + error[2])

    # ---- runs
    def enter(self, frame: Frame) -> None:
        """Run a bound frame, in one native entry.

        Raises:
            DataError: the data broke a rule; the message names the line that recorded the node.
        """
        walk = frame.enter()
        frame.held.clear()
        if walk >= 0:
            self.report(frame)

    def report(self, frame: Frame) -> None:
        """Raise the `DataError` of a run, if there is one."""
        error = frame.error()
        if error is not None:
            raise data_error(self.columns, *error)


def lower(
    columns: Columns, slots: Slots, earlier: Lowered | None = None, wanted: Collection[int] | None = None
) -> Lowered:
    """Lower every node (or the `wanted` ones), in recording order, nothing freed: the trivial program.

    With `earlier`, nodes that it computed are read from its arena, and only later ones are lowered.
    """
    emitter = Emitter(reference=True)
    operands: list[Any] = []
    known: list[Any] = earlier.operands if earlier is not None else []
    for node, opcode in enumerate(columns.opcodes):
        emitter.node = node
        absent = node < len(known) and known[node] is None
        if absent or (wanted is not None and node not in wanted):
            operands.append(None)
        elif opcode.is_source:
            operands.append(source(emitter, columns, slots, node))
        elif earlier is not None and node < len(known):
            operands.append(_earlier(emitter, earlier, known[node]))
        else:
            operands.append(opcode.lower(emitter, *[operands[i] for i in columns.operands[node]]))
    if earlier is None:
        for node in columns.checks:
            if operands[node] is not None:
                check(emitter, node, operands[node])
    # Every value stays: memory of this size is worth keeping for the next run only where it is small.
    return Lowered(columns, slots, operands, emitter.finish(), spare=SPARE if emitter.size <= KEPT else 0)


def check(emitter: Emitter, node: int, operand: Operand) -> None:
    """Append the row that reports a value of 0."""
    emitter.node = node
    emitter.append(rows.nonzero(operand.element, operand.place))


def source(emitter: Emitter, columns: Columns, slots: Slots, node: int) -> Operand:
    """Return a source as an operand: a slot of the table, a constant, or an input bound by each run."""
    opcode, payload = columns.opcodes[node], columns.payloads[node]
    if isinstance(opcode, Leaf):
        return emitter.constant(payload)
    if isinstance(opcode, Parameter):
        return Operand(TABLE, 0, payload.element.name, slots.layouts[slots.by_node[node]])
    return emitter.input(node, payload.element.name, Layout.dense(payload.shape))


def _earlier(emitter: Emitter, earlier: Lowered, was: Operand) -> Operand:
    """Return an operand of the forward program: in its arena, or a view of a source."""
    if was.bank == ARENA:
        return Operand(emitter.bank(EARLIER, "arena"), was.base, was.element, was.layout)
    if was.bank == TABLE:
        return was
    key = earlier.program.sources[was.bank - FIRST][0]
    if key <= CONSTANT:
        return emitter.constant(earlier.program.constants[CONSTANT - key]).view(was.layout)
    return emitter.input(key, was.element, was.layout).view(was.layout)


class Bound:
    """A run of a `Lowered`: the memory that its operands lie in."""

    __slots__ = ("frame", "lowered", "parameters", "tensors")

    def __init__(self, lowered: Lowered, parameters: Parameters, tensors: Fed | None, frame: Frame) -> None:
        self.lowered, self.parameters, self.tensors, self.frame = lowered, parameters, tensors, frame

    columns: Columns = property(operator.attrgetter("lowered.columns"))  # type: ignore[assignment]
    slots: Slots = property(operator.attrgetter("lowered.slots"))  # type: ignore[assignment]

    def input(self, node: int) -> Tensor:
        """Return the payload of a leaf or input in this run."""
        tensors = self.tensors = self.tensors or {}
        found = tensors.get(node)
        if found is not None:
            return found
        source, columns = self.lowered.inputs.get(node), self.columns
        if source is None or not source.bit & self.frame.fed:
            return columns.payloads[node]
        layout = Layout.dense(source.shape)
        found = Tensor.of_buffer(columns.element, self.frame.rooms[node].reshape(-1).copy(), layout)
        return tensors.setdefault(node, found)

    def read(self, node: int) -> Tensor:
        """Return the tensor of a node.

        Raises:
            UnreadableError: it was not computed.
        """
        columns, operand = self.columns, self.lowered.operands[node]
        if operand is None:
            raise UnreadableError(f"{columns.label(node)} was not computed: no result of the entry needs it")
        if isinstance(columns.opcodes[node], (Leaf, Input)):
            return self.input(node)
        return self.resolve(operand, columns.element)

    def cotangents(self, target: int) -> Callable[[int], Tensor | None]:
        """Run the reverse scan of a target and return what reads a node's cotangent (None: no ancestor).

        Every cotangent is computed from the seed, a constant, or is a view of such a value: none lies in this run's memory.
        """
        lowered, spoken = self.lowered.reverse(target)
        frame = lowered.pool.take()
        for key, forms in lowered.positions.items():
            if key == EARLIER:
                frame.words[forms[0][0]] = self.frame.words[ARENA]
            else:
                lowered.place(frame, key, self.input(key))
        frame.words[TABLE] = self.parameters.address
        lowered.enter(frame)
        reverse = Bound(lowered, self.parameters, self.tensors, frame)

        def cotangent(node: int) -> Tensor | None:
            return reverse.read(spoken[node]) if node in spoken else None

        return cotangent

    def resolve(self, operand: Operand, element: Element) -> Tensor:
        """Return the tensor that an operand is."""
        if operand.bank == ARENA:
            return result_tensor(operand, self.frame.arena, element, SMALL)
        if operand.bank == TABLE:
            return Tensor.of_buffer(element, self.parameters.buffer, operand.layout)
        program = self.lowered.program
        key, _ = program.sources[operand.bank - FIRST]
        if key <= CONSTANT:
            return Tensor.of_buffer(element, program.constants[CONSTANT - key].dense().buffer, operand.layout)
        return Tensor.of_buffer(element, self.input(key).dense_buffer(), operand.layout)


def data_error(columns: Columns, node: int, value: int, step: int | None = None) -> DataError:
    """Return the error for a node that reported `value`, in a step of a sequence."""
    where = columns.label(node) if step is None else f"step {step}: {columns.label(node)}"
    if node in columns.checks:
        return DataError(f"{where} is 0: it divides a mean; its targets need a positive total mass")
    return DataError(f"{where}: row {value} of the selection is not one-hot")
