"""Kernels over planes of windows as LLVM vector IR: maxima, products of a plane and its kernel, and their gradients.

A kernel ``(row, banks, task, tasks)`` shares planes among tasks. The words of its row are those of `Geometry`, then
(bank, offset) of the result and of each operand; all of them are dense.

Bits: a position adds up its taps as two folds do, the columns' before the rows', each zero-seeded and in the
order of ascending windows; a fold's result is rounded to the element. A maximum goes over a window row-major,
a tie to the earliest position, and NaN propagates. A product is one chain over a window, row-major.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from llvmlite import ir

from topos.kernels.access import I32, I64, POINTER, Access, completed, define, kept, least, picks, span, word
from topos.kernels.elements import MEMORY, Memory
from topos.kernels.matmul.panels import transposed
from topos.kernels.rows import TOGETHER, Geometry
from topos.kernels.table import Lanes
from topos.kernels.vector import LANES

_HEADER = 4
_PLACES = _HEADER + len(Geometry._fields)

# How many of a vector's values there are; None: all.
Count: TypeAlias = ir.Value | None

# The words that say where windows lie.
Words: TypeAlias = Geometry[ir.Value]

# Where something is, that lies so far down and right in a window.
Place = Callable[[ir.Value, ir.Value], ir.Value]

# Lanes where rows are short.
SHORT = 8

# Chains of a vector each that are under way at a time: those of 3 by 3 positions.
CHAINS = 9


class _Kernel:
    """A kernel under construction: its words, with some known beforehand, and vectors of its element."""

    def __init__(self, name: str, memory: Memory, lanes: int | None = None) -> None:
        self.builder = define(name, ir.Module(name=name), [I64] * 4)
        row, banks, self.task, self.tasks = self.builder.function.args
        self.row, self.banks = (self.builder.inttoptr(table, POINTER) for table in (row, banks))
        self.memory = memory
        self.lanes = lanes or LANES[memory.width]
        self.access = Access(self.builder, memory, self.lanes)
        self.partial = Access(self.builder, MEMORY[f"f{memory.width}"], self.lanes)

    def geometry(self) -> Words:
        """Return the words that say where windows lie."""
        return Geometry(*(word(self.builder, self.row, I64(at)) for at in range(_HEADER, _PLACES)))

    def pair(self, number: int) -> list[ir.Value]:
        """Return the two words of the result (0) or an operand."""
        return [word(self.builder, self.row, I64(_PLACES + 2 * number + at)) for at in (0, 1)]

    def place(self, number: int) -> ir.Value:
        """Return the address of the result (0) or an operand."""
        bank, offset = self.pair(number)
        return self.builder.inttoptr(self.builder.add(word(self.builder, self.banks, bank), offset), POINTER)

    def sweep(self, count: ir.Value, body: Callable[[ir.Value, ir.Value | None], None]) -> None:
        """Emit ``body(index, None)`` for vectors that cover `count` values, or ``body(0, count)`` where one is too long.

        The last vector ends where the values do: some of them are done twice.
        """
        builder, last = self.builder, self.builder.sub(count, I64(self.lanes))
        with builder.if_else(builder.icmp_signed(">=", last, I64(0))) as (long, short):
            with long, span(builder, I64(0), count, I64(self.lanes)) as x:
                body(least(builder, x, last), None)
            with short:
                body(I64(0), count)

    def mask(self, count: Count, skipped: int = 0) -> ir.Value | None:
        """Return the mask of the lanes of `count` values (None: of all) from that one on."""
        return None if count is None else self.access.first(self.builder.sub(count, I64(skipped)))

    def flat(self, first: ir.Value, *more: ir.Value) -> ir.Value:
        """Return ``(first * extent + index) * extent + index ...``: how far into memory nested indices reach."""
        for extent, index in zip(more[::2], more[1::2], strict=True):
            first = self.builder.add(self.builder.mul(first, extent), index)
        return first

    def single(self, base: ir.Value, index: ir.Value) -> Lanes:
        """Load a value that nobody writes meanwhile into all lanes."""
        scalar = self.builder.load(self.access.at(base, index), typ=self.access.stored)
        scalar.set_metadata("invariant.load", self.builder.module.add_metadata([]))
        return self.access.real(self.access.splat(scalar))

    def whole(self, number: ir.Value) -> Lanes:
        """Return an integer in all lanes."""
        return self.access.splat(self.builder.trunc(number, self.access.table.wholes.element))

    @contextmanager
    def lines(self, planes: ir.Value, count: ir.Value) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
        """Emit the body for `count` lines of each plane in the share of this task: (plane, line, line of all)."""
        builder = self.builder
        following = builder.add(self.task, I64(1))
        shares = (builder.sdiv(builder.mul(planes, at), self.tasks) for at in (self.task, following))
        first, end = (least(builder, share, planes) for share in shares)
        with span(builder, first, end, I64(1)) as plane, span(builder, I64(0), count, I64(1)) as line:
            yield plane, line, builder.add(builder.mul(plane, count), line)

    def specialised(self, known: list[dict[str, int]], body: Callable[[Words], None]) -> ir.Module:
        """Emit the body once for each set of words that is known beforehand, and once for the rest: a kernel."""
        given = self.geometry()
        with ExitStack() as branches:
            for words in map(_both, known):
                holds = ir.Constant(ir.IntType(1), 1)
                for name, value in words.items():
                    holds = self.builder.and_(holds, self.builder.icmp_signed("==", getattr(given, name), value))
                then, rest = branches.enter_context(self.builder.if_else(holds))
                with then:
                    body(given._replace(**words))
                branches.enter_context(rest)
            body(given)
        return completed(self.builder)


def _both(known: dict[str, int]) -> dict[str, ir.Value]:
    """Return words of both axes."""
    return {f"{word}_{axis}": I64(value) for word, value in known.items() for axis in "yx"}


def _strided(kernel: _Kernel, base: ir.Value, step: ir.Value, count: Count) -> Lanes:
    """Load `count` values (None: a vector) `step` apart; what lies past the last of them is not read."""
    builder, access = kernel.builder, kernel.access
    if _is(step, 1):
        return access.load(base, I64(0), kernel.mask(count))
    if _is(step, 2):
        # The second half of a whole vector ends where the values do.
        apart = kernel.lanes - (count is None)
        reach = None if count is None else builder.sub(builder.mul(count, I64(2)), I64(1))
        halves = [access.load(base, I64(at), kernel.mask(reach, at)) for at in (0, apart)]
        order = picks(at if at < kernel.lanes else at + kernel.lanes - apart for at in range(0, 2 * kernel.lanes, 2))
        return builder.shuffle_vector(*halves, order)
    vector: ir.Value = ir.Constant(access.vector, ir.Undefined)
    for lane in range(kernel.lanes):
        at = access.at(base, builder.mul(step, I64(lane)))
        if count is not None:
            at = builder.select(builder.icmp_signed("<", I64(lane), count), at, base)
        vector = builder.insert_element(vector, builder.load(at, typ=access.stored), I32(lane))
    return access.real(vector)


def _is(word: ir.Value, value: int) -> bool:
    return isinstance(word, ir.Constant) and word.constant == value


def _put_pair(kernel: _Kernel, base: ir.Value, even: Lanes, odd: Lanes, count: Count) -> None:
    """Store two vectors interleaved, or the first `count` of their values."""
    builder, access, lanes = kernel.builder, kernel.access, kernel.lanes
    for at in (0, lanes):
        order = picks(at // 2 + lane // 2 + lane % 2 * lanes for lane in range(lanes))
        vector = builder.shuffle_vector(even, odd, order)
        access.store(base, I64(at), vector, kernel.mask(count, at))


@contextmanager
def _taps(kernel: _Kernel, g: Words, base: ir.Value, count: Count) -> Iterator[tuple[ir.Value, ir.Value, Lanes]]:
    """Emit the body for the positions of windows side by side, row-major: (how far down and right, the values there)."""
    builder = kernel.builder
    with span(builder, I64(0), g.size_y, I64(1)) as down, span(builder, I64(0), g.size_x, I64(1)) as right:
        offset = kernel.flat(builder.mul(down, g.dilation_y), g.width, builder.mul(right, g.dilation_x))
        yield down, right, _strided(kernel, kernel.access.at(base, offset), g.step_x, count)


def _best(kernel: _Kernel, g: Words, base: ir.Value, count: Count, place: Place | None = None) -> tuple[Lanes, Lanes]:
    """Return the maxima of windows side by side, and the bits of the place, or number, of the position of each."""
    builder, o = kernel.builder, kernel.access.table
    number = place or (lambda down, right: kernel.flat(down, g.size_x, right))
    where = kept(builder, kernel.whole(number(I64(0), I64(0))))
    best = kept(builder, _strided(kernel, base, g.step_x, count))
    with _taps(kernel, g, base, count) as (down, right, tap):
        held, here = builder.load(best, typ=o.reals), kernel.whole(number(down, right))
        stays = o.either(o.ge(held, tap), o.is_nan(held))
        builder.store(builder.select(stays, held, tap), best)
        builder.store(builder.select(stays, builder.load(where, typ=o.wholes), here), where)
    return builder.load(best, typ=o.reals), o.from_bits(builder.load(where, typ=o.wholes))


def _ceiling(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return max(0, a / b rounded up)."""
    quotient = builder.sdiv(builder.add(a, builder.sub(b, I64(1))), b)
    return builder.select(builder.icmp_signed("<", quotient, I64(0)), I64(0), quotient)


