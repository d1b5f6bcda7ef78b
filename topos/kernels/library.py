"""Every kernel by name, and how its object code is made.

Names: ``exp.f32`` is a block routine (`access.routine`), ``row_sum.f32`` one of `ROUTINES`,
``sum.bf16`` or ``copy`` a kernel of `loops`, ``execute`` the executor, ``native`` the entry and the thread team.
"""

from collections.abc import Callable
from typing import Any

from topos.kernels import chains, elements, loops, runs
from topos.kernels.maps import FUNCTIONS, Function
from topos.kernels.matmul import product
from topos.kernels.table import Lanes, Table
from topos.kernels.target import Target, assemble, target, tile_of

# Routines that convert a 16-bit element to f32 and back.
WIDEN, NARROW = "widen", "narrow"

LOGARITHMS = ("log_softmax", "logsumexp")
COLUMNS = ("column_sum", "column_max", "column_log_softmax", "column_logsumexp")
ROWS = ("row_sum", "row_max", *LOGARITHMS, *COLUMNS)
# Routines of more than one loop: functions of `reductions`, `columns` and `moves`.
ROUTINES = (*ROWS, "spread", "accumulate", "ascend", "transpose")

# Tiles of the matrix product over packed operands, and over those read where they lie; a name tells the rows too.
TILES = ("tile", "placed")

# Routines that pack an element for the matrix product.
PANELS = ("rows_panel", "columns_panel", "rows_runs", "columns_runs", "rows_turn", "columns_turn")

# Routines of a single row of the matrix product, by how the other operand lies.
LINES = ("line", "column")

# Kernels that Numba compiles and that serve every element.
SHARED = {"execute": loops.execute} | loops.SHARED | runs.SHARED | {"chain": chains.chain} | product.SHARED

POOLS = ("pool", "pool_slope", "pool_scatter")
# Kernels of `windows`, by element.
WINDOWS = (*POOLS, "padding", "window_product", "window_slope", "window_sum", "window_weights")


def tiles(width: int, chosen: Target | None = None) -> list[str]:
    """Return the tiles of a precision: of every count of rows, of each kind."""
    return [f"{kind}{rows}.f{width}" for kind in TILES for rows in range(1, tile_of(width, chosen).rows + 1)]


def names(chosen: Target | None = None) -> list[str]:
    """Return the name of every kernel that a CPU needs, by default `target`: larger files of registers have more tiles."""
    narrow = [name for name, memory in elements.MEMORY.items() if memory.narrow]
    return [
        "native",
        *SHARED,
        *(f"{kernel}.{element}" for element in elements.MEMORY for kernel in loops.TYPED),
        *(f"{function}.{element}" for element in elements.MEMORY for function in FUNCTIONS),
        *(f"{routine}.{element}" for element in elements.MEMORY for routine in (*ROUTINES, *PANELS, *LINES, *WINDOWS)),
        *(name for width in (32, 64) for name in tiles(width, chosen)),
        *(f"{conversion}.{element}" for element in narrow for conversion in (WIDEN, NARROW)),
    ]


def is_numba(name: str) -> bool:
    """Return whether making the kernel needs Numba (the others need llvmlite alone)."""
    return name in SHARED or name.partition(".")[0] in loops.TYPED


def make(name: str) -> tuple[str, bytes]:
    """Compile a kernel: return its symbol and its object code."""
    family, _, element = name.partition(".")
    symbol = "topos_" + name.replace(".", "_")
    if name == "native":
        from topos.kernels import native

        return "entry", assemble(native.module(target()))
    if is_numba(name):
        from topos.kernels import policy

        function = loops.TYPED[family](element) if element else SHARED[family]
        return symbol, assemble(policy.kernel_ir(function, symbol))
    return symbol, assemble(str(_module(family, element, symbol)))


def _same(o: Table, x: Lanes) -> Lanes:
    return x


def _module(family: str, element: str, symbol: str) -> Any:
    """Return the IR of a kernel that llvmlite alone writes."""
    from topos.kernels import access, columns, moves, reductions, windows
    from topos.kernels.matmul import lines, panels
    from topos.kernels.matmul import tiles as parts

    memory = elements.MEMORY[element]
    shape = tile_of(memory.width)
    if family in COLUMNS:
        return columns.columns(symbol, memory, family.removeprefix("column_"))
    if family in LOGARITHMS:
        return reductions.log_rows(symbol, memory, family == "log_softmax")
    if family in (*ROUTINES, *WINDOWS):
        writers = vars(reductions) | vars(moves) | vars(windows)
        return writers[family](symbol, memory)
    if family in PANELS:
        side, _, kind = family.partition("_")
        return getattr(panels, kind)(symbol, element, shape.rows if side == "rows" else shape.columns)
    if family in LINES:
        return getattr(lines, family)(symbol, element)
    for kind in TILES:
        if family.startswith(kind):
            return parts.tile(symbol, memory.width, int(family.removeprefix(kind)), kind == "tile")
    function, arity, *places = routine_of(family, element)
    return access.routine(function, arity, symbol, *places)


def routine_of(family: str, element: str) -> tuple[Callable[..., Lanes], int, elements.Memory, elements.Memory]:
    """Return the element function of a routine, its arity, and how its operands and its result lie in memory."""
    memory = elements.MEMORY[element]
    function = Function(1, _same, _same) if family in (WIDEN, NARROW) else FUNCTIONS[family]
    wide = elements.MEMORY[f"f{memory.width}"]
    places = wide if family == NARROW else memory, wide if family == WIDEN else memory
    return function.at(memory.width), function.arity, *places
