"""Every kernel of a card as assembly, without a device: for the oldest capability, and for a later one."""

from __future__ import annotations

import re

import pytest

from tests.kernels.cuda.test_simulation import needs_package
from topos.kernels import elements, library, rows

CAPABILITIES = (8, 0), (9, 0)

NARROW = [name for name, memory in elements.MEMORY.items() if memory.narrow]

ALL = {"gather"}
"""What serves every element."""

CHAINS = {"elementwise", "lines"}
"""Kernels that are linked with the phases of a chain."""

FUSES = {"exp", "ln", "tanh", "sin", "cos", "log1p", "expm1", "erf", "erf_derivative", "powf", "matmul", "small_matmul"}
"""Whose text fuses a product with an addition, as written; nobody else's may."""


def structure(places: str, phases: list[rows.Phase], n: int = 1) -> str:
    """Return the name of the kernel of phases over places of some elements; lines have an axis before them."""
    given = [(element, (1, 0), [n, 1]) for element in places.split()]
    return rows.positions([4], n, given, phases).kernel


def names(element: str) -> list[str]:
    """Return the kernels of an element; without one, those that serve every element."""
    from topos.kernels.cuda import kernels

    if not element:
        return sorted(ALL)
    families = [family for family in (*kernels.SINGLE, *kernels.JOINT) if family not in ALL | CHAINS]
    wide = f"f{elements.MEMORY[element].width}"
    found = [f"{family}.{element}" for family in families if element != "f64" or "tensor" not in family]
    for function, (arity, *_) in library.FUNCTIONS.items():
        one = ((f"{function}.{element}", tuple(range(arity))),)
        found.append(structure(" ".join([element] * (arity + 1)), [(rows.EACH, one, ((-1, arity),), ())]))
    if element in NARROW:
        for function, *places in ((library.WIDEN, element, wide), (library.NARROW, wide, element)):
            one = ((f"{function}.{element}", (0,)),)
            found.append(structure(" ".join(places), [(rows.EACH, one, ((-1, 1),), ())]))
    return [*found, structure(f"{element} {element}", [(rows.EACH, (), ((0, 1),), ())]), *chains(element, wide)]


def chains(element: str, wide: str) -> list[str]:
    """Return a chain of several results, one that takes a softmax of lines, and a sum of lines."""
    product, total = (f"mul.{element}", (0, 1)), (f"add.{element}", (-1, 2))
    several = [(rows.EACH, (product, total), ((-1, 3), (-2, 4)), ())]
    shifted = (f"sub.{wide}", (0, 2))
    softmax = [
        (rows.GREATEST, (), (), (0, 1)),
        (rows.LINE, ((f"finite_or_zero.{wide}", (1,)),), ((-1, 2),), ()),
        (rows.TOTAL, (shifted, (f"exp.{wide}", (-1,))), (), (-2, 3)),
        (rows.LINE, ((f"ln.{wide}", (3,)),), ((-1, 4),), ()),
        (rows.EACH, (shifted, (f"log_difference.{wide}", (-1, 4))), ((-2, 5),), ()),
    ]
    return [
        structure(" ".join([element] * 5), several),
        structure(f"{element} {wide} {wide} {wide} {wide} {element}", softmax, 70),
        structure(f"{element} {wide}", [(rows.TOTAL, (), (), (0, 1))], 70),
    ]


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
            # Of a chain, the routines that its name lists say so.
            functions = re.findall(r"'(\w+)\.\w+'", name) or [name.partition(".")[0]]
            assert ("fma.rn.f" in text) == (not FUSES.isdisjoint(functions)), name
            assert ".func" not in text, name  # all is inlined
            assert ("mma.sync" in text) == ("tensor" in name), name
