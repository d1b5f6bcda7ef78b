"""Lines: one row of A times a matrix, one FMA chain over ascending k per column, as LLVM vector IR.

A routine is ``(out, a, a_step, b, b_stride, k, n, depth)``: ``out[j]`` over ``a[p] * b[p, j]``, at compute precision. B
is read once, where it lies: `line` takes one whose columns lie side by side, `column` one whose steps do. Chains start
from -0.0, as those of `tiles` do; `depth` is the length of a block of k.
"""

from llvmlite import ir

from topos.kernels.access import I64, POINTER, Access, completed, define, kept, least, span
from topos.kernels.elements import MEMORY
from topos.kernels.matmul.panels import joined, transposed
from topos.kernels.vector import LANES

# Rows of B that a line streams at a time: its chains stay in registers over as many steps.
UNROLLED = 8

# Columns of B that a column streams at a time where more would meet in one set of the nearest cache.
FEW = 8


class _Line:
    """A routine under construction."""

    def __init__(self, name: str, element: str) -> None:
        self.builder = define(name, ir.Module(name=name), [POINTER, POINTER, I64, POINTER, *[I64] * 4])
        self.out, self.a, self.a_step, self.b, self.b_stride, self.k, self.n, self.depth = self.builder.function.args
        self.memory, self.wide = MEMORY[element], MEMORY[f"f{MEMORY[element].width}"]

    def accesses(self, lanes: int) -> tuple[Access, Access]:
        """Return vectors of the operands and of the result."""
        return Access(self.builder, self.memory, lanes), Access(self.builder, self.wide, lanes)

    def factor(self, access: Access, step: ir.Value) -> ir.Value:
        """Return a value of A in every lane."""
        at = access.at(self.a, self.builder.mul(step, self.a_step))
        return access.real(access.splat(self.builder.load(at, typ=access.stored)))


def line(name: str, element: str) -> ir.Module:
    """Read the long rows of one block of k in order, some at a time, which is what memory is fast at."""
    line = _Line(name, element)
    builder, (access, chains) = line.builder, line.accesses(LANES[line.memory.width])

    def sweep(start: ir.Value, steps: int, is_first: bool) -> None:
        places = [builder.add(start, I64(step)) for step in range(steps)]
        factors = [line.factor(access, place) for place in places]
        rows = [access.at(line.b, builder.mul(place, line.b_stride)) for place in places]

        def each(index: ir.Value, mask: ir.Value | None) -> None:
            chain = chains.table.real(-0.0) if is_first else chains.load(line.out, index, mask)
            for factor, row in zip(factors, rows, strict=True):
                chain = chains.table.fma(factor, access.load(row, index, mask), chain)
            chains.store(line.out, index, chain, mask)

        access.sweep(line.n, each)

    sweep(I64(0), 1, True)
    rest = builder.sub(line.k, I64(1))
    many = builder.add(builder.and_(rest, I64(-UNROLLED)), I64(1))
    with span(builder, I64(1), many, I64(UNROLLED)) as start:
        sweep(start, UNROLLED, False)
    with span(builder, many, line.k, I64(1)) as start:
        sweep(start, 1, False)
    return completed(builder)


def column(name: str, element: str) -> ir.Module:
    """Transpose pieces of columns in registers, so that each column has its chain in a lane.

    A whole vector of columns hides the latency of its chains. Columns a multiple of 4 KB apart share a set of the
    nearest cache, which holds `FEW` of them. Pieces are 128 bits: two are joined as the second is loaded.
    """
    line = _Line(name, element)
    builder, size, lanes = line.builder, line.memory.size, LANES[line.memory.width]
    square, last = 128 // line.memory.width, builder.sub(line.n, I64(1))

    def columns(first: ir.Value, lanes: int) -> None:
        access, chains = line.accesses(lanes)
        numbers = [least(builder, builder.add(first, I64(lane)), last) for lane in range(lanes)]
        starts = [access.at(line.b, builder.mul(line.b_stride, number)) for number in numbers]
        total = kept(builder, chains.table.real(-0.0))
        with span(builder, I64(0), line.k, line.depth) as block:
            chain = kept(builder, chains.table.real(-0.0))
            end = least(builder, builder.add(block, line.depth), line.k)
            whole = builder.add(block, builder.and_(builder.sub(end, block), I64(-square)))
            for begin, stop, count in ((block, whole, square), (whole, end, 1)):
                kind = ir.VectorType(access.stored, count)
                with span(builder, begin, stop, I64(count)) as step:
                    pieces = [builder.load(access.at(start, step), typ=kind, align=size) for start in starts]
                    vectors = [access.real(joined(builder, pieces[i::count])) for i in range(count)]
                    for i, vector in enumerate(transposed(builder, vectors)):
                        factor = line.factor(access, builder.add(step, I64(i)))
                        builder.store(chains.table.fma(factor, vector, builder.load(chain, typ=chains.vector)), chain)
            # The first sum is the first chain, the sign of its zero included: the total starts from -0.0 too.
            both = (builder.load(slot, typ=chains.vector) for slot in (total, chain))
            builder.store(chains.table.add(*both), total)
        mask = chains.first(builder.sub(line.n, first)) if lanes == FEW else None
        chains.store(line.out, first, builder.load(total, typ=chains.vector), mask)

    start = I64(0)
    if lanes > FEW:
        apart = builder.and_(builder.add(builder.mul(line.b_stride, I64(size)), I64(64)), I64(4095))
        crowded = builder.icmp_signed("<=", apart, I64(128))
        start = builder.select(crowded, start, builder.and_(line.n, I64(-lanes)))
        with span(builder, I64(0), start, I64(lanes)) as first:
            columns(first, lanes)
    with span(builder, start, line.n, I64(FEW)) as first:
        columns(first, FEW)
    return completed(builder)
