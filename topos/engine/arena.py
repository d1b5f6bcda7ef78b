"""Arena memory: offsets from liveness, at compile time."""

import bisect
from collections.abc import Iterable

from topos.kernels import rows
from topos.ops.emit import ALIGNMENT, ARENA, ERRORS, Emitter, Operand
from topos.payload import Layout, Shape

# Byte offset in the error bank of 8 bytes 0xFF: a NaN in every float format.
_NAN_BYTES = 24


class Offsets:
    """Best fit over free spans that merge with their neighbours; the last span may grow the arena.

    Attributes:
        top: the size of the arena.
        spans: the free (start, end), ascending.
        sizes: the same as (size, start), ascending: however many there are, the best is found by bisection.
    """

    def __init__(self) -> None:
        self.top = 0
        self.spans: list[tuple[int, int]] = []
        self.sizes: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Return the offset of `size` bytes."""
        at = bisect.bisect_left(self.sizes, (size,))
        if at < len(self.sizes):
            found, start = self.sizes[at]
            self._remove(bisect.bisect_left(self.spans, (start,)))
            if found > size:
                self._insert(start + size, start + found)
            return start
        start = self._remove(-1)[0] if self.spans and self.spans[-1][1] == self.top else self.top
        self.top = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Return a span."""
        at, end = bisect.bisect_left(self.spans, (start,)), start + size
        if at < len(self.spans) and self.spans[at][0] == end:
            end = self._remove(at)[1]
        if at > 0 and self.spans[at - 1][1] == start:
            start = self._remove(at - 1)[0]
        self._insert(start, end)

    def _remove(self, at: int) -> tuple[int, int]:
        start, end = self.spans.pop(at)
        self.sizes.pop(bisect.bisect_left(self.sizes, (end - start, start)))
        return start, end

    def _insert(self, start: int, end: int) -> None:
        bisect.insort(self.spans, (start, end))
        bisect.insort(self.sizes, (end - start, start))


class LeanEmitter(Emitter):
    """An emitter whose memory is reused: a block is free once no live node lies in it.

    Arguments:
        release: whether dead values give their memory back.
        poison: fill what is freed with NaN, so that a read after the end shows (a debugging aid).
    """

    def __init__(self, release: bool, poison: bool = False) -> None:
        super().__init__()
        self._release, self._poison = release, poison
        self._offsets = Offsets()
        self._sizes: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self._fresh: list[int] = []
        self._dying: list[Operand] = []

    def allocate(self, shape: Shape, element: str, over: tuple[Operand, ...] = ()) -> Operand:
        """Return room for a dense value: that of a dying operand in `over`, or a new block."""
        result = Operand(ARENA, 0, element, Layout.dense(shape))
        size = -(-shape.volume * result.size // ALIGNMENT) * ALIGNMENT
        for operand in over:
            if self._may_overwrite(operand, shape, result.size, over):
                result.base = operand.base
                return result
        result.base = self._offsets.take(size)
        self._sizes[result.base] = size
        self._fresh.append(result.base)
        self.size = self._offsets.top
        return result

    def _may_overwrite(self, operand: Operand, shape: Shape, size: int, over: tuple[Operand, ...]) -> bool:
        """Whether the operand dies here, alone in its block, read in the very order that is written."""
        if operand not in self._dying or operand.size != size or operand.layout.shape != shape:
            return False
        if not operand.layout.is_dense or operand.layout.offset or self._holders.get(operand.base) != 1:
            return False
        return all(o is operand or o.bank != ARENA or o.base != operand.base or o.layout.is_dense for o in over)

    def begin(self, node: int, dying: list[Operand]) -> None:
        """Start a node; `dying` are operands that nothing reads after it and that it may overwrite."""
        self.node, self._fresh = node, []
        self._dying = dying if self._release else []

    def keep(self) -> None:
        """Overwrite no operand until the node ends."""
        self._dying = []

    def end(self, results: Iterable[Operand], dead: list[Operand]) -> None:
        """Finish a node: keep the blocks of its results, give back scratch and the blocks of dead values."""
        for result in results:
            if result.bank == ARENA:
                self._holders[result.base] = self._holders.get(result.base, 0) + 1
        for base in self._fresh:
            if base not in self._holders:
                self._free(base)
        if self._release:
            for operand in dead:
                self._holders[operand.base] -= 1
                if self._holders[operand.base] == 0:
                    self._free(operand.base)

    def _free(self, base: int) -> None:
        self._holders.pop(base, None)
        size = self._sizes.pop(base)
        if self._poison:
            self.append(rows.fill(8, size // 8, (ARENA, base), (ERRORS, _NAN_BYTES)))
        self._offsets.give(base, size)
