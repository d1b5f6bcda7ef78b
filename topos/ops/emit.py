"""From opcodes to rows: `Operand` (where a value lies), `Emitter` (appends rows), `Program` (runs them)."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from topos.backend import tally
from topos.kernels import beside, elements, rows, runtime, store
from topos.kernels.chains import INSTRUCTION, LOOP_OF
from topos.kernels.rows import Batch, Extents, Factor, Lines, Place, Row
from topos.ops.offer import services
from topos.payload import Element, Layout, Shape, Tensor

# The banks: error word, arena, parameter table; sources follow, one bank each.
ERRORS, ARENA, TABLE, FIRST = 0, 1, 2, 3

# Key of the first constant among a program's sources; the next ones count down. Inputs have their node.
CONSTANT = -1000

# Bytes: a cache line.
ALIGNMENT = 64

# The error bank before a run: (node, value), then 8 zero bytes and 8 bytes 0xFF.
NO_ERROR = (-1, 0, 0, -1)

# Byte offset in the error bank of 8 zero bytes, the value that padding repeats.
ZEROS = 16

# Operations of a program from which on a loop carries out all of them that have its text: compiling one takes as long as
# some 200 runs save then.
LARGE = 1 << 15

# Columns side by side from which on their logarithms are taken as they lie: fewer leave most lanes of a vector idle.
FEW = 8


class Operand:
    """Where a value lies: a bank, a byte offset, an element (as kernels name it), and a layout over it.

    `source` names the source it is, if it is one: an index that `Emitter.indices` may ask for.
    """

    __slots__ = ("_span", "bank", "base", "element", "layout", "size", "source")

    def __init__(self, bank: int, base: int, element: str, layout: Layout, source: int | None = None) -> None:
        self.bank, self.base, self.element, self.layout, self.source = bank, base, element, layout, source
        self.size = elements.MEMORY[element].size
        self._span: tuple[int, int, Layout] | None = None

    @property
    def place(self) -> Place:
        """Where the first element lies."""
        return (self.bank, self.base + self.layout.offset * self.size)

    @property
    def span(self) -> tuple[int, int, Layout]:
        """The first element in its bank, the one behind the last, and the layout from there."""
        if self._span is None:
            layout, first = self.layout, self.base // self.size + self.layout.offset
            last = first + sum((e - 1) * stride for e, stride in zip(layout.shape, layout.strides, strict=True))
            self._span = first, last + 1, Layout(layout.shape, layout.strides)
        return self._span

    def view(self, layout: Layout) -> Operand:
        """Return the same memory under another layout."""
        return Operand(self.bank, self.base, self.element, layout)

    def narrow(self, axis: int, start: int, length: int) -> Operand:
        """Return a part along an axis."""
        return self.view(self.layout.narrow(axis, start, length))


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Drop axes of extent 1 and merge neighbours that every operand walks as one axis (rank >= 1 remains)."""
    axes: list[list[int]] = []  # an extent, and the stride of each operand
    for extent, *walk in zip(shape, *strides, strict=True):
        if axes and axes[-1][1:] == [stride * extent for stride in walk]:
            axes[-1] = [axes[-1][0] * extent, *walk]
        elif extent != 1:
            axes.append([extent, *walk])
    extents, *merged = map(list, zip(*axes or [[1] + [0] * len(strides)], strict=True))
    return extents, merged


def compute_element(element: str) -> str:
    """Return the element in which an element is computed."""
    return f"f{elements.MEMORY[element].width}"


# Operands by node.
Operands: TypeAlias = Mapping[int, Operand]


