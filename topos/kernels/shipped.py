"""Kernels that travel with the package: object code for feature levels, so that a fresh machine compiles nothing.

``python -m topos kernels [LEVEL ...]`` writes an archive per level beside this file; the wheel carries them.
An archive belongs to the sources that it was made from, and to no others. Object code that the store compiled
for the very machine is preferred where there is some.
"""

import functools
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from topos.kernels.target import V3, V4, Target, named, target


class Level(NamedTuple):
    """The CPU that object code is made for, and the features that a machine needs to run it."""

    target: Target
    needs: frozenset[str]


# The levels that a package carries, the best first.
LEVELS = {
    "linux-x86-64-v4": Level(named("x86-64-v4", "x86_64-unknown-linux-gnu"), V4),
    "linux-x86-64-v3": Level(named("x86-64-v3", "x86_64-unknown-linux-gnu"), V3),
    "linux-x86-64": Level(named("x86-64", "x86_64-unknown-linux-gnu"), frozenset()),
    "linux-arm64": Level(named("generic", "aarch64-unknown-linux-gnu"), frozenset()),
    "darwin-arm64": Level(named("apple-m1", "arm64-apple-darwin"), frozenset()),
}


def folder() -> Path:
    """Return where the archives lie."""
    return Path(__file__).with_name("objects")


def level() -> str | None:
    """Return the best level whose code runs here (that of ``TOPOS_CPU`` where it names one), or None."""
    host = target()
    for name, (chosen, needs) in LEVELS.items():
        is_like = (chosen.system, chosen.family) == (host.system, host.family)
        if is_like and (chosen.cpu == host.cpu or (host.present and needs <= host.present)):
            return name
    return None


@functools.cache
def _archive(sources: str) -> Any:
    """Return the archive of this machine's level, if it was made from `sources`."""
    import zipfile

    with suppress(OSError, zipfile.BadZipFile):
        archive = zipfile.ZipFile(folder() / f"{level()}.zip")
        return archive if archive.comment.decode() == sources else None
    return None


def read(sources: str, name: str) -> bytes | None:
    """Return an entry of the package as the store wrote it, or None; ``TOPOS_SHIPPED=off`` takes none."""
    archive = _archive(sources) if os.environ.get("TOPOS_SHIPPED") != "off" else None
    if archive is None or name not in archive.NameToInfo:
        return None
    return bytes(archive.read(name))


def carried() -> str | None:
    """Return the level of this machine where the package carries it for these sources, else None."""
    from topos.kernels import store

    return level() if _archive(store.SOURCES) is not None else None


def build(levels: Iterable[str], place: Path, only: Collection[str] = ()) -> None:
    """Compile the kernels of levels (or some `only`) into archives in `place`, each renamed into place when it is whole."""
    import tempfile
    import zipfile

    from topos.kernels import library, store

    place.mkdir(exist_ok=True)
    for name in levels:
        chosen = LEVELS[name].target
        names = [kernel for kernel in library.names(chosen) if not only or kernel in only]
        with tempfile.TemporaryDirectory(prefix="topos-") as scratch:
            settings = {"TOPOS_CPU": chosen.cpu, "TOPOS_TRIPLE": chosen.triple}
            store.compile_apart(names, Path(scratch), settings)
            half = place / f".{name}.zip"
            with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                archive.comment = store.SOURCES.encode()
                for kernel in names:
                    archive.writestr(kernel, (Path(scratch) / kernel).read_bytes())
            half.replace(place / f"{name}.zip")
