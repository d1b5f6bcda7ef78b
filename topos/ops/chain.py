"""From a chain to its row: many elementwise operations and reductions of rows as one block program."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topos.kernels import memory, rows
from topos.kernels.chains import COLLECT, FULL, LOOP, LOOP_OF, OVER
from topos.kernels.reference import R_BLOCK
from topos.ops import emit
from topos.ops.emit import ALIGNMENT, Emitter, Operand, Operands, collapse
from topos.payload.layout import dense_strides, same_walk
from topos.payload.shape import Shape

# Bytes of buffers that a block uses: more than the nearest cache, since an instruction costs some 10 ns beside them.
NEAR = 3 << 14

# Most values of a block, where rows are not longer.
VALUES = 2048


# Steps of a loop: rounding to 16 bits is so long that 16 steps compile in 0.7 s, with a sum in 1.1; a process that ends waits.
LONG = 16

# Values of a row from which on a loop takes a value per row as it is, instead of repeated in memory.
HOLDS = 32


class Step(NamedTuple):
    """One operation of a chain: the family of its routine, what it works on, and where its operands come from.

    `is_row` says that it yields one value per row; else it yields whole rows.
    """

    node: int
    family: str
    kind: int
    is_row: bool
    sources: tuple[int, ...]


@dataclass
class _Value:
    """A value of the block program: memory of the run, or a buffer (bank -1) once it has a place.

    `steady` values are the same in every block.
    """

    bank: int = -1
    offset: int = 0
    step: int = 0
    steady: bool = False
    is_row: bool = False


class _Instruction(NamedTuple):
    """As `rows.chain` takes it."""

    routine: str
    kind: int
    out: int
    sources: list[int]
    geometry: list[int]
    cost: int


class _Block:
    """A block program under construction, over a frame of rows of `n` values with `axes` before them."""

    def __init__(self, element: str, size: int, count: int, n: int, axes: list[int]) -> None:
        self.element, self.size, self.count, self.n, self.axes = element, size, count, n, axes
        self.values: list[_Value] = []
        self.before: list[_Instruction] = []
        self.within: list[_Instruction] = []
        self.names: dict[int, int] = {}

    def value(self, value: _Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def read(self, operand: Operand, is_row: bool, walk: Sequence[int]) -> int:
        """Return a value that is read from memory through the strides `walk`: in place where they permit it."""
        bank, offset = operand.place
        is_flat = is_row or self.n == 1
        axes = self.axes if is_flat else [*self.axes, self.n]
        span = 1 if is_row else self.n
        if same_walk(axes, walk, dense_strides(axes)):
            return self.value(_Value(bank, offset, span * self.size, is_row=is_row))
        lead = walk if is_flat else walk[:-1]
        if not is_flat and walk[-1] == 0 and any(lead):
            return self.add("spread", OVER, False, [self.read(operand, True, lead)])
        source = self.value(_Value(bank, offset))
        steady = not any(lead)
        out = self.value(_Value(steady=steady, is_row=is_row))
        merged, (strides,) = collapse(axes, [walk])
        geometry = [self.size, len(merged), span, *merged, *strides]
        (self.before if steady else self.within).append(_Instruction("", COLLECT, out, [source], geometry, span))
        return out

    def output(self, target: Operand, is_row: bool) -> int:
        """Return a value that is written to dense memory."""
        bank, offset = target.place
        step = (1 if is_row else self.n) * self.size
        return self.value(_Value(bank, offset, step, is_row=is_row))

    def add(self, family: str, kind: int, is_row: bool, sources: list[int], out: int | None = None) -> int:
        """Append an operation: before the blocks where no block changes its operands and its result is a buffer."""
        steady = out is None and all(self.values[source].steady for source in sources)
        if out is None:
            out = self.value(_Value(steady=steady, is_row=is_row))
        cost = rows.COST.get(family, 1) * (1 if is_row else self.n)
        instruction = _Instruction(f"{family}.{self.element}", kind, out, sources, [], cost)
        (self.before if steady else self.within).append(instruction)
        return out

    def last_reads(self) -> dict[int, int]:
        """Return by value the last instruction within blocks that reads it."""
        return {source: at for at, instruction in enumerate(self.within) for source in instruction.sources}

    def place_buffers(self) -> int | None:
        """Give buffers their places and return the rows of a block; None where one row is too much."""
        last = self.last_reads()
        used = [0, 0]  # how many buffers there are of whole rows, and of values per row
        free: list[list[int]] = [[], []]
        slot: dict[int, int] = {}

        def take(value: int) -> None:
            side = int(self.values[value].is_row)
            if not free[side]:
                free[side].append(used[side])
                used[side] += 1
            slot[value] = free[side].pop()

        for instruction in self.before:
            take(instruction.out)
        for at, instruction in enumerate(self.within):
            dying = {s for s in instruction.sources if last[s] == at and s in slot and not self.values[s].steady}
            is_buffer, overwrites = self.values[instruction.out].bank < 0, instruction.kind not in (OVER, COLLECT)
            if is_buffer and not overwrites:
                take(instruction.out)
            for source in dying:
                free[int(self.values[source].is_row)].append(slot[source])
            if is_buffer and overwrites:
                take(instruction.out)
        table = -(-8 * len(self.values) // ALIGNMENT) * ALIGNMENT
        per_row = (used[0] * self.n + used[1]) * self.size
        padding = 2 * ALIGNMENT * sum(used)
        block = min(max(min(NEAR // max(1, per_row), VALUES // self.n), 1), self.count)
        if self.n == 1 and block > 32:
            block = block // 32 * 32
        if table + padding + block * per_row > memory.ROOM:
            return None
        strides = [-(-block * span * self.size // ALIGNMENT) * ALIGNMENT + ALIGNMENT for span in (self.n, 1)]
        starts = table, table + used[0] * strides[0]
        for value, index in slot.items():
            side = int(self.values[value].is_row)
            self.values[value].offset = starts[side] + index * strides[side]
        return block

    def row(self, block: int) -> rows.Row:
        """Return the row of the program."""
        values = [(v.bank, v.offset, v.step) for v in self.values]
        # Fewer values gain nothing from a loop, however often they come.
        within = self.with_loops() if self.count * self.n >= emit.LARGE // 128 else self.within
        return rows.chain((self.count, self.n, block), values, len(self.before), [*self.before, *within])

    def with_loops(self) -> list[_Instruction]:
        """Return what runs per block, each run of arithmetic, up to a sum, behind the loop that will stand for it."""
        last, found, end = self.last_reads(), list[_Instruction](), 0
        for is_arithmetic, given in itertools.groupby(self.within, self.is_arithmetic):
            run = list(given)
            while run:
                sums = [at for at, instruction in enumerate(run, 1) if instruction.routine.startswith("row_sum")]
                size = min(*sums, LONG, len(run))
                part, run = run[:size], run[size:]
                end += size
                if is_arithmetic and size > 1:
                    found.append(self._loop(part, {i.out for i in part if last.get(i.out, -1) >= end}))
                found += part
        return found

    def is_arithmetic(self, instruction: _Instruction) -> bool:
        """Return whether a loop carries it out: maps gain nothing from one, they fill the registers themselves."""
        family = instruction.routine.partition(".")[0]
        is_rows = family in ("spread", "row_sum")
        return HOLDS <= self.n <= R_BLOCK if is_rows else instruction.kind == FULL and family not in rows.COST

    def _loop(self, run: list[_Instruction], wanted: set[int]) -> _Instruction:
        """Return the loop of a run whose results in memory, and those that are `wanted`, are written.

        What the run repeats along rows, the loop takes as a value per row; a sum of rows is its last instruction.
        """
        sums = run[-1].routine.startswith("row_sum")
        repeated = {i.out: i.sources[0] for i in run[: len(run) - sums] if i.kind == OVER}
        made = {instruction.out for instruction in run}
        others = (s for i in run if i.out not in repeated for s in i.sources if s not in made)
        inputs = [*repeated, *dict.fromkeys(others)]
        steps = [instruction for instruction in run if instruction.kind == FULL]
        number = {value: at for at, value in enumerate([*inputs, *(step.out for step in steps)])}
        number |= {i.out: number[i.sources[0]] for i in run[len(run) - sums :]}
        texts = [(step.routine.partition(".")[0], [number[source] for source in step.sources]) for step in steps]
        outputs = [i.out for i in run if i.out in wanted or self.values[i.out].bank >= 0]
        structure = self.element, int(sums), len(repeated), len(inputs), texts, [number[out] for out in outputs]
        places = [repeated.get(value, value) for value in inputs] + outputs
        work = self.count * self.n * len(run)
        return _Instruction(f"{LOOP_OF}{structure}", LOOP, len(run), [0, 0, work], places, 0)


def lower(
    emitter: Emitter, steps: Sequence[Step], frame: Shape, reads: Operands, outputs: Sequence[int], targets: Operands
) -> dict[int, Operand] | None:
    """Append the row of a chain and return its outputs; None where its rows are too long for the buffers.

    Arguments:
        emitter: where to.
        steps: the operations, in an order in which they can run.
        frame: the shape of whole values; a value per row has it without its last axis.
        reads: what the steps read from outside.
        outputs: the nodes whose values are written.
        targets: dense memory that some of them are written to.
    """
    any_read = next(iter(reads.values()))
    is_full = all(step.kind == FULL for step in steps)
    order = _common_order(frame, list(reads.values())) if is_full else None
    if order is not None:
        frame = Shape(frame[axis] for axis in order)
        reads = {node: operand.view(operand.layout.permute(order)) for node, operand in reads.items()}
    count, n, axes, walks = _frame(steps, frame, list(reads.values()))
    block = _Block(any_read.element, any_read.size, count, n, axes)
    operands = dict(zip(reads, zip(reads.values(), walks, strict=True), strict=True))
    repeated = {step.node: step.sources[0] for step in steps if step.family == "spread"}
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        for source in step.sources:
            last[source] = last[repeated.get(source, source)] = at
    bases = Counter((o.bank, o.base) for o in reads.values())
    spare = {node: o for node, o in reads.items() if bases[o.bank, o.base] == 1 and order is None}
    found: dict[int, Operand] = {}
    for at, step in enumerate(steps):
        for source in step.sources:
            if source not in block.names:
                operand, walk = operands[source]
                is_row = operand.layout.shape.rank < len(frame)
                block.names[source] = block.read(operand, is_row, walk)
        out = None
        if step.node in outputs:
            shape = Shape(frame[:-1]) if step.is_row else frame
            target = targets.get(step.node)
            if target is None:
                # An output may lie where a dying operand lay that no later step reads.
                over = [node for node in spare if last[node] <= at]
                target = emitter.allocate(shape, any_read.element, tuple(spare[node] for node in over))
                for node in over:
                    if (target.bank, target.base) == (spare[node].bank, spare[node].base):
                        del spare[node]
            found[step.node] = target
            out = block.output(target, step.is_row)
        sources = [block.names[source] for source in step.sources]
        block.names[step.node] = block.add(step.family, step.kind, step.is_row, sources, out)
    rows_of_block = block.place_buffers()
    if rows_of_block is None:
        return None
    emitter.append(block.row(rows_of_block))
    if order is None:
        return found
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return {node: operand.view(operand.layout.permute(inverse)) for node, operand in found.items()}


Emitter.chain = lower


def _frame(steps: Sequence[Step], frame: Shape, reads: list[Operand]) -> tuple[int, int, list[int], list[list[int]]]:
    """Return (rows, values per row, the axes of the rows, the strides of each read over the axes and the row)."""
    if any(step.kind != FULL for step in steps):
        lead, n = Shape(frame[:-1]), frame[-1]
        leading = [dense_strides(lead), *(o.layout.strides[: lead.rank] for o in reads)]
        axes, (_, *walks) = collapse(lead, leading)
        if n > 1:
            for operand, walk in zip(reads, walks, strict=True):
                walk += operand.layout.strides[lead.rank :]
        return lead.volume, n, axes, walks
    extents, (_, *walks) = collapse(frame, [dense_strides(frame), *(o.layout.strides for o in reads)])
    if len(extents) > 1 and extents[-1] <= VALUES:
        return math.prod(extents[:-1]), extents[-1], extents[:-1], walks
    return math.prod(extents), 1, extents, walks


def _common_order(frame: Shape, reads: Sequence[Operand]) -> list[int] | None:
    """Return the order of axes in which the reads that fill the frame lie dense, if it is not row-major."""
    if any(operand.layout.is_dense for operand in reads):
        return None
    for operand in reads:
        strides = operand.layout.strides
        order = sorted(range(len(frame)), key=lambda axis: -strides[axis])
        if operand.layout.permute(order).is_dense and order != sorted(order):
            return order
    return None
