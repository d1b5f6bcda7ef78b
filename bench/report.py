"""Turn pytest-benchmark's JSON into docs/performance.md: medians, and ratios to the best peer.

python bench/report.py RESULTS.json [OUTPUT.md]
"""

from __future__ import annotations

import json
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """Return a time with a unit that suits it."""
    scale, unit = next((pair for pair in UNITS if value >= pair[0]), UNITS[-1])
    return f"{value / scale:.3g} {unit}"


def versions() -> str:
    """Return the versions of what was timed."""
    found = []
    for name in ("topos", "numpy", "torch", "jax"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def report(results: dict) -> str:
    """Return the Markdown of a run."""
    groups: dict[str, dict[str, dict]] = {}
    for case in results["benchmarks"]:
        groups.setdefault(case["group"], {})[case["extra_info"]["system"]] = case
    threads = {case["extra_info"]["threads"] for case in results["benchmarks"]}
    brand = results["machine_info"].get("cpu", {}).get("brand_raw", platform.processor())
    lines = [
        "# Performance",
        "",
        "Medians of one process on a shared machine: read the ratios, not the times. A ratio is the time of",
        "topos over that of the fastest peer; below 1, topos is faster. `make bench` writes this page.",
        "",
        f"{brand}, {', '.join(map(str, sorted(threads)))} thread; {versions()}; {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| case | topos | peers | ratio |",
        "|---|---|---|---|",
    ]
    for group, systems in sorted(groups.items()):
        medians = {name: case["stats"]["median"] for name, case in systems.items()}
        if "topos.steps" in medians:
            medians["topos.steps"] /= 1000
        own = {name: median for name, median in medians.items() if name.startswith("topos")}
        peers = {name: median for name, median in medians.items() if name not in own}
        best = min(peers.values(), default=None)
        others = ", ".join(f"{name} {seconds(median)}" for name, median in sorted(peers.items())) or "-"
        for name, median in sorted(own.items()):
            ratio = "-" if best is None else f"{median / best:.2f}"
            lines.append(f"| {group}{name.removeprefix('topos')} | {seconds(median)} | {others} | {ratio} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read results and write the page."""
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text = report(results)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
