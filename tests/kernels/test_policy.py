"""The IR that Numba makes of kernels: no CPU, no runtime, no exceptions, and nothing loosened."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

from tests.kernels.calls import ROOT, compute, row_words, run_python
from tests.kernels.test_loops import GUARD, OUT, A
from topos.kernels import library, loops, rows, store
from topos.kernels.target import assemble

NAMES = [*library.SHARED, *(f"{kernel}.bf16" for kernel in loops.TYPED), "reference_matmul.f64"]

COMPILE = f"""
import json, sys
from tests.kernels.calls import kernel_text
from topos.kernels import library, policy
texts = {{}}
for name in {NAMES}:
    texts[name] = policy.kernel_ir(kernel_text(name), "tested_" + name.replace(".", "_"))
assert library.make("nonzero.bf16")[0] == "topos_nonzero_bf16"
print(json.dumps(texts))
"""


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The IR of kernels, made as the compiling processes make it."""
    settings = {"NUMBA_OPT": "0", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    return dict(json.loads(run_python(COMPILE, os.environ | settings | {"PYTHONPATH": str(ROOT)})))


def test_kernels_call_nothing_but_llvm(texts: dict[str, str]) -> None:
    """What a kernel declares is an LLVM intrinsic: no Python, no Numba runtime, no libm."""
    allowed = re.compile(
        r"llvm\.(?:fma\.f(?:32|64)|s?u?(?:min|max)\.i64|assume|lifetime\..*|memcpy\.p0\.p0\.i64|fabs\..*|abs\.i64)"
    )
    for name, text in texts.items():
        declared = re.findall(r'^declare .*?@"?([\w.$]+)"?\(', text, re.MULTILINE)
        assert [symbol for symbol in declared if not allowed.fullmatch(symbol)] == [], name
        assert not re.search(r"@_?Py|NRT_|numba_unpickle|@(?:exp|log|sin|cos|tanh|pow)f?\(", text), name


def test_kernels_name_no_cpu(texts: dict[str, str]) -> None:
    """No CPU, no features, no intrinsic of an instruction set, so one IR serves every target."""
    for name, text in texts.items():
        assert not re.search(r"target-cpu|target-features|llvm\.(?:x86|aarch64|arm)\.", text), name


def test_kernels_are_strict(texts: dict[str, str]) -> None:
    """No instruction carries a flag that lets LLVM change bits; only `llvm.fma` fuses."""
    flags = r"(?:fast|nnan|ninf|nsz|reassoc|arcp|afn|contract)"
    for name, text in texts.items():
        assert not re.search(rf"\b(?:f(?:add|sub|mul|div|neg|cmp)|call|select|phi) (?:{flags} )*{flags} ", text), name
        assert "llvm.fmuladd" not in text, name
    assert "llvm.fma.f32" in texts["reference_matmul.bf16"]
    assert "llvm.fma.f64" in texts["reference_matmul.f64"]


def test_only_the_symbol_is_visible(texts: dict[str, str]) -> None:
    """Everything but the entry is internal, so objects do not collide when they are loaded together."""
    for name, text in texts.items():
        visible = re.findall(r'^define (?!internal).*?@"?([\w.$]+)"?\(', text, re.MULTILINE)
        assert visible == ["tested_" + name.replace(".", "_")], name


def test_the_text_assembles_and_runs(texts: dict[str, str]) -> None:
    """The IR of `fill`, assembled for this CPU, is a kernel."""
    symbol = "tested_fill"
    store._addresses[symbol] = store._load(symbol, assemble(texts["fill"]))
    out, value = np.zeros(2 * GUARD + 40, np.uint8), np.array([7], np.int64)
    banks = np.array([0, out.ctypes.data, value.ctypes.data], np.int64)
    compute(symbol, row_words(rows.fill(8, 5, (OUT, GUARD), (A, 0))), banks, 0, 1)
    assert out[GUARD:-GUARD].view(np.int64).tolist() == [7] * 5
    assert out.sum() == 35
    del store._addresses[symbol]
