"""Turn pytest-benchmark's JSON into the tables of docs/performance.md: medians, and ratios to the peers.

    python bench/report.py RESULTS.json ... [OUTPUT.md]

A page that has the markers ``<!-- speed:begin -->`` and ``<!-- speed:end -->`` keeps what stands around them. Beside
the page come two plots: every ratio by kind of case, and the time to lower a graph by its nodes.
"""

from __future__ import annotations

import json
import platform
import re
import statistics
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
PAGE = f"# Performance\n\n{BEGIN}\n{END}\n"
HEAD = """\
Medians of one process per thread count, in which the systems of a case take turns: on a shared machine, read the
ratios, not the times. A ratio is the time of topos over that of a peer: below 1, topos is faster; the last column is
the ratio to the fastest.
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


def grouped(cases: list[dict]) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Return, by case in natural order, the medians of topos and those of its peers."""
    groups: dict[str, dict[str, float]] = {}
    for case in cases:
        facts = case["extra_info"]
        median = statistics.median(facts.get("seconds") or [case["stats"]["median"]])
        groups.setdefault(case["group"], {})[facts["system"]] = median / facts["per"]
    found = {}
    for group, medians in sorted(groups.items(), key=lambda item: natural(item[0])):
        own = {name: median for name, median in medians.items() if name.partition(".")[0] == "topos"}
        found[group] = own, {name: median for name, median in medians.items() if name not in own}
    return found


def table(cases: list[dict]) -> list[str]:
    """Return the table of one thread count: a row for each way that topos has of doing a case."""
    notes = {case["group"]: case["extra_info"]["note"] for case in cases if "note" in case["extra_info"]}
    lines = ["| case | topos | peers: time (ratio) | ratio |", "|---|---|---|---|"]
    for group, (own, peers) in grouped(cases).items():
        for name, median in sorted(own.items()):
            way = name.partition(".")[2]
            others = [f"{peer} {seconds(other)} ({median / other:.2g})" for peer, other in sorted(peers.items())]
            ratio = f"{median / min(peers.values()):.2g}" if peers else "-"
            case = f"{group}, {way}" if way else group
            lines.append(f"| {case} | {seconds(median)} | {', '.join(others) or notes.get(group, '-')} | {ratio} |")
    return lines


def catalog(cases: list[dict]) -> list[str]:
    """Return the table of what fusing gains: a row for each case that has a digest, which both ways share."""
    facts = {case["group"]: case["extra_info"] for case in cases if "digest" in case["extra_info"]}
    lines = ["| case | groups | fused | plain | fused over plain | digest of both |", "|---|---|---|---|---|---|"]
    for group, (own, _) in grouped([case for case in cases if case["group"] in facts]).items():
        fused, plain = own["topos.fused"], own["topos.plain"]
        known = f"{facts[group]['kinds']} | {seconds(fused)} | {seconds(plain)} | {fused / plain:.2g}"
        lines.append(f"| {group.removeprefix('catalog ')} | {known} | `{facts[group]['digest'][:12]}` |")
    return lines if facts else []


def threaded(runs: list[dict]) -> dict[int, list[dict]]:
    """Return the cases of some runs by thread count."""
    found: dict[int, list[dict]] = {}
    for case in (case for run in runs for case in run["benchmarks"]):
        found.setdefault(case["extra_info"]["threads"], []).append(case)
    return dict(sorted(found.items()))


def report(runs: list[dict]) -> str:
    """Return the Markdown of some runs."""
    machine = runs[0]["machine_info"]
    brand = machine.get("cpu", {}).get("brand_raw") or machine.get("processor") or platform.machine()
    lines = [HEAD, "", f"{brand}; {versions()}; {datetime.now(UTC):%Y-%m-%d}."]
    for threads, chosen in threaded(runs).items():
        lines += ["", f"## {threads} thread{'s' * (threads > 1)}", "", *table(chosen)]
        if gains := catalog(chosen):
            lines += ["", "### What fusing gains", "", *gains]
    return "\n".join(lines) + "\n"


def figure(height: float) -> tuple[Any, Any]:
    """Return an empty figure and its axes, whose SVG has the same text for the same data."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "topos", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    drawing, axes = plt.subplots(figsize=(8, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def plot_ratios(runs: list[dict], path: Path) -> None:
    """Draw the ratio of every case to its fastest peer, a row for each kind of case."""
    ratios: dict[str, list[tuple[float, int]]] = {}
    for threads, cases in threaded(runs).items():
        for group, (own, peers) in grouped(cases).items():
            for median in own.values() if peers else ():
                kind = " ".join(re.findall(r"^[a-z_]+|(?<= )f\d+(?= )", group))
                ratios.setdefault(kind, []).append((median / min(peers.values()), threads))
    drawing, axes = figure(0.6 + 0.22 * len(ratios))
    for row, kind in enumerate(sorted(ratios, reverse=True)):
        for threads, color, shift in ((1, "tab:blue", 0.12), (2, "tab:orange", -0.12)):
            found = [ratio for ratio, count in ratios[kind] if count == threads]
            axes.scatter(found, [row + shift] * len(found), s=14, color=color, alpha=0.7, linewidths=0)
    axes.set_yticks(range(len(ratios)), sorted(ratios, reverse=True))
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("time over that of the fastest peer (blue: 1 thread, orange: 2); left of the line, topos is faster")
    drawing.savefig(path, metadata={"Date": None})


def plot_lowering(runs: list[dict], path: Path) -> None:
    """Draw how long each system takes to lower or compile a graph, by its nodes."""
    drawing, axes = figure(4)
    points: dict[str, list[tuple[int, float]]] = {}
    for group, (own, peers) in grouped(threaded(runs)[1]).items():
        if found := re.fullmatch(r"lower (\d+)", group):
            for system, median in {**own, **peers}.items():
                points.setdefault(system, []).append((int(found[1]), median * int(found[1])))
    for system, line in points.items():
        axes.plot(*zip(*sorted(line), strict=True), marker="o", label=system)
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds until the graph can run")
    if points:
        axes.legend(frameon=False)
    drawing.savefig(path, metadata={"Date": None})


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
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in results]
    text = report(runs)
    for page in pages:
        plot_ratios(runs, page.with_name("ratios.svg"))
        plot_lowering(runs, page.with_name("lowering.svg"))
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        page.write_text(placed(before, text), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
