"""Turn pytest-benchmark's JSON into the tables of docs/performance.md: medians, and ratios to the peers.

    python bench/report.py RESULTS.json ... [OUTPUT.md]

A page that has the markers ``<!-- speed:begin -->`` and ``<!-- speed:end -->`` keeps what stands around them.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
PAGE = f"# Performance\n\n{BEGIN}\n{END}\n"
HEAD = """\
Medians of one process per thread count on a shared machine: read the ratios, not the times. A ratio is the
time of topos over that of a peer: below 1, topos is faster; the last column is the ratio to the fastest.
`make bench` writes these tables."""


def seconds(value: float) -> str:
    """Return a time to three digits, with a unit that suits it."""
    scale, unit = next((pair for pair in UNITS if value >= pair[0] * 0.9995), UNITS[-1])
    digits = f"{value / scale:.3g}"
    return f"{float(digits):g} {unit}"


def versions() -> str:
    """Return the versions of what was timed."""
    found = []
    for name in ("topos", "numba", "numpy", "torch", "jax"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts 9 before 10."""
    return [(int(part or 0), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def table(cases: list[dict]) -> list[str]:
    """Return the table of one thread count: a row for each way that topos has of doing a case."""
    groups: dict[str, dict[str, float]] = {}
    notes: dict[str, str] = {}
    for case in cases:
        facts = case["extra_info"]
        groups.setdefault(case["group"], {})[facts["system"]] = case["stats"]["median"] / facts["per"]
        if "note" in facts:
            notes[case["group"]] = facts["note"]
    lines = ["| case | topos | peers: time (ratio) | ratio |", "|---|---|---|---|"]
    for group, medians in sorted(groups.items(), key=lambda item: natural(item[0])):
        own = {name: median for name, median in medians.items() if name.partition(".")[0] == "topos"}
        peers = {name: median for name, median in medians.items() if name not in own}
        for name, median in sorted(own.items()):
            way = name.partition(".")[2]
            others = [f"{peer} {seconds(other)} ({median / other:.2g})" for peer, other in sorted(peers.items())]
            ratio = f"{median / min(peers.values()):.2g}" if peers else "-"
            case = f"{group}, {way}" if way else group
            lines.append(f"| {case} | {seconds(median)} | {', '.join(others) or notes.get(group, '-')} | {ratio} |")
    return lines


def report(runs: list[dict]) -> str:
    """Return the Markdown of some runs."""
    cases = [case for run in runs for case in run["benchmarks"]]
    machine = runs[0]["machine_info"]
    brand = machine.get("cpu", {}).get("brand_raw") or machine.get("processor") or platform.machine()
    lines = [HEAD, "", f"{brand}; {versions()}; {datetime.now(UTC):%Y-%m-%d}."]
    for threads in sorted({case["extra_info"]["threads"] for case in cases}):
        chosen = [case for case in cases if case["extra_info"]["threads"] == threads]
        lines += ["", f"## {threads} thread{'s' * (threads > 1)}", "", *table(chosen)]
    return "\n".join(lines) + "\n"


def placed(page: str, text: str) -> str:
    """Return a page with the text between its markers; a page without them becomes a new one."""
    if BEGIN not in page or END not in page:
        page = PAGE
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    """Read results, print the tables, and write the page if one is named."""
    results = [Path(name) for name in arguments if name.endswith(".json")]
    pages = [Path(name) for name in arguments if not name.endswith(".json")]
    if not results or len(pages) > 1:
        sys.exit("usage: python bench/report.py RESULTS.json ... [OUTPUT.md]")
    text = report([json.loads(path.read_text(encoding="utf-8")) for path in results])
    for page in pages:
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        page.write_text(placed(before, text), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
