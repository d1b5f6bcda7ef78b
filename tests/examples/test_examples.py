"""The examples run, and claim what is true."""

from __future__ import annotations

import os
import platform
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import topos
from topos.kernels import runtime

ROOT = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let examples import what they share, as a script does."""
    monkeypatch.syspath_prepend(str(ROOT))


def load(name: str) -> dict:
    """Return the globals of an example, imported and not run."""
    return runpy.run_path(str(ROOT / f"{name}.py"), run_name="example")


def test_line_learns_two() -> None:
    """The front-page example learns w = 2 to 1e-6 (it asserts that itself)."""
    scope = runpy.run_path(str(ROOT / "line.py"), run_name="__main__")
    assert abs(scope["learned"] - 2.0) < 1e-6


def test_chain_has_eight_nodes_and_its_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    """Value -12, gradients 0, -4 and -3, and eight nodes."""
    load("chain")["main"]()
    text = capsys.readouterr().out
    assert "network: 8 nodes, 3 parameters, 0 inputs" in text
    assert "value: -12.0" in text
    assert "gradients: 0.0 -4.0 -3.0" in text


def test_xor_is_learned(capsys: pytest.CaptureFixture[str]) -> None:
    """The loss goes to 0, and the four answers are right."""
    assert load("xor")["main"]() < 1e-6
    answers = [line.rpartition("=")[2] for line in capsys.readouterr().out.splitlines() if " xor " in line]
    assert np.allclose([float(answer) for answer in answers], [0, 1, 1, 0], atol=1e-3)


def test_walkthrough_prints_five_readings_and_the_proof(capsys: pytest.CaptureFixture[str]) -> None:
    """Every reading is printed in turn, and the proof holds; the gradient is shorter than the reference's."""
    load("walkthrough")["main"]()
    text = capsys.readouterr().out
    positions = [text.index(f"{n}. {name}") for n, name in enumerate(READINGS, 1)]
    assert positions == sorted(positions)
    assert "one digest per result" in text
    trace = text[text.index("4. trace") : text.index("5. schedule")].strip().splitlines()[1:-1]
    assert len(trace) == 11


def test_emitted_plan_is_served_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """What was trained here, XLA and IREE compute within rounding, or the example says why it cannot ask them."""
    apart = load("emit")["main"]()
    text = capsys.readouterr().out
    for name in ("XLA", "IREE"):
        assert apart[name] < 1e-4 if name in apart else f"{name}: skipped, topos.stablehlo needs" in text
    assert "topos: 100% of 64 new points right" in text


READINGS = ["spec", "value", "cotangent", "trace", "schedule"]

DIGEST = "1b4284c8e09562993671c58b3324bc096d6cf4a405f6a4ac848233144ad1bbe1"
"""Of 60 steps. A change of it is a change of results: docs/numerics.md and the changelog have to say why."""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_digits_have_one_digest(threads: int) -> None:
    """A short training on real scans gives the pinned parameters at every thread count, small work shared too."""
    scope = load("digits")
    before = topos.num_threads()
    topos.set_num_threads(threads)
    runtime.set_grain(0)
    try:
        parameters, losses = scope["train"](scope["load"](), 60, quiet=True)
    finally:
        topos.set_num_threads(before)
        runtime.set_grain()
    assert losses[-1] < losses[0] / 2
    assert scope["common"].digest(parameters) == DIGEST


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 processors")
@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64"])
def test_digits_have_one_digest_on_other_processors(cpu: str) -> None:
    """Kernels for a processor without AVX-512, and for one without AVX and FMA, give the pinned parameters."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "digits.py"), "--steps", "60", "--no-plot"],
        env={**os.environ, "TOPOS_CPU": cpu},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"digest: {DIGEST}" in result.stdout


def test_digits_say_what_was_reached(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The whole demo: its accuracy (99 %, to the percent), the digest that the README names, and the loss curve as a PNG."""
    scope = load("digits")
    before = topos.num_threads()
    plot = tmp_path / "loss.png"
    try:
        scope["main"](["--threads", "1", "--plot", str(plot)])
    finally:
        topos.set_num_threads(before)
    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert 0.985 <= float(lines["test accuracy"]) <= 1
    assert re.fullmatch("[0-9a-f]{64}", lines["digest"])
    assert f"`{lines['digest'][:16]}...`" in (ROOT.parent / "README.md").read_text(encoding="utf-8")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--threads", "-1"], ["--steps", "many"]])
def test_digits_refuse_numbers_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A number of steps or threads is at least 1; otherwise the option is named and the exit is 2."""
    with pytest.raises(SystemExit) as raised:
        load("digits")["main"](arguments)
    assert raised.value.code == 2
    assert f"argument {arguments[0]}: invalid" in capsys.readouterr().err
