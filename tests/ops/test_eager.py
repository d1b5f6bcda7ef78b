"""Every opcode over tensors: the bits of the contract, for every element, layout, shape and number type."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, dense_copy, drawn, same_bits, special, strided, whole
from tests.ops.oracle import NAMES, SHAPES, Multi, Wrapped, check, expected, floats, operands_for
from topos import F32, DataError, Element, ElementError, Shape, ShapeError, Tensor
from topos.ops import (
    Add,
    Broadcast,
    BroadcastAlong,
    Gather,
    LogSoftmax,
    LogSumExp,
    MatMul,
    Mul,
    Narrow,
    Neg,
    Pad,
    Permute,
    Reshape,
    Scatter,
    Select,
    Sum,
    SumAlong,
    Unfold,
    eager,
)
from topos.payload.layout import Layout

CASES = pytest.mark.parametrize(("opcode", "shapes"), SHAPES, ids=NAMES)


def special_operands(opcode: Any, shapes: Any, element: Element, seed: int = 0) -> list[Tensor]:
    """Return operands full of special values; a selection stays one."""
    given = [special(shape, element, 7 * seed + i) for i, shape in enumerate(shapes)]
    if isinstance(opcode, (Gather, Scatter)):
        given[1] = operands_for(opcode, shapes, element, seed)[1]
    return given


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@CASES
def test_the_bits_of_the_contract(opcode: Any, shapes: Any, element: Element) -> None:
    """An independent statement in NumPy has the same bits, over ordinary and special values."""
    check(opcode, *operands_for(opcode, shapes, element))
    for seed in range(3):
        check(opcode, *special_operands(opcode, shapes, element, seed))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@CASES
def test_any_layout_has_the_bits_of_its_dense_copy(opcode: Any, shapes: Any, element: Element) -> None:
    """Transposed, narrowed, repeated, overlapping and constant operands change no bit (case 20)."""
    plain = special_operands(opcode, shapes, element, 3)
    for position, shape in enumerate(shapes):
        if isinstance(opcode, (Gather, Scatter)) and position == 1:
            continue
        for name, operand in strided(shape, element, 5):
            given = [*plain[:position], operand, *plain[position + 1 :]]
            wanted = opcode.express([dense_copy(each) for each in given])
            assert same_bits(opcode.express(given), wanted), (name, position)
    variants = [dict(strided(shape, element, 6 + i)) for i, shape in enumerate(shapes)]
    for name in ("transposed", "overlapping", "narrowed"):
        given = [v.get(name, v["dense"]) for v in variants]
        if isinstance(opcode, (Gather, Scatter)):
            given[1] = plain[1]
        assert same_bits(opcode.express(given), opcode.express([dense_copy(each) for each in given])), name


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(
    ("opcode", "shapes"),
    [
        (Add(), [(), ()]),
        (Neg(), [()]),
        (Select(), [(), (), ()]),
        (Sum(), [()]),
        (Broadcast(Shape([])), [()]),
        (BroadcastAlong(0, 3), [()]),
        (Reshape(Shape([1, 1])), [()]),
        (Permute(()), [()]),
        (Mul(), [(1, 1, 1, 1)] * 2),
        (Sum(), [(1, 1, 1, 1)]),
        (SumAlong(2), [(1, 1, 1, 1)]),
        (LogSumExp(3), [(1, 1, 1, 1)]),
        (LogSoftmax(0), [(1, 1, 1, 1)]),
        (Reshape(Shape([])), [(1, 1, 1, 1)]),
        (Permute((3, 1, 0, 2)), [(1, 1, 1, 1)]),
        (Narrow(1, 0, 1), [(1, 1, 1, 1)]),
        (Pad(1, 2, 3), [(1, 1, 1, 1)]),
        (Unfold(3, 1, 5, 7), [(1, 1, 1, 1)]),
        (MatMul(), [(1, 1, 1, 1)] * 2),
        (MatMul(), [(1, 1), (1, 4)]),
        (MatMul(), [(4, 1), (1, 1)]),
        (MatMul(), [(1, 5), (5, 1)]),
        (MatMul(), [(3, 1, 1, 2), (3, 1, 2, 1)]),
        (Gather(), [(1,), (1, 1)]),
        (Scatter(), [(1, 1, 1, 1), (1, 1)]),
        (Gather(), [(3, 1, 2), (1, 3)]),
        (Add(), [(2, 1, 2, 1, 2, 2)] * 2),
        (Sum(), [(2, 1, 2, 1, 2, 2)]),
        (SumAlong(4), [(2, 1, 2, 1, 2, 2)]),
        (LogSoftmax(2), [(2, 1, 2, 1, 2, 2)]),
        (Permute((5, 3, 1, 0, 2, 4)), [(2, 1, 2, 1, 2, 2)]),
        (Pad(4, 1, 4), [(2, 1, 2, 1, 2, 2)]),
        (Unfold(5, 2, 1, 1), [(2, 1, 2, 1, 2, 2)]),
        (MatMul(), [(2, 1, 2, 1, 2, 3), (2, 1, 2, 1, 3, 2)]),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else str(value).replace(" ", ""),
)
def test_ranks_and_extents_of_one(opcode: Any, shapes: Any, element: Element) -> None:
    """Rank 0, rank 6, axes of extent 1 and one-element tensors of rank 4 (case 21), in every layout."""
    plain = special_operands(opcode, shapes, element)
    check(opcode, *plain)
    for name, operand in strided(shapes[0], element, 1):
        given = [operand, *plain[1:]]
        result = opcode.express(given)
        assert same_bits(result, expected(opcode, [dense_copy(each) for each in given])), name


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("count", [1, 3, 15, 16, 17, 511, 512, 513, 1025])
def test_tails_and_blocks(element: Element, count: int) -> None:
    """Counts around a vector and around the block of a strided row: the scalar tail has the vector's bits."""
    a, b = special([count], element, 1), special([2 * count], element, 2)
    every_second = b.reshape([count, 2]).narrow(1, 1, 1).reshape([count])
    for opcode in (Add(), Mul()):
        check(opcode, a, every_second)
        check(opcode, every_second, a)
    check(Neg(), every_second)
    check(Select(), every_second, a, every_second)
    matrix = special([count, 3], element, 3).permute([1, 0])
    check(Add(), matrix, special([3, count], element, 4))


