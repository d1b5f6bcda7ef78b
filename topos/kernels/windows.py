"""Kernels over planes of windows as LLVM vector IR: maxima, their winners, and the sums of overlapping taps.

A kernel ``(row, banks, task, tasks)`` shares rows of planes among tasks. The words of its row are those of
`Geometry`, then (bank, offset) of the result and of each operand; all of them are dense.

Bits: a position adds up its taps as two folds do, the columns' before the rows', each zero-seeded and in the
order of ascending windows; a fold's result is rounded to the element. A maximum goes over a window row-major,
a tie to the earliest position, and NaN propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, completed, define, least, picks, room, span
from topos.kernels.elements import MEMORY, Memory
from topos.kernels.maps.arithmetic import maximum
from topos.kernels.rows import Geometry
from topos.kernels.table import Lanes
from topos.kernels.vector import LANES

_HEADER = 4
_PLACES = _HEADER + len(Geometry._fields)

SHORT = 8
"""Lanes where rows are short."""


class _Kernel:
    """A kernel under construction: its words, with some known beforehand, and vectors of its element."""

    def __init__(self, name: str, memory: Memory, lanes: int | None = None) -> None:
        self.builder = define(name, ir.Module(name=name), [I64] * 4)
        self.row, self.banks, self.task, self.tasks = self.builder.function.args
        self.memory = memory
        self.lanes = lanes or LANES[memory.width]
        self.access = Access(self.builder, memory, self.lanes)
        self.partial = Access(self.builder, MEMORY[f"f{memory.width}"], self.lanes)

    def _load(self, base: ir.Value, index: ir.Value) -> ir.Value:
        address = self.builder.add(base, self.builder.mul(index, I64(8)))
        return self.builder.load(self.builder.inttoptr(address, POINTER), typ=I64)

    def geometry(self) -> Geometry[ir.Value]:
        """Return the words that say where windows lie."""
        return Geometry(*(self._load(self.row, I64(word)) for word in range(_HEADER, _PLACES)))

    def place(self, number: int) -> ir.Value:
        """Return the address of the result (0) or an operand."""
        bank = self._load(self.banks, self._load(self.row, I64(_PLACES + 2 * number)))
        offset = self._load(self.row, I64(_PLACES + 2 * number + 1))
        return self.builder.inttoptr(self.builder.add(bank, offset), POINTER)

    def sweep(self, count: ir.Value, body: Callable[[ir.Value, ir.Value | None], None]) -> None:
        """Emit ``body(index, None)`` for whole vectors of `count` values, and ``body(index, rest)`` for the rest."""
        self.access.sweep(count, lambda x, mask: body(x, None if mask is None else self.builder.sub(count, x)))

    def mask(self, count: ir.Value | None, skipped: int = 0) -> ir.Value | None:
        """Return the mask of the lanes of `count` values (None: of all) from that one on."""
        return None if count is None else self.access.first(self.builder.sub(count, I64(skipped)))

    @contextmanager
    def lines(self, planes: ir.Value, count: ir.Value) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
        """Emit the body for `count` lines of each plane in the share of this task: (plane, line, line of all)."""
        builder = self.builder
        following = builder.add(self.task, I64(1))
        first, end = (builder.sdiv(builder.mul(planes, at), self.tasks) for at in (self.task, following))
        with span(builder, first, end, I64(1)) as plane, span(builder, I64(0), count, I64(1)) as line:
            yield plane, line, builder.add(builder.mul(plane, count), line)

    def specialise(
        self, given: Geometry[ir.Value], known: list[dict[str, int]], body: Callable[[Geometry[ir.Value]], None]
    ) -> None:
        """Emit the body once for each set of words that is known beforehand, and once for the rest."""
        if not known:
            body(given)
            return
        words = {f"{word}_{axis}": value for word, value in known[0].items() for axis in "yx"}
        holds = ir.Constant(ir.IntType(1), 1)
        for word, value in words.items():
            holds = self.builder.and_(holds, self.builder.icmp_signed("==", getattr(given, word), I64(value)))
        with self.builder.if_else(holds) as (then, rest):
            with then:
                body(given._replace(**{word: I64(value) for word, value in words.items()}))
            with rest:
                self.specialise(given, known[1:], body)


def _strided(kernel: _Kernel, base: ir.Value, step: ir.Value, count: ir.Value | None) -> Lanes:
    """Load `count` values (None: a vector) `step` apart; what lies past the last of them is not read."""
    builder, access = kernel.builder, kernel.access
    if _is(step, 1):
        return access.load(base, I64(0), kernel.mask(count))
    if _is(step, 2):
        span_ = I64(2 * kernel.lanes - 1) if count is None else builder.sub(builder.mul(count, I64(2)), I64(1))
        return _pair(kernel, base, span_)[0]
    vector: ir.Value = ir.Constant(access.vector, ir.Undefined)
    for lane in range(kernel.lanes):
        at = access.at(base, builder.mul(step, I64(lane)))
        if count is not None:
            at = builder.select(builder.icmp_signed("<", I64(lane), count), at, base)
        vector = builder.insert_element(vector, builder.load(at, typ=access.stored), I32(lane))
    return access.real(vector)


def _is(word: ir.Value, value: int) -> bool:
    return isinstance(word, ir.Constant) and word.constant == value


def _pair(kernel: _Kernel, base: ir.Value, count: ir.Value | None) -> tuple[Lanes, Lanes]:
    """Load the even and the odd ones of `count` values (None: of two vectors)."""
    builder, access, lanes = kernel.builder, kernel.access, kernel.lanes
    halves = [access.load(base, I64(at), kernel.mask(count, at)) for at in (0, lanes)]
    even, odd = (builder.shuffle_vector(*halves, picks(range(odd, 2 * lanes, 2))) for odd in (0, 1))
    return even, odd


def _put_pair(kernel: _Kernel, base: ir.Value, even: Lanes, odd: Lanes, count: ir.Value | None) -> None:
    """Store two vectors interleaved, or the first `count` of their values."""
    builder, access, lanes = kernel.builder, kernel.access, kernel.lanes
    for at in (0, lanes):
        order = picks(at // 2 + lane // 2 + lane % 2 * lanes for lane in range(lanes))
        vector = builder.shuffle_vector(even, odd, order)
        access.store(base, I64(at), vector, kernel.mask(count, at))


def pool(name: str, memory: Memory) -> ir.Module:
    """The maximum of each window. Operand: planes of ``[height, width]``; no padding, no dilation."""
    return _walk(name, memory, winners=False)


def winners(name: str, memory: Memory) -> ir.Module:
    """Which position of each window is its maximum, row-major, as an integer of the compute precision's width."""
    return _walk(name, memory, winners=True)


