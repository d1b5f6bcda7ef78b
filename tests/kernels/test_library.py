"""Every kernel by name can be made, and its object refers to nothing that a process might lack."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kernels.objects import undefined
from topos.kernels import elements, library, loops, native, store
from topos.kernels.maps import FUNCTIONS
from topos.kernels.target import Target, assemble, target, tile_of

C_LIBRARY = {"fma", "fmaf", "memcpy", "memset", "memmove"}

ENTRY = {
    "PyBuffer_Release", "PyContextVar_Get", "PyDict_Next", "PyDict_Size", "PyErr_Clear", "PyErr_ExceptionMatches",
    "PyErr_NoMemory", "PyEval_RestoreThread", "PyEval_SaveThread", "PyExc_BufferError", "PyExc_OverflowError",
    "PyExc_TypeError", "PyExc_ValueError", "PyFloat_AsDouble", "PyList_Append", "PyList_GetItem", "PyList_SetSlice",
    "PyList_Size", "PyLong_AsLongLong", "PyLong_AsLongLongAndOverflow", "PyLong_AsVoidPtr", "PyLong_FromLongLong",
    "PyMem_Free", "PyMem_Malloc", "PyObject_Call", "PyObject_CallNoArgs", "PyObject_GetBuffer",
    "PyObject_RichCompareBool", "PyObject_Vectorcall", "PyObject_VectorcallMethod", "PyTuple_GetItem", "PyTuple_Size",
    "PyType_GenericAlloc", "Py_DecRef", "Py_IncRef", "memcpy", "sched_yield", "syscall", "usleep",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, bytes]]:
    """Every kernel: (symbol, object code)."""
    store.warmup()
    folder: Path | None = store.directory()
    if folder is None:
        folder = tmp_path_factory.mktemp("kernels")
        store.compile_apart(library.names(), folder)
    return {name: store._read(folder, name) or ("", b"") for name in library.names()}


def test_names_are_the_whole_library() -> None:
    """Kernels by element, shared ones, routines by element, conversions, the executor and the entry."""
    names = library.names()
    assert len(names) == len(set(names))
    routines = len(FUNCTIONS) + len(library.ROUTINES) + len(library.PANELS) + len(library.LINES) + len(library.WINDOWS)
    typed = len(elements.MEMORY) * (len(loops.TYPED) + routines)
    tiles = sum(2 * tile_of(width).rows for width in (32, 64))
    assert len(names) == 1 + len(library.SHARED) + typed + tiles + 4
    some = {"native", "execute", "copy", "reference_sum.bf16", "row_sum.f32", "exp.f64", "widen.f16"}
    assert some <= set(names)


def test_every_kernel_is_made_and_loaded(made: dict[str, tuple[str, bytes]]) -> None:
    """Each has its symbol and object code, and an address of its own in this process."""
    for name, (symbol, code) in made.items():
        assert symbol == ("entry" if name == "native" else "topos_" + name.replace(".", "_"))
        assert len(code) > 300, name
    found = store.addresses(library.names())
    assert set(found) == set(library.names())
    assert len(set(found.values())) == len(found)
    assert 0 not in found.values()


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF, the object format of Linux")
def test_objects_refer_to_the_c_library_alone(made: dict[str, tuple[str, bytes]]) -> None:
    """No undefined symbol but a few of C's, and in the entry CPython's documented interface."""
    for name, (_, code) in made.items():
        assert undefined(code) <= (ENTRY if name == "native" else C_LIBRARY), name
    assert {"PyEval_SaveThread", "PyEval_RestoreThread", "sched_yield"} <= undefined(made["native"][1])


def test_what_numba_makes_and_what_llvmlite_makes() -> None:
    """Kernels of loops need Numba; routines and the entry need llvmlite alone."""
    assert library.is_numba("execute")
    assert library.is_numba("fill")
    assert library.is_numba("reference_max.f16")
    assert not library.is_numba("native")
    assert not library.is_numba("maximum.f16")
    assert not library.is_numba("widen.bf16")


def test_a_kernel_made_here_is_the_one_of_the_store(made: dict[str, tuple[str, bytes]]) -> None:
    """Making a kernel again gives the same object code."""
    families = [*library.ROUTINES, *library.PANELS, *library.WINDOWS]
    parts = [f"{family}.{element}" for family in families for element in ("f64", "bf16")]
    tiles = ["line.f32", *library.tiles(32)]
    for name in ("native", "add.bf16", "erf.f64", "narrow.f16", "widen.bf16", *parts, *tiles):
        assert library.make(name) == made[name], name


@pytest.mark.parametrize("family", ["x86", "arm"])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_the_entry_for_other_systems(family: str, system: str) -> None:
    """Linux parks its workers on a futex, others poll; each family sets its own control word."""
    text = native.module(Target("generic", "", family, system, ""))
    assert ("call i64 (i64, ...) @syscall" in text) == (system == "linux")
    assert ("call i32 @usleep" in text) == (system != "linux")
    assert ("ldmxcsr" in text) == (family == "x86")
    assert ("aarch64.set.fpcr" in text) == (family == "arm")
    if family == target().family:
        assert len(assemble(text)) > 1000
