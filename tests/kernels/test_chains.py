"""The kernel of chains, interpreted and compiled: a block program has the bytes of its routines one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.calls import compute, interpret, row_words
from topos.kernels import rows
from topos.kernels.chains import COLLECT, FULL, OVER, ROW


@pytest.mark.parametrize("way", [compute, interpret])
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_block_program(way: object, tasks: int) -> None:
    """Rows less their sum times a column that no block changes, in blocks of 2 of 7 rows, nothing written beyond."""
    n, count = 5, 7
    x = np.random.default_rng(0).normal(size=(count, n)).astype(np.float32)
    column = np.random.default_rng(1).normal(size=2 * n).astype(np.float32)
    out, sums = np.zeros(count * n + 8, np.float32), np.zeros(count + 8, np.float32)
    room = 64 * 8
    values = [
        (1, 0, 4 * n),  # x
        (2, 0, 0),  # the column, in steps of 2
        (-1, room, 0),  # the column, repeated
        (4, 0, 4),  # the sums
        (-1, room + 64, 0),  # the sums, repeated
        (3, 0, 4 * n),  # out
    ]
    instructions = [
        ("", COLLECT, 2, [1], [4, 2, n, 2, n, 0, 2], 1),
        ("row_sum.f32", OVER, 3, [0], [], n),
        ("neg.f32", ROW, 3, [3], [], 1),
        ("spread.f32", OVER, 4, [3], [], n),
        ("add.f32", FULL, 5, [0, 4], [], n),
        ("mul.f32", FULL, 5, [5, 2], [], n),
    ]
    words = row_words(rows.chain((count, n, 2), values, 1, instructions))
    assert words[2] == count * (4 * n + 1)
    banks = np.array([0, *(a.ctypes.data for a in (x, column, out, sums))], np.int64)
    for task in range(tasks):
        way("chain", words, banks, task, tasks)  # type: ignore[operator]
    wanted_sums = np.zeros(count, np.float32)
    for row in range(count):
        lanes = np.zeros(32, np.float32)
        lanes[:n] = x[row]
        live = n
        for half in (16, 8, 4, 2, 1):
            for lane in range(half):
                if lane + half < live:
                    lanes[lane] = lanes[lane] + lanes[lane + half]
            live = min(live, half)
        wanted_sums[row] = -lanes[0]
    assert np.array_equal(sums[:count], wanted_sums)
    assert np.array_equal(out[: count * n].reshape(count, n), (x + wanted_sums[:, None]) * column[::2])
    assert not out[count * n :].any()
    assert not sums[count:].any()
