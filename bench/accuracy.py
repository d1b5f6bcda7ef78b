"""Print the worst error of every map: ``python bench/accuracy.py [--full] [--map NAME] [--element f32|f64]``.

f32 is compared with float64 references (NumPy, SciPy for erf), over a sample of every exponent or, with
``--full``, over all 2**32 inputs (powf over a sample in both). f64 is compared with mpmath
where a sample sixteen times as large looks worst against 80-bit references. Errors
are in units in the last place of the exact value; results past the range count as right where the exact value
rounds there.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np
import scipy.special

from topos.kernels import store

MAPS = ["exp", "ln", "sqrt", "tanh", "sin", "cos", "log1p", "expm1", "erf", "erf_derivative", "powf"]
CHUNK = 1 << 24

WIDE: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "ln": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "erf": scipy.special.erf,
    "erf_derivative": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "powf": np.power,
}
LONG: dict[str, Callable[..., Any]] = {
    **WIDE,
    "erf_derivative": lambda x: 2 / np.sqrt(np.longdouble("3.14159265358979323846264338")) * np.exp(-x * x),
}
EXACT: dict[str, Callable[..., Any]] = {
    "exp": mpmath.exp,
    "ln": mpmath.log,
    "sqrt": mpmath.sqrt,
    "tanh": mpmath.tanh,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "log1p": mpmath.log1p,
    "expm1": mpmath.expm1,
    "erf": mpmath.erf,
    "erf_derivative": lambda x: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x),
    "powf": mpmath.power,
}


def run(name: str, element: str, *operands: np.ndarray) -> np.ndarray:
    """Return the map over contiguous arrays, by its kernel."""
    out = np.empty_like(operands[0])
    routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)(store.address(f"{name}.{element}"))
    addresses = [a.ctypes.data for a in operands] + [None] * (3 - len(operands))
    routine(out.ctypes.data, *addresses, out.size)
    return out


def single_error(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the error of f32 results in units in the last place of f64 references; 0 where both are NaN."""
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(np.where(np.isfinite(exact), exact, 1.0))[1] - 1, -126)
        wide = result.astype(np.float64)
        wide = np.where(np.isinf(wide), np.copysign(2.0**128, wide), wide)
        target = np.where(np.abs(exact) > 2.0**128, np.copysign(2.0**128, exact), exact)
        error = np.abs(wide - target) * np.ldexp(1.0, 23 - exponent)
    return np.where(np.isnan(exact) & np.isnan(result), 0.0, np.where(np.isnan(error), np.inf, error))