# Words of usual windows, and of those of any size.
_USUAL = [{"size": size, "step": step, "dilation": 1} for size, step in ((2, 2), (3, 1), (3, 2))]
_STEPS = [{"step": 1, "dilation": 1}, {"step": 2, "dilation": 1}]


def _windows(kernel: _Kernel, several: ir.Value, result: Callable[..., Lanes]) -> ir.Module:
    """Write ``result(geometry, plane, address, count)`` for windows side by side; `several` planes share a source."""
    builder, access, out, source = kernel.builder, kernel.access, kernel.place(0), kernel.place(1)

    def walk(g: Words) -> None:
        with kernel.lines(g.planes, g.windows_y) as (plane, y, row):
            top = kernel.flat(builder.sdiv(plane, several), g.height, builder.mul(y, g.step_y))
            line = access.at(source, builder.mul(top, g.width))
            target = access.at(out, builder.mul(row, g.windows_x))

            def each(x: ir.Value, count: Count) -> None:
                found = result(g, plane, access.at(line, builder.mul(x, g.step_x)), count)
                access.store(target, x, found, kernel.mask(count))

            kernel.sweep(g.windows_x, each)

    return kernel.specialised(_USUAL + _STEPS, walk)


def pool(name: str, memory: Memory) -> ir.Module:
    """The maximum of each window. Operand: planes of ``[height, width]``; no padding."""
    kernel = _Kernel(name, memory, SHORT)
    return _windows(kernel, I64(1), lambda g, _, *given: _best(kernel, g, *given)[0])


