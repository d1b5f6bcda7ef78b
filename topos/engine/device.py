"""`DevicePlan`: a plan whose arena, tables and optimizer state lie on a card, from step to step.

Feeds go there and results come back when somebody reads them; nothing else is copied, but for the error word of a
program whose rows may report bad data: its runs wait for the card, and raise as on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from topos.backend import tally
from topos.backend.backend import Backend
from topos.backend.formula import Formula
from topos.backend.numerics import Numerics
from topos.engine.arena import LeanEmitter
from topos.engine.catalog.election import AT_HOME
from topos.engine.entry import Entry
from topos.engine.frames import Frame
from topos.engine.plan import Plan
from topos.engine.program import Lowered, data_error
from topos.engine.run import check_parameters
from topos.errors import UsageError
from topos.graph import Network, Parameters, Slots
from topos.kernels import elements, rows
from topos.kernels.chains import OVER
from topos.kernels.cuda import card as cards
from topos.kernels.cuda.kernels import squares
from topos.kernels.reference import K_BLOCK, R_BLOCK
from topos.kernels.rows import Row
from topos.ops import phases
from topos.ops.chain import Step
from topos.ops.emit import ERRORS, ZEROS, Emitter, Operand, Program, compute_element
from topos.payload import Element, Layout, Shape, Tensor

# The groups of the catalog that a card carries out. Scores of attention are a product of all leading indices at once, and
# a chain: a block of rows after the other would leave most of the card idle.
SERVED = AT_HOME - {Formula.ATTENTION}

# Rows and columns from which on a product is worth the tensor cores: they take 16 x 8 at a time.
TENSOR = 16

# Numbers up to which the blocks of k of one product are computed side by side.
PARTS = 1 << 26


class DeviceEmitter(LeanEmitter):
    """Appends rows that a card carries out: chains in phases, products in squares, long sums in blocks, the reference's.

    With `fast` (`Numerics.FAST`) products that are computed in f32 may run on its tensor cores.
    """

    def __init__(self, release: bool, poison: bool = False, fast: bool = False) -> None:
        super().__init__(release, poison)
        self.reference, self.fast = True, fast

    chain = phases.lower

    def compute(self, routine: str, target: Operand, operands: Sequence[Operand]) -> None:
        """Apply a routine of element functions: a chain of one step; without one, of none."""
        step = ((routine, tuple(range(len(operands)))),) if routine else ()
        one = rows.EACH, step, ((-len(step), len(operands)),), ()
        phases.append(self, target.layout.shape, False, (*operands, target), [one])

    def copy(self, source: Operand, target: Operand, function: str = "") -> None:
        """Copy a value into memory of its shape, bits unchanged, or through an element function."""
        self.compute(function and f"{function}.{source.element}", target, (source,))

    def zeros(self, shape: Shape, element: str) -> Operand:
        """Return dense zeros."""
        target = self.allocate(shape, element)
        self.copy(Operand(ERRORS, ZEROS, element, Layout.dense(Shape.scalar()).broadcast(shape)), target)
        return target

    def reduce(self, kernel: str, operand: Operand, axis: int) -> Operand:
        """Reduce one axis: a chain of one step. What is long is reduced to a result per block first, as a sum is.

        The greatest of blocks is the greatest, but for which of two equal zeros it is: as a shift they do the same.
        """
        rank, n = operand.layout.shape.rank, operand.layout.shape[axis]
        given = operand.view(operand.layout.permute((*range(axis), *range(axis + 1, rank), axis)))
        shape = given.layout.shape
        if n <= R_BLOCK:
            step = Step(1, f"row_{kernel}", OVER, True, (0,))
            return (phases.lower(self, [step], shape, {0: given}, (1,), {}) or {})[1]
        blocks = self.allocate(Shape((*shape[:-1], -(-n // R_BLOCK))), compute_element(operand.element))
        kind = rows.TOTAL if kernel == "sum" else rows.GREATEST
        places = given, blocks.view(Layout.dense(Shape(shape[:-1])))
        phases.append(self, shape, True, places, [(kind, (), (), (0, 1))])
        return self.narrowed(self.reduce(kernel, blocks, rank - 1), operand.element)

    def product(self, element: str, out: Any, a: Any, b: Any, extents: Any, batch: Any = ()) -> None:
        """Append a matrix product, in small squares where large ones leave the card, or themselves, mostly idle.

        Where small ones do too, the blocks of k are computed side by side, and added up.
        """
        row, shape = rows.matmul(element, out, a, b, (out[0], 1, 0), batch), cards.card().shape
        partial, narrow = f"f{elements.MEMORY[element].width}", shape.tiles[0] * shape.across
        count, parts = row.words[1] * extents[0] * extents[2], -(-extents[1] // K_BLOCK)
        if self.fast and partial == "f32" and min(extents[0], extents[2]) >= TENSOR:
            row = row._replace(kernel=f"tensor_{row.kernel}")
        if min(extents[0], extents[2]) > narrow and squares(row.words, shape, 1) >= shape.enough:
            self.append(row)
        elif squares(row.words, shape, 0) >= shape.enough or not 1 < parts <= PARTS // count:
            self.append(row._replace(kernel=f"small_{row.kernel}"))
        else:
            scratch = self.allocate(Shape((parts * count,)), partial)
            cut = rows.matmul(element, out, a, b, (scratch.place, parts, 0), batch)
            self.append(cut._replace(kernel=f"small_{row.kernel}"))
            self.append(Row(f"blocks_of_k.{partial}", parts * count, [count, parts, *out[0], *scratch.place], {}))

    def finish(self) -> Program:
        """Return the program of the rows so far."""
        return DeviceProgram(self)


class DeviceProgram(Program):
    """Rows on a card."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.services = [(formula, precision, Backend.CUDA) for formula, precision, _ in self.services]
        self.card = cards.card()
        self.reports = any(row.kernel.startswith(("one_hot", "nonzero")) for row in emitter.rows)
        self._code = self.card.place(self.code)
        starts = zip(emitter.rows, self.starts, strict=True)
        self.launches = [self.card.prepared(row, self._code.address + 8 * start) for row, start in starts]

    def addresses(self) -> dict[str, int]:
        """Return no address: a launch names its kernel."""
        return dict.fromkeys(self.kernels, 0)

    def placed(self, array: Any) -> tuple[int, Any]:
        """Return where a copy of an array lies on the card, and that copy."""
        memory = self.card.place(np.ascontiguousarray(array))
        return memory.address, memory


