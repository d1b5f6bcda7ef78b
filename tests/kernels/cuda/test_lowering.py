"""Every kernel of a card as assembly, without a device: for the oldest capability, and for a later one."""

from __future__ import annotations

import re

import pytest

from tests.kernels.cuda.test_simulation import needs_package
from topos.kernels import elements, library

CAPABILITIES = (8, 0), (9, 0)

NARROW = [name for name, memory in elements.MEMORY.items() if memory.narrow]

ALL = {"elementwise", "copy", "fill", "gather"}
"""What serves every element; elementwise rows are kernels by their routine."""

FUSES = {"exp", "ln", "tanh", "sin", "cos", "log1p", "expm1", "erf", "erf_derivative", "powf", "matmul", "small_matmul"}
"""Whose text fuses a product with an addition, as written; nobody else's may."""


def names(element: str) -> list[str]:
    """Return the kernels of an element; without one, those that serve every element."""
    from topos.kernels.cuda import kernels

    if not element:
        return sorted(ALL - {"elementwise"})
    families = [family for family in (*kernels.SINGLE, *kernels.JOINT) if family not in ALL]
    families = [family for family in families if element not in NARROW or "max" not in family]
    families = [family for family in families if element != "f64" or "tensor" not in family]
    conversions = [library.WIDEN, library.NARROW] if element in NARROW else []
    functions = [f"elementwise.{function}" for function in (*library.FUNCTIONS, *conversions)]
    return [f"{name}.{element}" for name in (*families, *functions)]


@needs_package
@pytest.mark.parametrize("element", ["", *elements.MEMORY])
def test_assembly(element: str) -> None:
    """Nothing is contracted, flushed, or kept in local memory; what is fused is what the text fuses."""
    from topos.kernels.cuda import lowering

    for name in names(element):
        for major, minor in CAPABILITIES:
            symbol, data = lowering.ptx(name, major, minor)
            text = data.decode()
            assert f".target sm_{major}{minor}" in text
            assert f".entry {symbol}(" in text
            assert ".ftz" not in text, name
            assert ".local" not in text, name
            # What carries no rounding may be contracted by a later compiler; division and roots would be approximate.
            assert not re.search(r"\b(?:add|sub|mul|mad|fma|div|sqrt)(?:\.approx|\.full)?\.f(?:32|64)\b", text), name
            function = name.split(".")[-2] if element else name
            assert ("fma.rn.f" in text) == (function in FUSES), name
            assert ("mma.sync" in text) == ("tensor" in function), name
