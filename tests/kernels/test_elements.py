"""The 16-bit elements: conversions against ml_dtypes and NumPy, every value of them."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.calls import call_routine
from tests.kernels.interpreted import NumpyTable
from topos.kernels import elements, store
from topos.payload import BUILT_IN

KIND = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
ALL = np.arange(1 << 16, dtype=np.uint16)


def by_table(element: str, way: str, given: np.ndarray) -> np.ndarray:
    """Convert on NumPy arrays."""
    kind = elements.MEMORY[element]
    with np.errstate(all="ignore"):
        if way == "widen":
            return np.asarray(kind.widen(NumpyTable(32), given.astype(np.int32)))
        return np.asarray(kind.narrow(NumpyTable(32), given)).astype(np.uint16)


def by_routine(element: str, way: str, given: np.ndarray) -> np.ndarray:
    """Convert with the compiled routine."""
    out = np.empty(given.size, np.float32 if way == "widen" else np.uint16)
    call_routine(store.address(f"{way}.{element}"), out, given)
    return out


def at_the_borders(element: str) -> np.ndarray:
    """Return f32 numbers around every value of the element and every midpoint between two, and drawn ones."""
    with np.errstate(all="ignore"):
        values = np.unique(ALL.view(KIND[element]).astype(np.float64))
        values = values[np.isfinite(values)]
        middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
        top = np.float32(values[-1] + (values[-1] - values[-2]) / 2)
        centres = np.concatenate([values.astype(np.float32), middles, [top, -top]]).astype(np.float32)
        around = [centres, np.nextafter(centres, np.float32(np.inf)), np.nextafter(centres, np.float32(-np.inf))]
    drawn = np.random.default_rng(3).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(np.float32).max], np.float32)
    return np.concatenate([*around, drawn, ends])


@pytest.mark.parametrize("element", KIND)
@pytest.mark.parametrize("convert", [by_table, by_routine])
def test_widening_is_exact(convert: Callable[..., np.ndarray], element: str) -> None:
    """Each of the 65,536 values widens to the f32 of ml_dtypes or NumPy, with its bits."""
    with np.errstate(all="ignore"):
        expected = ALL.view(KIND[element]).astype(np.float32)
    got = convert(element, "widen", ALL)
    nan = np.isnan(expected)
    assert nan.sum() > 100
    assert (np.isnan(got) == nan).all()
    assert (got.view(np.uint32)[~nan] == expected.view(np.uint32)[~nan]).all()
    assert (np.signbit(got) == (ALL >= 1 << 15)).all()


@pytest.mark.parametrize("element", KIND)
@pytest.mark.parametrize("convert", [by_table, by_routine])
def test_narrowing_rounds_to_nearest_even(convert: Callable[..., np.ndarray], element: str) -> None:
    """Around every value and every midpoint, and at the overflow and subnormal borders, the tie goes to even."""
    given = at_the_borders(element)
    with np.errstate(all="ignore"):
        expected = given.astype(KIND[element])
    got = convert(element, "narrow", given)
    nan = np.isnan(given)
    assert np.isnan(got.view(KIND[element])[nan].astype(np.float32)).all()
    wrong = np.flatnonzero((got != expected.view(np.uint16)) & ~nan)
    assert wrong.size == 0, given[wrong[:5]]
    assert len(np.unique(got[~nan])) > 63_000


@pytest.mark.parametrize("element", KIND)
@pytest.mark.parametrize("convert", [by_table, by_routine])
def test_narrowing_a_widened_value_returns_it(convert: Callable[..., np.ndarray], element: str) -> None:
    """Widening and narrowing keeps every bit of every number."""
    back = convert(element, "narrow", convert(element, "widen", ALL))
    with np.errstate(all="ignore"):
        nan = np.isnan(ALL.view(KIND[element]).astype(np.float32))
    assert (back[~nan] == ALL[~nan]).all()


def test_sizes_and_widths() -> None:
    """An element's bytes agree with its raw type; 16-bit ones compute at f32."""
    for name, kind in elements.MEMORY.items():
        assert kind.size == BUILT_IN[name].raw.itemsize
        assert kind.width == (64 if name == "f64" else 32)
        assert (kind.widen is None) == (kind.narrow is None) == (kind.size == kind.width // 8)
