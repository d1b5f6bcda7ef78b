"""The tutorials on real data run, learn, and have one digest at any thread count."""

from __future__ import annotations

import gzip
import re
import runpy
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import topos
from topos.kernels import runtime

ROOT = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let examples import what they share, as a script does, and put the thread count and the threshold back."""
    monkeypatch.syspath_prepend(str(ROOT))
    before = topos.num_threads()
    yield
    topos.set_num_threads(before)
    runtime.set_grain()


def example(name: str) -> dict:
    """Return the globals of an example, imported and not run."""
    return runpy.run_path(str(ROOT / f"{name}.py"), run_name="example")


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what was printed as ``name: value`` lines."""
    lines = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line]
    return {line[0]: line[1] for line in lines}


def digests(name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """Return what an example prints at one thread and at two, with small work shared too."""
    runtime.set_grain(0)
    found = []
    for threads in ("1", "2"):
        example(name)["main"]([*arguments, "--threads", threads, "--no-plot"])
        found.append(said(capsys))
    assert re.fullmatch("[0-9a-f]{64}", found[0]["digest"])
    assert found[0]["digest"] == found[1]["digest"]
    return found


def test_moons_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """At least 199 of 200 points lie on their side, and the boundary is a PNG."""
    assert example("moons")["main"](["--plot", str(tmp_path / "moons.png")]) >= 199
    assert (tmp_path / "moons.png").read_bytes().startswith(b"\x89PNG")
    assert re.fullmatch("[0-9a-f]{64}", said(capsys)["digest"])


def test_a_perceptron_beats_the_ridge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """On patients that neither has seen; the loss curve is a PNG."""
    best = example("regression")["main"](["--plot", str(tmp_path / "loss.png")])
    text = said(capsys)["explained on unseen patients"]
    assert best > float(text.split()[1].rstrip(","))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_convolutional_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole training reaches 0.98 on scans that were held back."""
    assert example("digits_cnn")["main"](["--no-plot"]) >= 0.98


def test_short_trainings_have_one_digest(capsys: pytest.CaptureFixture[str]) -> None:
    """Two convolutions on digits, 8 steps: the same parameters at 1 and 2 threads."""
    digests("digits_cnn", ["--steps", "8"], capsys)


def idx_file(path: Path, array: np.ndarray, packed: bool) -> None:
    """Write bytes as an IDX file."""
    raw = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)


def test_clothing_of_any_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """IDX files, packed or not, are read by the real loader; a few steps have one digest."""
    rng = np.random.default_rng(2)
    for part, packed in (("train", True), ("t10k", False)):
        end = ".gz" if packed else ""
        images = rng.integers(0, 256, (128, 28, 28)).astype(np.uint8)
        idx_file(tmp_path / f"{part}-images-idx3-ubyte{end}", images, packed)
        idx_file(tmp_path / f"{part}-labels-idx1-ubyte{end}", (images[:, 0, 0] // 26).astype(np.uint8), packed)
    found = digests("fashion", ["--steps", "3", "--data", str(tmp_path)], capsys)
    assert 0 <= float(found[0]["test accuracy"]) <= 1


def test_missing_data_says_how_to_get_it(tmp_path: Path) -> None:
    """The message names the package and the option."""
    with pytest.raises(SystemExit, match="apt-get install dataset-fashion-mnist"):
        example("data")["fashion"](str(tmp_path))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"no IDX file")
    with pytest.raises(ValueError, match="is no IDX file of bytes"):
        example("data")["fashion"](str(tmp_path))


def text_file(folder: Path) -> str:
    """Return the path of a text of some length."""
    path = folder / "text.txt"
    path.write_text((ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8"), encoding="utf-8")
    return str(path)


def test_words_are_invented(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """From the words of any text: both losses and ten words, one digest."""
    found = digests("words", ["--steps", "5", "--text", text_file(tmp_path)], capsys)
    assert "bigram" in found[0]["unseen words, nats a letter"]
    assert len(found[0]["invented"].split(" ")) == 10


def test_plays_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The transformer steps on any text and has one digest."""
    found = digests("plays", ["--steps", "2", "--text", text_file(tmp_path)], capsys)
    assert float(found[0]["validation loss"].split()[0]) > 0


def test_intervals_contain_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    """An element of the user's own runs the stack; f32 lies inside its intervals (the example asserts that)."""
    assert 0 < example("interval")["main"]() < 1e-12
    kind = example("interval")["Interval"]
    with pytest.raises(ZeroDivisionError, match="contains 0"):
        kind(1.0, 2.0) / kind(-1.0, 1.0)


def test_forward_mode_agrees_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A dual number as an element, `topos.jvp`, and the reverse scan give one derivative."""
    assert example("dual")["main"]() < 1e-12


def test_shards_have_one_digest(capsys: pytest.CaptureFixture[str]) -> None:
    """Gradients of shards are added in their order, whichever thread ends first."""
    main = example("parallel")["main"]
    assert main(40, quiet=True) == main(40, quiet=True)
