"""Lowering: from columns to a `Program`, and from the operands of a program back to tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from topos.errors import DataError
from topos.graph.columns import Columns
from topos.graph.parameters import Slots
from topos.graph.tape import Tape
from topos.graph.trace import Trace, reverse_scan
from topos.graph.value import Value
from topos.kernels import rows
from topos.ops import Input, Leaf, Parameter
from topos.ops.emit import ARENA, CONSTANT, FIRST, TABLE, Emitter, Operand, Program, address_of, result_tensor
from topos.payload.element import Element
from topos.payload.layout import Layout
from topos.payload.tensor import Tensor

SMALL = 1024
"""Bytes up to which a result is copied out, so that who keeps a loss does not keep the arena it lay in."""

EARLIER = -1
"""The source that stands for the arena of the forward run, in the program of its reverse scan."""


class Lowered:
    """A program with the operand of every node that it computes or reads (None for the others).

    Addresses of leaves are bound here, once; a run adds those of inputs and of an earlier arena.
    """

    __slots__ = ("_banks", "_held", "_lock", "_reverse", "columns", "operands", "program", "slots", "varying")

    def __init__(
        self, columns: Columns, slots: Slots, operands: list[Operand | None], program: Program
    ) -> None:
        self.columns, self.slots, self.operands, self.program = columns, slots, operands, program
        self._banks = np.zeros(FIRST + len(program.sources), np.int64)
        self._held: list[Any] = []
        self._lock = threading.Lock()
        self._reverse: dict[int, tuple[Lowered, dict[int, int]]] = {}
        self.varying: list[tuple[int, int, str]] = []
        for position, (source, form) in enumerate(program.sources, FIRST):
            if source > CONSTANT:
                self.varying.append((position, source, form))
            else:
                address, held = address_of(program.constants[CONSTANT - source], form, dense=False)
                if address == 0:
                    raise DataError("a row of a constant selection is not one-hot")
                self._banks[position] = address
                self._held.append(held)

    def reverse(self, target: int) -> tuple[Lowered, dict[int, int]]:
        """Return the reverse scan of a target: its program, and the node of each cotangent.

        The rules record themselves once behind a copy of the spec, and what they recorded is lowered.
        """
        with self._lock:
            if target not in self._reverse:
                tape = Tape.of_columns(self.columns.fork())
                with tape.derivation() as at:
                    at(target)
                    seed = Trace(Value(tape, target)).one_like()
                    spoken = reverse_scan(
                        tape.columns, target, seed, lambda node: Trace(Value(tape, node)), visit=at
                    )
                cotangents = {node: trace.value.index for node, trace in spoken.items()}
                self._reverse[target] = lower(tape.columns, self.slots, self), cotangents
            return self._reverse[target]

    def banks(self) -> Any:
        """Return a fresh table of banks with the leaves in place."""
        return self._banks.copy()

    def bound_banks(
        self, tensors: Mapping[int, Tensor], earlier: Bound | None = None
    ) -> tuple[Any, list[Any]]:
        """Return a table of banks with every source in place, and what keeps that memory alive."""
        banks, held = self.banks(), []
        for position, key, form in self.varying:
            if key == EARLIER:
                assert earlier is not None
                banks[position] = earlier.arena.ctypes.data
            else:
                tensor = tensors.get(key)
                payload = self.columns.payloads[key] if tensor is None else tensor
                banks[position], kept = self.address(payload, key, form)
                held.append(kept)
        return banks, held

    def address(self, tensor: Tensor, source: int, form: str) -> tuple[int, Any]:
        """Return the address of an input's payload in a form, and what keeps that memory alive.

        Raises:
            DataError: a selection is needed and the payload is not one-hot.
        """
        address, held = address_of(tensor, form, dense=True)
        if address == 0:
            raise DataError(
                f"{self.columns.label(source)}: a row of the selection is not one-hot; "
                f"feed Tensor.selection(indices, vocabulary) or rows with a single 1"
            )
        return address, held


def lower(
    columns: Columns, slots: Slots, earlier: Lowered | None = None, wanted: Collection[int] | None = None
) -> Lowered:
    """Lower every node (or the `wanted` ones), in recording order, nothing freed: the trivial program.

    With `earlier`, nodes that it computed are read from its arena, and only later ones are lowered.
    """
    emitter = Emitter(reference=True)
    operands: list[Any] = []
    known = len(earlier.operands) if earlier is not None else 0
    for node, opcode in enumerate(columns.opcodes):
        emitter.node = node
        absent = node < known and earlier is not None and earlier.operands[node] is None
        if absent or (wanted is not None and node not in wanted):
            operands.append(None)
        elif opcode.is_source:
            operands.append(source(emitter, columns, slots, node))
        elif earlier is not None and node < known:
            operands.append(_earlier(emitter, earlier, node))
        else:
            operands.append(opcode.lower(emitter, *[operands[i] for i in columns.operands[node]]))
    if earlier is None:
        for node in columns.checks:
            if operands[node] is not None:
                check(emitter, node, operands[node])
    return Lowered(columns, slots, operands, emitter.finish())


def check(emitter: Emitter, node: int, operand: Operand) -> None:
    """Append the row that reports a value of 0."""
    emitter.node = node
    emitter.append(rows.nonzero(operand.element, operand.place))


def source(emitter: Emitter, columns: Columns, slots: Slots, node: int) -> Operand:
    """Return a source as an operand: a slot of the table, a constant, or an input bound by each run."""
    opcode, payload = columns.opcodes[node], columns.payloads[node]
    if isinstance(opcode, Leaf):
        return emitter.constant(payload)
    assert payload.element.kernel is not None
    if isinstance(opcode, Parameter):
        return Operand(TABLE, 0, payload.element.kernel, slots.layouts[slots.by_node[node]])
    return emitter.input(node, payload.element.kernel, Layout.dense(payload.shape))


def _earlier(emitter: Emitter, earlier: Lowered, node: int) -> Operand:
    """Return a node of the forward program: in its arena, or a view of a source."""
    was = earlier.operands[node]
    assert was is not None
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

    __slots__ = ("arena", "earlier", "held", "lowered", "table", "tensors")

    def __init__(
        self,
        lowered: Lowered,
        table: Any,
        tensors: Mapping[int, Tensor],
        arena: Any,
        earlier: Bound | None = None,
    ) -> None:
        self.lowered, self.table, self.tensors, self.earlier = lowered, table, tensors, earlier
        self.arena = arena
        self.held: list[Any] = []

    @classmethod
    def run(
        cls,
        lowered: Lowered,
        table: Any,
        tensors: Mapping[int, Tensor],
        earlier: Bound | None = None,
        arena: Any = None,
    ) -> Bound:
        """Run the program once, in one native entry.

        Raises:
            DataError: the data broke a rule; the message names the line that recorded the node.
        """
        bound = cls(lowered, table, tensors, arena, earlier)
        banks, bound.held = lowered.bound_banks(tensors, earlier)
        banks[TABLE] = table.ctypes.data
        bound.arena, error = lowered.program.run(banks, arena)
        if error is not None:
            raise data_error(lowered.columns, *error)
        return bound

    def input(self, node: int) -> Tensor:
        """Return the payload of a leaf or input in this run."""
        found = self.tensors.get(node)
        return self.lowered.columns.payloads[node] if found is None else found

    def read(self, node: int) -> Tensor:
        """Return the tensor of a node."""
        columns, operand = self.lowered.columns, self.lowered.operands[node]
        if isinstance(columns.opcodes[node], (Leaf, Input)):
            return self.input(node)
        assert operand is not None
        return self.resolve(operand, columns.element)

    def cotangents(self, target: int) -> Callable[[int], Tensor | None]:
        """Run the reverse scan of a target and return what reads a node's cotangent (None: no ancestor)."""
        lowered, spoken = self.lowered.reverse(target)
        reverse = Bound.run(lowered, self.table, self.tensors, self)

        def cotangent(node: int) -> Tensor | None:
            return reverse.read(spoken[node]) if node in spoken else None

        return cotangent

    def resolve(self, operand: Operand, element: Element) -> Tensor:
        """Return the tensor that an operand is."""
        if operand.bank == ARENA:
            tensor = result_tensor(operand, self.arena, element)
            if operand.layout.shape.volume * operand.size > SMALL:
                return tensor
            return Tensor.of_buffer(element, np.array(tensor.dense_buffer()), Layout.dense(tensor.shape))
        if operand.bank == TABLE:
            return Tensor.of_buffer(element, self.table, operand.layout)
        program = self.lowered.program
        key, _ = program.sources[operand.bank - FIRST]
        if key == EARLIER:
            assert self.earlier is not None
            return result_tensor(operand, self.earlier.arena, element)
        if key <= CONSTANT:
            return Tensor.of_buffer(element, program.constants[CONSTANT - key].dense().buffer, operand.layout)
        return Tensor.of_buffer(element, self.input(key).dense_buffer(), operand.layout)


def data_error(columns: Columns, node: int, value: int) -> DataError:
    """Return the error for a node that reported `value`."""
    if node in columns.checks:
        return DataError(
            f"{columns.label(node)} is 0: it divides a mean; its targets need a positive total mass"
        )
    return DataError(f"{columns.label(node)}: row {value} of the selection is not one-hot")
