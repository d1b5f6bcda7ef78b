"""The command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from topos import __main__ as command


def test_info_names_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, the CPU, threads, the store and the extras stand in the output."""
    command.main(["info"])
    text = capsys.readouterr().out
    for word in ("numba", "llvmlite", "elements", "cpu", "threads", "store", "kernels", "extras"):
        assert word in text


def test_info_where_the_store_is_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store, kernels are said to be in memory."""
    monkeypatch.setenv("TOPOS_CACHE", "off")
    command.main(["info"])
    assert "in memory" in capsys.readouterr().out


def test_warmup_counts_the_kernels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says how many kernels are ready."""
    monkeypatch.setattr(command.store, "warmup", lambda: 7)
    command.main(["warmup"])
    assert capsys.readouterr().out.startswith("7 kernels ready in ")


def test_it_runs_as_a_module() -> None:
    """``python -m topos`` without a command says how it is used, and exits with 2."""
    result = subprocess.run([sys.executable, "-m", "topos"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "usage: python -m topos" in result.stderr
