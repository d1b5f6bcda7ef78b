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


def missing() -> list[str]:
    """Return the kernels that the store lacks: all of them where there is no store."""
    folder = store.directory()
    return [name for name in library.names() if folder is None or not (folder / name).exists()]


def info() -> str:
    """Return versions, the CPU, the kernel store and the extras, a line each."""
    folder, lacking, total = store.directory(), missing(), len(library.names())
    extras = [
        f"{name} {'yes' if importlib.util.find_spec(module) is not None else 'no'}"
        for name, module in EXTRAS.items()
    ]
    features = [name[1:] for name in target().features.split(",") if name.startswith("+")]
    versions = ("topos", "numba", "llvmlite", "numpy", "ml_dtypes")
    return "\n".join(
        [
            *(f"{name:<12} {importlib.metadata.version(name)}" for name in versions),
            f"python       {sys.version.split()[0]}",
            f"elements     {', '.join(BUILT_IN)}, and any Python number class",
            f"cpu          {target().cpu}",
            f"features     {' '.join(sorted(features)) or 'those that the name implies'}",
            f"threads      {runtime.num_threads()}",
            f"store        {'in memory' if folder is None else folder}",
            f"kernels      {total - len(lacking)} of {total} in the store, {len(lacking)} missing",
            f"extras       {', '.join(extras)}",
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
    lacking, before = len(missing()), time.perf_counter()
    ready = store.warmup()
    seconds = time.perf_counter() - before
    print(f"{lacking} kernels compiled, {ready} ready in {seconds:.1f} s")


if __name__ == "__main__":
    main()
