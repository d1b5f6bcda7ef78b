"""Literals that come back to the same bits, and elements that have no text."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from tests.helpers import ELEMENTS, SPECIAL, bits, special
from topos import Element, EmitError, Tape, Tensor
from topos.emission.emittable import TYPES, Emittable, emittable
from topos.payload.element import element_of


def read(literal: str, element: Element) -> object:
    """Return the number that MLIR reads: bits, or a decimal as a double that is rounded once more."""
    if literal.startswith("0x"):
        assert len(literal) == 2 + 2 * element.raw.itemsize
        return element.from_bits(int(literal, 16))
    assert re.fullmatch(r"-?[0-9]+\.[0-9]+(e[-+]?[0-9]+)?", literal)
    return element(float(literal))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_literals_round_trip(element: Element) -> None:
    """Every literal of special numbers and of 3,000 drawn bit patterns has MLIR's syntax and the number's bits."""
    generator = np.random.default_rng(5)
    size = 8 * element.raw.itemsize
    patterns = generator.integers(0, 2**size, 3000, dtype=np.uint64, endpoint=size < 64)
    drawn = (patterns & np.uint64(2**size - 1)).astype(f"u{size // 8}").view(element.dtype)
    for number in [*Tensor(SPECIAL, element=element).numpy(), *drawn]:
        found = read(TYPES[element.name].literal(number), element)
        assert (bits(np.asarray(found, element.dtype)) == bits(np.asarray(number))).all()


def test_literals_are_short() -> None:
    """Decimals are the shortest ones."""
    assert TYPES["f32"].literal(np.float32(0.1)) == "0.1"
    assert TYPES["f32"].literal(np.float32(1e-5)) == "1.0e-05"
    assert TYPES["f64"].literal(0.1) == "0.1"
    assert TYPES["bf16"].literal(element_of("bf16")(1.5)) == "1.5"
    assert TYPES["f32"].literal(np.float32(-0.0)) == "-0.0"


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_dense_constants_come_back(element: Element) -> None:
    """XLA returns a constant with its bits, whether written once, in decimals, or as bytes."""
    pytest.importorskip("jax", reason="the extra stablehlo is not installed")
    from topos import stablehlo

    leaves = [special((2, 3, 5), element), special((9, 9), element), Tensor.filled([2, 2], element(-0.0))]
    network, symbols = Tape.record(lambda tape: [tape.leaf(leaf) for leaf in leaves], element=element)
    plan = network.entry(symbols).lower()
    for found, leaf in zip(stablehlo.compile(plan.emit_stablehlo())(), leaves, strict=True):
        assert (bits(found) == bits(leaf)).all()


def test_elements_without_text() -> None:
    """A user's number class is refused by name, unless it says how it is written."""
    network, result = Tape.record(lambda tape: tape.parameter([Fraction(1, 3)]) + 1, element=Fraction)
    with pytest.raises(EmitError, match=r"Fraction has no form in StableHLO.*emittable\(\)"):
        network.entry(result).lower().emit_stablehlo()


def test_a_user_class_that_says_how_it_is_written() -> None:
    """Its constants are literals of the type that it names; an unknown type is refused."""

    class Number:
        def __init__(self, value: float) -> None:
            self.value = float(value)

        def __float__(self) -> float:
            return self.value

        def __add__(self, other: Number) -> Number:
            return Number(self.value + other.value)

        def __mul__(self, other: Number) -> Number:
            return Number(self.value * other.value)

        @staticmethod
        def emittable() -> Emittable:
            return TYPES["f64"]

    one = [Number(1.5), Number(2)]
    network, result = Tape.record(lambda tape: tape.parameter(one) + tape.leaf(one), element=Number)
    text = network.entry(result).lower().emit_stablehlo()
    assert "dense<[1.5, 2.0]> : tensor<2xf64>" in text
    pytest.importorskip("jax", reason="the extra stablehlo is not installed")
    run = network.entry(result).lower().on_xla().forward(network.parameters())
    assert [float(number) for number in run.of(result)] == [3.0, 4.0]
    Number.emittable = staticmethod(lambda: Emittable("f8"))
    with pytest.raises(EmitError, match="names the type 'f8'"):
        emittable(network.element)
