"""The program of a compiling process: ``python -m topos.kernels.compile FOLDER KEY NAME...``."""

from __future__ import annotations

import sys
from pathlib import Path

from topos.kernels.store import CHANGED, compile_into, key

if __name__ == "__main__":
    if key() != sys.argv[2]:
        sys.exit(CHANGED)
    compile_into(Path(sys.argv[1]), sys.argv[3:])
