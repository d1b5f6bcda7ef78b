"""The memory of runs: aligned, lent while nobody looks at it, and never to two at once."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from topos.engine.device import DeviceFrame
from topos.engine.frames import SPARE, Block, Frame, Pool, rooms_at
from topos.kernels import runtime
from topos.ops.emit import ALIGNMENT, ARENA, ERRORS, FIRST, NO_ERROR
from topos.payload.shape import Shape


def program(size: int = 0) -> Any:
    """Return as much of a program as memory asks for."""
    return SimpleNamespace(size=size, placed=lambda array: (runtime.address(array), array))


def frame(size: int = 1000) -> Frame:
    """Return a frame of five banks, with a room for a number and one for a row of three."""
    rooms = [(7, FIRST, 0, Shape()), (9, -1, 8, Shape((3,)))]
    return Frame(program(size), np.arange(5), rooms, 24, np.dtype(np.float32))


def test_a_frame_lies_in_one_block() -> None:
    """Banks, the error word, rooms and the arena: where they say they are, the arena at a cache line."""
    made = frame()
    banks = list(made.words)[:5]
    assert banks[ERRORS] == made.address + 5 * 8
    assert banks[ARENA] == made.arena.ctypes.data
    assert banks[ARENA] % ALIGNMENT == 0
    assert made.arena.nbytes == 1000
    assert tuple(made.words)[5:] == NO_ERROR
    assert (banks[2], banks[4]) == (2, 4)
    assert made.table == made.address
    assert banks[FIRST] == made.address + rooms_at(5) == made.rooms[7].ctypes.data
    made.rooms[7].data[()] = 1e300  # rounds to infinity, without a warning
    assert np.isinf(made.rooms[7])
    assert made.rooms[9].ctypes.data == banks[FIRST] + 8
    assert all(np.shares_memory(part, made.memory) for part in (made.arena, *made.rooms.values()))


def test_memory_comes_back_when_nobody_looks() -> None:
    """A frame is lent again once neither it nor a view of its memory is held."""
    pool = Pool(frame)
    first, second = pool.take(), pool.take()
    assert first is not second
    address = first.address
    del first
    assert pool.take().address == address
    view = second.arena[10:20].view(np.int8)
    address = second.address
    del second
    held = [pool.take() for _ in range(3)]
    assert address not in {each.address for each in held}
    del view, held
    assert address in {each.address for each in [pool.take() for _ in range(SPARE)]}
    assert len(pool) == SPARE


def test_a_pool_forgets_what_is_held_for_long() -> None:
    """Many frames in use: all are different, the latest few are remembered."""
    pool = Pool(frame)
    held = [pool.take() for _ in range(50)]
    assert len({each.address for each in held}) == 50
    assert len(pool) == SPARE
    held.clear()
    assert len({pool.take().address for _ in range(20)}) <= SPARE
    none = Pool(frame, 0)
    del held
    assert (none.take() is none.take(), len(none)) == (False, 0)


def test_a_block_is_read_only() -> None:
    """What results are handed out in; a view of it keeps it."""
    pool = Pool(functools.partial(Block, program(), 12, np.float32))
    block = pool.take()
    assert block.address == block.memory.ctypes.data
    assert not block.memory.flags.writeable
    row, address = block.memory[4:8].reshape(2, 2), block.address
    del block
    assert pool.take().address != address
    del row
    assert address in {pool.take().address for _ in range(3)}


def test_threads_are_never_lent_the_same_memory() -> None:
    """Eight threads write a number of their own, and find it there."""
    pool = Pool(frame)
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(2000):
            mine = pool.take()
            mine.rooms[7][...] = number
            kept = mine.arena[turn % 100 : turn % 100 + 4]
            kept[:] = number
            if mine.rooms[7] != number or (kept != number).any():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_take_while_another_makes_an_entry_are_lent_no_entry_twice() -> None:
    """Others take, once or so often that entries leave the pool, while one thread makes a new one."""
    for others in (1, SPARE, 2 * SPARE):
        steps: list = [lambda: lent.extend([pool.take() for _ in range(others)])]  # noqa: B023

        def make() -> Block:
            if steps:  # noqa: B023
                steps.pop()()  # noqa: B023
            return Block(program(), 4, np.dtype("f8"))

        lent: list = []
        pool = Pool(make)
        lent.append(pool.take())
        assert len({id(entry.memory) for entry in lent}) == others + 1
        results = [entry.memory for entry in lent]
        del lent[:]
        assert not any(pool.take().memory is result for result in results for _ in range(SPARE))


def on_a_card() -> DeviceFrame:
    """Return a frame of a card that has no memory, with a room for a number and one for a row of three."""
    card = SimpleNamespace(allocate=lambda _: 4096, release=lambda _: None)
    rooms = [(7, FIRST, 0, Shape()), (9, -1, 8, Shape((3,)))]
    return DeviceFrame(SimpleNamespace(size=0, card=card), np.arange(5), rooms, 24, np.dtype(np.float32))  # type: ignore[arg-type]


def without_rooms() -> Frame:
    """Return a frame of five banks and no room."""
    return Frame(program(), np.arange(5), [], 0, np.dtype(np.uint16))


MADE = [frame, without_rooms, on_a_card, functools.partial(Block, program(), 12, np.float32)]


@pytest.mark.parametrize("make", MADE, ids=["frame", "without rooms", "on a card", "block"])
def test_an_entry_says_how_often_it_is_referred_to_when_nobody_holds_it(make: Any) -> None:
    """Itself by the pool, and its memory by what it made of it: so it is lent again, and never to two."""
    pool: list[Any] = [make()]
    # Each count is one more: of the argument.
    entry, memory = sys.getrefcount(pool[0]), sys.getrefcount(pool[0].memory)
    assert entry - 1 + memory - 1 == pool[0].alone
    lending: Any = Pool(make)
    kept = id(lending.take())
    assert id(lending.take()) == kept


@pytest.mark.parametrize("make", MADE, ids=["frame", "without rooms", "on a card", "block"])
def test_who_looks_at_a_new_entry_does_not_make_it_free(make: Any) -> None:
    """Another thread lists the heap, and holds all of it for a while: a frame in use is not lent again afterwards."""
    seen: list[Any] = []

    def watched() -> Any:
        made = make()
        seen.append((made, made.memory, gc.get_objects()))
        return made

    pool: Any = Pool(watched)
    first = pool.take()
    seen.clear()
    others = [pool.take() for _ in range(SPARE)]
    seen.clear()
    assert all(other is not first for other in others)
    assert len({id(entry) for entry in others}) == len(others)
    address = id(others.pop())
    assert id(pool.take()) == address
