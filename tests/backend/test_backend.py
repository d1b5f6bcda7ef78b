"""Who serves what: the coverage matrix, the chains, the statuses, and the tally."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from topos import (
    Backend,
    BackendUnavailable,
    BatchNormTask,
    Coverage,
    Dispatch,
    Element,
    ElementError,
    Fidelity,
    Formula,
    GemmTask,
    MapOperation,
    MapTask,
    Normalized,
    Numerics,
    Precision,
    Service,
    ShapeError,
    Tape,
    Tensor,
)
from topos.backend import backend as module


def test_the_sets_are_closed_and_ordered() -> None:
    """`ALL` lists the members in order."""
    assert [b.name for b in Backend.ALL] == ["SIMD", "BLAS", "CUDA", "FUSED", "STABLEHLO"]
    assert tuple(Formula) == Formula.ALL
    assert [p.value for p in Precision.ALL] == ["f32", "f64", "bf16", "f16"]


def test_the_matrix() -> None:
    """Only BLAS and the text are envelopes; products and maps of SIMD keep the bits at every precision."""
    served = {(b, f): b.coverage(f).fidelity for b in Backend for f in Formula if b.coverage(f).serves()}
    envelopes = {b for (b, _), fidelity in served.items() if fidelity is Fidelity.ENVELOPE}
    assert envelopes == {Backend.BLAS, Backend.STABLEHLO}
    for formula in (Formula.GEMM, Formula.MAP):
        assert Backend.SIMD.coverage(formula).meets(Fidelity.BIT_IDENTICAL)
        assert all(Backend.SIMD.serves(formula, p) for p in Precision)
    assert all(Backend.STABLEHLO.coverage(f).serves() for f in Formula)
    assert not Backend.BLAS.serves(Formula.GEMM, Precision.BF16)
    assert not Backend.BLAS.coverage(Formula.GEMM).meets(Fidelity.BIT_IDENTICAL)


def test_coverage_answers() -> None:
    """What is not served meets nothing and admits nothing."""
    absent = Coverage()
    assert not absent.serves()
    assert not absent.meets(Fidelity.ENVELOPE)
    assert not absent.admits(Precision.F32)
    some = Coverage(Fidelity.COMPOSED, frozenset({Precision.F64}))
    assert some.meets(Fidelity.BIT_IDENTICAL)
    assert some.admits(Precision.F64)
    assert not some.admits(Precision.F32)


@pytest.mark.parametrize("formula", Formula)
@pytest.mark.parametrize("precision", Precision)
def test_chains_agree_with_the_matrix(formula: Formula, precision: Precision) -> None:
    """Who is offered a task serves it; groups of the catalog are elected and never offered."""
    chain = formula.chain(precision)
    assert all(b.dispatch() is Dispatch.OFFERED and b.serves(formula, precision) for b in chain)
    assert bool(chain) == (formula in (Formula.GEMM, Formula.MAP))
    assert len(set(chain)) == len(chain)


def test_a_status_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` raises nothing: it answers None, or an exception that says how to get the package."""
    assert Backend.SIMD.status() is None
    assert Backend.SIMD.compiled()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for backend, extra in ((Backend.CUDA, "cuda"), (Backend.STABLEHLO, "stablehlo")):
        found = backend.status()
        assert isinstance(found, BackendUnavailable)
        assert f"pip install '.[{extra}]'" in str(found)
        assert not backend.compiled()


def test_a_tally_counts_what_ran() -> None:
    """One row per distinct triple in first-served order; the innermost scope counts."""
    a = Tensor(np.ones((3, 4), np.float32))

    def body() -> Tensor:
        return a.matmul(a.permute([1, 0])).tanh().tanh()

    result, services = Backend.tallied(body)
    assert result.shape == (3, 3)
    assert services == [
        Service(Formula.GEMM, Precision.F32, Backend.SIMD, 1),
        Service(Formula.MAP, Precision.F32, Backend.SIMD, 2),
    ]
    with Backend.tallied() as outer:
        a.exp()
        with Backend.tallied() as inner:
            a.convert("f64").ln()
    assert outer == [Service(Formula.MAP, Precision.F32, Backend.SIMD, 1)]
    assert inner == [Service(Formula.MAP, Precision.F64, Backend.SIMD, 1)]


def test_a_plan_is_tallied() -> None:
    """Every run of a plan counts again."""
    tape = Tape()
    x = tape.input(np.ones((2, 3), np.float32))
    out = x.matmul(x.T).exp().symbol
    network = tape.into_network()
    plan = network.entry(out).lower()
    with Backend.tallied() as services:
        for _ in range(3):
            plan.forward(network.parameters())
    assert {(s.formula, s.count) for s in services} == {(Formula.GEMM, 3), (Formula.MAP, 3)}


