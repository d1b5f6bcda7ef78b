"""Panels: `count` steps of k side by side, `width` values apart, as LLVM vector IR.

A routine is ``(out, source, lane word, lanes, step word, count)``: ``out[p * width + lane]`` is the value of `source`
at the offsets of `lane` and `p` together, at compute precision, for the first `lanes`; what lies behind them up to the
next multiple of a vector is anything. Offsets count values. The words are the strides of operands whose indices are
one axis each (`panel`), or the addresses of tables of offsets (`runs`, `turn`).
"""

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, completed, define, least, picks, span, word
from topos.kernels.elements import MEMORY


class _Panel:
    """A routine under construction, whose words are strides (I64) or tables (POINTER)."""

    def __init__(self, name: str, element: str, width: int, kind: ir.Type) -> None:
        self.builder = define(name, ir.Module(name=name), [POINTER, POINTER, kind, I64, kind, I64])
        self.out, self.source, self.lane_word, self.lanes, self.step_word, self.count = self.builder.function.args
        self.memory, self.width, self.side = MEMORY[element], width, 256 // MEMORY[element].width

    def offset(self, given: ir.Value, index: ir.Value) -> ir.Value:
        """Return how far from the source a lane or a step lies."""
        return self.builder.mul(given, index) if given.type is I64 else word(self.builder, given, index)

    def accesses(self, lanes: int) -> tuple[Access, Access]:
        """Return vectors of the source and of the panel."""
        width = f"f{self.memory.width}"
        return Access(self.builder, self.memory, lanes), Access(self.builder, MEMORY[width], lanes)

    def place(self, step: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the index in the panel."""
        return self.builder.add(self.builder.mul(step, I64(self.width)), lane)

    def copy(self) -> None:
        """Pack lanes that lie side by side, from `source` on: whole panels, and the rest by vectors of 8, 4, 2, 1.

        Every step is read through all panels: steps may be pages apart.
        """
        builder, steps = self.builder, (I64(0), self.count, I64(1))
        sizes = [1 << bit for bit in reversed(range(self.width.bit_length()))]
        rest = builder.srem(self.lanes, I64(self.width))
        whole = builder.sub(self.lanes, rest)
        with span(builder, *steps) as step, span(builder, I64(0), whole, I64(self.width)) as first:
            for size in sizes:
                if self.width & size:
                    self.piece(step, first, I64(self.width & -2 * size), size)
        for size in sizes:
            holds = builder.icmp_signed("!=", builder.and_(rest, I64(size)), I64(0))
            with builder.if_then(holds), span(builder, *steps) as step:
                self.piece(step, whole, builder.and_(rest, I64(-2 * size)), size)

    def piece(self, step: ir.Value, first: ir.Value, lane: ir.Value, size: int) -> None:
        """Copy `size` lanes of a step from `lane` on, of the panel whose first lane is `first`."""
        builder, (loaded, stored) = self.builder, self.accesses(size)
        vector = loaded.load(self.source, builder.add(self.offset(self.step_word, step), builder.add(first, lane)))
        panel = builder.mul(first, builder.or_(self.count, I64(1)))  # `product.length_of`
        stored.store(self.out, builder.add(panel, self.place(step, lane)), vector)

    def groups(self) -> list[int]:
        """Return the first lane of every group that squares take.

        A short last group writes past its lanes, into the next step's first ones: it goes before the group of those,
        and a group's own steps go in order.
        """
        return [*reversed(range(0, self.width, self.side))]

    def lines(self, first: int) -> list[ir.Value]:
        """Return the address of each lane of a group; a lane past the last is the last, and its values are not used."""
        builder, loaded = self.builder, self.accesses(self.side)[0]
        last, lines = builder.sub(self.lanes, I64(1)), []
        for lane in map(I64, range(first, min(first + self.side, self.width))):
            inside = builder.select(builder.icmp_signed("<", lane, self.lanes), lane, last)
            lines.append(loaded.at(self.source, self.offset(self.lane_word, inside)))
        return lines

    def square(
        self, first: int, lines: list[ir.Value], step: ir.Value, start: ir.Value, mask: ir.Value | None = None
    ) -> None:
        """Transpose the steps from `step` on of a group, which lie side by side from the offset `start` on."""
        loaded, stored = self.accesses(self.side)
        vectors = [loaded.load(line, start, mask) for line in lines]
        vectors += [vectors[-1]] * (self.side - len(vectors))
        for row, vector in enumerate(transposed(self.builder, vectors)):
            stored.store(self.out, self.place(self.builder.add(step, I64(row)), I64(first)), vector)

    def singly(self, first: int, start: ir.Value) -> None:
        """Pack the steps from `start` on of a group, value by value."""
        builder, (loaded, stored) = self.builder, self.accesses(1)
        end = least(builder, I64(min(first + self.side, self.width)), self.lanes)
        with span(builder, start, self.count, I64(1)) as step, span(builder, I64(first), end, I64(1)) as lane:
            index = builder.add(self.offset(self.lane_word, lane), self.offset(self.step_word, step))
            stored.store(self.out, self.place(step, lane), loaded.load(self.source, index))


def panel(name: str, element: str, width: int) -> ir.Module:
    """Pack lanes and steps that are evenly spaced: one of the two usually lies side by side."""
    panel = _Panel(name, element, width, I64)
    builder, one = panel.builder, I64(1)
    with builder.if_else(builder.icmp_signed("==", panel.lane_word, one)) as (is_row, is_other):
        with is_row:
            panel.copy()
        with is_other:
            is_column = builder.icmp_signed("==", panel.step_word, one)
            turned = builder.select(is_column, builder.and_(panel.count, I64(-panel.side)), I64(0))
            for first in panel.groups():
                lines = panel.lines(first)
                with span(builder, I64(0), turned, I64(panel.side)) as step:
                    panel.square(first, lines, step, step)
                panel.singly(first, turned)
    return completed(panel.builder)


def runs(name: str, element: str, width: int) -> ir.Module:
    """Pack lanes that lie side by side from `source` on, by a table of steps."""
    panel = _Panel(name, element, width, POINTER)
    panel.copy()
    return completed(panel.builder)


def turn(name: str, element: str, width: int) -> ir.Module:
    """Pack lanes that lie anywhere, by tables: squares are transposed where steps lie side by side."""
    panel = _Panel(name, element, width, POINTER)
    builder, side = panel.builder, panel.side
    loaded = panel.accesses(side)[0]
    even = ir.Constant(ir.VectorType(I64, side), [I64(i) for i in range(side)])
    end, found = builder.sub(panel.count, I64(side - 1)), list[ir.Value]()
    # A square over a short run of steps writes past them: what comes next is written later.
    for first in panel.groups():
        lines = panel.lines(first)
        with span(builder, I64(0), end, found.pop) as step:
            entry = builder.gep(panel.step_word, [step], source_etype=I64)
            offsets = builder.load(entry, typ=even.type, align=8)
            start = builder.extract_element(offsets, I32(0))
            apart = builder.icmp_signed("!=", offsets, builder.add(loaded.splat(start), even))
            bits = builder.zext(builder.bitcast(apart, ir.IntType(side)), I32)
            run = builder.zext(builder.cttz(builder.or_(bits, I32(1 << side)), ir.IntType(1)(1)), I64)
            with builder.if_else(builder.icmp_signed("==", run, I64(side)), likely=True) as (whole, part):
                with whole:
                    panel.square(first, lines, step, start)
                with part:
                    panel.square(first, lines, step, start, loaded.first(run))
            found.append(run)
        panel.singly(first, step)
    return completed(panel.builder)


def joined(builder: ir.IRBuilder, pieces: list[ir.Value]) -> ir.Value:
    """Return 1, 2, 4, ... vectors as one."""
    while len(pieces) > 1:
        order = picks(range(2 * pieces[0].type.count))
        pieces = [builder.shuffle_vector(a, b, order) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


def transposed(builder: ir.IRBuilder, lines: list[ir.Value]) -> list[ir.Value]:
    """Transpose squares side by side: exchange their off-diagonal blocks of 1, 2, 4, ... (Eklundh, 1972)."""
    lines, lanes = list(lines), lines[0].type.count
    distance = 1
    while distance < len(lines):
        for row in range(len(lines)):
            if row & distance:
                continue
            a, b = lines[row], lines[row + distance]
            low = [c if not c & distance else lanes + c - distance for c in range(lanes)]
            high = [c + distance if not c & distance else lanes + c for c in range(lanes)]
            for place, order in ((row, low), (row + distance, high)):
                lines[place] = builder.shuffle_vector(a, b, picks(order))
        distance *= 2
    return lines