# ---- a user's number type


@CASES
def test_a_delegating_number_type_has_the_bits_of_f64(opcode: Any, shapes: Any) -> None:
    """Object code and native code are one contract: values and cotangents agree bit for bit."""
    for given in (
        operands_for(opcode, shapes, "f64"),
        special_operands(opcode, shapes, Tensor(0.0, element="f64").element),
    ):
        if opcode.name == "Powf":
            given = operands_for(opcode, shapes, "f64")
        wrapped = [Tensor(each.numpy(), element=Wrapped) for each in given]
        native, objects = opcode.express(given), opcode.express(wrapped)
        assert np.array_equal(bits(floats(objects)), bits(native))
        seed = drawn(native.shape, native.element, 99)
        cotangents = opcode.vjp(given, native, seed)
        others = opcode.vjp(wrapped, objects, Tensor(seed.numpy(), element=Wrapped))
        for mine, theirs in zip(cotangents, others, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert np.array_equal(bits(floats(theirs)), bits(mine))


@CASES
def test_an_exact_number_type(opcode: Any, shapes: Any) -> None:
    """Over `Fraction`, small integers give what every float element computes exactly."""
    rational = not opcode.name.startswith(("Exp", "Ln", "Sq", "T", "Sin", "Cos", "Log", "Erf", "Pow"))
    given = [whole(shape, Tensor(0.0).element, i) for i, shape in enumerate(shapes)]
    if isinstance(opcode, (Gather, Scatter)):
        given[1] = operands_for(opcode, shapes, "f32")[1]
    if opcode.name in ("Div", "Ratio"):
        given[1] = given[1] * 0.0 + 2.0
    exact = [each.convert(Fraction) for each in given]
    if rational:
        result = opcode.express(exact)
        assert all(isinstance(number, Fraction) for number in result)
        assert [float(number) for number in result] == opcode.express(given).to_list()
    else:
        with pytest.raises((ElementError, AttributeError)):
            opcode.express([each + Fraction(1, 3) for each in exact])


def test_an_exact_power() -> None:
    """An integer power of a rational is one; another is refused by the name of its class."""
    half = Tensor([Fraction(1, 2)])
    assert half.powf(3).to_list() == [Fraction(1, 8)]
    with pytest.raises(ElementError, match=r"Fraction: 1/2 \*\* 1/2 is no Fraction; give the class a method powf"):
        half.powf(half)


@CASES
def test_many_digits(opcode: Any, shapes: Any) -> None:
    """Fifty-digit numbers and the floats agree to the accuracy of the floats."""
    given = operands_for(opcode, shapes, "f32", 2)
    exact = floats(opcode.express([Tensor(each.numpy(), element=Multi) for each in given]))
    assert np.allclose(floats(opcode.express(given)), exact, rtol=1e-5, atol=1e-6)


def test_elements_do_not_mix() -> None:
    """Operands of two elements are refused, however the opcode is applied."""
    single, double, exact = Tensor([1.0]), Tensor([1.0], element="f64"), Tensor([Fraction(1)])
    for left, right in ((single, double), (double, exact), (exact, single)):
        with pytest.raises(ElementError, match="beside one of"):
            Add().express([left, right])
        with pytest.raises(ElementError, match=f"a tensor of {right.element.name} beside one of {left.element.name}"):
            left * right


# ---- selections and errors of data


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_a_dense_one_hot_is_a_selection(element: Any) -> None:
    """A dense one-hot in any layout selects; any other matrix is a data error."""
    hot = [[0, 1, 0], [1, 0, 0], [0, 1, 0], [-0.0 if element is not Fraction else 0, 0, 1]]
    table = Tensor([[1, 2], [3, 4], [5, 6]], element=element)
    rows = Tensor([[1, 2], [3, 4], [5, 6], [7, 8]], element=element)
    stored = Tensor.selection([1, 0, 1, 2], 3, element=element)
    dense = Tensor(hot, element=element)
    turned = Tensor([list(column) for column in zip(*hot, strict=True)], element=element).permute([1, 0])
    for selection in (stored, dense, turned):
        assert table.gather(selection).to_list() == [3, 4, 1, 2, 3, 4, 5, 6]
        assert rows.scatter(selection).to_list() == [3, 4, 6, 8, 7, 8]
    for bad in ([0, 0, 0], [1, 1, 0], [0, 2, 0], [1, 3, 0]):
        wrong = Tensor([*hot[:3], bad], element=element)
        with pytest.raises(DataError, match=r"^Gather: row 3 of the selection is not one-hot$"):
            table.gather(wrong)
        with pytest.raises(DataError, match=r"^Scatter: row 3 of the selection is not one-hot$"):
            rows.scatter(wrong)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_selection_is_an_operand_like_any(element: Element) -> None:
    """Stored indices take part in every other opcode as the matrix that they are."""
    selection = Tensor.selection([1, 0, 1], 3, element=element)
    dense = selection.dense()
    for opcode, shapes in SHAPES:
        if isinstance(opcode, (Gather, Scatter)) or any(shape not in ((2, 3), (3, 2)) for shape in shapes):
            continue
        use = opcode if not isinstance(opcode, Reshape) else Reshape(Shape([9]))
        assert same_bits(use.express([selection] * use.arity), use.express([dense] * use.arity)), use


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_max_along(element: Element) -> None:
    """Maxima along an axis: an ascending fold of maximum, so ties stay and NaN propagates."""
    for shape in ((5,), (3, 4), (2, 3, 4)):
        for name, tensor in strided(shape, element, 2):
            for axis in range(-len(shape), len(shape)):
                parts = [tensor.narrow(axis, i, 1) for i in range(shape[axis])]
                best = parts[0]
                for part in parts[1:]:
                    best = best.maximum(part)
                found = tensor.max_along(axis)
                assert same_bits(found, best.reshape(found.shape)), (name, axis)
    assert Tensor([[Fraction(1, 2), Fraction(1, 3)]]).max_along(1).to_list() == [Fraction(1, 2)]


def test_offsets_beyond_31_bits() -> None:
    """Index arithmetic is 64-bit: a view whose offset or stride exceeds 2**31 elements (case 19)."""
    far = 2**31 + 5
    memory = np.zeros(far + 8, np.uint16)  # pages that nobody touches cost nothing
    values = Tensor([1.5, -2.0, 3.0], element="bf16")
    memory[far : far + 3] = values.buffer
    end = Tensor.of_buffer(values.element, memory, Layout(Shape([3]), (1,), far))
    rows = Tensor.of_buffer(values.element, memory, Layout(Shape([2, 3]), (far, 1)))
    assert same_bits(end + end, values + values)
    assert same_bits(rows * 2, Tensor([[0.0] * 3, (values * 2).to_list()], element="bf16"))
    assert rows.permute([1, 0]).reshape([6]).to_list() == [0, 1.5, 0, -2, 0, 3]
    assert rows.sum_along(0).to_list() == values.to_list()
    assert rows.matmul(values.reshape([3, 1])).to_list() == [0.0, (values * values).sum().scalar()]
    assert rows.max_along(0).to_list() == [1.5, 0.0, 3.0]
    assert rows.gather(Tensor.selection([1], 2, element="bf16")).to_list() == values.to_list()
    assert rows.unfold(0, 2, 1).fold(0, 2, 1, 1, 2) == rows


def test_an_opcode_is_lowered_once_per_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views at any offset share a program, which is kept as long as it is among the latest."""
    array = np.arange(60.0, dtype=np.float32).reshape(10, 6)
    tensor = Tensor(array)
    rows = [tensor.narrow(0, i, 1) for i in range(10)]
    eager._ready.cache_clear()
    for i, row in enumerate(rows):
        assert (row + row).to_list() == (2 * array[i]).tolist()
        assert row.permute([1, 0]).to_list() == array[i].tolist()
    assert eager._ready.cache_info().misses == 2
    monkeypatch.setattr(eager, "_ready", functools.lru_cache(8)(eager._Ready))
    assert (Tensor.selection([1, 0], 6) + Tensor.selection([2, 0], 6)).to_list()[:3] == [0, 1, 1]
    assert tensor.gather(Tensor.selection([3], 10)).to_list() == array[3].tolist()
    assert tensor.gather(Tensor(np.eye(10, dtype=np.float32)[[4]])).to_list() == array[4].tolist()
    for width in range(1, 20):
        assert len((Tensor(np.ones(width)) + 1.0).to_list()) == width
    assert eager._ready.cache_info().currsize == 8


def test_opcodes_are_made_once() -> None:
    """The latest opcodes are kept; what is equal and has other bits, or is no parameter at all, is made anew."""
    tensor = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for zero in (0.0, -0.0, 0, 0.0):
        assert np.signbit(tensor.lift(zero).numpy()).all() == (str(zero) == "-0.0")
    assert tensor.lift(2).element is not tensor.convert("f64").lift(2).element
    assert tensor.narrow(0, 1, 1).to_list() == tensor.narrow(0, np.int64(1), True).to_list() == [3.0, 4.0]
    for wrong in ([1], "1", 1.0):
        with pytest.raises(ShapeError, match=r"Narrow: start is an int, not"):
            tensor.narrow(0, wrong, 1)


def test_subclasses_of_tensors_are_operands() -> None:
    """A subclass may keep its numbers where its base does, or elsewhere; results are tensors."""

    class Named(Tensor):
        __slots__ = ("name",)

    named = Named([1.0, 2.0])
    named.name = "named"
    for found in (named + named, named * 2.0, Tensor([0.0, 0.0]) + named, named.T):
        assert type(found) is Tensor
    assert (Tensor([1.0, 1.0]) + named).to_list() == [2, 3]

    class Elsewhere(Tensor):
        __slots__ = ()
        buffer = property(lambda self: np.array([3.0, 4.0], np.float32))

    far = Elsewhere.__new__(Elsewhere)
    far.element, far.layout, far._selection = named.element, named.layout, None
    assert (far + named).to_list() == [4, 6]
    assert (named * far).to_list() == [3, 8]
    assert far.sum().scalar() == 7


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("shape", [[], [2, 3]], ids=str)
def test_numbers_beside_a_tensor(element: Any, shape: list[int]) -> None:
    """A number has the bits of a tensor of it, spread; it is rounded once, to infinity without a warning."""
    tensor = Tensor.filled(shape, 1, element=element)
    for number in (0.1, -0.0, 1e300, float("nan"), 3, -(2**53), 2**53 + 1, 2**70 + 2**40, True, np.float64(0.1)):
        found, expected = tensor.lift(number), Tensor.filled(shape, Tensor(number, element=element))
        assert same_bits(found, expected)
        assert found.shape == tensor.shape
        assert found.numpy().flags.writeable is False
        assert found.as_constant() is not None


def test_empty_slots_and_offsets_that_are_none() -> None:
    """A tensor made by hand whose memory or offset is missing is refused, not read."""
    whole, bare = Tensor([1.0, 2.0]), Tensor([1.0, 2.0])
    del bare.buffer
    for broken, error in (
        (bare, AttributeError),
        (Tensor.of_buffer(F32, whole.buffer, Layout(Shape((2,)), (1,), 1 << 70)), OverflowError),
        (Tensor.of_buffer(F32, whole.buffer, Layout(Shape((2,)), (1,), 0.5)), TypeError),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            whole + broken
    assert (whole + whole).to_list() == [2, 4]
