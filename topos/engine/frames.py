"""`Frame`: the memory of one run. `Pool`: memory that comes back when nobody looks at it any more."""

from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Generic, TypeVar

import numpy as np

from topos.kernels import runtime
from topos.ops.emit import ALIGNMENT, ARENA, ERRORS, NO_ERROR, Program
from topos.payload import Shape

# Blocks that a pool remembers.
SPARE = 4


class Block:
    """Read-only memory of `count` numbers, as results are handed out. `address` is where it starts."""

    __slots__ = ("address", "alone", "memory")

    def __init__(self, program: Program, count: int, raw: Any) -> None:
        memory = np.empty(count, raw)
        memory.flags.writeable = False
        self.address, self.memory = program.placed(memory)
        self.alone = 0


class Frame:
    """What one run writes: banks, the error word, rooms for small sources, the arena.

    Attributes:
        memory: the block that all of it lies in.
        address: of the table of banks.
        words: the banks and behind them the error bank, as int64.
        numbers: the rooms as f32 or f64 (None for other elements).
        rooms: the array of each room, by source.
        arena: the arena, as numbers.
        start: the address of the first room.
        room: where this process writes the first room.
        fed: which inputs lie in their rooms, a bit each.
        held: what has to stay in memory during the run.

    Arguments:
        program: what is run.
        banks: the table of banks, with what every run has in common.
        rooms: (source, bank or -1, offset in bytes, shape) of small sources.
        room: bytes of all rooms.
        raw: the dtype of rooms.
    """

    def __init__(
        self, program: Program, banks: Any, rooms: Sequence[tuple[int, int, int, Shape]], room: int, raw: Any
    ) -> None:
        self.program = program
        words = len(banks) + len(NO_ERROR)
        first = -(-8 * words // ALIGNMENT) * ALIGNMENT
        arena = first + -(-room // ALIGNMENT) * ALIGNMENT
        memory: Any = self.reserved(arena, program.size, raw)
        self.words: Any = memoryview(memory[: 8 * words].view(np.int64))
        memory[: 8 * words].view(np.int64)[:] = (*banks, *NO_ERROR)
        self.words[ERRORS], self.words[ARENA] = self.address + 8 * len(banks), self.address + arena
        self.room = runtime.address(memory) + first
        self.start, self.fed, self.alone = self.address + first, 0, 0
        self.held: list[Any] = []
        numbers = memory[first : first + room]
        self.numbers: Any = memoryview(numbers.view(raw)) if raw.char in "fd" else None
        self.rooms: dict[int, Any] = {}
        for source, bank, at, shape in rooms:
            self.rooms[source] = numbers[at : at + shape.volume * raw.itemsize].view(raw).reshape(shape)
            if bank >= 0:
                self.words[bank] = self.start + at

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


Entry = TypeVar("Entry", Block, Frame)


class Pool(Generic[Entry]):
    """The latest entries that were made. One is lent again when no run, tensor or NumPy view holds its memory."""

    _make: Callable[[], Entry]

    def __init__(self, make: Callable[[], Entry], spare: int = SPARE) -> None:
        self._make = make
        self._entries: deque[Entry] = deque(maxlen=spare)

    def take(self) -> Entry:
        """Return an entry that nothing else refers to. It needs not be given back."""
        entries = self._entries
        for _ in range(len(entries)):
            try:
                entry = entries.popleft()
            except IndexError:  # other threads take at the same time
                break
            # Counted before it goes back: until then no other thread can reach it.
            idle = getrefcount(entry) + getrefcount(entry.memory) == entry.alone
            entries.append(entry)
            if idle:
                return entry
        entry = self._make()
        # Counted here, where it is compared, so that no version of Python has to be known.
        entry.alone = getrefcount(entry) + getrefcount(entry.memory)
        entries.append(entry)
        return entry

    def __len__(self) -> int:
        return len(self._entries)
