"""`Frame`: the memory of one run. `Pool`: memory that comes back when nobody looks at it any more."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from topos.kernels import runtime
from topos.ops.emit import ALIGNMENT, ARENA, ERRORS, NO_ERROR, Program
from topos.payload import Layout, Shape, Tensor

# A small source: itself, its bank or -1, its offset in bytes behind the first, and its shape.
Room: TypeAlias = tuple[int, int, int, Shape]

# Blocks that a pool remembers.
SPARE = 4


class Block:
    """Read-only memory of `count` numbers, as results are handed out.

    `address` is where it starts; `alone` is how often this and the memory are referred to when only a pool holds it.
    """

    __slots__ = ("address", "alone", "memory")

    def __init__(self, program: Program, count: int, raw: Any) -> None:
        memory = np.empty(count, raw)
        memory.flags.writeable = False
        self.address, self.memory = program.placed(memory)
        self.alone = 2  # a pool refers to this, this to the memory


def rooms_at(banks: int) -> int:
    """Return the byte behind a table of so many banks, and the error bank, where the first room lies."""
    return -(-8 * (banks + len(NO_ERROR)) // ALIGNMENT) * ALIGNMENT


class Frame(Block):
    """What one run writes: banks, the error word, rooms for small sources, the arena.

    Attributes:
        memory: the block that all of it lies in.
        address: of the table of banks, for kernels.
        table: of the table of banks, where this process writes it.
        words: the banks and behind them the error bank, as int64.
        rooms: the array of each room, by source.
        arena: the arena, as numbers.
        fed: which inputs lie in their rooms, a bit each.
        held: what has to stay in memory during the run.
        tensors: what other inputs are fed, by node; None where there is nothing.

    Arguments:
        program: what is run.
        banks: the table of banks, with what every run has in common.
        rooms: (source, bank or -1, offset in bytes, shape) of small sources.
        room: bytes of all rooms.
        raw: the dtype of rooms.
    """

    __slots__ = ("arena", "fed", "held", "program", "rooms", "table", "tensors", "words")

    def __init__(self, program: Program, banks: Any, rooms: Sequence[Room], room: int, raw: Any) -> None:
        self.program = program
        words, first = len(banks) + len(NO_ERROR), rooms_at(len(banks))
        arena = first + -(-room // ALIGNMENT) * ALIGNMENT
        memory: Any = self.reserved(arena, program.size, raw)
        self.words: Any = memoryview(memory[: 8 * words].view(np.int64))
        memory[: 8 * words].view(np.int64)[:] = (*banks, *NO_ERROR)
        self.words[ERRORS], self.words[ARENA] = self.address + 8 * len(banks), self.address + arena
        self.table = runtime.address(memory)
        # A pool refers to this; this, the words, the arena (or what is sent to a card) and every room to the memory.
        self.fed, self.alone = 0, 4 + len(rooms)
        self.held: list[Any] = []
        self.tensors: dict[int, Any] | None = None
        numbers = memory[first : first + room]
        self.rooms: dict[int, Any] = {}
        for source, bank, at, shape in rooms:
            self.rooms[source] = numbers[at : at + shape.volume * raw.itemsize].view(raw).reshape(shape)
            if bank >= 0:
                self.words[bank] = self.address + first + at

    def reserved(self, head: int, size: int, raw: Any) -> Any:
        """Reserve `head` bytes and the arena's `size`, say where kernels find them, and return the bytes.

        The arena is an array of the dtype `raw`.
        """
        self.memory: Any = np.empty(head + size + ALIGNMENT, np.uint8)
        self.address = runtime.address(self.memory)
        skip = -self.address % ALIGNMENT
        self.address += skip
        self.arena: Any = self.memory[skip + head : skip + head + size].view(raw)
        return self.memory[skip:]

    def enter(self) -> int:
        """Run the rows; return -1, or 0 where one reported an error."""
        return self.program.enter(self.address)

    def error(self) -> tuple[int, int] | None:
        """Return the (node, value) that a row reported, and forget it."""
        word = len(self.words) - len(NO_ERROR)
        node, value = self.words[word], self.words[word + 1]
        self.words[word] = -1
        return None if node < 0 else (node, value)


@functools.cache
def native() -> list[Callable[..., Any]]:
    """Return what finds memory that nobody holds, and what puts the inputs of a run in place (``native_runs.ll``)."""
    slots = runtime.slots(Frame, "table", "fed", "held", "tensors")
    slots += *runtime.slots(Tensor, "element", "buffer", "layout"), *runtime.slots(Layout, "shape", "offset", "_dense")
    slots = [*runtime.slots(Block, "address", "alone", "memory"), *slots]
    held = None, float, dict, "take", True, Tensor, (TypeError, BufferError, ValueError)
    return runtime.reading(["idle", "begin"], held, slots)


Entry = TypeVar("Entry", bound=Block)


class Pool(list[Entry]):
    """The latest entries that were made. One is lent again when no run, tensor or NumPy view holds its memory."""

    __slots__ = ("_idle", "_make", "_spare")

    def __init__(self, make: Callable[[], Entry], spare: int = SPARE) -> None:
        self._make, self._spare, self._idle = make, spare, native()[0]

    def take(self) -> Entry:
        """Return an entry that nothing else refers to. It needs not be given back."""
        entry: Entry | None = self._idle(self)
        if entry is None:
            entry = self._make()
            self.append(entry)
            del self[: max(0, len(self) - self._spare)]
        return entry
