"""Panels from operands whose indices are made of several axes: offsets come from tables, counted in values.

Both routines are ``(out, source, lane offsets, lanes, step offsets, count)``, and write what `tiles.panel` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, define, least, span
from topos.kernels.elements import MEMORY
from topos.kernels.matmul.tiles import transposed


class _Panel:
    """A routine under construction."""

    def __init__(self, name: str, element: str, width: int) -> None:
        self.builder = define(name, ir.Module(name=name), [POINTER, POINTER, POINTER, I64, POINTER, I64])
        self.out, self.source, self.lane_table, self.lanes, self.step_table, self.count = self.builder.function.args
        self.memory, self.width = MEMORY[element], width

    def offset(self, table: ir.Value, index: ir.Value) -> ir.Value:
        """Return an entry of a table."""
        return self.builder.load(self.builder.gep(table, [index], source_etype=I64), typ=I64)

    def accesses(self, lanes: int) -> tuple[Access, Access]:
        """Return vectors of the source and of the panel."""
        width = f"f{self.memory.width}"
        return Access(self.builder, self.memory, lanes), Access(self.builder, MEMORY[width], lanes)

    def place(self, step: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the index in the panel."""
        return self.builder.add(self.builder.mul(step, I64(self.width)), lane)

    @contextmanager
    def steps(self) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Emit the body for every step and its offset."""
        with span(self.builder, I64(0), self.count, I64(1)) as step:
            yield step, self.offset(self.step_table, step)

    def finish(self) -> ir.Module:
        self.builder.ret_void()
        return self.builder.module


def runs(name: str, element: str, width: int) -> ir.Module:
    """Pack lanes that lie side by side, from `source` on: by vectors of 8, 4, 2, 1 behind whole ones."""
    panel = _Panel(name, element, width)
    builder = panel.builder
    piece = 1 << width.bit_length() - 1
    while piece > 0:
        loaded, stored = panel.accesses(piece)
        with builder.if_then(builder.icmp_signed("!=", builder.and_(panel.lanes, I64(piece)), I64(0))):
            at = builder.and_(panel.lanes, I64(-2 * piece))
            with panel.steps() as (step, offset):
                vector = loaded.load(panel.source, builder.add(offset, at))
                stored.store(panel.out, panel.place(step, at), vector)
        piece //= 2
    return panel.finish()


def turn(name: str, element: str, width: int) -> ir.Module:
    """Pack lanes that lie anywhere: squares are transposed where steps lie side by side."""
    panel = _Panel(name, element, width)
    builder, side = panel.builder, 256 // panel.memory.width
    loaded, stored = panel.accesses(side)
    last = builder.sub(panel.lanes, I64(1))
    even = ir.Constant(ir.VectorType(I64, side), [I64(i) for i in range(side)])

    def singly(start: ir.Value, stop: ir.Value, first: int, used: int) -> None:
        one, result = panel.accesses(1)
        end = least(builder, I64(first + used), panel.lanes)
        with span(builder, start, stop, I64(1)) as step, span(builder, I64(first), end, I64(1)) as lane:
            index = builder.add(panel.offset(panel.lane_table, lane), panel.offset(panel.step_table, step))
            result.store(panel.out, panel.place(step, lane), one.load(panel.source, index))

    # A short last group writes past its lanes, as in `tiles`: it goes before the group of those. A square over a
    # short run of steps writes past them: what comes next is written later.
    following = builder.alloca(I64)
    for first in reversed(range(0, width, side)):
        used = min(side, width - first)
        places = []
        for lane in map(I64, range(first, first + used)):
            inside = builder.select(builder.icmp_signed("<", lane, panel.lanes), lane, last)
            places.append(loaded.at(panel.source, panel.offset(panel.lane_table, inside)))

        def square(
            step: ir.Value, start: ir.Value, mask: ir.Value | None, places: list[ir.Value] = places, first: int = first
        ) -> None:
            lines = [loaded.load(place, start, mask) for place in places]
            lines += [lines[-1]] * (side - len(lines))
            for row, line in enumerate(transposed(builder, lines, side)):
                stored.store(panel.out, panel.place(builder.add(step, I64(row)), I64(first)), line)

        builder.store(I64(0), following)
        head, body, after = (builder.append_basic_block(block) for block in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        step = builder.load(following)
        builder.cbranch(builder.icmp_signed("<=", builder.add(step, I64(side)), panel.count), body, after)
        builder.position_at_end(body)
        entry = builder.gep(panel.step_table, [step], source_etype=I64)
        offsets = builder.load(entry, typ=even.type, align=8)
        start = builder.extract_element(offsets, I32(0))
        apart = builder.icmp_signed("!=", offsets, builder.add(loaded.splat(start), even))
        bits = builder.zext(builder.bitcast(apart, ir.IntType(side)), I32)
        run = builder.zext(builder.cttz(builder.or_(bits, I32(1 << side)), ir.IntType(1)(1)), I64)
        with builder.if_else(builder.icmp_signed("==", run, I64(side)), likely=True) as (whole, part):
            with whole:
                square(step, start, None)
            with part:
                square(step, start, loaded.first(run))
        builder.store(builder.add(step, run), following)
        builder.branch(head)
        builder.position_at_end(after)
        singly(step, panel.count, first, used)
    return panel.finish()