class DeviceParameters(Parameters):
    """A table on a card: `to_host`, or any look at its numbers, copies it back, once."""

    __slots__ = ("_host", "memory")
    _host: Any

    def __init__(self, slots: Slots, memory: cards.Memory, address: int = 0) -> None:
        self.slots, self.memory, self._host, self._address = slots, memory, None, 0

    @property
    def buffer(self) -> Any:
        """The numbers, in the memory of this process."""
        if self._host is None:
            self._host = self.memory.view(self.memory.dtype)
            self._host.flags.writeable = False
        return self._host

    def to_host(self) -> Parameters:
        """Return the table in the memory of this process."""
        return Parameters(self.slots, self.buffer)


class DeviceNumber(Tensor):
    """A single number on a card."""

    __slots__ = ("_host", "memory")
    buffer: Any = DeviceParameters.buffer  # type: ignore[misc]
    memory: cards.Memory
    _host: Any

    @classmethod
    def of_buffer(cls, element: Element, buffer: cards.Memory, layout: Layout) -> DeviceNumber:
        """Return the number at the layout's offset of memory."""
        self = cls.__new__(cls)
        self.element, self.layout, self._selection = element, Layout.dense(layout.shape), None
        self.memory, self._host = buffer[layout.offset : layout.offset + 1], None
        return self


class DeviceArena(cards.Memory):
    """Numbers on a card of which parts are read here."""

    __slots__ = ()

    def __getitem__(self, part: slice) -> Any:
        return super().__getitem__(part).view(self.dtype)