def _walk(name: str, memory: Memory, winners: bool) -> ir.Module:
    kernel = _Kernel(name, memory, SHORT)
    builder, access, o = kernel.builder, kernel.access, kernel.access.table
    given, out, source = kernel.geometry(), kernel.place(0), kernel.place(1)
    best, where = room(builder, o.reals), room(builder, o.wholes)

    def meet(tap: Lanes, position: ir.Value) -> None:
        """Let a position of the windows take part."""
        held = builder.load(best, typ=o.reals)
        if winners:
            stays = o.either(o.ge(held, tap), o.is_nan(held))
            number = kernel.access.splat(builder.trunc(position, o.wholes.element))
            builder.store(builder.select(stays, builder.load(where, typ=o.wholes), number), where)
        builder.store(maximum(o, held, tap), best)

    def walk(g: Geometry[ir.Value]) -> None:
        with kernel.lines(g.planes, g.windows_y) as (plane, y, row):
            top = builder.add(builder.mul(plane, g.height), builder.mul(y, g.step_y))
            line = access.at(source, builder.mul(top, g.width))
            target = (kernel.partial if winners else access).at(out, builder.mul(row, g.windows_x))

            def each(x: ir.Value, count: ir.Value | None) -> None:
                base = access.at(line, builder.mul(x, g.step_x))
                builder.store(o.whole(0), where)
                builder.store(_strided(kernel, base, g.step_x, count), best)
                with span(builder, I64(0), g.size_y, I64(1)) as down:
                    across = access.at(base, builder.mul(down, g.width))
                    with span(builder, I64(0), g.size_x, I64(1)) as right:
                        position = builder.add(builder.mul(down, g.size_x), right)
                        meet(_strided(kernel, access.at(across, right), g.step_x, count), position)
                if winners:
                    chosen = o.from_bits(builder.load(where, typ=o.wholes))
                    kernel.partial.store(target, x, chosen, kernel.mask(count))
                else:
                    access.store(target, x, builder.load(best, typ=o.reals), kernel.mask(count))

            kernel.sweep(g.windows_x, each)

    kernel.specialise(given, [{"size": 2, "step": 2}, {"step": 1}, {"step": 2}], walk)
    return completed(builder)


