"""docs/tour.md runs, and prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

TOUR = Path(__file__).parents[1] / "docs" / "tour.md"


def test_the_tour_prints_what_stands_below_each_block() -> None:
    """Every Python block of the page, in order, in one scope; a text block after it is its output."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", TOUR.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 12
    scope: dict = {}
    printed = ""
    for kind, body in blocks:
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(body, str(TOUR), "exec"), scope)
            printed = out.getvalue()
        else:
            assert printed == body
