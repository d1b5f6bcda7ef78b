"""The program of a compiling process: ``python -m topos.kernels.compile FOLDER SOURCES``, with names at standard input."""

import gc
import os
import sys
from pathlib import Path

from topos.kernels.store import CHANGED, NAME, SOURCES, compile_into

if __name__ == "__main__":
    if sys.argv[2] != SOURCES:
        sys.exit(CHANGED)
    # Compilers make millions of objects that live on: looking for garbage among them as often as usual takes a third longer.
    gc.set_threshold(10_000)
    compile_into(Path(sys.argv[1]), iter(lambda: os.read(sys.stdin.fileno(), NAME).decode().rstrip(), ""))
