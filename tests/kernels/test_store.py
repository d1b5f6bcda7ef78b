"""The kernel store: cold, warm, shared by processes, damaged, refused, switched off, and never stale."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.calls import ROOT, call_routine, child_environment, finished, run_python, start_python
from topos.kernels import library, native, store

NAMES = ["native", "execute", "reference_matmul.f32"]
"""What the program below needs: compiling no others keeps these tests short."""

PROGRAM = f"""
import os, sys
import numpy as np
import topos
from topos.kernels import library, store

store.cores = lambda: 1
library.names = lambda: {NAMES}
library.SHARED = {{name: kernel for name, kernel in library.SHARED.items() if name in library.names()}}

def digest():
    def build(tape):
        x = tape.parameter(np.linspace(-1, 2, 40).reshape(1, 40))
        return x.symbol, (x @ tape.leaf(np.linspace(5, 7, 40).reshape(40, 1))).reshape(()).symbol
    network, (x, loss) = topos.Tape.record(build)
    run = network.forward(network.parameters())
    return run.of(loss).numpy().tobytes().hex() + run.backward(loss).of(x).numpy().tobytes().hex()
"""

ONE = (
    PROGRAM
    + """
print(digest(), *[name for name in ("numba", "ml_dtypes") if name in sys.modules])
"""
)

FORKS = (
    PROGRAM
    + """
import os
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
readers = []
for _ in range(4):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, digest().encode())
        os._exit(0)
    os.close(writer)
    readers.append(reader)
for reader in readers:
    with os.fdopen(reader) as file:
        print(file.read())
for _ in readers:
    assert os.wait()[1] == 0
"""
)


def expected() -> str:
    """Return what the program prints, computed by this process."""
    scope: dict[str, Any] = {}
    cores, names, shared = store.cores, library.names, library.SHARED
    try:
        exec(PROGRAM, scope)
        return str(scope["digest"]())
    finally:
        store.cores, library.names, library.SHARED = cores, names, shared


def entries(place: Path) -> list[str]:
    """Return the names of all files in a store."""
    (folder,) = place.iterdir()
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that four processes filled, all started together while it was cold."""
    place = tmp_path_factory.mktemp("store") / "topos"
    processes = [start_python(ONE, child_environment(TOPOS_CACHE=str(place))) for _ in range(4)]
    assert [finished(process) for process in processes] == [expected()] * 4
    return place


# ---- cold and warm


