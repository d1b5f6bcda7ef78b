"""Elements: names and dtypes, conversions that round once, and what a number class has to offer."""

from __future__ import annotations

import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, same_bits
from tests.kernels.calls import child_environment, run_python
from topos import F16, F32, F64, Bf16, Element, ElementError, ShapeError, Tensor
from topos.payload.element import element_of, element_of_data

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
BF16 = np.dtype(ml_dtypes.bfloat16)


def round_to(exact: Fraction, mantissa: int, least: int, limit: Fraction) -> float:
    """Round to `mantissa` bits, ties to even, no exponent below `least`, in rational arithmetic."""
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - mantissa + 1)
    rounded = round(magnitude / unit) * unit  # Python rounds a Fraction half to even
    value = float("inf") if rounded > limit else float(rounded)
    return value if exact > 0 else -value


NARROW = {
    "bf16": (Bf16, BF16, 8, -126, Fraction(float(ml_dtypes.finfo(BF16).max))),
    "f16": (F16, np.dtype(np.float16), 11, -14, Fraction(65504)),
}


@pytest.mark.parametrize(
    ("given", "element"),
    [
        ("f32", F32), ("f64", F64), ("bf16", Bf16), ("f16", F16), (F16, F16), (np.float32, F32),
        (np.dtype(np.float64), F64), (np.float16, F16), (ml_dtypes.bfloat16, Bf16), (BF16, Bf16),
        ("float32", F32), ("bfloat16", Bf16), (float, F64),
    ],
)  # fmt: skip
def test_element_of(given: object, element: Element) -> None:
    """An element is named by itself, its name, a NumPy dtype or its class."""
    assert element_of(given) is element
    assert Tensor([1.0], element=given).element is element


@pytest.mark.parametrize("given", ["f9", np.int32, int, bool, "complex64", None, 3.5, object, [1]])
def test_no_element(given: object) -> None:
    """Anything else is refused with the names of those that are."""
    with pytest.raises(ElementError, match=r"is no element: give one of 'f32', 'f64', 'bf16', 'f16', a NumPy"):
        element_of(given)


def test_names_need_no_library_of_them() -> None:
    """Whether somebody imported `ml_dtypes`, which teaches NumPy the name, makes no difference."""
    text = "import sys; from topos import Tape; assert 'ml_dtypes' not in sys.modules; print(Tape('bfloat16').element.name)"
    assert run_python(text, child_environment()) == "bf16"


def test_number_classes_are_elements() -> None:
    """A class with arithmetic is one element, whatever names it."""
    element = element_of(Fraction)
    assert element is element_of(Fraction)
    assert (element.name, str(element), element.kernel, element.dtype) == ("Fraction", "Fraction", None, object)
    assert element(3) == Fraction(3)
    assert element(Fraction(1, 3)) == Fraction(1, 3)
    assert (element.zero, element.one, type(element.one)) == (0, 1, Fraction)
    with pytest.raises(ElementError, match=r"Fraction has no negative_infinity\(\): logsumexp, log_softmax"):
        _ = element.negative_infinity


def test_hooks_of_a_number_class() -> None:
    """`from_count` and `negative_infinity` are asked where the class has them; a failure names the hook."""

    class Counted:
        def __init__(self, value: object, tag: str) -> None:
            self.value, self.tag = value, tag

        def __mul__(self, other: object) -> object:
            return self

        @classmethod
        def from_count(cls, n: int) -> Counted:
            return cls(n, "count")

        @staticmethod
        def negative_infinity() -> Counted:
            return Counted("-inf", "lowest")

    class Bare:
        def __init__(self, one: object, two: object) -> None: ...

        def __mul__(self, other: object) -> object:
            return self

    assert (element_of(Counted).one.value, element_of(Counted).one.tag) == (1, "count")
    assert element_of(Counted).negative_infinity.value == "-inf"
    with pytest.raises(ElementError, match=r"Bare\(0\) failed: .*; give the class from_count\(n\)"):
        _ = element_of(Bare).zero


