"""`Opcode`: what every kind states; derivative rules proven exactly, by differences, and by their reads."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, drawn, same_bits, whole
from tests.ops.oracle import LINEAR, NAMES, RATIONAL, SHAPES, Eager, Multi, floats, gradients, operands_for
from topos import DataError, MapOperation, Opcode, Shape, ShapeError, Tensor, UsageError
from topos.ops import (
    Add,
    BroadcastAlong,
    Div,
    Fold,
    Gather,
    Input,
    Leaf,
    LogSoftmax,
    Map,
    MatMul,
    Mul,
    Narrow,
    Pad,
    Parameter,
    Permute,
    Ratio,
    Reshape,
    Scale,
    Scatter,
    Select,
    Step,
    Sub,
    Sum,
    SumAlong,
    Unfold,
)
from topos.ops.opcode import OUT
from topos.payload.recordable import OPCODES

CASES = pytest.mark.parametrize(("opcode", "shapes"), SHAPES, ids=NAMES)
SOURCES = (Leaf, Parameter, Input)


# ---- names, equality, arity


def test_the_closed_set() -> None:
    """Thirty kinds, all of them in the cases of these tests."""
    kinds = {type(opcode) for opcode, _ in SHAPES}
    assert len(kinds) + len(SOURCES) == 30
    assert len({opcode.operation for opcode, _ in SHAPES if isinstance(opcode, Map)}) == len(MapOperation) == 10
    assert {OPCODES[kind.__name__] for kind in kinds} == kinds


@pytest.mark.parametrize(
    ("opcode", "name", "parameters", "text"),
    [
        (Add(), "Add", {}, "Add([2], [2])"),
        (Map(MapOperation.ERF_DERIVATIVE), "ErfDerivative", {}, "ErfDerivative([2], [2])"),
        (Map(MapOperation.LOG1P), "Log1p", {}, "Log1p([2], [2])"),
        (SumAlong(1), "SumAlong", {"axis": 1}, "SumAlong([2], [2], axis=1)"),
        (LogSoftmax(0), "LogSoftmax", {"axis": 0}, "LogSoftmax([2], [2], axis=0)"),
        (Reshape(Shape([2, 3])), "Reshape", {"shape": Shape([2, 3])}, "Reshape([2], [2], shape=[2, 3])"),
        (Permute((1, 0)), "Permute", {"order": (1, 0)}, "Permute([2], [2], order=[1, 0])"),
        (
            Narrow(0, 3, 2),
            "Narrow",
            {"axis": 0, "start": 3, "length": 2},
            "Narrow([2], [2], axis=0, start=3, length=2)",
        ),
        (
            Fold(0, 1, 2, 3, 4),
            "Fold",
            {"axis": 0, "size": 1, "step": 2, "dilation": 3, "extent": 4},
            "Fold([2], [2], axis=0, size=1, step=2, dilation=3, extent=4)",
        ),
    ],
)
def test_names_and_parameters(opcode: Opcode, name: str, parameters: dict[str, Any], text: str) -> None:
    """A kind knows its name and parameters, and prints as the call that it is."""
    assert (opcode.name, opcode.parameters, opcode.is_source) == (name, parameters, False)
    assert opcode.signature(Shape([2]), Shape([2])) == text


@CASES
def test_equality_is_by_kind_and_parameters(opcode: Any, shapes: Any) -> None:
    """Equal opcodes are equal and hash alike; all others differ; copies and pickles are equal."""
    for same in (copy.deepcopy(opcode), pickle.loads(pickle.dumps(opcode))):
        assert same == opcode
        assert hash(same) == hash(opcode)
    assert [other for other, _ in SHAPES if other == opcode].count(opcode) in (1, 2)  # MatMul is there twice
    assert opcode != opcode.name
    with pytest.raises(AttributeError):
        opcode.axis = 5


def test_parameters_are_normalised() -> None:
    """Integers of NumPy are integers; anything else is refused by name."""
    assert Narrow(np.int64(0), np.int8(1), True) == Narrow(0, 1, 1)
    assert type(Narrow(np.int64(0), 1, 2).axis) is int
    assert repr(Tensor([[1.0]]).permute(np.array([1, 0])).shape) == "[1, 1]"
    with pytest.raises(ShapeError, match=r"^Narrow: start is an int, not 1\.5$"):
        Tensor([1.0, 2.0]).narrow(0, 1.5, 1)
    with pytest.raises(ShapeError, match=r"^SumAlong: axis is an int, not 0\.0$"):
        SumAlong(0.0)


@pytest.mark.parametrize("kind", SOURCES)
def test_sources(kind: type[Opcode]) -> None:
    """A source has no operands, so it can be neither expressed nor differentiated."""
    source = kind()
    assert (source.is_source, source.arity, source.name) == (True, 0, kind.__name__)
    with pytest.raises(UsageError, match=f"{kind.__name__} is a source: it has no operands to apply"):
        source.express([])
    with pytest.raises(UsageError, match="is a source"):
        source.vjp([], Tensor(1.0), Tensor(1.0))
    for abstract in (
        lambda: source.infer(),
        lambda: source.rule(None, None),
        lambda: source.lower(None),
        lambda: source.evaluate(None),
    ):
        with pytest.raises(NotImplementedError):
            abstract()


@CASES
def test_arity(opcode: Any, shapes: Any) -> None:
    """A wrong count of operands is refused with the right one."""
    given = operands_for(opcode, shapes, "f32")
    for wrong in (given[:-1], [*given, given[0]]):
        message = f"{opcode.name} takes {opcode.arity} operands, {len(wrong)} given"
        with pytest.raises(UsageError, match=message):
            opcode.express(wrong)
        with pytest.raises(UsageError, match=message):
            opcode.vjp(wrong, given[0], given[0])


# ---- reads


@CASES
def test_reads_are_honest(opcode: Any, shapes: Any) -> None:
    """No cotangent depends on a value that is not declared; each declared one matters; none is past the arity."""
    assert opcode.reads <= {OUT, *range(opcode.arity)}
    given = operands_for(opcode, shapes, "f32")
    out = opcode.express(given)
    seed = drawn(out.shape, out.element, 77)
    plain = opcode.vjp(given, out, seed)
    holes = [Tensor.filled(each.shape, np.nan, element="f32") for each in (*given, out)]
    for position in (*range(opcode.arity), OUT):
        spoiled = [*given, out]
        spoiled[position] = holes[position]
        try:
            found = opcode.vjp(spoiled[:-1], spoiled[-1], seed)
        except DataError:  # a selection of NaN
            found = [None] * opcode.arity
        changed = any(
            (mine is None) != (theirs is None) or (mine is not None and not same_bits(mine, theirs))
            for mine, theirs in zip(plain, found, strict=True)
        )
        assert changed == (position in opcode.reads), position
    unread = [
        each if position in opcode.reads else holes[position] for position, each in ((*enumerate(given), (OUT, out)))
    ]
    for mine, theirs in zip(plain, opcode.vjp(unread[:-1], unread[-1], seed), strict=True):
        assert mine is theirs is None or same_bits(mine, theirs)


@CASES
def test_cotangents_have_the_shapes_of_operands(opcode: Any, shapes: Any) -> None:
    """A data operand has none, any other one has a cotangent of its shape and element, for every element."""
    data = {Step: (0, 1), Select: (0,), Gather: (1,), Scatter: (1,)}.get(type(opcode), ())
    for element in ELEMENTS:
        given = operands_for(opcode, shapes, element)
        out = opcode.express(given)
        found = opcode.vjp(given, out, out.one_like())
        for position, (operand, cotangent) in enumerate(zip(given, found, strict=True)):
            assert (cotangent is None) == (position in data)
            if cotangent is not None:
                assert (cotangent.shape, cotangent.element) == (operand.shape, element)


# ---- exact derivatives


def dot(a: Tensor, b: Tensor) -> Any:
    """Return the inner product in exact arithmetic."""
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


@pytest.mark.parametrize(
    ("opcode", "shapes"),
    [case for case in SHAPES if isinstance(case[0], RATIONAL)],
    ids=lambda v: getattr(v, "name", ""),
)
def test_rational_gradients_are_exact(opcode: Any, shapes: Any) -> None:
    """Over `Fraction` a difference quotient of what is linear in an operand is its derivative, exactly."""
    given = [each.convert(Fraction) for each in operands_for(opcode, shapes, "f32", 1)]
    out = opcode.express(given)
    seed = whole(out.shape, Tensor(0.0).element, 5).convert(Fraction)
    found = opcode.vjp(given, out, seed)
    step = Fraction(1, 10**9)
    for position, cotangent in enumerate(found):
        if cotangent is None:
            continue
        assert all(isinstance(number, Fraction) for number in cotangent)
        if isinstance(opcode, (Div, Ratio)) and position == 1:
            wanted = [-g * a / b**2 for g, a, b in zip(seed, *given, strict=True)]
            assert cotangent.to_list() == wanted
            continue
        for at, number in enumerate(cotangent):
            moved = given[position].to_list()
            moved[at] = moved[at] + step
            others = list(given)
            others[position] = Tensor(given[position].shape, moved)
            assert number == dot(seed, (opcode.express(others) - out) / step), (position, at)


# ---- differences, to third order


def weighted(order: int, opcode: Any, operands: list[Tensor], element: Any) -> tuple[Eager, list[Eager]]:
    """Return a scalar that holds derivatives of order `order` - 1 of an opcode, and the values it depends on."""
    values = [Eager(operand) for operand in operands]

    def mixed(value: Eager, seed: int) -> Eager:
        return (value * Eager(drawn(value.shape, Multi, seed).convert(element))).sum()

    total = mixed(opcode.express(values), 31)
    for level in range(order - 1):
        terms = [mixed(g, 40 + 10 * level + i) for i, g in enumerate(gradients(total, values))]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
    return total, values


def drawn_multi(shape: Any, seed: int) -> Tensor:
    """Return a direction in fifty-digit numbers."""
    return Tensor(drawn(shape, Tensor(0.0).element, seed).numpy(), element=Multi)


DIFFERENTIABLE = [(opcode, shapes) for opcode, shapes in SHAPES if not isinstance(opcode, Step)]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("opcode", "shapes"), DIFFERENTIABLE, ids=lambda v: getattr(v, "name", ""))
def test_derivatives_by_differences(opcode: Any, shapes: Any, order: int) -> None:
    """Fifty-digit central differences agree with the rules to 20 digits; the rules in f64 with them to 9."""
    f64 = operands_for(opcode, shapes, "f64", order)
    given = [Tensor(each.numpy(), element=Multi) for each in f64]
    total, values = weighted(order, opcode, given, Multi)
    found = gradients(total, values)
    step = Multi("1e-16")
    for position, gradient in enumerate(found):
        if (isinstance(opcode, (Gather, Scatter)) and position == 1) or (isinstance(opcode, Select) and position == 0):
            assert floats(gradient.tensor).any() == 0
            continue
        direction = drawn_multi(gradient.shape, 3 + position)
        ends = []
        for sign in (step, -step):
            moved = list(given)
            moved[position] = given[position] + direction * Tensor.filled(direction.shape, sign)
            ends.append(weighted(order, opcode, moved, Multi)[0].tensor)
        slope = ((ends[0] - ends[1]) / Tensor(step + step)).to_list()[0]
        ours = (gradient.tensor * direction).sum().to_list()[0]
        error = abs(slope.value - ours.value) / max(1, abs(ours.value))
        assert error < 1e-20, (position, float(slope), float(ours))
    _, again = double = weighted(order, opcode, f64, "f64")
    for ours, exact in zip(gradients(double[0], again), found, strict=True):
        assert np.allclose(floats(ours.tensor), floats(exact.tensor), rtol=1e-9, atol=1e-9)


# ---- adjointness (case 18)

WINDOWS = [
    (Unfold(0, 7, 3, 1), ((20, 2),)),  # extent 16 padded by 2: the last positions are never read
    (Unfold(1, 3, 2, 1), ((2, 8),)),
    (Unfold(0, 3, 1, 2), ((9,),)),
    (Unfold(0, 2, 5, 3), ((11,),)),
    (Unfold(0, 4, 9, 1), ((4,),)),
    (Fold(0, 7, 3, 1, 20), ((5, 7, 2),)),
    (Fold(1, 3, 2, 1, 8), ((2, 3, 3),)),
    (Fold(0, 3, 1, 2, 9), ((5, 3),)),
    (Fold(0, 1, 4, 1, 10), ((3, 1),)),
    (Pad(1, 0, 9), ((2, 5),)),
    (Pad(1, 4, 9), ((2, 5),)),
    (Narrow(0, 3, 1), ((5, 2),)),
    (Gather(), ((3, 2, 2), (7, 3))),
    (Scatter(), ((7, 2, 2), (7, 3))),
    (Permute((1, 2, 0)), ((2, 3, 4),)),
    (BroadcastAlong(0, 6), ((3,),)),
]
FORMS = [*(case for case in SHAPES if isinstance(case[0], (*LINEAR, Mul, MatMul, Scale, Sub, Sum))), *WINDOWS]


@pytest.mark.parametrize(("opcode", "shapes"), FORMS, ids=lambda v: getattr(v, "name", str(v).replace(" ", "")))
def test_adjointness(opcode: Any, shapes: Any) -> None:
    """<A x, y> = <x, A' y>: to 1e-12 over f64, exactly over integers, for what is linear or bilinear."""
    for make, tolerance in ((drawn, 1e-12), (whole, 0.0)):
        given = operands_for(opcode, shapes, "f64")
        given = [each if each.is_selection else make(each.shape, each.element, 20 + i) for i, each in enumerate(given)]
        out = opcode.express(given)
        seed = make(out.shape, out.element, 30)
        cotangents = opcode.vjp(given, out, seed)
        image = float(np.sum(floats(out) * floats(seed)))
        preimages = [
            float(np.sum(floats(x) * floats(c))) for x, c in zip(given, cotangents, strict=True) if c is not None
        ]
        scale = float(np.sum(np.abs(floats(out) * floats(seed)))) + 1
        if isinstance(opcode, LINEAR):
            assert abs(image - sum(preimages)) <= tolerance * scale
        else:
            assert all(abs(image - preimage) <= tolerance * scale for preimage in preimages)


def test_rules_speak_only_when_asked() -> None:
    """A rule's cotangents are functions: an operand nobody wants costs nothing."""
    asked: list[str] = []

    class Spy(Eager):
        def apply(self, opcode: Any, operands: Any) -> Any:
            asked.append(opcode.name)
            return super().apply(opcode, operands)

    a = Spy(Tensor([[1.0, 2.0]]))
    b = Spy(Tensor([[3.0], [4.0]]))
    first, second = MatMul().rule(Spy(Tensor([[1.0]])), None, a, b)
    assert asked == []
    assert second is not None
    assert first().tensor.to_list() == [3.0, 4.0]
    assert asked == ["Permute", "MatMul"]


def test_bits_of_a_seed_pass_through_movement() -> None:
    """The cotangent of a view is a view of the cotangent: no bit changes on the way."""
    seed = Tensor([[-0.0, np.inf], [np.nan, 1e-45]])
    for opcode in (Permute((1, 0)), Reshape(Shape([2, 2]))):
        (back,) = opcode.vjp([seed], opcode.express([seed]), opcode.express([seed]))
        assert np.array_equal(bits(back), bits(seed))