class DeviceFrame(Frame):
    """What one run writes, on a card; banks and small feeds are prepared here and sent in one copy."""

    __slots__ = ("_replay", "staged")
    program: DeviceProgram

    def reserved(self, head: int, size: int, raw: Any) -> Any:
        """Reserve `head` bytes here and on the card, and there the arena's `size`."""
        self._replay: Any = None
        self.staged = super().reserved(head, 0, raw)[:head]
        whole = cards.Memory(self.program.card, head + size, np.uint8)
        self.address = whole.address
        self.arena = DeviceArena(whole.card, size // raw.itemsize, raw, whole, whole.address + head)
        return self.staged

    def enter(self) -> int:
        """Send what was prepared, and launch the rows; whether they report an error is not known yet."""
        self.program.card.upload(self.address, self.staged)
        self.launch()
        return 0

    def error(self) -> tuple[int, int] | None:
        """Return the (node, value) that a row reported; this waits for the card where one may."""
        if not self.program.reports:
            return None
        node, value = self.program.card.download(self.words[ERRORS], 16).view(np.int64).tolist()
        return None if node < 0 else (node, value)

    def launch(self) -> None:
        """Launch the rows, as they were recorded the first time."""
        if self._replay is None:
            self._replay = self.program.card.record(self.program.launches, self.address)
        self._replay()
        tally.serve_all(self.program.services, 1)


class DeviceLowered(Lowered):
    """A program whose runs lie on a card."""

    frame = DeviceFrame
    tables = DeviceParameters
    singles = DeviceNumber
    is_here = False
    program: DeviceProgram

    def bring(self, frame: Any, bank: int, entry: Any, key: int = 0) -> None:
        """Let a run read a table or a number where it lies on the card; one of this process is copied there."""
        if isinstance(entry, (DeviceParameters, DeviceNumber)):
            frame.words[bank] = entry.memory.address
            frame.held.append(entry)
        else:
            self.lend(frame, bank, entry.buffer if isinstance(entry, Parameters) else entry.dense_buffer())

    def walk(self, frame: Any, banks: Any) -> None:
        """Run once per row of a table of banks.

        Raises:
            DataError: the data of a step broke a rule.
        """
        card = self.program.card
        card.upload(frame.address, frame.staged)
        for step, row in enumerate(banks):
            card.upload(frame.address, row)
            frame.launch()
            error = frame.error()
            if error is not None:
                raise data_error(self.columns, error[0], error[1], step)


class DevicePlan(Plan):
    """A plan that runs on a card: `network.entry(...).lower(backend=Backend.CUDA)`.

    Raises:
        BackendUnavailable: there is no card; the message says what is missing.
        UsageError: the element is a user's number type, or the entry asks for `Run.backward`.
    """

    lowering = DeviceLowered
    formulas = SERVED

    def __init__(self, network: Network, entry: Entry) -> None:
        if network.columns.element.kernel is None or entry.backward:
            raise UsageError("Backend.CUDA runs native elements, and tape.differentiate(...), not entry.backward()")
        super().__init__(network, entry)

    def emitter(self, release: bool, poison: bool = False) -> DeviceEmitter:
        """Return what appends the rows."""
        return DeviceEmitter(release, poison, self.numerics is Numerics.FAST)

    def to_device(self, parameters: Parameters) -> DeviceParameters:
        """Return a table on the card. Runs take tables of this process too, and copy them each time.

        Raises:
            ParametersError: the table is another recording's, or has other slots.
            DeviceMemoryError: the card's memory is used up.
        """
        check_parameters(self.slots, parameters)
        assert isinstance(self.lowered, DeviceLowered)
        return DeviceParameters(parameters.slots, self.lowered.program.placed(parameters.buffer)[1])

    def profile(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: rows are not timed on a card."""
        raise UsageError("profile: on a card, use its own profiler, e.g. nsys profile --trace=cuda")
