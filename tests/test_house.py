"""The architecture of `docs/architecture.md`, proven from the text of every module of topos."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "topos"
PAGE = PACKAGE.parent / "docs" / "architecture.md"

MAX_CODE_LINES = 12_000

# Lowest first; a module may import from its own level and from those before it.
LEVELS = [
    {"errors"},
    {"kernels"},
    {"backend"},
    {"payload"},
    {"ops"},
    {"graph"},
    {"engine"},
    {"emission"},
    {"neural", "checkpoint", "init", "reference", "derivatives", "debug", "proof", "stablehlo"},
    {"model", "compiler", "__main__", ""},  # "" is topos/__init__.py
]
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

# What is written with topos alone, as a user would write it; `reference`, which publishes kernels, is not.
FACADES = {"neural", "checkpoint", "init"}

# Rooms with a front, which is for other rooms.
FRONTS = {"payload", "graph"}

COMPILERS = {"numba", "numba_cuda", "llvmlite"}

# Flags that let LLVM change bits; `nsz` too.
LOOSE_FLAGS = {"fast", "nnan", "ninf", "nsz", "reassoc", "arcp", "afn", "contract"}
LOOSE_IR = re.compile(
    rf"\b(?:f(?:add|sub|mul|div|rem|neg|cmp)\s+(?:{'|'.join(sorted(LOOSE_FLAGS))})\b"
    rf"|call\s+(?:{'|'.join(sorted(LOOSE_FLAGS))})\s+(?:half|float|double|<|$))"
)


def room_of(module: str) -> str:
    """Return the room of a dotted module name: `topos.ops.maps` is in `ops`, `topos` itself in ``""``."""
    return module.partition(".")[2].partition(".")[0]


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str, str | None]]:
    """Yield (line, module, name) of every import anywhere in `tree`; name is None for a whole module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                origin = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                if origin == "topos" and alias.name in LEVEL_OF:
                    yield node.lineno, f"topos.{alias.name}", None
                else:
                    yield node.lineno, origin, alias.name
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value, None


def import_faults(tree: ast.Module, module: str, is_package: bool, public: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) for each import that the house forbids."""
    room = room_of(module)
    if room not in LEVEL_OF:
        yield 1, f"no place in the house for topos/{room}: add it to LEVELS and to docs/architecture.md"
        return
    for line, target, name in imports(tree, module, is_package):
        top = target.partition(".")[0]
        if top in COMPILERS and room != "kernels":
            yield line, f"only topos/kernels imports {top}"
        if top != "topos":
            continue
        other = room_of(target)
        if other not in LEVEL_OF:
            yield line, f"imports {target}, which has no place in the house"
        elif other == room in FRONTS and target == f"topos.{room}" and not (PACKAGE / room / f"{name}.py").is_file():
            yield line, f"imports {name or target} from the front of its own room"
        elif LEVEL_OF[other] > LEVEL_OF[room]:
            yield line, f"{room or 'topos'} imports {target} from above"
        elif room in FACADES and other not in FACADES | {"errors"} and (name is None or name not in public):
            yield line, f"the facade {room} imports {name or target}, which is not public"


def code_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) for loosened arithmetic, swallowed errors and a missing module docstring."""
    if not ast.get_docstring(tree):
        yield 1, "no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "fastmath":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield node.value.lineno, "fastmath"
        elif isinstance(node, ast.keyword) and node.arg == "flags":
            flags = {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
            if flags & LOOSE_FLAGS:
                yield node.value.lineno, f"loose arithmetic flags: {', '.join(sorted(flags & LOOSE_FLAGS))}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and LOOSE_IR.search(node.value):
            yield node.lineno, "loose arithmetic flags in IR text"
        elif isinstance(node, ast.ExceptHandler) and swallows(node):
            yield node.lineno, "an except clause that hides every error"


def swallows(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches everything and does nothing."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"}) for kind in kinds
    )
    idle = all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )
    return broad and idle


def faults(source: str, module: str, is_package: bool = False, public: frozenset[str] = frozenset()) -> list[str]:
    """Return all faults of one module, each as `module:line: fault`."""
    tree = ast.parse(source)
    found = [*import_faults(tree, module, is_package, public), *code_faults(tree)]
    return [f"{module}:{line}: {fault}" for line, fault in sorted(found)]


def code_lines(source: str) -> int:
    """Return the number of lines that carry code: no blank lines, comments or docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def modules() -> list[tuple[str, bool, str]]:
    """Return (dotted name, whether it is a package, source) of every module of topos."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append((name, is_package, path.read_text(encoding="utf-8")))
    return found


def public_names() -> frozenset[str]:
    """Return every name that topos and its two maps export."""
    maps = [importlib.import_module(name) for name in ("topos", "topos.model", "topos.compiler")]
    return frozenset(name for module in maps for name in module.__all__)


# ---- the house


def test_house() -> None:
    """Every module stands in a room, imports downwards only, and keeps the rules of the house."""
    public = public_names()
    found = [fault for name, package, text in modules() for fault in faults(text, name, package, public)]
    assert not found, "\n" + "\n".join(found)


def test_the_page_names_the_rooms() -> None:
    """The table of the page names each room, and where it lists the modules of one, those that there are."""
    table = PAGE.read_text(encoding="utf-8").split("```")[1]
    assert {*LEVEL_OF} - {""} <= set(re.findall(r"\w+", table))
    listed = re.findall(r"topos/(\w+)/ +(\w+(?:,\s+\w+)+)(?=[;:]|$)", table, re.MULTILINE)
    assert {room for room, _ in listed} == {"engine", "graph", "payload", "backend"}
    for room, names in listed:
        there = [name.split(".")[2] for name, _, _ in modules() if name.startswith(f"topos.{room}.")]
        assert sorted(re.split(r",\s+", names)) == sorted(set(there)), room


