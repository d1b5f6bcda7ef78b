"""The program of a compiling process: ``python -m topos.kernels.compile FOLDER NAME...``."""

from __future__ import annotations

import sys
from pathlib import Path

from topos.kernels.store import compile_into

if __name__ == "__main__":
    compile_into(Path(sys.argv[1]), sys.argv[2:])
