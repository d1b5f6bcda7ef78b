"""What docs/coming-from-*.md promise for topos runs: the right column, from top to bottom, in one scope."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"

PREAMBLE = {"pytorch": "from topos import Tape\nx = Tape().input([[1.0, 2.0], [3.0, 4.0]])", "jax": ""}
"""What a page's tables speak of before they record it."""

RECORDING = {"tape", "b", "y", "value", "seed", "build", "feeds", "batches"}
"""Names that a page uses in prose about a recording that goes on; such a cell is compiled, not run."""


def cells(page: str) -> list[str]:
    """Return the code of the right columns."""
    text = (DOCS / f"coming-from-{page}.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[1]) if "..." not in code]


@pytest.mark.parametrize("page", ["pytorch", "jax"])
def test_the_right_column_runs(page: str) -> None:
    """Every cell is Python; all that does not speak of an open recording runs, in order."""
    scope: dict[str, Any] = {}
    exec(PREAMBLE[page], scope)
    ran = 0
    for code in cells(page):
        names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        if {node.id for node in names} & (RECORDING - made - scope.keys()):
            continue
        exec(compile(code, page, "exec"), scope)
        ran += 1
    assert ran >= 15
    assert np.isfinite(scope["run"].of(scope["loss"]).numpy()).all()