def pool_slope(name: str, memory: Memory) -> ir.Module:
    """The gradient of `pool` for 2 by 2 windows side by side. Operands: the planes, the cotangent of the maxima."""
    kernel = _Kernel(name, memory, SHORT)
    builder, access, o = kernel.builder, kernel.access, kernel.access.table
    g, out, source, cotangent = kernel.geometry(), kernel.place(0), kernel.place(1), kernel.place(2)
    zero = o.real(0.0)
    with kernel.lines(g.planes, g.windows_y) as (plane, y, row):
        top = builder.mul(builder.add(builder.mul(plane, g.height), builder.mul(y, I64(2))), g.width)
        line, target = access.at(source, top), access.at(out, top)
        seeds = access.at(cotangent, builder.mul(row, g.windows_x))

        def each(x: ir.Value, count: ir.Value | None) -> None:
            twice = None if count is None else builder.mul(count, I64(2))
            right = builder.mul(x, I64(2))
            bases = [access.at(line, right), access.at(line, builder.add(right, g.width))]
            taps = [tap for base in bases for tap in _pair(kernel, base, twice)]
            best, takes = taps[0], []
            for tap in taps[1:]:
                takes.append(o.negate(o.either(o.ge(best, tap), o.is_nan(best))))
                best = maximum(o, best, tap)
            # The folds add to a zero: -0 becomes +0.
            left, slopes = o.add(zero, access.load(seeds, x, kernel.mask(count))), []
            for take in reversed(takes):
                slopes.append(o.select(take, left, zero))
                left = o.select(take, zero, left)
            slopes = [left, *reversed(slopes)]
            for down in (0, 1):
                base = access.at(target, right if down == 0 else builder.add(right, g.width))
                _put_pair(kernel, base, slopes[2 * down], slopes[2 * down + 1], twice)

        kernel.sweep(g.windows_x, each)
        used = builder.mul(g.windows_x, I64(2))
        with builder.if_then(builder.icmp_signed("<", used, g.width)):
            for down in (I64(0), g.width):
                builder.store(access.stored(0), access.at(target, builder.add(used, down)))
        last = builder.icmp_signed("==", y, builder.sub(g.windows_y, I64(1)))
        spare = builder.icmp_signed("<", builder.mul(g.windows_y, I64(2)), g.height)
        with builder.if_then(builder.and_(last, spare)):
            below = access.at(target, builder.mul(g.width, I64(2)))
            access.sweep(g.width, lambda x, mask: access.store(below, x, zero, mask))
    return completed(builder)


def window_sum(name: str, memory: Memory) -> ir.Module:
    """Add taps ``[planes, size_y, size_x, windows_y, windows_x]`` back to planes of ``[height, width]``."""
    kernel = _Kernel(name, memory)
    builder, access = kernel.builder, kernel.access
    given, out, taps = kernel.geometry(), kernel.place(0), kernel.place(1)

    def tap(g: Geometry[ir.Value], at: _At) -> Lanes:
        plane = builder.add(builder.mul(at.plane, g.size_y), at.down)
        window = builder.add(builder.mul(builder.add(builder.mul(plane, g.size_x), at.right), g.windows_y), at.y)
        return access.load(taps, builder.add(builder.mul(window, g.windows_x), at.x), at.mask, access.table.real(-0.0))

    return _fold(kernel, given, out, tap)


def winner_sum(name: str, memory: Memory) -> ir.Module:
    """The gradient of `pool`. Operands: what `winners` wrote, the cotangent of the maxima."""
    kernel = _Kernel(name, memory)
    builder, access, o = kernel.builder, kernel.access, kernel.access.table
    given, out, chosen, cotangent = kernel.geometry(), kernel.place(0), kernel.place(1), kernel.place(2)

    def tap(g: Geometry[ir.Value], at: _At) -> Lanes:
        row = builder.add(builder.mul(at.plane, g.windows_y), at.y)
        index = builder.add(builder.mul(row, g.windows_x), at.x)
        number = builder.add(builder.mul(at.down, g.size_x), at.right)
        winner = o.to_bits(kernel.partial.load(chosen, index, at.mask, o.from_bits(o.whole(-1))))
        wins = o.ieq(winner, access.splat(builder.trunc(number, o.wholes.element)))
        return o.select(wins, access.load(cotangent, index, at.mask), o.real(0.0))

    return _fold(kernel, given, out, tap)


class _At(NamedTuple):
    """A vector of windows of one row, and the position in them that is wanted. `mask` says which ones exist."""

    plane: ir.Value
    down: ir.Value
    right: ir.Value
    y: ir.Value
    x: ir.Value
    mask: ir.Value | None


