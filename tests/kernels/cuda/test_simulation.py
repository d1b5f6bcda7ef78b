"""The CUDA kernels in the simulator of numba-cuda."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed: pip install '.[cuda]'"
)


@needs_package
@pytest.mark.parametrize("chosen", ["not every_kind", "every_kind"])
def test_the_simulator_has_the_bits_of_the_cpu(chosen: str) -> None:
    """Every opcode, element and layout, products, sums and trainings of `simulation`."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen]
    ran = subprocess.run(
        [*command, "tests/kernels/cuda/simulation.py"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
