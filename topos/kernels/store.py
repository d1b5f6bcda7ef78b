"""The kernel store: object code by name, made once per machine and loaded with llvmlite alone.

An entry's key is the content of every source in this package, the versions of Numba and llvmlite, the
Python version and the CPU with its features, so a changed source is never served stale. Entries lie in the
user's cache directory (0700, the owner is checked), each with a checksum, written to a temporary name and
renamed, so that processes may start together. ``TOPOS_CACHE=off`` keeps kernels in memory; so does a
directory that cannot be written. What the store lacks is taken from the package (`shipped`), then compiled.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from topos.kernels import native, shipped
from topos.kernels.target import binding, machine, target

MAGIC = b"topos-kernel-1\n"

# Exit code of a compiling process whose sources are not those of the process that asked.
CHANGED = 3

# Bytes of a name where compiling processes read it.
NAME = 32

# Kernels that are compiled as fast here as processes start that do it apart.
FEW = 8

T = TypeVar("T")

# From a name to a symbol and its code.
Make: TypeAlias = Callable[[str], tuple[str, bytes]]

_lock = threading.RLock()
_addresses: dict[str, int] = {}

# The address of what was loaded under a name, if it was.
known = _addresses.get
_engine: Any = None


def forever(kept: T) -> T:
    """Return what is never freed: native code points to it as long as there is a process.

    Python clears modules in any order at its end, and C methods and threads may still be used then.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return kept


