"""Sgd, Adam and AdamW: the published recurrences, exact where they can be."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, same_bits
from topos import (
    Adam,
    AdamW,
    ElementError,
    Network,
    Optimizer,
    Parameters,
    ParametersError,
    RmsProp,
    Sgd,
    ShapeError,
    Symbol,
    Tape,
    Tensor,
    UsageError,
)


def tables(element: Any = "f64", seed: int = 0) -> tuple[Network, Parameters, list[Parameters]]:
    """Return a network with parameters of ranks 0 to 2, and gradients for it."""
    generator = np.random.default_rng(seed)

    def build(tape: Tape) -> Any:
        for shape in ((2, 3), (3,), ()):
            tape.parameter(generator.normal(size=shape))

    network, _ = Tape.record(build, element=element)
    parameters = network.parameters()
    like = lambda p: Tensor(generator.normal(size=tuple(p.shape)), element=p.element)  # noqa: E731
    gradients = [parameters.map(like) for _ in range(3)]
    return network, parameters, gradients


def numbers(parameters: Parameters) -> np.ndarray:
    """Return a table as one vector."""
    return np.concatenate([np.array(p.numpy(), float).reshape(-1) for p in parameters.payloads()])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_sgd(element: Any) -> None:
    """P - g * rate in the element's own rounding, and no state."""
    _, parameters, (gradient, *_) = tables(element)
    optimizer = Sgd()
    stepped = optimizer.step(parameters, gradient, 0.1)
    rate = Tensor(0.1, element=element)
    for p, g, new in zip(parameters.payloads(), gradient.payloads(), stepped.payloads(), strict=True):
        assert same_bits(new, p - g * Tensor.filled(g.shape, rate))
    assert optimizer.state == ()


