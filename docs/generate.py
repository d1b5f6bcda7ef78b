"""Write the generated parts of the documentation again: `make docs`, or `python docs/generate.py NAME ...`.

A generated part stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and is what its command
prints.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """A generated part: its name, the document that holds it, the command that prints it."""

    name: str
    document: str
    command: tuple[str, ...]


PARTS = [Part("accuracy", "docs/numerics.md", ("bench/accuracy.py", "--full"))]  # some twenty minutes


def replaced(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between the markers of `name`; ValueError where they are missing."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected {begin} and {end} once each, in this order")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n\n{content.strip()}\n\n{end}{tail}"


def main(names: list[str]) -> None:
    """Write the named parts again, or all of them."""
    unknown = set(names) - {part.name for part in PARTS}
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(p.name for p in PARTS)}")
    for part in PARTS:
        if names and part.name not in names:
            continue
        print(f"{part.document}: {part.name} ...", flush=True)
        command = [sys.executable, *part.command]
        content = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        # A map has no worst place where every result is the nearest number.
        content = content.replace("| `` |", "| none: every result is rounded correctly |")
        path = ROOT / part.document
        path.write_text(replaced(path.read_text(encoding="utf-8"), part.name, content), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