def test_processes_that_start_together_on_a_cold_store_are_right(warm: Path) -> None:
    """Four at once: each has the right bits; the entries are whole, and no temporary file is left."""
    assert entries(warm) == sorted(NAMES)
    (folder,) = warm.iterdir()
    for name in NAMES:
        found = store._read(folder, name)
        assert found is not None
        assert found[0] in ("entry", "topos_" + name.replace(".", "_"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_processes_on_a_cold_store_are_right(tmp_path: Path) -> None:
    """Four children of one process that has compiled nothing yet."""
    place = tmp_path / "topos"
    printed = run_python(FORKS, child_environment(TOPOS_CACHE=str(place)))
    assert printed.split() == [expected()] * 4
    assert entries(place) == sorted(NAMES)


def test_a_second_process_compiles_nothing(warm: Path) -> None:
    """With a warm store, forward and backward import neither numba nor ml_dtypes, and no entry changes."""
    (folder,) = warm.iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert run_python(ONE, child_environment(TOPOS_CACHE=str(warm))) == expected()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_importing_topos_imports_no_compiler() -> None:
    """numba, llvmlite, ml_dtypes and importlib.metadata come when they are first needed."""
    heavy = ["numba", "llvmlite", "ml_dtypes", "importlib.metadata", "subprocess", "tempfile", "scipy"]
    text = "import sys, numpy; old = set(sys.modules); import topos; new = set(sys.modules) - old\n"
    text += f"print([name for name in {heavy} if name in new])"
    assert run_python(text, child_environment()) == "[]"


def test_only_the_policy_imports_numba() -> None:
    """Among the modules of the kernels, numba is named by the import lines of one file, and by a card's."""
    package = ROOT / "topos"
    naming = [
        path.relative_to(package).as_posix()
        for path in [*package.rglob("*.py"), *package.rglob("*.ll")]
        if re.search(r"^\s*(?:from|import) numba\b", path.read_text(), re.MULTILINE)
    ]
    assert sorted(naming) == ["kernels/cuda/kernels.py", "kernels/cuda/lowering.py", "kernels/policy.py"]


# ---- damage


def damage(warm: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return a copy of the warm store, and its folder of entries."""
    place = tmp_path / "topos"
    shutil.copytree(warm, place)
    place.chmod(0o700)
    (folder,) = place.iterdir()
    return place, folder


def test_damaged_entries_are_made_again(warm: Path, tmp_path: Path) -> None:
    """A flipped bit, a truncated, an empty and a wrongly named entry: recompiled apart, and whole again."""
    place, folder = damage(warm, tmp_path)
    good = {name: store._read(folder, name) for name in NAMES}
    shutil.copy(folder / "reference_matmul.f32", folder / "sub.f32")
    data = bytearray((folder / "reference_matmul.f32").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "reference_matmul.f32").write_bytes(data)
    (folder / "execute").write_bytes((folder / "execute").read_bytes()[:-9])
    (folder / "native").write_bytes(b"")
    for name in ("reference_matmul.f32", "execute", "native", "sub.f32"):
        assert store._read(folder, name) is None
    text = ONE + "store.address('sub.f32')"
    assert run_python(text, child_environment(TOPOS_CACHE=str(place))) == expected()
    assert {name: store._read(folder, name) for name in NAMES} == good
    assert store._read(folder, "sub.f32") == library.make("sub.f32")


@pytest.mark.parametrize("cut", [0, 3, len(store.MAGIC), len(store.MAGIC) + 31, len(store.MAGIC) + 40, -1])
def test_an_entry_is_read_whole_or_not_at_all(cut: int, tmp_path: Path) -> None:
    """Whatever is cut off an entry, or replaces its head, it is not read."""
    store._write(tmp_path, "add.f32", "symbol", b"object code\nwith lines\n")
    assert store._read(tmp_path, "add.f32") == ("symbol", b"object code\nwith lines\n")
    path = tmp_path / "add.f32"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert store._read(tmp_path, "add.f32") is None
    path.write_bytes(b"X" + whole[1:])
    assert store._read(tmp_path, "add.f32") is None
    path.write_bytes(whole)
    path.rename(tmp_path / "sub.f32")
    assert store._read(tmp_path, "sub.f32") is None
    assert store._read(tmp_path, "add.f32") is None
    assert store._read(None, "add.f32") is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk loses the entry and leaves no temporary file."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    store._write(tmp_path, "add.f32", "symbol", b"code")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    store._write(tmp_path / "absent", "add.f32", "symbol", b"code")
    store._write(tmp_path, "add.f32", "symbol", b"code")
    assert [path.name for path in tmp_path.iterdir()] == ["add.f32"]
    assert (tmp_path / "add.f32").stat().st_mode & 0o777 == 0o600


# ---- where entries may lie


def test_the_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directories are made with 0700, and found again."""
    monkeypatch.setenv("TOPOS_CACHE", str(tmp_path / "deep" / "place"))
    folder = store.directory()
    assert folder is not None
    assert folder.parent == tmp_path / "deep" / "place"
    assert folder.name == store.key()[:32]
    for path in (folder, folder.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert store.directory() == folder


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners of files")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_directory_that_others_write_is_not_used(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else could write there could run code here."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(mode)
    monkeypatch.setenv("TOPOS_CACHE", str(place))
    assert store.directory() is None
    assert list(place.iterdir()) == []
    place.chmod(0o755)
    assert store.directory() is not None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners of files")
def test_the_directory_of_another_owner_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is checked."""
    monkeypatch.setenv("TOPOS_CACHE", str(tmp_path / "theirs"))
    assert store.directory() is not None
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert store.directory() is None


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TOPOS_CACHE, platformdirs says where; ``off`` is nowhere."""
    import platformdirs

    monkeypatch.delenv("TOPOS_CACHE", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name, appauthor: str(tmp_path / name))
    assert store.directory() == tmp_path / "topos" / store.key()[:32]
    monkeypatch.setenv("TOPOS_CACHE", "off")
    assert store.directory() is None


@pytest.mark.parametrize("place", ["off", "a file"])
def test_without_a_directory_kernels_live_in_memory(place: str, tmp_path: Path) -> None:
    """Off, or not writable: the right bits, numba in other processes, and no file left anywhere."""
    cache, homes = place, tmp_path / "home"
    homes.mkdir()
    if place == "a file":
        (tmp_path / "file").write_text("in the way")
        cache = str(tmp_path / "file" / "topos")
    home = {name: str(homes) for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "LOCALAPPDATA")}
    printed = run_python(ONE, child_environment(TOPOS_CACHE=cache, PYTHONDONTWRITEBYTECODE="1", **home))
    assert printed == expected()
    assert list(homes.iterdir()) == []


# ---- staleness


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package that a test may edit."""
    shutil.copytree(ROOT / "topos", tmp_path / "topos", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


FILL = """
import ctypes
out, a, b = (np.full(20, v, "f4") for v in (0, 3, 4))
call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
call(store.address("add.f32"))(out.ctypes.data, a.ctypes.data, b.ctypes.data, 0, 20)
row = np.array([0, 10, 20, 0, 4, 10, 1, 0, 2, 0], np.int64)
filled = np.zeros(12, "f4")
banks = np.array([0, filled.ctypes.data, a.ctypes.data], np.int64)
fill = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(store.address("fill"))
fill(row.ctypes.data, banks.ctypes.data, 0, 1)
print(set(out.tolist()), filled.tolist().count(3.0), topos.__file__)
"""


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that occurs once."""
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def test_an_edited_kernel_is_never_served_stale(copied: Path, tmp_path: Path) -> None:
    """An element function and a loop are edited, the store stays: the results are the new ones."""
    text = PROGRAM.replace(str(NAMES), "['fill', 'add.f32']") + FILL
    environment = child_environment(TOPOS_CACHE=str(tmp_path / "store"), PYTHONPATH=str(copied))
    place = f" {copied / 'topos' / '__init__.py'}"
    kernels = copied / "topos" / "kernels"

    def printed() -> str:
        return run_python("import sys; sys.path.remove('')\n" + text, environment)

    assert printed() == "{7.0} 10" + place
    edit(kernels / "maps" / "arithmetic.py", "getattr(o, name)", "getattr(o, name.replace('add', 'mul'))")
    edit(kernels / "loops.py", "value, 0, end - first, size)", "value, 0, end - first - 1, size)")
    assert printed() == "{12.0} 9" + place


def test_the_key_holds_every_source_and_setting(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of any file under kernels/, of a version or of the CPU changes the key; nothing else does."""
    root = copied / "topos" / "kernels"
    monkeypatch.setattr(store, "__file__", str(root / "store.py"))

    def key() -> str:
        monkeypatch.setattr(store, "SOURCES", store._source_digest())
        return str(store.key.__wrapped__())

    first = key()
    assert key() == first == store.key()
    seen = {first}
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.ll")]):
        path.write_text(path.read_text() + "\n# edited\n")
        seen.add(key())
    assert len(seen) == 1 + len([*root.rglob("*.py"), *root.rglob("*.ll")])
    (root / "maps" / "new.py").write_text("")
    seen.add(key())
    (root / "maps" / "new.py").rename(root / "new.py")
    seen.add(key())
    chosen = store.target()
    for other in ("cpu", "features", "triple"):
        changed = chosen._replace(**{other: "another"})
        monkeypatch.setattr(store, "target", lambda changed=changed: changed)
        seen.add(key())
    monkeypatch.setattr(store, "target", lambda: chosen)
    for package in ("numba", "llvmlite"):
        assert store.version(package)
        monkeypatch.setattr(store, "version", lambda name, package=package: "9.9" if name == package else "1.0")
        seen.add(key())
    assert len(seen) == 1 + len([*root.rglob("*.py"), *root.rglob("*.ll")]) - 1 + 2 + 3 + 2


# ---- compiling and loading


def test_the_parts_of_the_native_module_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find them takes longer than to load a kernel: they are looked for where `native` is brought, and not per kernel."""
    looked: list[str] = []
    monkeypatch.setattr(native, "parts", lambda: looked.append("parts") or ["fan", "worker"])
    monkeypatch.setattr(store, "_addresses", {})
    store._bring(["copy", "exp.f32", "add.f32"])
    assert looked == []
    store._bring(["copy", "native", "exp.f32"])
    assert looked == ["parts"]
    assert {"native", "fan", "worker"} <= set(store._addresses)


def test_addresses_are_kept_and_shared_by_threads() -> None:
    """Eight threads that ask at once get one address for a kernel."""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(store.address("log_difference.f64"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert store.addresses(["log_difference.f64", "log_difference.f64"]) == {"log_difference.f64": found[0]}


def test_compiling_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A compiler that ends badly is reported with its command; on a terminal a bar says how far it is."""
    with pytest.raises(RuntimeError, match=r"compiling kernels failed.*no\.such"):
        store.compile_apart(["no.such"], tmp_path)
    assert "KeyError" in capfd.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    store.compile_apart(["add.f32"], tmp_path)
    shown = capfd.readouterr().err
    assert "topos: compiling kernels, once [" in shown
    assert "0/1" in shown
    assert shown.endswith("\r")
    assert store._read(tmp_path, "add.f32") is not None


def test_compilers_share_one_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is free takes the next kernel: all are made, each by one, and who finds none left ends well."""
    monkeypatch.setattr(store, "cores", lambda: 3)
    names = ["neg.f32", "add.f64", "spread.bf16", "sub.f16", "widen.f16"]
    started: list[Any] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            started.append((os.dup(options["stdin"].fileno()), self.pid))

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    store.compile_apart(names, tmp_path)
    for name in names:
        assert store._read(tmp_path, name) == library.make(name)
    assert len(list(tmp_path.iterdir())) == len(names)
    assert len(started) == 3
    for queue, _ in started:  # one position, at the end: a list for each would leave a position for each
        assert os.lseek(queue, 0, os.SEEK_CUR) == store.NAME * len(names)
        os.close(queue)
    assert max(map(len, library.names())) <= store.NAME


def test_an_interruption_leaves_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while kernels are compiled: the processes are gone when the exception arrives."""
    started: list[Any] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            started.append(self)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(store, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.compile_apart(["sum.f32", "sum.f64"], tmp_path)
    assert started
    assert all(worker.poll() is not None for worker in started)


def test_compile_into_keeps_what_is_there(tmp_path: Path) -> None:
    """Entries that are whole are not made again; others are, and run."""
    store._write(tmp_path, "add.f32", "symbol", b"code")
    store.compile_into(tmp_path, ["add.f32", "mul.f64"])
    assert store._read(tmp_path, "add.f32") == ("symbol", b"code")
    symbol, code = store._read(tmp_path, "mul.f64") or ("", b"")
    assert symbol == "topos_mul_f64"
    assert code == library.make("mul.f64")[1]


def test_a_kernel_of_llvmlite_alone_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing block routine needs no other process: it is made, kept, and runs."""
    monkeypatch.setenv("TOPOS_CACHE", str(tmp_path / "place"))
    monkeypatch.setattr(store, "_addresses", {})
    monkeypatch.setattr(store, "compile_apart", lambda *_: pytest.fail("another process was started"))
    out, a = np.zeros(9), np.arange(9.0)
    address = store.address("neg.f64")
    call_routine(address, out, a)
    assert (out == -a).all()
    assert entries(tmp_path / "place") == ["neg.f64"]


def test_warmup_makes_every_kernel(tmp_path: Path) -> None:
    """warmup() compiles what is missing, loads all, and says how many there are."""
    text = PROGRAM + "print(topos.warmup(), topos.warmup(), 'numba' in sys.modules)"
    environment = child_environment(TOPOS_CACHE=str(tmp_path / "topos"))
    assert run_python(text, environment) == f"{len(NAMES)} {len(NAMES)} False"
    assert entries(tmp_path / "topos") == sorted(NAMES)


def test_numba_settings_of_the_user_do_not_reach_the_compilers(warm: Path, tmp_path: Path) -> None:
    """NUMBA_ variables change no kernel."""
    text = "import pathlib, sys; from topos.kernels import store\n"
    text += "store.compile_apart(['execute'], pathlib.Path(sys.argv[1]))"
    settings = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "3", "NUMBA_CPU_NAME": "nonsense"}
    run_python(text, child_environment(**settings), [str(tmp_path)])
    (folder,) = warm.iterdir()
    made = store._read(tmp_path, "execute")
    assert made is not None
    assert made == store._read(folder, "execute")


def test_the_working_directory_is_not_imported_from(tmp_path: Path) -> None:
    """A file called like a library in the working directory of a program is not what compiles its kernels."""
    for name in ("topos", "numba", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    text = "import os, pathlib, sys; sys.path.remove(''); from topos.kernels import store\n"
    text += "os.chdir(sys.argv[1]); store.compile_apart(['add.f32'], pathlib.Path(sys.argv[1]))"
    run_python(text, child_environment(), [str(tmp_path)])
    assert store._read(tmp_path, "add.f32") is not None


def test_entries_hold_no_pickle() -> None:
    """What lies in the store is a head, a checksum, a symbol and object code; no module of topos unpickles."""
    for path in (ROOT / "topos" / "kernels").rglob("*.py"):
        assert not re.search(r"^\s*(?:import|from) (?:pickle|marshal|shelve)", path.read_text(), re.MULTILINE)


# ---- how missing kernels are brought


@pytest.fixture
def borrowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Path]]:
    """Nothing is loaded yet; compiling copies from the store of this process. Returns what was compiled where."""
    names = ["native", "fill", "copy", "neg.f64", "neg.f32"]
    store.addresses(names)
    made = {name: store._read(store.directory(), name) or library.make(name) for name in names}
    compiled: list[tuple[list[str], Path]] = []

    def compile_apart(wanted: list[str], folder: Path) -> None:
        compiled.append((list(wanted), folder))
        for name in wanted:
            store._write(folder, name, *made[name])

    monkeypatch.setattr(store, "compile_apart", compile_apart)
    monkeypatch.setattr(store, "_addresses", {})
    monkeypatch.setattr(library, "names", lambda: names)
    monkeypatch.setattr(library, "SHARED", {name: library.SHARED[name] for name in ("fill", "copy")})
    monkeypatch.setenv("TOPOS_CACHE", str(tmp_path / "place"))
    return compiled


def test_compilers_that_start_make_what_every_element_needs(borrowed: list[tuple[list[str], Path]]) -> None:
    """Starting them takes long: with `fill` and `neg.f64` come the kernels that serve every element, and no others."""
    assert set(store.addresses(["fill", "neg.f64"])) == {"fill", "neg.f64"}
    assert borrowed == [(["native", "fill", "copy", "neg.f64"], store.directory())]
    store.addresses(["copy"])
    assert len(borrowed) == 1


def test_much_that_is_missing_is_compiled_apart(
    borrowed: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kernels of llvmlite alone are made in this process; more are made in processes, side by side."""
    monkeypatch.setattr(store, "FEW", 1)
    store.addresses(["neg.f64"])
    assert not borrowed
    monkeypatch.setattr(store, "_addresses", {})
    monkeypatch.setattr(store, "FEW", 0)
    store.addresses(["neg.f32"])
    assert borrowed == [(["native", "fill", "copy", "neg.f32"], store.directory())]


def test_in_memory_what_is_asked_for_is_made(
    borrowed: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store the kernels asked for are compiled into a folder that is gone afterwards."""
    monkeypatch.setenv("TOPOS_CACHE", "off")
    assert 0 not in store.addresses(["fill", "neg.f64"]).values()
    ((names, folder),) = borrowed
    assert names == ["fill", "neg.f64"]
    assert not folder.exists()


def test_warmup_compiles_what_is_missing(
    borrowed: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warming up makes only what is not there, and loads all, in memory too."""
    folder = store.directory()
    assert folder is not None
    store.address("neg.f32")
    assert store.warmup() == 5
    assert borrowed == [(["native", "fill", "copy", "neg.f64"], folder)]
    assert store.warmup() == 5
    assert len(borrowed) == 1
    monkeypatch.setattr(store, "_addresses", {})
    monkeypatch.setenv("TOPOS_CACHE", "off")
    assert store.warmup() == 5
    assert borrowed[1][0] == library.names()


def test_sources_that_changed_under_a_process_are_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that runs older sources than lie on disk gets an error, and nothing is written for it."""
    monkeypatch.setattr(store, "SOURCES", "another digest")
    with pytest.raises(RuntimeError, match="the sources of topos changed while this process ran"):
        store.compile_apart(["fill"], tmp_path)
    store._made(tmp_path, "neg.f32")
    assert list(tmp_path.iterdir()) == []