def _after_fork() -> None:
    """A child may inherit a lock that another thread of its parent held."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


def _source_digest() -> str:
    """Return the digest of every source of this package, as it lies on disk now."""
    root = Path(__file__).parent
    texts = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".ll", ".txt"))
    return _digest(*(path.relative_to(root).as_posix().encode() + path.read_bytes() for path in texts))


# The sources that this process runs: read when it starts, so that a later edit is not taken for them.
SOURCES = _source_digest()


def version(package: str) -> str:
    """Return the text by which a package knows its version (`importlib.metadata` takes 20 ms to say it)."""
    found = importlib.util.find_spec(package)
    text = Path(str(found and found.origin)).with_name("_version.py")
    if found is not None and text.is_file():
        return text.read_text(encoding="utf-8")
    from importlib import metadata

    return metadata.version(package)


@functools.cache
def key() -> str:
    """Return the digest of all that object code depends on."""
    chosen = target()
    versions = version("numba"), version("llvmlite")
    facts = (SOURCES, *versions, sys.version, chosen.cpu, chosen.features, chosen.triple)
    return _digest(*(fact.encode() for fact in facts))


def directory() -> Path | None:
    """Return the directory of this key's entries, or None where the store is off or cannot be used.

    ``TOPOS_CACHE`` names another place, or is ``off``.
    """
    place = os.environ.get("TOPOS_CACHE", "")
    if place == "off":
        return None
    if not place:
        import platformdirs

        place = platformdirs.user_cache_dir("topos", appauthor=False)
    root = Path(place)
    with suppress(OSError):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = root.stat()
        if not hasattr(os, "getuid") or (facts.st_uid == os.getuid() and not facts.st_mode & 0o022):
            folder = root / key()[:32]
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
    return None


def _read(folder: Path | None, name: str) -> tuple[str, bytes] | None:
    """Return (symbol, object code) of an entry; a missing or damaged one is None."""
    with suppress(OSError):
        return None if folder is None else _checked(name, (folder / name).read_bytes())
    return None


def _checked(name: str, data: bytes) -> tuple[str, bytes] | None:
    """Return (symbol, object code) of an entry's bytes; damaged ones are None."""
    head, checksum, rest = data[: len(MAGIC)], data[len(MAGIC) : len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if head != MAGIC or hashlib.sha256(name.encode() + rest).digest() != checksum:
        return None
    symbol, _, code = rest.partition(b"\n")
    return symbol.decode(), code


def _write(folder: Path, name: str, symbol: str, code: bytes) -> None:
    """Write an entry; a full disk loses the entry, no more."""
    rest = symbol.encode() + b"\n" + code
    with suppress(OSError):
        checksum = hashlib.sha256(name.encode() + rest).digest()
        replace(folder / name, MAGIC + checksum + rest, 0o600, is_safe=False)


def replace(target: Path, data: bytes, mode: int, is_safe: bool) -> None:
    """Write a file under a temporary name and rename it; `is_safe`: it survives a machine that stops."""
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        temporary.touch(mode, exist_ok=False)
        with temporary.open("wb") as file:
            file.write(data)
            if is_safe:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def kept(text: str, make: Make) -> tuple[str, bytes]:
    """Return what another compiler than the library's makes of a text, under a name that is short; the store keeps it."""
    folder, name = directory(), f"made_{_digest(text.encode())[:40]}"
    return _read(folder, name) or _made(folder, name, make)


def _made(folder: Path | None, name: str, make: Make | None = None) -> tuple[str, bytes]:
    from topos.kernels import library

    symbol, code = (make or library.make)(name)
    # What was compiled is what was imported: after an edit it does not belong under any key.
    if folder is not None and _source_digest() == SOURCES:
        _write(folder, name, symbol, code)
    return symbol, code


def _found(folder: Path | None, name: str) -> tuple[str, bytes] | None:
    """Return an entry of the store, or of the package."""
    return _read(folder, name) or _checked(name, shipped.read(SOURCES, name) or b"")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_apart(names: Sequence[str], folder: Path, settings: Mapping[str, str] | None = None) -> None:
    """Compile kernels into `folder` in processes of their own, one per core; `settings` name another target.

    So Numba is never imported here, none of its settings in this process matter, and a crash of a compiler
    is an error message. They read names, of up to `NAME` bytes, from one file whose position they share: who is done with a
    kernel takes the next.
    """
    import subprocess

    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")} | dict(settings or {})
    environment |= {"NUMBA_OPT": "0", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    # -P: never what lies in the working directory.
    command = [sys.executable, "-P", "-m", "topos.kernels.compile", str(folder), SOURCES]
    workers: list[Any] = []
    with tempfile.TemporaryFile() as listed:
        listed.write(b"".join(name.encode().ljust(NAME) for name in names))
        listed.seek(0)
        try:
            workers.extend(subprocess.Popen(command, env=environment, stdin=listed) for _ in names[: cores()])
            if sys.stderr.isatty():
                _watch(workers, names, folder)
            codes = [worker.wait() for worker in workers]
        finally:  # Ctrl-C, or a worker that could not start, leaves no process behind
            for worker in workers:
                if worker.poll() is None:
                    worker.terminate()
                    worker.wait()
    if CHANGED in codes:
        raise RuntimeError("the sources of topos changed while this process ran: start it again")
    if any(codes):
        raise RuntimeError(f"compiling kernels failed (exit codes {codes}): {', '.join(names)}")


def _watch(workers: Sequence[Any], names: Sequence[str], folder: Path) -> None:
    """Show on the terminal how many kernels are there, until the workers end."""
    while any(worker.poll() is None for worker in workers):
        done = sum((folder / name).exists() for name in names)
        bar = "=" * (24 * done // len(names))
        sys.stderr.write(f"\rtopos: compiling kernels, once [{bar:24}] {done}/{len(names)} ")
        sys.stderr.flush()
        time.sleep(0.1)
    sys.stderr.write("\r" + " " * 78 + "\r")


def _load(symbol: str, code: bytes) -> int:
    """Load object code into this process and return the address of its symbol."""
    _add(code)
    return int(_engine.get_function_address(symbol))


def _add(code: bytes) -> None:
    """Hand object code to the linker, which works when an address is asked for."""
    global _engine
    llvm = binding()
    if _engine is None:
        _engine = forever(llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine()))
    _engine.add_object_file(forever(llvm.ObjectFileRef.from_data(code)))


def addresses(names: Iterable[str]) -> dict[str, int]:
    """Return the address of each kernel, loading or compiling what this process has not yet."""
    wanted = list(dict.fromkeys(names))
    if any(name not in _addresses for name in wanted):
        with _lock:
            _bring([name for name in wanted if name not in _addresses])
    return {name: _addresses[name] for name in wanted}


def address(name: str) -> int:
    """Return the address of one kernel."""
    found = _addresses.get(name)
    return addresses([name])[name] if found is None else found


def made(text: str, make: Make) -> int:
    """Return the address of what another compiler than the library's makes of a text; the store keeps it."""
    if text not in _addresses:
        symbol, code = kept(text, make)
        with _lock:
            _addresses[text] = _load(symbol, code)
    return _addresses[text]


def _bring(names: Sequence[str]) -> None:
    """Load kernels. What is missing is compiled apart, unless it is little and does not need Numba."""
    folder = directory()
    found = {name: _found(folder, name) for name in names}
    lacking = [name for name, entry in found.items() if entry is None]
    if lacking:
        _compile(lacking, folder, found)
    symbols = {}
    for name in names:
        symbols[name], code = found[name] or _made(folder, name)
        _add(code)
    symbols |= {part: part for part in (native.parts() if "native" in symbols else ())}
    _addresses.update({name: int(_engine.get_function_address(symbol)) for name, symbol in symbols.items()})


def _compile(missing: Sequence[str], folder: Path | None, found: dict[str, tuple[str, bytes] | None]) -> None:
    """Compile what is missing apart, and put it into `found`, if any of it needs Numba or it is much."""
    from topos.kernels import library

    if len(missing) > FEW or any(library.is_numba(name) for name in missing):
        with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="topos-") as workplace:
            # What serves every element will be missing next, and starting the compilers takes long.
            shared = [name for name in ("native", *library.SHARED) if folder and not (folder / name).exists()]
            compile_apart(list(dict.fromkeys([*shared, *missing])), Path(workplace))
            found.update({name: _read(Path(workplace), name) for name in missing})


def missing() -> list[str]:
    """Return the kernels that neither the store nor the package has."""
    from topos.kernels import library

    folder = directory()
    return [name for name in library.names() if _found(folder, name) is None]


def warmup() -> int:
    """Compile every kernel that is missing, load all, and return how many there are."""
    from topos.kernels import library

    folder, lacking = directory(), missing()
    if lacking and folder is not None:
        compile_apart(lacking, folder)
    return len(addresses(library.names()))


def compile_into(folder: Path, names: Iterable[str]) -> None:
    """Compile kernels into a folder: what the processes of `compile_apart` do."""
    for name in names:
        if _read(folder, name) is None:
            _made(folder, name)