def test_adam_matches_the_textbook() -> None:
    """Three steps of Kingma & Ba's algorithm 1 in f64, to 1e-12."""
    _, parameters, gradients = tables()
    optimizer, rate = Adam(0.8, 0.95, 1e-6), [0.1, 0.02, 0.3]
    p, m, v = numbers(parameters), 0.0, 0.0
    for t, (table, lr) in enumerate(zip(gradients, rate, strict=True), 1):
        parameters = optimizer.step(parameters, table, lr)
        g = numbers(table)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        p = p - lr * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6)
        np.testing.assert_allclose(numbers(parameters), p, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(numbers(optimizer.state[0]), m, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(numbers(optimizer.state[1]), v, rtol=1e-12, atol=1e-12)
    assert optimizer.state[2].scalar() == pytest.approx(0.8**3, rel=1e-15)


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_the_first_step_of_adam(element: Any) -> None:
    """Case 27: it moves by lr * g / (|g| + eps), by 0 where g is 0, whatever the size of g."""

    def build(tape: Tape) -> Any:
        return tape.parameter(np.zeros(6))

    network, w = Tape.record(build, element=element)
    g = np.array([1e-3, -1e-3, 0.0, 5.0, -1e6, 1e-8])
    parameters = network.parameters()
    gradients = parameters.with_payloads({w: g})
    stepped = Adam().step(parameters, gradients, 0.1).of(w).numpy()
    np.testing.assert_allclose(stepped, -0.1 * g / (np.abs(g) + 1e-8), rtol=2e-4 if element == "f32" else 1e-9)
    assert stepped[2] == 0


def test_adamw_spares_rank_1() -> None:
    """Decay is applied to parameters of rank 2 and more, decoupled from the moments."""
    _, parameters, (gradient, *_) = tables()
    plain = Adam().step(parameters, gradient, 0.1)
    optimizer = AdamW(decay=0.5)
    decayed = optimizer.step(parameters, gradient, 0.1)
    matrix, vector, scalar = decayed.payloads()
    assert same_bits(vector, plain.payloads()[1])
    assert same_bits(scalar, plain.payloads()[2])
    expected = plain.payloads()[0].numpy() - parameters.payloads()[0].numpy() * 0.5 * 0.1
    np.testing.assert_allclose(matrix.numpy(), expected, rtol=1e-12)
    other = Adam()
    other.step(parameters, gradient, 0.1)
    assert optimizer.state[0] == other.state[0]


def test_step_where_chooses_what_decays() -> None:
    """The policy sees symbol and payload, in slot order; all or none are possible."""
    _, parameters, (gradient, *_) = tables()
    plain = Adam().step(parameters, gradient, 0.1)
    seen: list[Symbol] = []

    def policy(symbol: Symbol, payload: Tensor) -> bool:
        assert payload.shape == parameters.of(symbol).shape
        seen.append(symbol)
        return payload.shape.rank == 1

    stepped = AdamW(decay=0.5).step_where(parameters, gradient, 0.1, policy)
    assert seen == parameters.symbols()
    differs = [not same_bits(a, b) for a, b in zip(stepped.payloads(), plain.payloads(), strict=True)]
    assert differs == [False, True, False]
    none = AdamW(decay=0.5).step_where(parameters, gradient, 0.1, lambda *_: False)
    assert none.buffer.tobytes() == plain.buffer.tobytes()


def test_a_user_decides_what_decays() -> None:
    """`decays` may be overridden in a subclass."""

    class Everything(AdamW):
        """Decays all."""

        def decays(self, symbol: Symbol, payload: Tensor) -> bool:
            """Return True."""
            return True

    _, parameters, (gradient, *_) = tables()
    all_of_them = AdamW().step_where(parameters, gradient, 0.1, lambda *_: True)
    assert Everything().step(parameters, gradient, 0.1).buffer.tobytes() == all_of_them.buffer.tobytes()


@pytest.mark.parametrize("make", [Sgd, Adam, AdamW])
def test_restored_state_continues_with_the_same_bits(make: Any) -> None:
    """State set on a fresh optimizer takes over; two identical trainings are identical."""
    _, parameters, gradients = tables("f32")
    whole, first, second = make(), make(), make()
    a = parameters
    for table in gradients:
        a = whole.step(a, table, 0.1)
    b = first.step(parameters, gradients[0], 0.1)
    second.state = first.state
    for table in gradients[1:]:
        b = second.step(b, table, Tensor([[0.1]]))
    assert a.buffer.tobytes() == b.buffer.tobytes()


def test_hyper_parameters() -> None:
    """Numbers, NumPy scalars and one-element tensors are single values; more are refused, with the name."""
    _, parameters, (gradient, *_) = tables()
    expected = Adam(0.75, 0.5, 0.25).step(parameters, gradient, 0.5)
    given = Adam(Tensor([0.75]), np.float32(0.5), Tensor(0.25)).step(parameters, gradient, Tensor([[0.5]]))
    listed = Adam([0.75], np.array([0.5]), np.array(0.25)).step(parameters, gradient, [0.5])
    assert listed.buffer.tobytes() == given.buffer.tobytes()
    assert given.buffer.tobytes() == expected.buffer.tobytes()
    for make, name in (
        (lambda: Adam([0.9, 0.8]), "beta1"),
        (lambda: Adam(0.9, Tensor([0.9, 0.8])), "beta2"),
        (lambda: Adam(epsilon=[1e-8, 1e-8]), "epsilon"),
        (lambda: AdamW(decay=[0.0, 1.0]), "decay"),
    ):
        with pytest.raises(ShapeError, match=f"{name}: a single value is needed, not shape"):
            make()
    with pytest.raises(ShapeError, match=r"learning_rate: a single value is needed, not shape \[3\]"):
        Sgd().step(parameters, gradient, [0.1] * 3)
    assert Tensor.single(Tensor([[2.0]]), parameters.slots.element, "x").shape.rank == 0


@pytest.mark.parametrize(
    ("make", "element", "message"),
    [
        (Adam, "f16", "Adam: epsilon=1e-08 is 0.0 in f16"),
        (RmsProp, "f16", "RmsProp: epsilon=1e-08 is 0.0 in f16"),
        (AdamW, "bf16", "AdamW: beta2=0.999 is 1 in bf16"),
        (lambda: Adam(0.9, Tensor(1 - 1e-9, element="f64")), "f32", "Adam: beta2=0.999999999 is 1.0 in f32"),
    ],
    ids=["adam", "rmsprop", "adamw", "a tensor"],
)
def test_a_number_that_an_element_rounds_to_another_setting(make: Any, element: Any, message: str) -> None:
    """Where a rounded number would divide 0 by 0, the first step says so, at once or in a plan."""
    network, w = Tape.record(lambda tape: tape.parameter([1.0, 2.0]), element=element)
    parameters, optimizer = network.parameters(), make()
    network, adjoints = network.extend(lambda tape: tape.differentiate((tape.resolve(w) * tape.resolve(w)).sum(), w))
    for step in (
        lambda: optimizer.step(parameters, parameters, 0.1),
        lambda: network.entry(adjoints.roots).lower().step(parameters, {}, optimizer, 0.1),
    ):
        with pytest.raises(ElementError, match=f"{message}; give another number, or train in f32"):
            step()
    assert optimizer.state is None


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_gradient_of_zero_moves_nothing(element: Any) -> None:
    """With numbers that the element holds, an exact 0 stays where it is."""
    network, w = Tape.record(lambda tape: tape.parameter([1.0, 2.0]), element=element)
    parameters = network.parameters()
    for optimizer in (Adam(0.9, 0.99, 1e-3), RmsProp(0.9, 1e-3), RmsProp(0, 1), Adam(0, 0, 1)):
        stepped = optimizer.step(parameters, parameters.with_payloads({w: [0.0, 1.0]}), 0.125).of(w).numpy()
        assert stepped[0] == 1
        assert 1.5 < stepped[1] < 2


def test_foreign_tables_are_refused_and_nothing_is_remembered() -> None:
    """Gradients of another network, and state of another network: nothing changes."""
    _, parameters, (gradient, *_) = tables()
    _, others, (its_gradient, *_) = tables()
    optimizer = Adam()
    with pytest.raises(ParametersError, match="step_each: the table belongs to another recording"):
        optimizer.step(parameters, its_gradient, 0.1)
    assert optimizer.state is None
    optimizer.step(others, its_gradient, 0.1)
    before = optimizer.state
    with pytest.raises(ParametersError, match="the optimizer's state: the table belongs to another"):
        optimizer.step(parameters, gradient, 0.1)
    assert optimizer.state is before


def test_an_error_in_a_policy_changes_nothing() -> None:
    """Case 26: an exception in the user's closure leaves the state as it was."""
    _, parameters, (gradient, *_) = tables()
    optimizer = AdamW()
    optimizer.step(parameters, gradient, 0.1)
    before, table = optimizer.state, bits(optimizer.state[0].payloads()[0]).tobytes()

    def policy(symbol: Symbol, payload: Tensor) -> bool:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        optimizer.step_where(parameters, gradient, 0.1, policy)
    assert optimizer.state is before
    assert bits(optimizer.state[0].payloads()[0]).tobytes() == table


def test_a_network_that_grew_needs_new_state() -> None:
    """Moments of fewer slots are refused rather than read beyond their end."""
    network, parameters, (gradient, *_) = tables()
    optimizer = Adam()
    optimizer.step(parameters, gradient, 0.1)
    tape = network.into_tape()
    tape.parameter([1.0])
    grown = tape.into_network()
    with pytest.raises(ParametersError, match="carried"):
        optimizer.step(parameters.carried(grown), gradient.carried(grown), 0.1)
    state = optimizer.state
    optimizer.state = (state[0].carried(grown), state[1].carried(grown), *state[2:])
    assert len(optimizer.step(parameters.carried(grown), gradient.carried(grown), 0.1)) == 4


def test_sgd_over_fractions() -> None:
    """A user's number type steps exactly."""

    def build(tape: Tape) -> Any:
        return tape.parameter([Fraction(1, 3), Fraction(1, 2)])

    network, w = Tape.record(build, element=Fraction)
    parameters = network.parameters()
    stepped = Sgd().step(parameters, parameters, Fraction(1, 3))
    assert stepped.of(w).to_list() == [Fraction(2, 9), Fraction(1, 3)]


def test_the_base_class_is_abstract() -> None:
    """A strategy has to say its start and its formula."""
    with pytest.raises(TypeError, match="abstract"):
        Optimizer()
    assert Adam(0.5).signature() == Adam(0.5).signature() != Adam(0.25).signature()
    assert AdamW().signature() != Adam().signature()


def test_a_signature_tells_long_tensors_apart() -> None:
    """Attributes count by their bits, however long they print; what cannot be compared is refused."""

    class Masked(Sgd):
        def __init__(self, mask: Any) -> None:
            super().__init__()
            self.mask = mask

    ones, fives = (Tensor.filled([100], value) for value in (1.0, 5.0))
    assert Masked(ones).signature() == Masked(Tensor.filled([100], 1.0)).signature()
    assert Masked(ones).signature() != Masked(fives).signature()
    assert Masked(np.zeros(2000)).signature() != Masked(np.ones(2000)).signature()
    assert Masked("all").signature() == Masked("all").signature()
    with pytest.raises(UsageError, match="has to be a number, a tensor or hashable"):
        Masked([1.0]).signature()
