"""The program of a compiling process: ``python -m topos.kernels.compile FOLDER SOURCES NAME...``."""

from __future__ import annotations

import sys
from pathlib import Path

from topos.kernels.store import CHANGED, SOURCES, compile_into

if __name__ == "__main__":
    if sys.argv[2] != SOURCES:
        sys.exit(CHANGED)
    compile_into(Path(sys.argv[1]), sys.argv[3:])