def test_a_tally_ends_with_an_exception() -> None:
    """A scope closes however it is left."""
    with pytest.raises(ZeroDivisionError):
        Backend.tallied(lambda: 1 / 0)
    with Backend.tallied() as services:
        pass
    assert services == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blas_takes_products_under_fast_alone(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """Where BLAS is measured faster it is offered large products under FAST, and nothing under EXACT."""
    monkeypatch.setattr(module, "BLAS_FLOPS", 2 * 8 * 8 * 8)
    assert Formula.GEMM.chain(Precision.F32)[0] is Backend.BLAS
    generator = np.random.default_rng(1)
    a, b = (Tensor(generator.standard_normal((2, 8, 8)).astype(dtype)) for _ in range(2))
    exact = a.matmul(b)

    def servers() -> set[Backend | None]:
        with Backend.tallied() as services:
            product = a.matmul(b)
        tolerance = 64 * np.finfo(dtype).eps
        np.testing.assert_allclose(product.numpy(), exact.numpy(), rtol=tolerance, atol=tolerance)
        return {s.backend for s in services}

    assert servers() == {Backend.SIMD}
    with Numerics.fast():
        assert servers() == {Backend.BLAS}
        with Numerics.exactly():
            assert servers() == {Backend.SIMD}
            np.testing.assert_array_equal(a.matmul(b).numpy(), exact.numpy())
        small = a.narrow(1, 0, 4)
        with Backend.tallied() as services:
            small.matmul(b)
        assert [s.backend for s in services] == [Backend.SIMD]


class Counting(Fraction):
    """A rational whose hooks take whole tasks."""

    answers: dict[str, Any] = {}  # noqa: RUF012 - the tests set it
    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def _answer(cls, hook: str, task: Any) -> Any:
        cls.seen.append(task)
        return cls.answers.get(hook, lambda task: None)(task)

    @classmethod
    def gemm(cls, task: GemmTask) -> Any:
        """Take a product, or decline."""
        return cls._answer("gemm", task)

    @classmethod
    def map(cls, task: MapTask) -> Any:
        """Take a map, or decline."""
        return cls._answer("map", task)

    def exp(self) -> Counting:
        """Not the exponential, but exact."""
        return Counting(self + 1)


def matrix(rows: int, columns: int) -> Tensor:
    """Return a small matrix of rationals."""
    return Tensor([[Counting(i + 1, j + 2) for j in range(columns)] for i in range(rows)])


def test_hooks_of_an_element_take_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gemm` and `map` are asked first; None declines to the reference path."""
    a, b = matrix(2, 3), matrix(3, 2)
    monkeypatch.setattr(Counting, "seen", [])
    monkeypatch.setattr(Counting, "answers", {})
    plain = a.matmul(b)
    assert isinstance(Counting.seen[0], GemmTask)
    assert a.exp().numpy()[0, 0] == a.numpy()[0, 0] + 1
    assert Counting.seen[-1].operation is MapOperation.EXP
    monkeypatch.setattr(
        Counting,
        "answers",
        {
            "gemm": lambda t: [
                Counting(sum(t.a[i * t.k + p] * t.b[p * t.n + j] for p in range(t.k)) * 2)
                for i in range(t.m)
                for j in range(t.n)
            ],
            "map": lambda t: [x * 3 for x in t.elements],
        },
    )
    assert (a.matmul(b).numpy() == plain.numpy() * 2).all()
    assert (a.exp().numpy() == a.numpy() * 3).all()


@pytest.mark.parametrize(("hook", "call"), [("gemm", lambda a: a.matmul(a)), ("map", lambda a: a.exp())])
def test_a_hook_answers_all_results(monkeypatch: pytest.MonkeyPatch, hook: str, call: Any) -> None:
    """An answer of another length is refused at the seam."""
    monkeypatch.setattr(Counting, "answers", {hook: lambda task: [Counting(1)] * 3})
    with pytest.raises(ElementError, match=rf"Counting\.{hook} answered 3 values to a \w+Task, 4 are needed"):
        call(matrix(2, 2))
    assert isinstance(Element, type)


def test_task_data_is_checked() -> None:
    """Extents are positive and lengths agree."""
    with pytest.raises(ShapeError, match="MapTask of exp: a task holds at least one element"):
        MapTask(MapOperation.EXP, [])
    good: dict[str, Any] = {"input": [1.0] * 6, "scale": [1.0] * 3, "shift": [0.0] * 3, "epsilon": 0.1}
    assert BatchNormTask(**good, batch=2, features=3).features == 3
    with pytest.raises(ShapeError, match="extents are positive"):
        BatchNormTask(**good, batch=0, features=3)
    with pytest.raises(ShapeError, match="scale holds 3 elements, 2 are needed"):
        BatchNormTask(**good, batch=3, features=2)
    assert Normalized([1.0], [0.0], [0.0]).mean == [0.0]