def single_inputs(full: bool, count: int) -> Iterator[np.ndarray]:
    """Yield all f32 numbers in chunks, or a sample of every exponent and both signs."""
    if full:
        for start in range(0, 1 << 32, CHUNK):
            yield np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32).view(np.float32)
        return
    rng = np.random.default_rng(7)
    draws = rng.integers(0, 1 << 23, (256, max(1, count // 512)))
    bits = (np.arange(256)[:, None] << 23 | draws).ravel().astype(np.uint32)
    yield np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)


def powers(kind: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bases of all magnitudes and next to 1, and exponents that mostly give finite powers."""
    rng = np.random.default_rng(11)
    top = 38 if kind is np.float32 else 308
    base = np.concatenate([10.0 ** rng.uniform(-top, top, count // 2), 1 + rng.normal(0, 1e-4, count // 2)])
    base = base.astype(kind)
    base = base[base != 1]
    limit = np.log(float(np.finfo(kind).max)) / np.abs(np.log(base.astype(np.float64)))
    return base, (rng.uniform(-1.1, 1.0, base.size) * limit).astype(kind)


def worst_single(name: str, full: bool, count: int) -> tuple[float, str]:
    """Return the worst error of an f32 map and where it occurs."""
    worst, where = -1.0, ""
    pairs = [powers(np.float32, count)] if name == "powf" else ((x,) for x in single_inputs(full, count))
    for done, operands in enumerate(pairs, 1):
        with np.errstate(all="ignore"):
            exact = WIDE[name](*(x.astype(np.float64) for x in operands))
        result = run(name, "f32", *operands)
        # A correctly rounded result is at most half a unit off: only the others are measured.
        with np.errstate(all="ignore"):
            others = np.flatnonzero((result != exact.astype(np.float32)) & ~(np.isnan(result) & np.isnan(exact)))
        if others.size == 0:
            worst = max(worst, 0.5)
            continue
        error = single_error(result[others], exact[others])
        at = int(error.argmax())
        if error[at] > worst:
            worst, where = float(error[at]), ", ".join(repr(float(x[others[at]])) for x in operands)
        if full and done % 16 == 0:
            sys.stderr.write(f"\r{name}.f32 {done * CHUNK / 2**32:4.0%}, worst {worst:.4f} ulp")
    if full:
        sys.stderr.write("\n")
    return worst, where


def double_inputs(name: str, count: int) -> np.ndarray:
    """Return f64 numbers of all magnitudes, moderate ones, and ones next to multiples of pi/2."""
    rng = np.random.default_rng(3)
    wide = 10.0 ** rng.uniform(-320, 308, count // 4)
    moderate = [rng.normal(size=count // 4), rng.uniform(-6, 6, count // 4), rng.uniform(-745, 710, count // 8)]
    x = np.concatenate([wide, -wide, *moderate, np.arange(1, count // 8) * math.pi / 2])
    if name in ("ln", "sqrt"):
        return np.abs(x)
    return x[x > -1] if name == "log1p" else x


def double_error(result: float, exact: Any) -> float:
    """Return the error of an f64 result in units in the last place of the exact value."""
    if abs(exact) > mpmath.mpf(sys.float_info.max) * (1 + mpmath.mpf(2) ** -54):
        return 0.0 if math.isinf(result) else math.inf
    if math.isnan(result) or exact == 0:
        return 0.0 if result == exact else math.inf
    step = mpmath.mpf(2) ** max(mpmath.floor(mpmath.log(abs(exact), 2)) - 52, -1074)
    return float(abs(mpmath.mpf(result) - exact) / step)


def suspects(name: str, count: int) -> tuple[np.ndarray, ...]:
    """Return the inputs that look worst against 80-bit references; a small sample where there are none."""
    if name == "powf":
        operands: tuple[np.ndarray, ...] = powers(np.float64, 16 * count)
    else:
        operands = (double_inputs(name, 16 * count),)
    if name == "erf" or np.finfo(np.longdouble).nmant < 63:
        return tuple(np.ascontiguousarray(x[:: max(1, x.size * 20 // count)]) for x in operands)
    with np.errstate(all="ignore"):
        exact = LONG[name](*(x.astype(np.longdouble) for x in operands))
        step = np.ldexp(np.longdouble(1), np.maximum(np.frexp(exact)[1] - 53, -1074))
        error = np.abs(run(name, "f64", *operands) - exact) / step
    worst = np.argsort(np.where(np.isfinite(error), error, -1))[-200:]
    return tuple(x[worst] for x in operands)


def worst_double(name: str, count: int) -> tuple[float, str]:
    """Return the worst error of an f64 map over a sample, and where it occurs."""
    operands = suspects(name, count)
    worst, where = -1.0, ""
    with mpmath.workprec(1300 if name in ("sin", "cos") else 200):
        for *arguments, result in zip(*operands, run(name, "f64", *operands), strict=True):
            error = double_error(float(result), EXACT[name](*(mpmath.mpf(float(x)) for x in arguments)))
            if error > worst:
                worst, where = error, ", ".join(repr(float(x)) for x in arguments)
    return worst, where


def table(
    count: int, full: bool = False, maps: list[str] | None = None, elements: list[str] | None = None
) -> list[tuple[str, str, float, str]]:
    """Return (map, element, worst error in ulp, where) for each map and element."""
    rows = []
    for name in maps or MAPS:
        for element in elements or ["f32", "f64"]:
            worst = worst_single(name, full, count) if element == "f32" else worst_double(name, count)
            rows.append((name, element, *worst))
    return rows


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="visit all 2**32 inputs of f32")
    parser.add_argument("--map", choices=MAPS, action="append")
    parser.add_argument("--element", choices=["f32", "f64"], action="append")
    parser.add_argument("--count", type=int, default=1 << 16, help="size of samples")
    options = parser.parse_args()
    print("| map | element | worst ulp | at |\n|---|---|---|---|")
    for name, element, worst, where in table(options.count, options.full, options.map, options.element):
        print(f"| {name} | {element} | {worst:.4f} | `{where}` |")


if __name__ == "__main__":
    main()