def pool_scatter(name: str, memory: Memory) -> ir.Module:
    """The gradient of `pool`. Operands: the planes, the cotangent of the maxima, scratch memory, (tasks, values of one).

    Every window adds its cotangent where its maximum lies, and no zeros elsewhere: they change no sum that begins with
    one. Rows of windows that reach a line of the plane have a layer of scratch memory each, a plane that they add to from
    left to right, as the columns' fold does; then the layers are added up as the rows' fold does.
    """
    kernel = _Kernel(name, memory, SHORT)
    builder, access, partial, o = kernel.builder, kernel.access, kernel.partial, kernel.access.table
    out, source, cotangent, scratch = (kernel.place(number) for number in range(4))
    single, (slots, room) = Access(builder, memory, 1), kernel.pair(4)
    layers = partial.at(scratch, builder.mul(least(builder, kernel.task, slots), room))
    kernel.tasks = least(builder, kernel.tasks, slots)

    def walk(g: Words) -> None:
        area, windows = builder.mul(g.height, g.width), builder.mul(g.windows_y, g.windows_x)
        count = _ceiling(builder, g.size_y, g.step_y)
        end = builder.mul(area, count)
        chosen = partial.at(layers, end)

        def first(y: ir.Value, x: ir.Value) -> ir.Value:
            """Return where in a plane a window begins."""
            return kernel.flat(builder.mul(y, g.step_y), g.width, builder.mul(x, g.step_x))

        def place(down: ir.Value, right: ir.Value) -> ir.Value:
            """Return where in the layers a position of the first window lies."""
            layer = builder.sdiv(builder.sub(builder.sub(g.size_y, I64(1)), down), g.step_y)
            return kernel.flat(layer, g.height, down, g.width, right)

        partial.sweep(end, lambda index, mask: partial.store(layers, index, o.real(0.0), mask))
        with kernel.lines(g.planes, I64(1)) as (plane, _, _):
            with span(builder, I64(0), g.windows_y, I64(1)) as y:

                def find(x: ir.Value, count: Count) -> None:
                    base = access.at(source, kernel.flat(plane, area, first(y, x)))
                    where = _best(kernel, g, base, count, place)[1]
                    partial.store(chosen, kernel.flat(y, g.windows_x, x), where, kernel.mask(count))

                kernel.sweep(g.windows_x, find)

            with span(builder, I64(0), g.windows_y, I64(1)) as y, span(builder, I64(0), g.windows_x, I64(1)) as x:
                window = kernel.flat(y, g.windows_x, x)
                where = builder.load(partial.at(chosen, window), typ=o.wholes.element)
                at = partial.at(layers, builder.add(builder.sext(where, I64), first(y, x)))
                seed = builder.extract_element(single.load(cotangent, kernel.flat(plane, windows, window)), I32(0))
                builder.store(builder.fadd(builder.load(at, typ=partial.stored), seed), at)

            def each(index: ir.Value, mask: ir.Value | None) -> None:
                total = kept(builder, o.real(0.0))
                with span(builder, I64(0), count, I64(1)) as layer:
                    at = kernel.flat(layer, area, index)
                    value = memory.rounded(o, partial.load(layers, at, mask))
                    builder.store(o.add(builder.load(total, typ=o.reals), value), total)
                    partial.store(layers, at, o.real(0.0), mask)
                access.store(out, kernel.flat(plane, area, index), builder.load(total, typ=o.reals), mask)

            access.sweep(area, each)

    return kernel.specialised(_USUAL + _STEPS, walk)


