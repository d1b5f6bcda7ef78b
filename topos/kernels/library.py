"""Every kernel by name, and how its object code is made.

Names: ``exp.f32`` is a block routine (`access.routine`), ``row_sum.f32`` one of `ROUTINES`,
``sum.bf16`` or ``copy`` a kernel of `loops`, ``execute`` the executor, ``native`` the entry and the thread team.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topos.kernels import chains, elements, loops, runs
from topos.kernels.maps import FUNCTIONS
from topos.kernels.matmul import product
from topos.kernels.matmul.shape import tile_of
from topos.kernels.table import Lanes, Table
from topos.kernels.target import assemble, target


def _same(o: Table, x: Lanes) -> Lanes:
    return x


WIDEN, NARROW = "widen", "narrow"
"""Routines that convert a 16-bit element to f32 and back."""

ROWS = ("row_sum", "row_max", "column_sum", "column_max", "log_softmax", "logsumexp")
ROUTINES = (*ROWS, "spread", "accumulate", "ascend", "transpose")
"""Routines of more than one loop: functions of `reductions`, `columns` and `moves`."""

PANELS = ("rows_panel", "columns_panel", "rows_runs", "columns_runs", "rows_turn", "columns_turn")
"""Routines that pack an element for the matrix product."""

SHARED = loops.SHARED | runs.SHARED | chains.SHARED
"""Kernels that Numba compiles and that serve every element."""

WINDOWS = ("pool", "winners", "pool_slope", "window_sum", "winner_sum")
"""Kernels of `windows`, by element."""

TYPED = loops.TYPED | product.TYPED
"""Kernels that Numba compiles, by element."""


def tiles(width: int) -> list[str]:
    """Return the tiles of a precision: of every count of rows, over packed and over plain A."""
    rows = range(1, tile_of(width).rows + 1)
    return [f"{kind}{count}.f{width}" for kind in ("tile", "plain") for count in rows]


def names() -> list[str]:
    """Return the name of every kernel."""
    narrow = [name for name, memory in elements.MEMORY.items() if memory.narrow]
    return [
        "native",
        "execute",
        *SHARED,
        *(f"{kernel}.{element}" for element in elements.MEMORY for kernel in TYPED),
        *(f"{function}.{element}" for element in elements.MEMORY for function in FUNCTIONS),
        *(f"{routine}.{element}" for element in elements.MEMORY for routine in (*ROUTINES, *PANELS, *WINDOWS)),
        *(name for width in (32, 64) for name in (f"line.f{width}", *tiles(width))),
        *(f"{conversion}.{element}" for element in narrow for conversion in (WIDEN, NARROW)),
    ]


def is_numba(name: str) -> bool:
    """Return whether making the kernel needs Numba (the others need llvmlite alone)."""
    return name == "execute" or name in SHARED or name.partition(".")[0] in TYPED


def make(name: str) -> tuple[str, bytes]:
    """Compile a kernel: return its symbol and its object code."""
    symbol = "topos_" + name.replace(".", "_")
    if name == "native":
        from topos.kernels import native

        return "entry", assemble(native.module(target()))
    if is_numba(name):
        from topos.kernels import policy

        function, arity = _kernel(name)
        return symbol, assemble(policy.kernel_ir(function, arity, symbol))
    family, _, element = name.partition(".")
    if family in ROUTINES:
        from topos.kernels import columns, moves, reductions

        write = (vars(reductions) | vars(columns) | vars(moves))[family]
        return symbol, assemble(str(write(symbol, elements.MEMORY[element])))
    if family in PANELS or family == "line" or family.startswith(("tile", "plain")):
        return symbol, assemble(str(_part_of_a_product(family, element, symbol)))
    if family in WINDOWS:
        from topos.kernels import windows

        return symbol, assemble(str(getattr(windows, family)(symbol, elements.MEMORY[element])))
    from topos.kernels.access import routine

    return symbol, assemble(str(routine(*_routine(name), symbol, *_memories(name))))


def _part_of_a_product(family: str, element: str, symbol: str) -> Any:
    from topos.kernels.matmul import panels
    from topos.kernels.matmul import tiles as parts

    width = elements.MEMORY[element].width
    shape = tile_of(width)
    if family in PANELS:
        side, _, kind = family.partition("_")
        write = getattr(panels, kind)
        return write(symbol, element, shape.rows if side == "rows" else shape.columns)
    if family == "line":
        return parts.line(symbol, element)
    is_packed = family.startswith("tile")
    return parts.tile(symbol, width, int(family.removeprefix("tile" if is_packed else "plain")), is_packed)


def _kernel(name: str) -> tuple[Callable[..., None], int]:
    family, _, element = name.partition(".")
    if name == "execute":
        return loops.execute, 6
    return (TYPED[family](element) if element else SHARED[family]), 4


def _routine(name: str) -> tuple[Callable[..., Any], int, int]:
    family, _, element = name.partition(".")
    width = elements.MEMORY[element].width
    if family in (WIDEN, NARROW):
        return _same, 1, width
    function = FUNCTIONS[family]
    return function.at(width), function.arity, width


def _memories(name: str) -> tuple[elements.Memory | None, elements.Memory | None]:
    family, _, element = name.partition(".")
    memory = elements.MEMORY[element]
    return (None if family == NARROW else memory), (None if family == WIDEN else memory)