def test_built_in_constants() -> None:
    """Zero, one and minus infinity have the element's type and storage bits; names print as the seed's."""
    assert [str(element) for element in ELEMENTS] == ["F32", "F64", "Bf16", "F16"]
    assert [element.name for element in ELEMENTS] == ["f32", "f64", "bf16", "f16"]
    assert (Bf16.to_bits(Bf16.zero), Bf16.to_bits(Bf16.one)) == (0x0000, 0x3F80)
    assert Bf16.to_bits(Bf16.negative_infinity) == 0xFF80
    for element in ELEMENTS:
        assert element(1.5) == 1.5
        assert np.asarray(element(1.5)).dtype == element.dtype
        assert (element.one, element.zero, element.negative_infinity) == (1, 0, -np.inf)
        assert element.from_count(7) == 7
        assert element.raw.itemsize == element.dtype.itemsize
        assert pickle.loads(pickle.dumps(element)) is element
    fraction = element_of(Fraction)
    assert pickle.loads(pickle.dumps(fraction)) is fraction


def test_counts_round_above_the_mantissa() -> None:
    """Integers are exact to 256 in bf16 and round to even above."""
    assert [float(Bf16.from_count(n)) for n in (255, 256, 257, 258, 259, 261)] == [255, 256, 256, 258, 260, 260]


def test_infers_the_element_of_data() -> None:
    """Arrays and numbers with a dtype carry their element; Python numbers and integer arrays do not."""
    assert element_of_data(np.zeros(2, np.float64)) is F64
    assert element_of_data(np.zeros(2, BF16)) is Bf16
    assert element_of_data([[np.float16(1)]]) is F16
    assert element_of_data([[Fraction(1)]]) is element_of(Fraction)
    assert element_of_data(np.array([Fraction(1)], object)) is element_of(Fraction)
    for none in (1, 1.5, True, [1, 2], [], "text", np.zeros(2, np.int32), np.array([], object), [[]]):
        assert element_of_data(none) is None


# ---- conversions round once (cases 29 and 30)


@pytest.mark.parametrize("name", NARROW)
def test_all_patterns_round_trip(name: str) -> None:
    """Each of the 65,536 patterns survives the way to f32 and f64 and back, every NaN as a NaN."""
    element, dtype, *_ = NARROW[name]
    narrow = Tensor(PATTERNS.view(dtype))
    assert np.array_equal(narrow.numpy().view(np.uint16), PATTERNS)
    for wide in (F32, F64):
        assert same_bits(narrow.convert(wide).convert(element), narrow)
    for pattern in (0x0001, 0x3F80, 0x8000, 0x7F80, 0xFFFF, 0x7F81):
        assert element.to_bits(element.from_bits(pattern)) == pattern


@pytest.mark.parametrize("name", NARROW)
def test_f64_rounds_once(name: str) -> None:
    """Every tie of the narrow element, and the f64 beside it on both sides, rounds as exact arithmetic does."""
    element, dtype, mantissa, least, limit = NARROW[name]
    finite = PATTERNS[:0x7F80] if name == "bf16" else PATTERNS[:0x7C00]
    lower = finite[:: 7 if name == "f16" else 8].view(dtype).astype(np.float64)
    upper = np.append(finite, finite[-1] + 1)[1 :: 7 if name == "f16" else 8].view(dtype).astype(np.float64)
    upper = np.where(np.isinf(upper), 2 * lower - finite[-2:-1].view(dtype).astype(np.float64), upper)
    middle = (lower + upper[: len(lower)]) / 2
    near = [lower, middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), middle * (1 + 2**-30)]
    given = np.concatenate(near)
    given = np.concatenate([given, -given])
    wanted = np.array([round_to(Fraction(x), mantissa, least, limit) for x in given.tolist()])
    wanted = np.copysign(wanted, given)
    rounded = Tensor(given).convert(element)
    assert np.array_equal(rounded.numpy().astype(np.float64), wanted)
    assert np.array_equal(np.signbit(rounded.numpy().astype(np.float64)), np.signbit(given))


