"""Lowering: from columns to a `Program`, and from the operands of a program back to tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topos.errors import DataError
from topos.graph.columns import Columns
from topos.graph.parameters import Slots
from topos.kernels import rows
from topos.ops import Input, Leaf, Parameter
from topos.ops.emit import (
    ARENA,
    FIRST,
    TABLE,
    Emitter,
    Operand,
    Program,
    address_of,
    result_tensor,
    source_operand,
)
from topos.payload.layout import Layout
from topos.payload.tensor import Tensor

EARLIER = -1
"""The source that stands for the arena of the forward run, in the program of its reverse scan."""


class Lowered:
    """A program with the operand of every node that it computes or reads.

    Addresses of leaves are bound here, once; a run adds those of inputs and of an earlier arena.
    """

    __slots__ = ("_banks", "_held", "columns", "operands", "program", "slots", "varying")

    def __init__(self, columns: Columns, slots: Slots, operands: list[Operand], program: Program) -> None:
        self.columns, self.slots, self.operands, self.program = columns, slots, operands, program
        self._banks = np.zeros(FIRST + len(program.sources), np.int64)
        self._held: list[Any] = []
        self.varying: list[tuple[int, int, str]] = []
        for position, (source, form) in enumerate(program.sources, FIRST):
            if source == EARLIER or isinstance(columns.opcodes[source], Input):
                self.varying.append((position, source, form))
            else:
                address, held = self.address(columns.payloads[source], source, form)
                self._banks[position] = address
                self._held.append(held)

    def banks(self) -> Any:
        """Return a fresh table of banks with the leaves in place."""
        return self._banks.copy()

    def address(self, tensor: Tensor, source: int, form: str) -> tuple[int, Any]:
        """Return the address of a source's payload in a form, and what keeps that memory alive.

        Raises:
            DataError: a selection is needed and the payload is not one-hot.
        """
        is_input = isinstance(self.columns.opcodes[source], Input)
        address, held = address_of(tensor, form, dense=is_input)
        if address == 0:
            raise DataError(
                f"{self.columns.label(source)}: a row of the selection is not one-hot; "
                f"feed Tensor.selection(indices, vocabulary) or rows with a single 1"
            )
        return address, held


def lower(columns: Columns, slots: Slots, earlier: Lowered | None = None) -> Lowered:
    """Lower every node, in recording order, nothing freed: the trivial program.

    With `earlier`, nodes that it computed are read from its arena, and only later ones are lowered.
    """
    emitter = Emitter()
    operands: list[Operand] = []
    known = len(earlier.operands) if earlier is not None else 0
    for node, opcode in enumerate(columns.opcodes):
        emitter.node = node
        if opcode.is_source:
            operands.append(_source(emitter, columns, slots, node))
        elif earlier is not None and node < known:
            operands.append(_earlier(emitter, columns, earlier, operands, node))
        else:
            operands.append(opcode.lower(emitter, *[operands[i] for i in columns.operands[node]]))
    if earlier is None:
        for node in columns.checks:
            emitter.node = node
            emitter.append(rows.nonzero(operands[node].element, operands[node].place))
    return Lowered(columns, slots, operands, emitter.finish())


def _source(emitter: Emitter, columns: Columns, slots: Slots, node: int) -> Operand:
    opcode, payload = columns.opcodes[node], columns.payloads[node]
    if isinstance(opcode, Parameter):
        assert payload.element.kernel is not None
        return Operand(TABLE, 0, payload.element.kernel, slots.layouts[slots.by_node[node]])
    operand = source_operand(emitter, node, payload)
    if isinstance(opcode, Input):
        operand.layout = Layout.dense(payload.shape)
    return operand


def _earlier(
    emitter: Emitter, columns: Columns, earlier: Lowered, operands: Sequence[Operand], node: int
) -> Operand:
    """Return a node of the forward program: in its arena, or a view of a source."""
    was = earlier.operands[node]
    if was.bank == ARENA:
        return Operand(emitter.bank(EARLIER, "arena"), was.base, was.element, was.layout)
    if was.bank == TABLE:
        return was
    source = earlier.program.sources[was.bank - FIRST][0]
    view = Operand(0, was.base, was.element, was.layout)
    view.bank = emitter.bank(source, "values")
    return view


class Bound:
    """A finished run of a `Lowered`: the memory that its operands lie in."""

    __slots__ = ("arena", "earlier", "held", "lowered", "table", "tensors")

    def __init__(
        self, lowered: Lowered, table: Any, tensors: Mapping[int, Tensor], earlier: Bound | None = None
    ) -> None:
        """Run the program once, in one native entry.

        Raises:
            DataError: the data broke a rule; the message names the line that recorded the node.
        """
        self.lowered, self.table, self.tensors, self.earlier = lowered, table, tensors, earlier
        self.held: list[Any] = []
        banks = lowered.banks()
        banks[TABLE] = table.ctypes.data
        for position, source, form in lowered.varying:
            if source == EARLIER:
                assert earlier is not None
                banks[position] = earlier.arena.ctypes.data
            else:
                banks[position], held = lowered.address(self.tensor(source), source, form)
                self.held.append(held)
        self.arena, error = lowered.program.run(banks)
        if error is not None:
            raise _data_error(lowered.columns, *error)

    def tensor(self, source: int) -> Tensor:
        """Return the payload of a leaf or input in this run."""
        found = self.tensors.get(source)
        return self.lowered.columns.payloads[source] if found is None else found

    def read(self, node: int) -> Tensor:
        """Return the tensor of a node."""
        columns, operand = self.lowered.columns, self.lowered.operands[node]
        like = columns.payloads.get(node)
        if isinstance(columns.opcodes[node], (Leaf, Input)):
            return self.tensor(node)
        return self.resolve(operand, columns.element if like is None else like.element)

    def resolve(self, operand: Operand, element: Any) -> Tensor:
        """Return the tensor that an operand is."""
        if operand.bank == ARENA:
            return result_tensor(operand, self.arena, element)
        if operand.bank == TABLE:
            return Tensor.of_buffer(element, self.table, operand.layout)
        source, _ = self.lowered.program.sources[operand.bank - FIRST]
        if source == EARLIER:
            assert self.earlier is not None
            return result_tensor(operand, self.earlier.arena, element)
        tensor = self.tensor(source)
        is_input = isinstance(self.lowered.columns.opcodes[source], Input)
        buffer = tensor.dense_buffer() if is_input else tensor.dense().buffer
        return Tensor.of_buffer(element, buffer, operand.layout)


def _data_error(columns: Columns, node: int, value: int) -> DataError:
    if node in columns.checks:
        return DataError(
            f"{columns.label(node)} is 0: it divides a mean; its targets need a positive total mass"
        )
    return DataError(f"{columns.label(node)}: row {value} of the selection is not one-hot")