def pool_slope(name: str, memory: Memory) -> ir.Module:
    """The gradient of `pool` for 2 by 2 windows that fill the planes. Operands: the planes, the cotangent of the maxima."""
    kernel = _Kernel(name, memory, SHORT)
    builder, access, o = kernel.builder, kernel.access, kernel.access.table
    out, source, cotangent = (kernel.place(number) for number in range(3))
    g = kernel.geometry()._replace(**_both(_USUAL[0]))
    with kernel.lines(g.planes, g.windows_y) as (_, _, row):

        def each(x: ir.Value, count: Count) -> None:
            seed = kernel.flat(row, g.windows_x, x)
            first = builder.mul(kernel.flat(row, g.width, x), I64(2))
            where = o.to_bits(_best(kernel, g, access.at(source, first), count)[1])
            # The folds add to a zero: -0 becomes +0.
            slope = o.add(o.real(0.0), access.load(cotangent, seed, kernel.mask(count)))
            twice = None if count is None else builder.mul(count, I64(2))
            for down, below in enumerate((first, builder.add(first, g.width))):
                even, odd = (o.select(o.ieq(where, o.whole(2 * down + right)), slope, o.real(0.0)) for right in (0, 1))
                _put_pair(kernel, access.at(out, below), even, odd, twice)

        kernel.sweep(g.windows_x, each)
    return completed(builder)


def padding(name: str, memory: Memory) -> ir.Module:
    """Zeros around planes. Operand: the planes of ``[height, width]``; windows of 1 by 1 are the places of the result."""
    kernel = _Kernel(name, memory, SHORT)
    builder, access, mask, g = kernel.builder, kernel.access, kernel.mask, kernel.geometry()
    out, source, zeros = kernel.place(0), kernel.place(1), ir.Constant(access.vector, None)
    with kernel.lines(g.planes, g.windows_y) as (plane, y, row):
        line = access.at(out, builder.mul(row, g.windows_x))
        kernel.sweep(g.windows_x, lambda x, n: access.put(line, x, zeros, mask(n)))
        inner = builder.sub(y, g.top)
        with builder.if_then(builder.icmp_unsigned("<", inner, g.height)):
            middle = access.at(line, g.left)
            values = access.at(source, kernel.flat(plane, g.height, inner, g.width, I64(0)))
            kernel.sweep(g.width, lambda x, n: access.put(middle, x, access.get(values, x, mask(n)), mask(n)))
    return completed(builder)


