"""The README tells the truth."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_front_page() -> None:
    """The front-page example of the README is `examples/line.py`, which the tests run."""
    program = (ROOT / "examples" / "line.py").read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert program.strip() in (ROOT / "README.md").read_text(encoding="utf-8")
