"""The tables of docs/performance.md say what was measured."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

REPORT = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "report.py"), run_name="report")


def case(group: str, system: str, median: float, threads: int = 1, **facts: object) -> dict:
    """Return a case as pytest-benchmark writes it."""
    extra = {"system": system, "threads": threads, "per": 1, **facts}
    return {"group": group, "extra_info": extra, "stats": {"median": median}}


def rows(cases: list[dict]) -> list[list[str]]:
    """Return the cells of the table's rows."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in REPORT["table"](cases)[2:]]


def test_a_ratio_is_own_time_over_a_peers_and_the_last_over_the_fastest() -> None:
    """Two peers, the slower first: each has its ratio, and the last column that of the faster."""
    cells = rows([case("sum", "torch", 4e-3), case("sum", "topos", 2e-3), case("sum", "numpy", 1e-3)])
    assert cells == [["sum", "2 ms", "numpy 1 ms (2), torch 4 ms (0.5)", "2"]]


def test_each_way_of_topos_has_a_row() -> None:
    """Eager and plan stand below each other, against the same peers; a case without topos has no row."""
    cells = rows(
        [
            case("add", "topos.plan", 1e-6),
            case("add", "topos.eager", 3e-6),
            case("add", "jax", 2e-6),
            case("of peers alone", "jax", 1.0),
        ]
    )
    assert [row[0] for row in cells] == ["add, eager", "add, plan"]
    assert [row[3] for row in cells] == ["1.5", "0.5"]


def test_times_are_per_unit() -> None:
    """A call that does 1,000 steps is divided by them."""
    assert rows([case("fit", "topos", 1e-3, per=1000)]) == [["fit", "1 µs", "-", "-"]]


def test_rounds_that_took_turns_decide() -> None:
    """Where a case holds the rounds of its systems, the median is theirs, not that of pytest-benchmark's own round."""
    assert rows([case("sum", "topos", 9.0, seconds=[3.0, 1.0, 2.0])]) == [["sum", "2 s", "-", "-"]]


def test_a_note_stands_where_there_is_no_peer() -> None:
    """What a case wants to say beside its time is shown."""
    assert rows([case("memory", "topos", 2.0, note="7 bytes")]) == [["memory", "2 s", "7 bytes", "-"]]


def test_sizes_are_sorted_as_numbers() -> None:
    """9 stands before 10."""
    assert [row[0] for row in rows([case(f"n {n}", "topos", 1.0) for n in (10, 9, 100)])] == ["n 9", "n 10", "n 100"]


def test_what_fusing_gains_has_a_table() -> None:
    """A case that has a digest stands there with both times; what has none does not."""
    facts = {"kinds": "chain", "digest": "0123456789abcdef"}
    cases = [
        case("catalog maps", f"topos.{way}", median, **facts) for way, median in (("fused", 1e-3), ("plain", 4e-3))
    ]
    found = REPORT["catalog"]([*cases, case("sum", "topos", 1.0)])
    assert found[2:] == ["| maps | chain | 1 ms | 4 ms | 0.25 | `0123456789ab` |"]
    assert REPORT["catalog"]([case("sum", "topos", 1.0)]) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2 s"),
        (0.01234, "12.3 ms"),
        (0.99996e-3, "1 ms"),
        (999e-6, "999 µs"),
        (1.5e-10, "0.15 ns"),
        (1234e-9, "1.23 µs"),
    ],
)
def test_times_have_three_digits_and_a_unit(value: float, text: str) -> None:
    """Units change where the number would need four digits."""
    assert REPORT["seconds"](value) == text


def test_each_thread_count_has_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results of several processes become one page; what stands around its markers stays."""
    for threads in (1, 2):
        run = {
            "machine_info": {"cpu": {"brand_raw": "A Processor"}},
            "benchmarks": [case("sum", "topos", 1e-3 / threads, threads)],
        }
        (tmp_path / f"{threads}.json").write_text(json.dumps(run), encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{REPORT['BEGIN']}\nold\n{REPORT['END']}\nafter\n", encoding="utf-8")
    for _ in range(2):  # a second time changes nothing
        REPORT["main"]([str(tmp_path / "2.json"), str(tmp_path / "1.json"), str(page)])
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"before\n{REPORT['BEGIN']}\n")
        assert text.endswith(f"{REPORT['END']}\nafter\n")
        assert "old" not in text
        assert text.count("A Processor; topos ") == 1
        assert text.index("## 1 thread\n") < text.index("| sum | 1 ms |") < text.index("## 2 threads\n")
        assert "| sum | 500 µs |" in text
    assert "## 2 threads" in capsys.readouterr().out


def test_a_new_page_gets_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no page, or one without markers, a new one is written."""
    assert REPORT["placed"]("", "text").startswith(f"# Performance\n\n{REPORT['BEGIN']}\n\ntext\n")
    assert "stale" not in REPORT["placed"]("stale", "text")


def test_results_are_needed() -> None:
    """Without a file of results, the command says how it is used."""
    with pytest.raises(SystemExit, match="usage"):
        REPORT["main"](["page.md"])