def window_product(name: str, memory: Memory) -> ir.Module:
    """Products of planes and kernels. Operands: padded planes, a kernel for each filter, (filters, filters of a plane).

    The planes of the geometry are those of the result.
    """
    kernel = _Kernel(name, memory, SHORT)
    builder, o, weights, (filters, several) = kernel.builder, kernel.access.table, kernel.place(2), kernel.pair(3)

    def result(g: Words, plane: ir.Value, base: ir.Value, count: Count) -> Lanes:
        number, positions = builder.srem(plane, filters), builder.mul(g.size_y, g.size_x)
        chain = kept(builder, o.real(-0.0))
        with _taps(kernel, g, base, count) as (down, right, tap):
            factor = kernel.single(weights, kernel.flat(number, positions, kernel.flat(down, g.size_x, right)))
            builder.store(o.fma(factor, tap, builder.load(chain, typ=o.reals)), chain)
        return builder.load(chain, typ=o.reals)

    return _windows(kernel, several, result)


def window_weights(name: str, memory: Memory) -> ir.Module:
    """The gradient of `window_product` by its kernels.

    Operands: padded planes, the cotangent, scratch memory, (filters of a plane, values of scratch memory per group of
    filters), (steps of k, those of a block). The planes of the geometry are filters. Lanes are filters: the planes of an
    image are transposed into scratch memory, a vector per place. A chain goes over a block of the windows of all images.
    """
    kernel = _Kernel(name, memory, TOGETHER)
    builder, access, partial, o = kernel.builder, kernel.access, kernel.partial, kernel.access.table
    out, source, cotangent, scratch = (kernel.place(number) for number in range(4))
    (several, apart), (k, depth), side = kernel.pair(4), kernel.pair(5), I64(TOGETHER)

    def transpose(base: ir.Value, planes: list[ir.Value], height: ir.Value, width: ir.Value, to: ir.Value) -> None:
        """Write the planes as vectors, row by row; a short row also writes to where the next one goes."""
        with span(builder, I64(0), height, I64(1)) as row:
            lines = [access.at(base, kernel.flat(plane, height, row, width, I64(0))) for plane in planes]

            def each(x: ir.Value, count: Count) -> None:
                vectors = [access.load(line, x, kernel.mask(count)) for line in lines]
                for at, vector in enumerate(transposed(builder, vectors)):
                    partial.store(to, kernel.flat(row, width, builder.add(x, I64(at)), side, I64(0)), vector)

            kernel.sweep(width, each)

    def some(block: ir.Value, count: int, end: ir.Value) -> list[ir.Value]:
        """Return the numbers of a block, as many below `end` as there are, the last one over and over."""
        last = builder.sub(end, I64(1))
        return [least(builder, kernel.flat(block, I64(count), I64(at)), last) for at in range(count)]

    def walk(g: Words) -> None:
        positions, wide = builder.mul(g.size_y, g.size_x), g.windows_x
        turns = _ceiling(builder, positions, I64(CHAINS))
        with kernel.lines(_ceiling(builder, g.planes, side), turns) as (group, turn, _):
            filters, numbers = some(group, TOGETHER, g.planes), some(turn, CHAINS, positions)
            pixels = partial.at(scratch, builder.mul(group, apart))
            seeds = partial.at(pixels, kernel.flat(g.height, g.width, I64(0), side, I64(0)))

            def at(base: ir.Value, y: ir.Value, x: ir.Value) -> ir.Value:
                """Return the address of the vector so far down and right in the planes."""
                return partial.at(base, kernel.flat(y, g.width, x, side, I64(0)))

            positioned = ((builder.sdiv(number, g.size_x), builder.srem(number, g.size_x)) for number in numbers)
            taps = [at(pixels, builder.mul(y, g.dilation_y), builder.mul(x, g.dilation_x)) for y, x in positioned]
            totals, parts = ([kept(builder, o.real(-0.0)) for _ in numbers] for _ in range(2))
            left = kept(builder, depth)

            def end_block() -> None:
                for total, part in zip(totals, parts, strict=True):
                    builder.store(o.add(builder.load(total, typ=o.reals), builder.load(part, typ=o.reals)), total)
                    builder.store(o.real(-0.0), part)
                builder.store(depth, left)

            with span(builder, I64(0), builder.sdiv(k, builder.mul(g.windows_y, wide)), I64(1)) as image:
                planes = [kernel.flat(image, g.planes, of) for of in filters]
                transpose(source, [builder.sdiv(plane, several) for plane in planes], g.height, g.width, pixels)
                transpose(cotangent, planes, g.windows_y, wide, seeds)
                done = list[ir.Value]()
                with span(builder, I64(0), g.windows_y, I64(1)) as y, span(builder, I64(0), wide, done.pop) as start:
                    done.append(least(builder, builder.load(left, typ=I64), builder.sub(wide, start)))
                    with span(builder, start, builder.add(start, done[0]), I64(1)) as x:
                        seed = partial.load(seeds, kernel.flat(y, wide, x, side, I64(0)))
                        for base, part in zip(taps, parts, strict=True):
                            tap = partial.load(at(base, builder.mul(y, g.step_y), builder.mul(x, g.step_x)), I64(0))
                            builder.store(o.fma(seed, tap, builder.load(part, typ=o.reals)), part)
                    builder.store(builder.sub(builder.load(left, typ=I64), done[0]), left)
                    with builder.if_then(builder.icmp_signed("==", builder.load(left, typ=I64), I64(0))):
                        end_block()
            end_block()
            for number, total in zip(numbers, totals, strict=True):
                found = access.stored_as(builder.load(total, typ=o.reals))
                for lane, of in enumerate(filters):
                    value = builder.extract_element(found, I32(lane))
                    builder.store(value, access.at(out, kernel.flat(of, positions, number)))

    return kernel.specialised([{"size": 3, "dilation": 1}], walk)


