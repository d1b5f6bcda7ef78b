"""``python -m topos info`` says what is here; ``python -m topos warmup`` compiles what is missing."""

import argparse
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Sequence

from topos.kernels import library, runtime, shipped, store
from topos.kernels.target import target
from topos.payload import BUILT_IN

EXTRAS = {"cuda": "numba_cuda", "stablehlo": "jax", "iree": "iree", "examples": "sklearn"}


def info() -> str:
    """Return versions, the CPU, the kernel store and the extras, a line each."""
    folder, lacking, total = store.directory(), store.missing(), len(library.names())
    extras = {name: importlib.util.find_spec(module) is not None for name, module in EXTRAS.items()}
    features = [name[1:] for name in target().features.split(",") if name.startswith("+")]
    facts = {
        **{name: importlib.metadata.version(name) for name in ("topos", "numba", "llvmlite", "numpy", "ml_dtypes")},
        "python": sys.version.split()[0],
        "elements": f"{', '.join(BUILT_IN)}, and any Python number class",
        "cpu": target().cpu,
        "features": " ".join(sorted(features)) or "those that the name implies",
        "threads": runtime.num_threads(),
        "store": "in memory" if folder is None else folder,
        "kernels": f"{total - len(lacking)} of {total} at hand, {len(lacking)} to compile",
        "package": shipped.carried() or "carries no kernels for this machine",
        "extras": ", ".join(f"{name} {'yes' if found else 'no'}" for name, found in extras.items()),
    }
    return "\n".join(f"{name:<12} {fact}" for name, fact in facts.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m topos", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="say what is here")
    commands.add_parser("warmup", help="compile the kernels that are missing")
    kernels = commands.add_parser("kernels", help="build the kernels that a package carries")
    kernels.add_argument("level", nargs="*", metavar="LEVEL", choices=[*shipped.LEVELS, []],
                         help=f"all by default, of {', '.join(shipped.LEVELS)}")  # fmt: skip
    chosen = parser.parse_args(arguments)
    if chosen.command == "info":
        print(info())
        return
    if chosen.command == "kernels":
        shipped.build(chosen.level or shipped.LEVELS, shipped.folder())
        return
    lacking, before = len(store.missing()), time.perf_counter()
    ready = store.warmup()
    seconds = time.perf_counter() - before
    print(f"{lacking} kernels compiled, {ready} ready in {seconds:.1f} s")


if __name__ == "__main__":
    main()
