"""Kernels that travel with the package: chosen by level, checked by source, loaded without a compiler."""

from __future__ import annotations

import struct
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kernels.calls import child_environment, run_python
from tests.kernels.test_store import NAMES, PROGRAM, expected
from topos.kernels import library, shipped, store
from topos.kernels.target import named, target

ARM = "linux-arm64"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few kernels for the level of this machine and for another family."""
    place = tmp_path_factory.mktemp("objects")
    here = shipped.level()
    assert here is not None
    shipped.build(dict.fromkeys([here, ARM]), place, NAMES)
    return place


def test_a_fresh_machine_compiles_nothing(archives: Path) -> None:
    """Without a store, the program runs on carried kernels: the right bits, and Numba is not imported."""
    text = f"""
from pathlib import Path
from topos.kernels import shipped
shipped.folder = lambda: Path({str(archives)!r})
{PROGRAM}
assert shipped.carried() == {shipped.level()!r}
print(digest(), "numba" in sys.modules)
"""
    environment = child_environment(TOPOS_CACHE="off", TOPOS_SHIPPED="on", PATH="")
    assert run_python(text, environment) == f"{expected()} False"


def test_another_family_is_cross_compiled(archives: Path) -> None:
    """An archive for Arm holds ELF code of machine 183, compiled on any host."""
    with zipfile.ZipFile(archives / f"{ARM}.zip") as archive:
        assert sorted(archive.namelist()) == sorted(NAMES)
        for name in NAMES:
            entry = store._checked(name, archive.read(name))
            assert entry is not None
            assert entry[1][:4] == b"\x7fELF"
            assert struct.unpack_from("<H", entry[1], 18) == (183,)


@pytest.mark.parametrize(
    ("level", "rows"),
    [("linux-x86-64-v4", 12), ("linux-x86-64-v3", 6), ("linux-x86-64", 4), (ARM, 8), ("darwin-arm64", 8)],
)
def test_a_level_has_the_tiles_of_its_own_registers(level: str, rows: int) -> None:
    """What is carried for a CPU is what that CPU asks for, whichever machine builds it: no more, no less."""
    found = [name for name in library.names(shipped.LEVELS[level].target) if name.endswith(".f32")]
    heights = [int(name[4:-4]) for name in found if name.startswith("tile")]
    assert heights == [int(name[6:-4]) for name in found if name.startswith("placed")] == [*range(1, rows + 1)]


def test_levels_need_every_kernel_of_a_host() -> None:
    """The level of this machine lists what the machine itself asks for."""
    here = shipped.level()
    assert here is not None
    assert library.names(shipped.LEVELS[here].target) == library.names()


def test_other_sources_are_never_served(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive serves the sources it was made from; it can be switched off; damage is no entry."""
    monkeypatch.setattr(shipped, "folder", lambda: archives)
    monkeypatch.setenv("TOPOS_SHIPPED", "on")
    monkeypatch.setattr(shipped, "_archive", shipped._archive.__wrapped__)
    assert shipped.read(store.SOURCES, "native") is not None
    assert shipped.read(store.SOURCES, "no such kernel") is None
    assert shipped.read("f" * 64, "native") is None
    monkeypatch.setenv("TOPOS_SHIPPED", "off")
    assert shipped.read(store.SOURCES, "native") is None


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06 cut off"])
def test_a_damaged_archive_is_none(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the archive cannot be read the kernels are compiled, as if there were none."""
    monkeypatch.setattr(shipped, "folder", lambda: tmp_path)
    monkeypatch.setattr(shipped, "_archive", shipped._archive.__wrapped__)
    (tmp_path / f"{shipped.level()}.zip").write_bytes(content)
    assert shipped._archive(store.SOURCES) is None


@pytest.mark.parametrize(
    ("cpu", "features", "system", "triple", "expected"),
    [
        ("znver4", "+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,", "linux", "x86_64", "v4"),
        ("znver3", "", "linux", "x86_64", "v3"),
        ("haswell", "-avx512f,", "linux", "x86_64", "v3"),
        ("nehalem", "-", "linux", "x86_64", ""),
        ("x86-64-v3", None, "linux", "x86_64", "v3"),
        ("x86-64", None, "linux", "x86_64", ""),
        ("neoverse-n1", "", "linux", "aarch64", "arm64"),
        ("apple-m3", "", "darwin", "arm64", "darwin-arm64"),
        ("znver3", "", "freebsd", "x86_64", None),
        ("penryn", "-", "darwin", "x86_64", None),
        ("skylake", None, "linux", "x86_64", None),
    ],
)
def test_the_level_of_a_machine(
    cpu: str, features: str | None, system: str, triple: str, expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The best level whose features are all there; a named CPU takes its own level or none."""
    v3 = "+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+sse4.2"
    flags = "" if features is None else "+sse2,+neon" if features == "-" else features + v3
    monkeypatch.setattr(shipped, "target", lambda: named(cpu, triple, flags)._replace(system=system))
    names = {"v4": "linux-x86-64-v4", "v3": "linux-x86-64-v3", "": "linux-x86-64", "arm64": ARM}
    assert shipped.level() == (expected if expected is None else names.get(expected, expected))


def test_this_machine_has_a_level() -> None:
    """On Linux and on a Mac with Apple's chips there is one for the host."""
    if sys.platform in ("linux", "darwin"):
        found = shipped.level()
        assert found is not None
        assert found.startswith(target().system)