def window_sum(name: str, memory: Memory) -> ir.Module:
    """Add taps ``[planes, size_y, size_x, windows_y, windows_x]`` back to planes of ``[height, width]``.

    Taps are at compute precision, and rounded first.
    """
    kernel = _Kernel(name, memory)
    builder, taps, o = kernel.builder, kernel.place(1), kernel.access.table

    def tap(g: Words, plane: ir.Value, position: ir.Value, at: ir.Value, mask: ir.Value) -> Lanes:
        positions, windows = builder.mul(g.size_y, g.size_x), builder.mul(g.windows_y, g.windows_x)
        return memory.rounded(o, kernel.partial.load(taps, kernel.flat(plane, positions, position, windows, at), mask))

    return _fold(kernel, tap)


def window_slope(name: str, memory: Memory) -> ir.Module:
    """The gradient of `window_product` by its planes, for one filter each. Operands: its cotangent, kernels, (filters, 1)."""
    kernel = _Kernel(name, memory)
    builder, o, (filters, _) = kernel.builder, kernel.access.table, kernel.pair(3)
    cotangent, weights = kernel.place(1), kernel.place(2)

    def tap(g: Words, plane: ir.Value, position: ir.Value, at: ir.Value, mask: ir.Value) -> Lanes:
        seed = kernel.access.load(cotangent, kernel.flat(plane, builder.mul(g.windows_y, g.windows_x), at), mask)
        number, positions = builder.srem(plane, filters), builder.mul(g.size_y, g.size_x)
        factor = kernel.single(weights, kernel.flat(number, positions, position))
        return o.select(mask, memory.rounded(o, o.mul(factor, seed)), o.real(0.0))

    return _fold(kernel, tap)


