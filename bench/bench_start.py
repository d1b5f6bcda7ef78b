"""From the start of a process to the end of its first training step, and how long all kernels take to compile."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topos.kernels import shipped

SCRIPT = Path(__file__).with_name("first_step.py")
SYSTEMS = ["topos.warm", "topos.shipped", "topos.source", "torch", "torch_compile", "jax"]
ONCE = ("topos.source", "torch_compile")


def process(arguments: list[str], **variables: str) -> str:
    """Run Python to its end and return what it wrote; it keeps bytecode, as Python does where nobody forbids it."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("system", SYSTEMS)
def bench_first_step(system: str, benchmark: Any, tmp_path: Path) -> None:
    """From the start of a process: `warm` has compiled before, `shipped` lives on the wheel's kernels, `source` on nothing.

    What torch.compile and JAX keep between processes is not used: each compiles.
    """
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    if system == "topos.shipped":
        if not shipped.carried():
            pytest.skip("no kernels lie in the package: make kernels")
        variables["TOPOS_CACHE"] = "off"
    elif system == "topos.source":
        variables |= {"TOPOS_CACHE": str(tmp_path), "TOPOS_SHIPPED": "off"}
    elif not system.startswith("topos") and importlib.util.find_spec(system.partition("_")[0]) is None:
        pytest.skip(f"{system} is not installed")
    benchmark.group = "first step of a process"
    benchmark.extra_info.update(system=system, threads=int(os.environ.get("BENCH_THREADS", "1")), per=1)
    name = system.partition(".")[0]
    seconds: list[float] = []

    def step() -> None:
        written = process([str(SCRIPT), name, str(time.time())], **variables)
        seconds.append(float(written.split()[-1]))

    if system not in ONCE:
        step()
        seconds.clear()
    benchmark.pedantic(step, rounds=1 if system in ONCE else 7)
    benchmark.extra_info["seconds"] = seconds


def bench_compile_all(benchmark: Any, tmp_path: Path) -> None:
    """Every kernel from its source, on all the cores there are."""
    benchmark.group = "compile every kernel"
    benchmark.extra_info.update(system="topos", threads=int(os.environ.get("BENCH_THREADS", "1")), per=1)
    variables = {"TOPOS_CACHE": str(tmp_path), "TOPOS_SHIPPED": "off"}
    benchmark.pedantic(process, (["-m", "topos", "warmup"],), variables, rounds=1)
