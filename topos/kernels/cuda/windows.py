"""Kernels over planes of windows, a thread per result: the bits of `kernels.windows`, whose rows they read.

Words: those of `rows.Geometry`, then (bank, offset) of the result and of each operand; all of them are dense.
"""

from collections.abc import Callable
from typing import Any

from topos.kernels import elements, memory
from topos.kernels.loops import HEADER, Kernel, number_of, place
from topos.kernels.memory import load
from topos.kernels.rows import Geometry

(
    PLANES, SIZE_Y, SIZE_X, WINDOWS_Y, WINDOWS_X, STEP_Y, STEP_X, DILATION_Y, DILATION_X, TOP, LEFT, HEIGHT, WIDTH,
) = range(HEADER, HEADER + len(Geometry._fields))  # fmt: skip
OUT, FIRST, SECOND = range(WIDTH + 1, WIDTH + 7, 2)


# ``ROUND[element](value)``: a value at compute precision, as one that is stored and loaded again. It has no body here: a kernel
# has instructions in its place (`lowering`).
ROUND: dict[str, Callable[[Any], Any]] = {element: lambda _: None for element in elements.MEMORY}


def _best(element: str) -> Callable[[int, int, int], tuple[Any, int]]:
    """Return what finds the maximum of a window, and at which of its positions it lies: a tie to the earliest."""
    read = memory.READ[element]

    def best(row: int, source: int, window: int) -> tuple[Any, int]:
        x, line, width = window % load(row, WINDOWS_X), window // load(row, WINDOWS_X), load(row, WIDTH)
        y = line // load(row, WINDOWS_Y) * load(row, HEIGHT) + line % load(row, WINDOWS_Y) * load(row, STEP_Y)
        start, size_x = y * width + x * load(row, STEP_X), load(row, SIZE_X)
        found, where = read(source, start), 0
        for at in range(1, load(row, SIZE_Y) * size_x):
            tap = read(source, start + at // size_x * width + at % size_x)
            if not (found >= tap or found != found):
                found, where = tap, at
        return found, where

    return best


def pool(element: str) -> Kernel:
    """Write the maximum of each window."""
    best, write = _best(element), memory.WRITE[element]

    def kernel(row: int, banks: int, task: int, tasks: int) -> None:
        out, source = place(banks, row, OUT), place(banks, row, FIRST)
        for i in range(task, load(row, PLANES) * load(row, WINDOWS_Y) * load(row, WINDOWS_X), tasks):
            write(out, i, best(row, source, i)[0])

    return kernel


def _per_position(element: str, tap: Callable[[int, int, int, int, int], Any]) -> Kernel:
    """Return the kernel that adds up the taps of the windows that cover a position: columns first, each sum from zero.

    ``tap(row, banks, plane, position in the window, window)`` and the sums of columns are rounded.
    """
    write, round_, zero = memory.WRITE[element], ROUND[element], number_of(element)(0)

    def kernel(row: int, banks: int, task: int, tasks: int) -> None:
        width, height, size_x, out = load(row, WIDTH), load(row, HEIGHT), load(row, SIZE_X), place(banks, row, OUT)
        step_y, step_x, below, beside = load(row, STEP_Y), load(row, STEP_X), load(row, WINDOWS_Y), load(row, WINDOWS_X)
        reach_y, reach_x = (load(row, SIZE_Y) - 1) * load(row, DILATION_Y), (size_x - 1) * load(row, DILATION_X)
        for i in range(task, load(row, PLANES) * height * width, tasks):
            x, y, plane = i % width + load(row, LEFT), i // width % height + load(row, TOP), i // width // height
            total = zero
            for j in range(max(0, -((reach_y - y) // step_y)), min(below, y // step_y + 1)):
                down, part = y - j * step_y, zero
                if down % load(row, DILATION_Y) == 0:
                    for k in range(max(0, -((reach_x - x) // step_x)), min(beside, x // step_x + 1)):
                        right = x - k * step_x
                        if right % load(row, DILATION_X) == 0:
                            position = down // load(row, DILATION_Y) * size_x + right // load(row, DILATION_X)
                            window = (plane * below + j) * beside + k
                            part = part + round_(tap(row, banks, plane, position, window))
                    total = total + round_(part)
            write(out, i, total)

    return kernel


def pool_slope(element: str) -> Kernel:
    """Add cotangents where windows have their maxima. Operands: the planes, the cotangent."""
    best, read, zero = _best(element), memory.READ[element], number_of(element)(0)

    def tap(row: int, banks: int, plane: int, position: int, window: int) -> Any:
        wins = best(row, place(banks, row, FIRST), window)[1] == position
        return read(place(banks, row, SECOND), window) if wins else zero

    return _per_position(element, tap)


def window_sum(element: str) -> Kernel:
    """Add taps ``[planes, positions, windows of a plane]``, at compute precision, back to planes."""
    read = memory.READ[f"f{elements.MEMORY[element].width}"]

    def tap(row: int, banks: int, plane: int, position: int, window: int) -> Any:
        positions, windows = load(row, SIZE_Y) * load(row, SIZE_X), load(row, WINDOWS_Y) * load(row, WINDOWS_X)
        return read(place(banks, row, FIRST), (plane * (positions - 1) + position) * windows + window)

    return _per_position(element, tap)


# Kernels, and the words of their rows (without the header) whose product says how many results there are.
SINGLE = {
    "pool": (pool, [word - HEADER for word in (PLANES, WINDOWS_Y, WINDOWS_X)]),
    "pool_slope": (pool_slope, [word - HEADER for word in (PLANES, HEIGHT, WIDTH)]),
    "window_sum": (window_sum, [word - HEADER for word in (PLANES, HEIGHT, WIDTH)]),
}
