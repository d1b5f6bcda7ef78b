"""Each map against NumPy and PyTorch: contiguous, results into a given array, at 32K and 1M elements.

Kernel against kernel: the block routine of topos is called at its address, on one thread. What a method of
`Tensor` adds to it stands in `bench_arrays`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from topos.kernels import store

NUMPY = {"exp": "exp", "ln": "log", "sqrt": "sqrt", "tanh": "tanh", "sin": "sin", "cos": "cos",
         "log1p": "log1p", "expm1": "expm1", "powf": "power"}  # fmt: skip
TORCH = {**NUMPY, "powf": "pow", "erf": "erf"}


@pytest.mark.parametrize("size", [1 << 15, 1 << 20])
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("name", ["exp", "ln", "sqrt", "tanh", "sin", "cos", "log1p", "expm1", "erf", "powf"])
@pytest.mark.parametrize("system", ["topos", "numpy", "torch"])
def bench_map(system: str, name: str, element: str, size: int, timed: Any, request: Any) -> None:
    """One map over one array."""
    rng = np.random.default_rng(0)
    kind = np.float32 if element == "f32" else np.float64
    x, y = (rng.uniform(0.1, 3, size).astype(kind) for _ in range(2))
    out = np.empty_like(x)
    operands = (x, y) if name == "powf" else (x,)
    if system == "topos":
        routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)(store.address(f"{name}.{element}"))
        arrays = out, x, y
        addresses = (*(array.ctypes.data for array in arrays), 0, size)
        timed(system, lambda: (routine(*addresses), arrays))  # the arrays have to live as long as the body
        return
    if system == "numpy":
        if name not in NUMPY:
            pytest.skip(f"NumPy has no {name}")
        function = getattr(np, NUMPY[name])
        timed(system, lambda: function(*operands, out=out))
        return
    torch = request.getfixturevalue("torch")
    tensors, result = [torch.from_numpy(a) for a in operands], torch.from_numpy(out)
    function = getattr(torch, TORCH[name])
    timed(system, lambda: function(*tensors, out=result))
