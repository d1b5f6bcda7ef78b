"""Every public class and function of the model surface has an example in its docstring, and it runs.

Derivatives, `debug`, `reference`, `stablehlo` and the thread count are bound too; `topos.prove` is not, nor what the
compiler surface adds, nor `topos.warmup`, whose example would compile every kernel.
"""

from __future__ import annotations

import doctest
import inspect
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import topos
from topos import checkpoint, debug, derivatives, init, reference, stablehlo
from topos.engine import entry, plan, run
from topos.graph import adjoints, field, formulas, network, parameters, symbol, tape, value
from topos.kernels import runtime
from topos.neural import (
    activations,
    attention,
    convolution,
    linear,
    losses,
    module,
    momentum,
    normalization,
    optimizers,
    pooling,
    recurrent,
    schedules,
    sequential,
)
from topos.payload import files, shape, tensor

MODULES = [
    activations, attention, checkpoint, convolution, files, init, linear, losses, module, momentum,
    normalization, optimizers, pooling, recurrent, schedules, sequential,
    debug, derivatives, reference, runtime, stablehlo,
    adjoints, entry, field, formulas, network, parameters, plan, run, shape, symbol, tape, tensor, value,
]  # fmt: skip
SCOPE = {**{name: getattr(topos, name) for name in topos.__all__}, "np": np, "tempfile": tempfile}
SURFACE = {
    *topos.__all__,
    *(f"{m.__name__.rpartition('.')[2]}.{n}" for m in (init, checkpoint, schedules) for n in dir(m)),
    *(f"{m.__name__.rpartition('.')[2]}.{n}" for m in (debug, reference, stablehlo) for n in m.__all__),
}


def published(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what a module defines of the public surface."""
    short = module.__name__.rpartition(".")[2]
    for name, item in vars(module).items():
        own = getattr(item, "__module__", None) == module.__name__
        if own and callable(item) and not name.startswith("_") and {name, f"{short}.{name}"} & SURFACE:
            yield name, item


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_examples_run(module: ModuleType) -> None:
    """Every example prints what it says; the names in scope are those of topos, np and tempfile."""
    if module is stablehlo:
        pytest.importorskip("jax", reason="the extra stablehlo is not installed")
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs=dict(SCOPE)):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
    lacking = [name for name, item in published(module) if ">>>" not in (inspect.getdoc(item) or "")]
    assert not lacking, f"without an example: {lacking}"
