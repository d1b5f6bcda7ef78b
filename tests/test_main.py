"""The command line."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import topos
from topos import __main__ as command
from topos.kernels import library, shipped, store
from topos.kernels.target import Target, target


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what was printed, by the first word of each line."""
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_info_names_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, the CPU and its features, threads, the store and the extras stand in the output, true."""
    command.main(["info"])
    said = lines(capsys)
    for name in ("numba", "llvmlite", "numpy", "ml_dtypes"):
        assert said[name] == importlib.metadata.version(name)
    assert said["elements"].startswith("f32, f64, bf16, f16")
    assert said["cpu"] == target().cpu
    assert said["threads"] == str(topos.num_threads())
    assert said["store"] == str(store.directory() or "in memory")
    assert [word.split()[0] for word in said["extras"].split(", ")] == list(command.EXTRAS)


@pytest.mark.parametrize(("flags", "shown"), [("+avx2,-sse4a,+fma", "avx2 fma"), ("", "those that the name implies")])
def test_info_lists_the_features_that_are_on(
    flags: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features that the CPU lacks are left out; a CPU chosen by name has those of its name."""
    monkeypatch.setattr(command, "target", lambda: Target("some-cpu", flags, "x86", "linux", "x86_64"))
    monkeypatch.setattr(command.store, "directory", lambda: None)
    command.main(["info"])
    said = lines(capsys)
    assert (said["cpu"], said["features"]) == ("some-cpu", shown)


def test_info_counts_entries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole entries of the store are counted, and those that it lacks."""
    monkeypatch.setattr(command.store, "directory", lambda: tmp_path)
    monkeypatch.setenv("TOPOS_SHIPPED", "off")
    total = len(library.names())
    for name in ("native", "exp.f32"):
        store._write(tmp_path, name, "symbol", b"code")
    (tmp_path / "ln.f32").write_bytes(b"half of it")
    command.main(["info"])
    said = lines(capsys)
    assert said["store"] == str(tmp_path)
    assert said["kernels"] == f"2 of {total} at hand, {total - 2} to compile"
    assert said["package"] == (shipped.carried() or "carries no kernels for this machine")


def test_info_says_which_extras_are_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extra is there if its package can be found; it is not imported for that."""
    monkeypatch.setattr(command, "EXTRAS", {"here": "json", "absent": "no_such_package_of_topos"})
    command.main(["info"])
    assert lines(capsys)["extras"] == "here yes, absent no"


def test_info_where_the_store_is_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a store, kernels are in memory and the store has none."""
    monkeypatch.setenv("TOPOS_CACHE", "off")
    monkeypatch.setenv("TOPOS_SHIPPED", "off")
    command.main(["info"])
    said = lines(capsys)
    assert said["store"] == "in memory"
    assert said["kernels"].startswith("0 of ")


def test_warmup_counts_the_kernels(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says how many kernels were compiled, and how many are ready."""
    names = library.names()
    monkeypatch.setattr(command.store, "missing", lambda: names[:3])
    monkeypatch.setattr(command.store, "warmup", lambda: len(names))
    command.main(["warmup"])
    assert re.fullmatch(rf"3 kernels compiled, {len(names)} ready in \d+\.\d s\n", capsys.readouterr().out)


def test_kernels_builds_the_levels_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All levels by default; one that does not exist is refused with the list."""
    built: list[list[str]] = []
    monkeypatch.setattr(command.shipped, "build", lambda levels, place: built.append(list(levels)))
    command.main(["kernels"])
    command.main(["kernels", "linux-arm64"])
    assert built == [list(shipped.LEVELS), ["linux-arm64"]]
    with pytest.raises(SystemExit, match="2"):
        command.main(["kernels", "vax"])


def test_help_names_the_levels(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing else."""
    with pytest.raises(SystemExit, match="0"):
        command.main(["kernels", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "[LEVEL ...]" in text
    assert f"all by default, of {', '.join(shipped.LEVELS)}" in text


def test_the_version() -> None:
    """It is that of the installed package, and an unknown name is an error as of any module."""
    assert topos.__version__ == importlib.metadata.version("topos")
    with pytest.raises(AttributeError, match="module 'topos' has no attribute 'nonsense'"):
        topos.nonsense  # noqa: B018


def test_it_runs_as_a_module() -> None:
    """``python -m topos`` without a command says how it is used, and exits with 2."""
    result = subprocess.run([sys.executable, "-m", "topos"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "usage: python -m topos" in result.stderr
