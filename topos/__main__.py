"""``python -m topos info`` says what is here; ``python -m topos warmup`` compiles what the kernel store lacks."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Sequence

from topos.kernels import library, runtime, store
from topos.kernels.target import target
from topos.payload.element import BUILT_IN

EXTRAS = {"cuda": "numba_cuda", "stablehlo": "jax", "iree": "iree", "examples": "sklearn"}


def info() -> str:
    """Return versions, the CPU, the kernel store and the extras, a line each."""
    folder = store.directory()
    present = 0 if folder is None else sum((folder / name).exists() for name in library.names())
    found = [name for name, module in EXTRAS.items() if importlib.util.find_spec(module) is not None]
    versions = ("topos", "numba", "llvmlite", "numpy", "ml_dtypes")
    return "\n".join(
        [
            *(f"{name:<12} {importlib.metadata.version(name)}" for name in versions),
            f"python       {sys.version.split()[0]}",
            f"elements     {', '.join(BUILT_IN)}, and any Python number class",
            f"cpu          {target().cpu}",
            f"threads      {runtime.num_threads()}",
            f"store        {'in memory' if folder is None else folder}",
            f"kernels      {present} of {len(library.names())} in the store",
            f"extras       {', '.join(found) or 'none'}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m topos", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="say what is here")
    commands.add_parser("warmup", help="compile what the kernel store lacks")
    if parser.parse_args(arguments).command == "info":
        print(info())
        return
    before = time.perf_counter()
    count = store.warmup()
    print(f"{count} kernels ready in {time.perf_counter() - before:.1f} s")


if __name__ == "__main__":
    main()