class Emitter:
    """Appends rows to a program under construction. Every row belongs to the node `node`.

    With `reference`, kernels that compute are the plain loops which state the bits; `plain_products` says it of
    products alone.
    `chain` appends the row of a chain: `ops.chain.lower`.
    """

    chain: Callable[..., dict[int, Operand] | None]

    def __init__(self, reference: bool = False) -> None:
        self.reference = self.plain_products = reference
        self.rows: list[Row] = []
        self.nodes: list[int] = []
        self.node = 0
        self.size = 0
        self.tasks = max(runtime.num_threads(), os.cpu_count() or 1)  # that may share a row
        self.sources: dict[tuple[int, str], int] = {}
        self.constants: list[Tensor] = []

    def append(self, row: Row) -> None:
        """Add a row."""
        self.rows.append(row)
        self.nodes.append(self.node)

    def allocate(self, shape: Shape, element: str, over: tuple[Operand, ...] = ()) -> Operand:
        """Return room in the arena for a dense value; it may take the place of an operand in `over`."""
        result = Operand(ARENA, self.size, element, Layout.dense(shape))
        self.size += -(-math.prod(shape) * result.size // ALIGNMENT) * ALIGNMENT
        return result

    def bank(self, source: int, form: str) -> int:
        """Return the bank of a source in a form: its ``values``, or the ``indices`` of a selection."""
        return self.sources.setdefault((source, form), FIRST + len(self.sources))

    def input(self, source: int, element: str, layout: Layout) -> Operand:
        """Return a source of that key as an operand: a bank of its own, bound by each run."""
        return _SourceOperand(self, source, element, layout)

    def constant(self, tensor: Tensor) -> Operand:
        """Return a payload as an operand, read through its own layout and bound once."""
        self.constants.append(tensor)
        return self.input(CONSTANT - len(self.constants) + 1, tensor.element.name, tensor.layout)

    # ---- what opcodes are made of
    def elementwise(self, function: str, *operands: Operand, out: str | None = None) -> Operand:
        """Apply an element function over equal shapes; axes that no operand walks are computed once."""
        shape = operands[0].layout.shape
        element = operands[0].element
        routine = f"{function}.{out if function == 'narrow' else element}"
        idle = [extent > 1 and all(o.layout.strides[axis] == 0 for o in operands) for axis, extent in enumerate(shape)]
        window = Shape(1 if skip else extent for skip, extent in zip(idle, shape, strict=True)) if any(idle) else shape
        result = self.allocate(window, out or element, operands)
        self.compute(routine, result, operands)
        if not any(idle):
            return result
        walked = tuple(0 if skip else s for skip, s in zip(idle, result.layout.strides, strict=True))
        return result.view(Layout(shape, walked))

    def compute(self, routine: str, target: Operand, operands: Sequence[Operand]) -> None:
        """Apply a routine of element functions into dense memory."""
        extents, strides = collapse(target.layout.shape, [o.layout.strides for o in (target, *operands)])
        dense = strides[0]
        sources = [(o.place, o.size, walk == dense, walk) for o, walk in zip(operands, strides[1:], strict=True)]
        self.append(rows.elementwise(routine, extents, (target.place, target.size), sources))

    def copy(self, source: Operand, target: Operand, function: str = "") -> None:
        """Copy a value into memory of its shape, bits unchanged, or through an element function."""
        extents, (out, walk) = collapse(source.layout.shape, [target.layout.strides, source.layout.strides])
        if function and (self.reference or not out[-1] == walk[-1] == 1):
            self.copy(self.elementwise(function, source), target)
            return
        through = function and f"{function}.{source.element}"
        self.append(rows.copy(source.size, extents, target.place, out, source.place, walk, through))

    def dense(self, operand: Operand) -> Operand:
        """Return the value in row-major memory: itself, or a copy."""
        if operand.layout.is_dense:
            return operand
        target = self.allocate(operand.layout.shape, operand.element)
        self.copy(operand, target)
        return target

    def zeros(self, shape: Shape, element: str) -> Operand:
        """Return dense zeros."""
        target = self.allocate(shape, element)
        self.append(rows.fill(target.size, shape.volume, target.place, (ERRORS, ZEROS)))
        return target

    def widened(self, operand: Operand) -> Operand:
        """Return the value at compute precision."""
        element = compute_element(operand.element)
        return operand if operand.element == element else self.elementwise("widen", operand, out=element)

    def narrowed(self, operand: Operand, element: str) -> Operand:
        """Return a value at compute precision rounded once to `element`."""
        return operand if operand.element == element else self.elementwise("narrow", operand, out=element)

    def reduce(self, kernel: str, operand: Operand, axis: int) -> Operand:
        """Reduce one axis with ``sum``, ``max`` or ``logsumexp``, or keep it with ``log_softmax`` (see `log_rows`)."""
        layout, keeps = operand.layout, kernel == "log_softmax"
        shape = layout.shape.without_axis(axis)
        result = self.allocate(layout.shape if keeps else shape, operand.element)
        kept, walk = (strides[:axis] + strides[axis + 1 :] for strides in (result.layout.strides, layout.strides))
        extents, (out, strides) = collapse(shape, [kept if keeps else result.layout.strides, walk])
        n, stride = layout.shape[axis], layout.strides[axis]
        kind = "row" if stride == 1 or n == 1 else "column" if 1 in strides else "reference"
        kind = "reference" if self.reference else kind
        if kind == "column":
            last = strides.index(1)
            extents, out, strides = ([*w[:last], *w[last + 1 :], w[last]] for w in (extents, out, strides))
        places = (result.place, out), (operand.place, strides)
        is_log_row = kind == "row" and kernel.startswith("log")
        name = f"{kernel if is_log_row else f'{kind}_{kernel}'}.{operand.element}"
        self.append(rows.reduce(name, n, stride, *places, extents, n if is_log_row and keeps else 1))
        return result

    def product(self, element: str, out: Lines, a: Factor, b: Factor, extents: Extents, batch: Batch = ()) -> None:
        """Append a matrix product (`rows.matmul`) with the scratch memory that it packs into."""
        size = rows.scratch_bytes(element, *extents)
        scratch = self.allocate(Shape((size * self.tasks // 8,)), "f64")
        self.append(rows.matmul(element, out, a, b, (scratch.place, size, self.tasks), batch))

    def repeat(self, rank: int, build: Callable[..., object], *operands: Operand) -> None:
        """Append one row that carries out what `build` emits, for every index of the first `rank` axes of operands.

        It emits once, into an emitter of its own, for operands without these axes, and adds no sources. Tasks share the
        turns; what a turn allocates is the memory of its task, the same in every turn, so it may stay in a near cache.
        """
        inner = Emitter(self.reference)
        inner.tasks = 1
        inside = [Layout(Shape(o.layout.shape[rank:]), o.layout.strides[rank:]) for o in operands]
        given = zip(operands, inside, strict=True)
        build(inner, *(Operand(bank, 0, o.element, layout) for bank, (o, layout) in enumerate(given, FIRST)))
        extents, walks = collapse(operands[0].layout.shape[:rank], [o.layout.strides[:rank] for o in operands])
        slots, still = min(runtime.num_threads(), math.prod(extents)), [0] * len(extents)
        room = self.allocate(Shape((slots * inner.size // 8,)), "f64")
        banks = [((ERRORS, 0), 0, still), (room.place, inner.size, still), ((ERRORS, 0), 0, still)]
        banks += [(o.place, 0, [o.size * step for step in walk]) for o, walk in zip(operands, walks, strict=True)]
        self.append(rows.repeat(extents, slots, banks, inner.rows, self.node))

    def keep(self) -> None:
        """Let nothing that is allocated take the place of an operand."""

    def log_rows(self, routine: str, operand: Operand, axis: int) -> Operand:
        """Return ``log_softmax`` or ``logsumexp`` along an axis: of columns side by side as they lie, else of rows."""
        layout, rank = operand.layout, operand.layout.shape.rank
        if layout.is_dense and math.prod(layout.shape[axis + 1 :]) >= FEW:
            return self.reduce(routine, operand, axis)
        order = (*range(axis), *range(axis + 1, rank), axis)
        turned = operand.view(layout.permute(order))
        if turned.layout.strides[-1] != 1:
            turned = self.dense(turned)
        result = self.reduce(routine, turned, rank - 1)
        inverse = (*range(axis), rank - 1, *range(axis, rank - 1))
        return result.view(result.layout.permute(inverse)) if routine == "log_softmax" else result

    def indices(self, selection: Operand) -> Place:
        """Return int64 hot positions: those of a source directly, of a computed one-hot by a search."""
        if selection.source is not None:
            return (self.bank(selection.source, "indices"), 0)
        count, vocabulary = selection.layout.shape
        out = self.allocate(Shape((count,)), "f64")
        row, column = selection.layout.strides
        self.append(rows.one_hot(selection.element, count, vocabulary, out.place, selection.place, (row, column)))
        return out.place

    def finish(self) -> Program:
        """Return the program of the rows so far."""
        return Program(self)


class Program:
    """An instruction table with what a run has to bind: an arena and one address per source.

    `loops` are the words that are 0 until the loop of their text is there (`beside.later`). `work` is that of the largest
    row, `total` that of all, in element operations.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.size, self.sources, self.nodes = emitter.size, list(emitter.sources), emitter.nodes
        self.constants = list(emitter.constants)
        words, names, self.starts = rows.joined(emitter.rows)
        loops = {position: name for position, name in names.items() if name.startswith(LOOP_OF)}
        work = Counter[str]()
        for position in loops:
            work[names.pop(position)] += words[position + INSTRUCTION - 1]  # the operations that it stands for
        self.loops = {position: text for position, text in loops.items() if work[text] >= LARGE}
        names = {position: rows.CODE.get(name, name) for position, name in names.items()}
        self.kernels = sorted(set(names.values()))
        self.services = services(emitter.rows)
        self.row_kernels = [
            row.kernel if "." in row.kernel or row.kernel == "chain" else next(iter(row.routines.values()), row.kernel)
            for row in emitter.rows
        ]
        addresses = self.addresses()
        for position, name in names.items():
            words[position] = addresses[name]
        for start, node in zip(self.starts, self.nodes, strict=True):
            words[start + 3] = node
        self.code = np.array(words, np.int64)
        for position, text in self.loops.items():
            beside.later(text, self.code, position)
        self._start = self.code.ctypes.data
        self._end = self._start + self.code.nbytes
        self.work = max((row.work for row in emitter.rows), default=0)
        self.total = sum(row.work * (rows.FUSED if row.kernel.startswith("matmul") else 1) for row in emitter.rows)

    def addresses(self) -> dict[str, int]:
        """Return where the kernels lie."""
        return store.addresses(self.kernels)

    def placed(self, array: Any) -> tuple[int, Any]:
        """Return where kernels find an array, and what keeps it there."""
        return runtime.address(array), array

    def timed(self, banks: int) -> list[float]:
        """Run the rows one by one over a bound table and return the seconds of each, less an empty entry's."""
        seconds = []
        bounds = [self._start + 8 * start for start in (*self.starts, len(self.code))]
        for first, end in itertools.pairwise(bounds):
            before = time.perf_counter()
            runtime.enter(first, first, banks, 1, 0, self.work)
            between = time.perf_counter()
            runtime.enter(first, end, banks, 1, 0, self.work)
            seconds.append(max(0.0, time.perf_counter() - between - (between - before)))
        return seconds

    def enter(self, banks: int, count: int = 1, stride: int = 0) -> int:
        """Run the rows over a bound table of banks, or `count` tables `stride` bytes apart: one native entry.

        Returns which of them reported an error, or -1; those after it are not run.
        """
        walk = runtime.enter(self._start, self._end, banks, count, stride, self.work)
        tally.serve_all(self.services, count)
        return walk

    def run_all(self, banks: Any, arena: Any) -> tuple[int, int, int] | None:
        """Run the rows once per row of a table of banks, all in one native entry and one arena.

        `banks` is an int64 matrix: room for the error bank and the arena, the address of the parameter table,
        and the address of each of `sources`. Returns the error, (node, value, row of the table) or None.
        """
        errors = np.array(NO_ERROR, np.int64)
        banks[:, ERRORS], banks[:, ARENA] = runtime.address(errors), runtime.address(arena)
        walk = self.enter(runtime.address(banks), len(banks), banks.strides[0])
        return None if walk < 0 else (int(errors[0]), int(errors[1]), walk)


class _SourceOperand(Operand):
    """A source whose bank is made when its values are first asked for (its indices may be all that is)."""

    __slots__ = ("_emitter",)

    def __init__(self, emitter: Emitter, source: int, element: str, layout: Layout) -> None:
        self._emitter = emitter
        self.base, self.element, self.layout, self.source, self._span = 0, element, layout, source, None
        self.size = elements.MEMORY[element].size

    @property
    def bank(self) -> int:  # type: ignore[override]
        return self._emitter.bank(self.source or 0, "values")


def memory_of(tensor: Tensor, form: str, dense: bool) -> Any:
    """Return the array that a tensor is in a form; None for ``indices`` of one that is not one-hot."""
    if form == "indices":
        return tensor.indices()
    return tensor.dense_buffer() if dense else tensor.dense().buffer


def result_tensor(operand: Operand, arena: Any, element: Element, small: int = 0) -> Tensor:
    """Return the tensor that an operand in an arena of its element is; one of up to `small` bytes is copied out."""
    first, end, layout = operand.span
    memory = arena[first:end]
    found = Tensor.of_buffer(element, memory.copy() if memory.nbytes <= small else memory, layout)
    if layout.is_dense or not 0 < layout.shape.volume * memory.itemsize <= small:
        return found
    return Tensor.of_buffer(element, found.dense_buffer(), Layout.dense(layout.shape))