def test_facades_have_no_private_access() -> None:
    """No facade reads a private attribute of anything but itself, or of a class that it defines."""
    found = []
    for name, _, text in modules():
        if room_of(name) not in FACADES:
            continue
        tree = ast.parse(text)
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for node in ast.walk(tree):
            private = isinstance(node, ast.Attribute) and re.fullmatch(r"_[^_].*", node.attr)
            if private and node.attr not in own and ast.unparse(node.value) not in {"self", "cls"}:
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)


def test_names_that_a_module_offers_are_written_out() -> None:
    """Type checkers read `__all__`; what they cannot evaluate offers nothing to them."""
    for name, _, text in modules():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                names = ast.literal_eval(node.value)
                assert names, name
                assert len(set(names)) == len(names), name


def test_size() -> None:
    """The code of topos stays under its budget of lines."""
    counts = {name: code_lines(text) for name, _, text in modules()}
    largest = sorted(counts.items(), key=lambda item: -item[1])[:10]
    assert sum(counts.values()) < MAX_CODE_LINES, f"{sum(counts.values())} lines; the largest: {largest}"


def test_typed() -> None:
    """The package says that it is typed."""
    assert (PACKAGE / "py.typed").is_file()


# ---- the checker itself

PUBLIC = frozenset({"Tape", "Value"})

CLEAN = {
    "topos.errors": "import numpy",
    "topos.kernels.policy": "'call fast kernels'\nimport numba\nfrom topos.errors import ToposError",
    "topos.ops.maps": "from topos.payload.tensor import Tensor\nfrom topos.ops import base",
    "topos.payload.tensor": "from topos.payload import dlpack",
    "topos.graph.tape": "from topos.graph.value import Value\ntry:\n    x\nexcept KeyError:\n    pass",
    "topos.neural.linear": "from topos.graph.tape import Tape\nfrom topos.neural.module import Module",
    "topos.checkpoint": "from topos.errors import CheckpointError\nfrom topos.neural import Module",
    "topos.model": "from topos.graph import Tape",
    "topos": "from topos.model import Tape\nfrom topos import checkpoint",
}

FAULTY = [
    ("topos.ops.maps", "from topos.graph.tape import Tape", "from above"),
    ("topos.ops.maps", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import topos.graph", "from above"),
    ("topos.ops.maps", "def late():\n    from topos import engine", "from above"),
    ("topos.ops.maps", "from ..engine import run", "from above"),
    ("topos.ops.maps", "import importlib\nimportlib.import_module('topos.engine.run')", "from above"),
    ("topos.neural.linear", "from topos import Tape", "from above"),
    ("topos.engine.run", "import topos", "from above"),
    ("topos.ops.maps", "from topos.attic import x", "no place in the house"),
    ("topos.attic", "", "no place in the house"),
    ("topos.engine.run", "from numba import njit", "only topos/kernels imports numba"),
    ("topos.payload.tensor", "def late():\n    import llvmlite.binding", "only topos/kernels imports llvmlite"),
    ("topos.payload.tensor", "from topos.payload import Layout", "the front of its own room"),
    ("topos.graph.tape", "def late():\n    import topos.graph", "the front of its own room"),
    ("topos.init", "from topos.graph.tape import _columns", "not public"),
    ("topos.init", "import topos.graph.tape", "not public"),
    ("topos.kernels.gemm", "njit(fastmath=True)", "fastmath"),
    ("topos.kernels.gemm", "njit(fastmath={'contract'})", "fastmath"),
    ("topos.kernels.gemm", "builder.fadd(a, b, flags=('reassoc',))", "loose arithmetic flags: reassoc"),
    ("topos.kernels.gemm", "text = '%c = fmul contract float %a, %b'", "in IR text"),
    ("topos.kernels.gemm", "text = 'call fast <8 x float> @llvm.fma'", "in IR text"),
    ("topos.graph.tape", "try:\n    x\nexcept:\n    pass", "hides every error"),
    ("topos.graph.tape", "try:\n    x\nexcept (KeyError, Exception):\n    ...", "hides every error"),
]


@pytest.mark.parametrize("module", CLEAN)
def test_checker_accepts(module: str) -> None:
    """A module that keeps the rules has no fault."""
    assert faults(f'"""Doc."""\n{CLEAN[module]}', module, module == "topos", PUBLIC) == []


@pytest.mark.parametrize(("module", "source", "fault"), FAULTY)
def test_checker_catches(module: str, source: str, fault: str) -> None:
    """Each kind of violation is found, once, with its module."""
    found = faults(f'"""Doc."""\n{source}', module, public=PUBLIC)
    assert len(found) == 1
    assert found[0].startswith(f"{module}:")
    assert fault in found[0]


def test_checker_wants_docstring() -> None:
    """A module without a docstring is found, an empty one too."""
    assert faults("", "topos.errors") == ["topos.errors:1: no module docstring"]


def test_code_lines() -> None:
    """Blank lines, comments and docstrings do not count; every line of a statement does."""
    documented = '"""Doc\n\nmore."""\n\n# comment\nx = [\n    1,\n]  # tail\n\n\n'
    source = documented + 'def f():\n    """Doc."""\n    return """a\nb"""\n'
    assert code_lines(source) == 6