def _fold(
    kernel: _Kernel, given: Geometry[ir.Value], out: ir.Value, tap: Callable[[Geometry[ir.Value], _At], Lanes]
) -> ir.Module:
    """Add up, for every position, the taps of the windows that cover it.

    Positions ``phase, phase + step, ...`` of a row meet the same columns of consecutive windows, so a vector of
    them reads vectors of taps.
    """
    builder, access, o = kernel.builder, kernel.access, kernel.access.table
    row_sum, total = room(builder, o.reals), room(builder, o.reals)

    def rounded(value: Lanes) -> Lanes:
        memory = kernel.memory
        if memory.widen is None or memory.narrow is None:
            return value
        return memory.widen(o, memory.narrow(o, value))

    def add(g: Geometry[ir.Value], at: _At) -> None:
        builder.store(o.add(builder.load(row_sum, typ=o.reals), tap(g, at)), row_sum)

    def ceiling(a: ir.Value, b: ir.Value) -> ir.Value:
        """Return max(0, a / b rounded up)."""
        quotient = builder.sdiv(builder.add(a, builder.sub(b, I64(1))), b)
        return builder.select(builder.icmp_signed("<", quotient, I64(0)), I64(0), quotient)

    def across(
        g: Geometry[ir.Value], plane: ir.Value, down: ir.Value, y: ir.Value, j: ir.Value, phase: ir.Value
    ) -> None:
        """Add up the taps of one row of windows."""
        builder.store(o.real(0.0), row_sum)
        with span(builder, I64(0), g.size_x, I64(1)) as turn:
            right = builder.sub(builder.sub(g.size_x, I64(1)), turn)
            reach = builder.sub(phase, builder.mul(right, g.dilation_x))
            shift = builder.sdiv(reach, g.step_x)
            with builder.if_then(builder.icmp_signed("==", builder.mul(shift, g.step_x), reach)):
                x = builder.add(j, shift)
                at = _At(plane, down, right, y, x, None)
                beyond = builder.add(x, I64(kernel.lanes))
                inside = builder.and_(
                    builder.icmp_signed(">=", x, I64(0)), builder.icmp_signed("<=", beyond, g.windows_x)
                )
                with builder.if_else(inside, likely=True) as (whole, part):
                    with whole:
                        add(g, at)
                    with part:
                        first, limit = (access.splat(builder.trunc(column, I32)) for column in (x, g.windows_x))
                        columns = builder.add(picks(range(kernel.lanes)), first)
                        add(g, at._replace(mask=builder.icmp_unsigned("<", columns, limit)))
        value = o.add(builder.load(total, typ=o.reals), rounded(builder.load(row_sum, typ=o.reals)))
        builder.store(value, total)

    def walk(g: Geometry[ir.Value]) -> None:
        with kernel.lines(g.planes, g.height) as (plane, inner, row):
            y = builder.add(inner, g.top)
            reach = builder.mul(builder.sub(g.size_y, I64(1)), g.dilation_y)
            start = ceiling(builder.sub(y, reach), g.step_y)
            stop = least(builder, builder.add(builder.sdiv(y, g.step_y), I64(1)), g.windows_y)
            target = access.at(out, builder.mul(row, g.width))
            with span(builder, I64(0), g.step_x, I64(1)) as phase:
                begin = ceiling(builder.sub(g.left, phase), g.step_x)
                finish = ceiling(builder.sub(builder.add(g.left, g.width), phase), g.step_x)
                with span(builder, begin, finish, I64(kernel.lanes)) as j:
                    builder.store(o.real(0.0), total)
                    with span(builder, start, stop, I64(1)) as window:
                        offset = builder.sub(y, builder.mul(window, g.step_y))
                        down = builder.sdiv(offset, g.dilation_y)
                        with builder.if_then(builder.icmp_signed("==", builder.mul(down, g.dilation_y), offset)):
                            across(g, plane, down, window, j, phase)
                    x = builder.sub(builder.add(builder.mul(j, g.step_x), phase), g.left)
                    _put_strided(kernel, target, x, g.step_x, builder.load(total, typ=o.reals), builder.sub(finish, j))

    kernel.specialise(
        given, [{"step": 1, "dilation": 1, "size": 3}, {"step": 1, "dilation": 1}, {"step": 2, "dilation": 1}], walk
    )
    return completed(builder)


def _put_strided(
    kernel: _Kernel, base: ir.Value, start: ir.Value, step: ir.Value, value: Lanes, count: ir.Value
) -> None:
    """Store up to `count` lanes `step` values apart."""
    builder, access = kernel.builder, kernel.access
    is_whole = builder.icmp_signed(">=", count, I64(kernel.lanes))
    if _is(step, 1):
        with builder.if_else(is_whole, likely=True) as (whole, part):
            with whole:
                access.store(base, start, value)
            with part:
                access.store(base, start, value, access.first(count))
        return
    buffer = room(builder, access.vector)
    access.store(buffer, I64(0), value)

    def put(lane: ir.Value) -> None:
        single = builder.load(access.at(buffer, lane), typ=access.stored)
        builder.store(single, access.at(base, builder.add(start, builder.mul(lane, step))))

    with builder.if_else(is_whole) as (whole, part):
        with whole:
            for lane in range(kernel.lanes):
                put(I64(lane))
        with part, span(builder, I64(0), count, I64(1)) as lane:
            put(lane)