@pytest.mark.parametrize("name", NARROW)
def test_f32_rounds_to_even(name: str) -> None:
    """All f32 whose low bits lie around a tie, of every exponent, round as exact arithmetic does."""
    element, _, mantissa, least, limit = NARROW[name]
    generator = np.random.default_rng(5)
    high = np.arange(0, 0x7F80, 31, dtype=np.uint32)[:, None] << 16
    low = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    given = np.concatenate([(high | low).ravel(), generator.integers(0, 0x7F800000, 500, np.uint32)])
    given = np.unique(given.astype(np.uint32)).view(np.float32)
    wanted = [round_to(Fraction(float(x)), mantissa, least, limit) for x in given]
    assert np.array_equal(Tensor(given).convert(element).numpy().astype(np.float64), wanted)


@pytest.mark.parametrize(
    ("pattern", "rounded"),
    [
        (0x7F7FFFFF, 0x7F80), (0x00008001, 0x0001), (0x00008000, 0x0000), (0x00018000, 0x0002),
        (0x80008001, 0x8001), (0x7F800000, 0x7F80), (0xFF800000, 0xFF80),
    ],
)  # fmt: skip
def test_bf16_of_f32_bits(pattern: int, rounded: int) -> None:
    """Overflow carries to infinity, subnormals are kept, ties go to even."""
    number = np.array(pattern, np.uint32).view(np.float32)[()]
    assert Bf16.to_bits(Bf16.from_f32(number)) == rounded


def test_the_examples_of_the_cases() -> None:
    """The numbers that other libraries got wrong."""
    assert float(Bf16.from_f32(0.2691408770292272)) == 0.26953125
    assert float(Bf16(3.14)) == 3.140625
    assert np.isnan(Bf16.from_f32(np.array(0x7F800001, np.uint32).view(np.float32)[()]))
    assert float(Bf16(1 + 2**-8 + 2**-30)) == 1.0078125
    assert float(F16(1 + 2**-11 + 2**-40)) == 1 + 2**-10
    assert Bf16.to_f32(Bf16(1.5)) == np.float32(1.5)
    assert type(Bf16.to_f32(2)) is np.float32


def test_integers_round_once() -> None:
    """Integers and rationals beyond 53 bits reach a narrower element in one rounding, of either sign."""
    for element, half in ((F32, 2**38), (Bf16, 2**54)):
        for sign in (1, -1):
            above, below = sign * (2**62 + half + 1), sign * (2**62 + half - 1)
            assert float(element(above)) == sign * (2.0**62 + 2.0 * half)
            assert float(element(below)) == sign * 2.0**62
            assert float(element(np.int64(above))) == sign * (2.0**62 + 2.0 * half)
    tie = Fraction(1) + Fraction(1, 2**24)
    assert Tensor([tie + Fraction(1, 2**80), tie, tie - Fraction(1, 2**80)], element="f32").to_list() == [
        1 + 2**-23,
        1.0,
        1.0,
    ]
    assert F64(True) == 1.0


def test_fractions_convert() -> None:
    """A rational rounds to a float, a float is a rational exactly."""
    exact = Tensor([Fraction(1, 3), Fraction(-5, 4)])
    assert exact.convert(F64).to_list() == [1 / 3, -1.25]
    for element in ELEMENTS:
        back = Tensor([0.5, -3.0], element=element).convert(Fraction)
        assert back.to_list() == [Fraction(1, 2), Fraction(-3)]
        assert type(back.to_list()[0]) is Fraction


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([1, "a"], ElementError, "holds no f32"),
        ("text", ElementError, "holds no f32"),
        ([object()], ElementError, "holds no numbers of element f32"),
        (np.array([1 + 2j]), ElementError, "an array of complex128 holds no f32: give real numbers"),
        (np.array(["2020"], "datetime64[D]"), ElementError, "holds no f32"),
        ([[1, 2], [3]], ShapeError, "an array of f32: the nested lists are ragged"),
        (10**400, ElementError, "holds no numbers of element f32"),
    ],
)
def test_refused_data(data: object, error: type[Exception], message: str) -> None:
    """What holds no numbers, and ragged lists, are refused."""
    with pytest.raises(error, match=message):
        Tensor(data)


def test_overflow_is_infinity_and_silent() -> None:
    """A number beyond the range becomes an infinity without a warning."""
    assert bits(F16(1e6)) == 0x7C00
    assert F32(-1e300) == -np.inf
    assert bits(Tensor([3.4e38], element="bf16"))[0] == 0x7F80
