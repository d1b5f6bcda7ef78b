"""What a kernel may do with an address; `policy` lowers each function to a few LLVM instructions.

Kernels are written over these functions alone. They have no body here: a kernel is compiled, or its text
is linked with plain Python functions of the same names (`policy.link`), as its tests do.
"""

from collections.abc import Callable
from typing import Any

from topos.kernels import elements

# A compute-precision scalar: a machine register.
Number = Any


def load(address: int, index: int) -> int:
    """Return the int64 at `address` + 8 * `index`."""


def store(address: int, index: int, value: int) -> None:
    """Write an int64."""


def move2(target: int, source: int) -> None:
    """Copy 2 bytes."""


def move4(target: int, source: int) -> None:
    """Copy 4 bytes."""


def move8(target: int, source: int) -> None:
    """Copy 8 bytes."""


def move(target: int, source: int, count: int) -> None:
    """Copy `count` bytes between places that do not overlap."""


# Bytes of scratch memory of a kernel: three buffers of 512 values.
STACK = 3 * 8 * 512


def stack() -> int:
    """Return the address of `STACK` bytes that live until the kernel returns."""


# Bytes of scratch memory of a chain: a near cache holds what it works on, and rows may be long.
ROOM = 1 << 17


def room() -> int:
    """Return the address of `ROOM` bytes that live until the kernel returns."""


def apply(routine: int, out: int, a: int, b: int, c: int, count: int) -> None:
    """Call a compiled block routine (`access.routine`)."""


def pack(routine: int, out: int, source: int, lane_word: int, lanes: int, step_word: int, count: int) -> None:
    """Call a compiled panel routine (`matmul.panels`)."""


def line(routine: int, out: int, a: int, a_step: int, b: int, b_stride: int, k: int, n: int, depth: int) -> None:
    """Call a compiled line routine (`matmul.lines`)."""


def tile(
    routine: int, k: int, a: int, a_row: int, a_step: int, b: int, b_step: int, c: int, c_row: int,
    columns: int, first: int,
) -> None:  # fmt: skip
    """Call a compiled tile (`matmul.tiles.tile`)."""


def call(kernel: int, row: int, banks: int, task: int, tasks: int) -> None:
    """Call a compiled kernel."""


def fan(team: int, kernel: int, row: int, banks: int, tasks: int) -> None:
    """Call a compiled kernel once per task on the thread team."""


def fma_f32(a: Number, b: Number, c: Number) -> Number:
    """Return ``a*b + c`` rounded once to f32."""


def fma_f64(a: Number, b: Number, c: Number) -> Number:
    """Return ``a*b + c`` rounded once to f64."""


def rounded_to_tf32(value: Number) -> Number:
    """Return an f32 number rounded to the 11 bits of TF32, ties away from zero."""


def tensor_product(
    a0: Number, a1: Number, a2: Number, a3: Number, b0: Number, b1: Number,
    c0: Number, c1: Number, c2: Number, c3: Number,
) -> tuple[Number, Number, Number, Number]:  # fmt: skip
    """Add a warp's product of 16 x 8 by 8 x 8 TF32 numbers to a thread's four f32 sums."""


# ``READ[element](address, index)``: one value, widened to the compute precision.
READ: dict[str, Callable[[int, int], Number]] = {}

# ``WRITE[element](address, index, value)``: one value, rounded once.
WRITE: dict[str, Callable[[int, int, Number], None]] = {}

for _element in elements.MEMORY:

    def _read(address: int, index: int) -> Number:
        """Read one value."""

    def _write(address: int, index: int, value: Number) -> None:
        """Write one value."""

    READ[_element], WRITE[_element] = _read, _write

# ``FMA[element](a, b, c)`` at the compute precision of the element.
FMA: dict[str, Callable[[Number, Number, Number], Number]] = {
    name: fma_f32 if memory.width == 32 else fma_f64 for name, memory in elements.MEMORY.items()
}
