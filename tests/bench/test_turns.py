"""The systems of a benchmark take turns, and the report reads every round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
CASES = """
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("system", ["ours", "theirs"])
def bench_turns(system, size, timed):
    def body():
        time.sleep(3e-3)
        with Path("log").open("a") as log:
            log.write(f"{system} {size},")
    timed(system, body, rounds=3)
"""


def test_systems_take_turns_case_by_case(tmp_path: Path) -> None:
    """Cases come one after the other; within one, rounds (a call to get warm, a timed one) alternate and turn about."""
    (tmp_path / "conftest.py").write_text((BENCH / "conftest.py").read_text().replace("ENOUGH = 1.0", "ENOUGH = 0.0"))
    (tmp_path / "bench_turns.py").write_text(CASES)
    options = [
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-o",
        "python_files=bench_*.py",
        "-o",
        "python_functions=bench_*",
    ]
    timing = ["--benchmark-enable", "--benchmark-json=times.json", "bench_turns.py"]
    command = [sys.executable, "-m", "pytest", *options, *timing]
    # A worker of pytest-xdist says so in the environment, and benchmarks refuse to run in one.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(BENCH.parent)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    calls = (tmp_path / "log").read_text().rstrip(",").split(",")
    half = len(calls) // 2
    assert {call[-1] for call in calls[:half]} == {"1"}
    assert {call[-1] for call in calls[half:]} == {"2"}
    turns = [call[:-2] for call in calls[:half]][-12:]  # before them, each gets ready on its own
    ours, theirs = ["ours"] * 2, ["theirs"] * 2
    assert turns == [*ours, *theirs, *theirs, *ours, *ours, *theirs]

    cases = json.loads((tmp_path / "times.json").read_text())["benchmarks"]
    assert sorted((case["group"], case["extra_info"]["system"]) for case in cases) == [
        (f"turns {size}", system) for size in (1, 2) for system in ("ours", "theirs")
    ]
    for case in cases:
        assert len(case["extra_info"]["seconds"]) == 3
        assert all(seconds > 3e-3 for seconds in case["extra_info"]["seconds"])
