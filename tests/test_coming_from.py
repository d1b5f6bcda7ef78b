"""What docs/coming-from-*.md promise for topos runs: the right column, from top to bottom, in one scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topos

DOCS = Path(__file__).parents[1] / "docs"

RECORDING = {
    "pytorch": ["x.mean(1)", "x[1:, 0]", "tape.differentiate(loss, [w], stop=[y])"],
    "jax": [
        "b.broadcast_along(0, 3)",
        'Tape.record(build, element="f64")',
        "tape.vjp(y, seed, [w])",
        "topos.hessian(loss, w)",
        "topos.jacobian(y, w)",
        "tape.differentiate(loss, [w], stop=[y])",
        "topos.where(y > 0.0, y.sqrt(), 0.0)",
    ],
}
"""Cells that speak of a recording that goes on, or of the function that records: they run beside `recording`."""


def cells(page: str) -> list[str]:
    """Return the code of the right columns."""
    text = (DOCS / f"coming-from-{page}.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[1])]


def build(tape: topos.Tape) -> dict[str, topos.Value]:
    """Record what the pages speak of while they record."""
    w, x = tape.parameter([[0.5], [2.0]]), tape.input(np.ones((3, 2)))
    y = x @ w
    return {"w": w, "x": x, "y": y, "b": tape.input([1.0, 2.0]), "loss": y.tanh().sum()}


def recording() -> dict[str, Any]:
    """Return the names of a recording that goes on."""
    tape = topos.Tape()
    return {"tape": tape, "build": build, "seed": topos.Tensor.filled([3, 1], 1.0), **build(tape)}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Put the thread count back, which a page sets."""
    before = topos.num_threads()
    yield
    topos.set_num_threads(before)


@pytest.mark.parametrize("page", ["pytorch", "jax"])
def test_the_right_column_runs(page: str, tmp_path: Path) -> None:
    """Every piece of code runs, in order, in one scope; one that cannot fails, as does a stale name in `RECORDING`."""
    code = cells(page)
    assert set(RECORDING[page]) <= set(code), "RECORDING names what the page has not"
    scope: dict[str, Any] = {"path": tmp_path / "model.safetensors"}
    for cell in code:
        exec(compile(cell, page, "exec"), {**scope, **recording()} if cell in RECORDING[page] else scope)
    assert np.isfinite(scope["losses"].numpy()).all()
    assert scope["losses"].shape == (3,)