def _fold(kernel: _Kernel, tap: Callable[..., Lanes]) -> ir.Module:
    """Add up, for every position, the taps of the windows that cover it.

    A tap is given (geometry, plane, position in the window, first of a vector of windows of the plane, the mask of those
    that exist); what does not exist has to be 0.

    Positions ``phase, phase + step, ...`` of a row meet the same columns of consecutive windows, so a vector of
    them reads vectors of taps. Vectors go down the plane: their masks are those of all rows.
    """
    builder, access, o = kernel.builder, kernel.access, kernel.access.table
    out = kernel.place(0)

    def add(place: ir.Value, value: Lanes) -> None:
        builder.store(o.add(builder.load(place, typ=o.reals), value), place)

    def walk(g: Words) -> None:
        @contextmanager
        def covering(axis: str, place: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
            """Emit the body for windows along an axis that may cover a place, ascending: (the place in it, its number)."""
            size, step, dilation = (getattr(g, f"{name}_{axis}") for name in ("size", "step", "dilation"))
            with span(builder, I64(0), size, I64(1)) as turn:
                within = builder.sub(builder.sub(size, I64(1)), turn)
                reach = builder.sub(place, builder.mul(within, dilation))
                window = builder.sdiv(reach, step)
                with builder.if_then(builder.icmp_signed("==", builder.mul(window, step), reach)):
                    yield within, window

        def positions(plane: ir.Value, y: ir.Value, j: ir.Value, phase: ir.Value) -> Lanes:
            """Return the sums of positions `phase`, one step apart, from the one of `j` on, of a row."""
            total, below = kept(builder, o.real(0.0)), g.windows_y
            with covering("y", y) as (down, window), builder.if_then(builder.icmp_unsigned("<", window, below)):
                row_sum = kept(builder, o.real(0.0))
                with covering("x", builder.add(phase, g.left)) as (right, shift):
                    x = builder.add(j, shift)
                    columns = builder.add(access.splat(builder.trunc(x, I32)), picks(range(kernel.lanes)))
                    last = access.splat(builder.trunc(builder.sub(g.windows_x, I64(1)), I32))
                    # By sign: LLVM keeps integers from row to row, but compares anew.
                    outside = builder.or_(columns, builder.sub(last, columns))
                    mask = builder.icmp_signed(">=", outside, ir.Constant(outside.type, None))
                    position, at = kernel.flat(down, g.size_x, right), kernel.flat(window, g.windows_x, x)
                    add(row_sum, tap(g, plane, position, at, mask))
                add(total, kernel.memory.rounded(o, builder.load(row_sum, typ=o.reals)))
            return builder.load(total, typ=o.reals)

        def fill(plane: ir.Value, finish: ir.Value, *phases: ir.Value) -> None:
            """Emit the sums of a phase, or of two that are stored as pairs."""

            def each(j: ir.Value, count: Count) -> None:
                first = kernel.flat(j, g.step_x, phases[0])
                left = builder.sub(g.width, first)
                with span(builder, I64(0), g.height, I64(1)) as inner:
                    target = access.at(out, kernel.flat(plane, g.height, inner, g.width, first))
                    sums = [positions(plane, builder.add(inner, g.top), j, phase) for phase in phases]
                    if len(sums) == 1:
                        _put_strided(kernel, target, g.step_x, sums[0], count)
                        return
                    # The odd one of a last pair may lie past the row: then the vector that holds it is not stored whole.
                    is_whole = builder.icmp_signed(">=", left, I64(2 * kernel.lanes))
                    with builder.if_else(is_whole, likely=True) as branches:
                        for branch, limit in zip(branches, (None, left), strict=True):
                            with branch:
                                _put_pair(kernel, target, sums[0], sums[1], limit)

            kernel.sweep(finish, each)

        with kernel.lines(g.planes, I64(1)) as (plane, _, _):
            if _is(g.step_x, 2):
                fill(plane, builder.sdiv(builder.add(g.width, I64(1)), I64(2)), I64(0), I64(1))
            else:
                with span(builder, I64(0), g.step_x, I64(1)) as phase:
                    fill(plane, _ceiling(builder, builder.sub(g.width, phase), g.step_x), phase)

    # Rounding to 16 bits takes so long that a known size gains nothing.
    return kernel.specialised(_STEPS if kernel.memory.narrow else _USUAL + _STEPS, walk)


def _put_strided(kernel: _Kernel, base: ir.Value, step: ir.Value, value: Lanes, count: Count) -> None:
    """Store `count` lanes (None: all) `step` values apart."""
    builder, access = kernel.builder, kernel.access
    if _is(step, 1):
        access.store(base, I64(0), value, kernel.mask(count))
        return
    buffer = kept(builder, access.stored_as(value))
    with span(builder, I64(0), I64(kernel.lanes) if count is None else count, I64(1)) as lane:
        single = builder.load(access.at(buffer, lane), typ=access.stored)
        builder.store(single, access.at(base, builder.mul(lane, step)))
