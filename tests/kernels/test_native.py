"""Calls on tensors and runs of plans in native code: the bits, errors and references of the same in Python."""

from __future__ import annotations

import functools
import gc
import inspect
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import topos
from tests.helpers import ELEMENTS, drawn, same_bits, special, strided
from topos import Backend, Element, ElementError, Numerics, ShapeError, Tape, Tensor, Value
from topos.kernels import runtime
from topos.ops import eager, offer

BINARY = ["__add__", "__sub__", "__mul__", "__truediv__", "__pow__", "powf", "maximum", "step", "scale", "ratio"]
UNARY = ["__neg__", "exp", "ln", "sqrt", "tanh", "sin", "cos", "log1p", "expm1", "erf", "erf_derivative", "sum"]
TURNED = list(eager._TURNED)
ALONG = list(eager._ALONG)
INSTALL = eager._install.__wrapped__


@contextmanager
def applied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Count what Python computes: opcodes."""
    opcodes: list[Any] = []
    apply = eager.apply

    def counted(self: Tensor, opcode: Any, operands: Any) -> Tensor:
        opcodes.append(opcode)
        return apply(self, opcode, operands)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "apply", counted)
        yield opcodes


def calls(element: Element, rows: int = 3) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Draw a call of every method, with tensors of `rows` rows, numbers and axes."""
    a, b, mask = (special((rows, 4), element, seed) for seed in range(3))
    for name in BINARY:
        yield name, getattr(Tensor, name), (a, b)
        for number in (2, 0.5, -0.0, 0.0, float("inf"), -3):
            yield f"{name} {number}", getattr(Tensor, name), (a, number)
    for name in TURNED:
        for number in (2, 0.5, -0.0, b):
            yield f"{name} {number}", getattr(Tensor, name), (a, number)
    for name in UNARY:
        yield name, getattr(Tensor, name), (a,)
    for name in ALONG:
        for axis in (0, 1, -1, -2):
            yield f"{name} {axis}", getattr(Tensor, name), (a, axis)
    yield "select", Tensor.select, (mask, a, b)
    yield "select of a number", Tensor.select, (mask, a, 2.0)
    yield "select of a number and a tensor", Tensor.select, (mask, 2.0, a)
    for name in ("__matmul__", "matmul"):
        yield name, getattr(Tensor, name), (a, drawn((4, 5), element))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_a_known_call_has_the_bits_of_a_new_one(
    element: Element, threads: int, monkeypatch: pytest.MonkeyPatch, settings: None
) -> None:
    """Of every method, over dense operands and views: the third call is native, and changes nothing."""
    drawn((2,), element) + drawn((2,), element)  # the methods are there
    topos.set_num_threads(threads)
    for name, method, given in calls(element, 40 + threads):  # rows that no other test has
        runtime.set_grain()
        with applied(monkeypatch) as opcodes:
            first, _ = method(*given), method(*given)
        assert len(opcodes) == 2, name
        runtime.set_grain(0 if threads > 1 else runtime.GRAIN)
        with applied(monkeypatch) as opcodes:
            found = method(*given)
        assert not opcodes, name
        assert same_bits(found, first), name
        assert found.shape == first.shape
        assert found.element is first.element is element
    for _, view in strided((3, 4), element):
        for _ in range(3):
            assert same_bits(view * view, view.apply(eager.OPCODES["Mul"](), (view, view)))


def test_numbers_are_known_by_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that was met, in another object; zeros of either sign, and 2 and 2.0, are calls of their own."""
    tensor = Tensor([1.0, -1.0])
    for _ in range(2):
        for number in (0.25, 0.0, -0.0, 2, 2.0, True, 1):
            tensor * number
    with applied(monkeypatch) as opcodes:
        assert (tensor * float("0.25")).to_list() == [0.25, -0.25]
        assert (float("0.25") * tensor).to_list() == (tensor * 0.25).to_list()
        assert np.signbit((tensor * 0.0).numpy()).tolist() == [False, True]
        assert np.signbit((tensor * -0.0).numpy()).tolist() == [True, False]
    assert len(opcodes) == 1  # turned round, it is another method
    huge = 1 << 70
    assert (tensor * huge).to_list() == (tensor * float(huge)).to_list()
    with pytest.raises(ElementError, match="too large"):
        tensor * (1 << 2000)


def test_what_is_left_to_python() -> None:
    """Subclasses, other elements, words, selections, recorded values and names of arguments: results and errors as before."""

    class Named(Tensor):
        __slots__ = ()

    a = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(3):
        assert (a + a).to_list() == [2, 4, 6, 8]
        assert type(Named([[1.0, 1.0], [1.0, 1.0]]) + a) is Tensor
        assert (a + Named([[1.0, 1.0], [1.0, 1.0]])).to_list() == [2, 3, 4, 5]
        assert a.sum_along(axis=1).to_list() == [3, 7]
        assert a.maximum(other=2.5).to_list() == [2.5, 2.5, 3, 4]
        assert a.sum_along(np.int64(1)).to_list() == a.sum_along(True).to_list() == [3, 7]
        assert (Tensor.selection([1, 0], 2) @ a).to_list() == [3, 4, 1, 2]
        assert (a + np.ones((2, 2))).to_list() == (np.ones((2, 2)) + a).to_list() == [2, 3, 4, 5]
        with pytest.raises(ElementError, match=r"a tensor of f64 beside one of f32: convert it"):
            a + a.convert("f64")
        with pytest.raises(ShapeError, match=r"^Add\(\[2, 2\], \[1\]\): "):
            a + Tensor([1.0])
        with pytest.raises(ShapeError, match=r"^SumAlong"):
            a.sum_along(2)
        with pytest.raises(TypeError, match=r"missing 1 required positional argument"):
            a.maximum()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"takes 1 positional argument but 2 were given"):
            a.exp(1)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            a + "text"
        Tape.record(lambda tape: [type(found) for found in (a + tape.input(a), tape.input(a) + a)] == [Value, Value])
    bare = Tensor.__new__(Tensor)
    for other in (a, bare):
        with pytest.raises(AttributeError):
            bare + other
    with pytest.raises(AttributeError):
        a + bare


def test_methods_say_what_they_take() -> None:
    """Their signatures and texts are those of the methods in Python."""
    a = Tensor([1.0])
    assert (a + a).to_list() == [2]
    assert str(inspect.signature(Tensor.sum_along)) == "(self, /, axis)"
    assert str(inspect.signature(a.maximum)) == "(other)"
    assert (Tensor.exp.__doc__, Tensor.exp.__name__) == ("Return e ** self.", "exp")


def test_the_posture_and_a_tally_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known product asks who serves it under FAST, and is counted while a scope is open."""
    a = drawn((4, 4), topos.F32)
    asked: list[Any] = []
    monkeypatch.setattr(offer, "product", lambda *given: asked.append(given))
    for _ in range(3):
        known = a @ a
    with Numerics.fast():
        assert same_bits(a @ a, known)
    assert len(asked) == 1
    assert same_bits(a @ a, known)
    assert len(asked) == 1
    for count in (1, 2):
        with Backend.tallied() as services:
            for _ in range(count):
                a @ a
        assert [service.count for service in services] == [count]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Put the methods in Python back, as before the first computation; yields what installs those in native code."""
    Tensor([1.0]) + Tensor([1.0])

    def uninstall() -> None:
        for name in eager._PLAIN:
            if name in vars(Tensor):
                delattr(Tensor, name)
        Tensor.max_along = eager.max_along  # type: ignore[assignment]

    uninstall()
    monkeypatch.setattr(eager, "_install", lambda: None)
    yield INSTALL
    monkeypatch.undo()
    uninstall()
    INSTALL()


def natives() -> int:
    """Return how many methods of tensors are in native code."""
    return sum(not inspect.isfunction(vars(Tensor).get(name, eager.max_along)) for name in eager._PLAIN)


def test_threads_install_the_methods_at_once(plain: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compute first at once, and interrupts amid it, leave methods that compute."""
    address, errors = runtime.store.address, list[BaseException]()

    def slow(name: str) -> int:
        if name == "adopt" or name.startswith("call"):
            time.sleep(2e-4)  # lets another thread go on
        return address(name)

    def interrupted(at: str, name: str) -> int:
        if name == at:
            raise KeyboardInterrupt
        return address(name)

    for at in ("call0", "call20", "adopt"):
        monkeypatch.setattr(runtime.store, "address", functools.partial(interrupted, at))
        with pytest.raises(KeyboardInterrupt):
            plain()
        for _, method, given in calls(topos.F32):
            method(*given)
    assert 0 < natives() < len(eager._PLAIN)

    def work(number: int) -> None:
        try:
            time.sleep(number * 1e-3)
            plain()
            for _, method, given in calls(topos.F32):
                method(*given)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            errors.append(error)

    monkeypatch.setattr(runtime.store, "address", slow)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert natives() == len(eager._PLAIN)
    plain()
    for name, _, given in calls(topos.F32):
        found = [getattr(Tensor, name.split()[0], Tensor.select)(*given) for _ in range(3)]
        assert same_bits(found[0], found[2]), name


def test_a_method_that_was_patched_stays(plain: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user put in a method's place before the first computation is called each time, the others are native."""
    called: list[str] = []

    def traced(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)
        return lambda *given: (called.append(name), method(*given))[1]

    patched = list(eager._PLAIN)[::2]
    for name in patched:
        monkeypatch.setattr(Tensor, name, traced(name))
    plain()
    assert natives() == len(eager._PLAIN) - len(patched)
    for name, method, given in calls(topos.F32):
        called.clear()
        for _ in range(4):
            method(*given)
        word = name.split()[0]
        assert called == ([word] * 4 if word in patched else []), name
    for name in patched:
        monkeypatch.delattr(Tensor, name)


def test_methods_take_what_records(plain: Callable[[], None]) -> None:
    """Words of recordables called unbound over a recorded value: the same before and after the first computation."""

    def build(tape: Tape) -> list[str]:
        x, found = tape.input(np.zeros((2, 2))), []
        for name in eager._PLAIN:
            others = [0] if name in ALONG else [x, x] if name == "select" else [] if name in UNARY else [x]
            try:
                found.append(type(getattr(Tensor, name)(x, *others)).__name__)
            except TypeError:
                found.append("TypeError")
        return found

    def record() -> list[str]:
        found: list[list[str]] = []
        Tape.record(lambda tape: found.append(build(tape)))
        return found[0]

    before = record()
    assert before == ["TypeError" if name == "max_along" else "Value" for name in eager._PLAIN]
    plain()
    assert natives() == len(eager._PLAIN)
    assert record() == before
    for name in eager._PLAIN:
        pickle.loads(pickle.dumps(getattr(Tensor, name)))


def test_methods_do_not_share_calls() -> None:
    """A call that was refused stays refused, whatever was learnt of other methods: numbers are no walks."""
    a, b = Tensor([1.0, 2.0]), Tensor([5.0, 7.0])
    for name in (*BINARY, *TURNED):
        for _ in range(3):
            getattr(a, name)(id(b.layout.walk))
    for name in eager._PLAIN:
        for given in ((b, 0), (b, 0.0), (0, b), (b, 0, 0)):
            if name != "select" or len(given) == 3:
                with pytest.raises(TypeError):
                    getattr(a, name)(*given)


@pytest.mark.parametrize("count", [1, 2, 13, 14, 15, 16, 17, 100, 2_000_000])
def test_any_count_of_arguments(count: int) -> None:
    """More arguments than a method takes, by place or by name, are Python's TypeError: millions too."""
    a = Tensor([1.0])
    a + a
    for method in (a.exp, functools.partial(Tensor.exp, a)):
        with pytest.raises(TypeError, match=f"takes 1 positional argument but {count + 1} were given"):
            method(*range(count))  # type: ignore[call-arg]
    names = {f"name{i}": i for i in range(min(count, 1000))}
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        a.exp(**names)
    with pytest.raises(TypeError):
        a.maximum(*range(count + 1), **names)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError, MemoryError])
def test_an_interrupt_of_a_known_call_is_raised(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, settings: None
) -> None:
    """What Python code that a native call asks raises reaches the caller: that of the team, and that of memory."""
    a, raised = Tensor([1.0] * 100), list[int]()
    for _ in range(3):
        a + a
    topos.set_num_threads(2)
    runtime.set_grain(0)
    team = runtime._team_of

    def once(*given: Any) -> Any:
        if not raised:
            raised.append(1)
            raise kind
        return team(*given)

    monkeypatch.setattr(runtime, "_team_of", once)
    topos.set_num_threads(2)
    with pytest.raises(kind):
        a + a
    assert (a + a).to_list() == [2.0] * 100
    if sys.version_info >= (3, 12):

        class Memory:
            def __buffer__(self, flags: int) -> memoryview:
                once(1)
                return memoryview(a.buffer)

        raised.clear()
        odd = Tensor.of_buffer(a.element, Memory(), a.layout)
        with pytest.raises(kind):
            odd + a
        assert (odd + a).to_list() == [2.0] * 100


def held() -> list[int]:
    """Return how many blocks Python has allocated, after a collection."""
    gc.collect()
    return [sys.getallocatedblocks()]


def test_calls_keep_the_counts_of_references() -> None:
    """10,000 calls, known, new and refused, leave what they were given, and what they hold, as it was."""
    a, b = drawn((3, 3), topos.F32), drawn((3, 3), topos.F32, 1)
    others = [Tensor(np.ones((1, 1 + i), np.float32)) for i in range(1500)]

    def work(count: int) -> None:
        for _ in range(count):
            a + b, a @ b, a.sum_along(0), a * 2.0, 2.0 - a
        for other in others:  # more than are remembered
            other + other, other + other
        for _ in range(count // 100):
            with pytest.raises(ShapeError):
                a + others[0]

    for _ in range(3):
        work(100)
    watched = [a, b, a.layout, a.layout.walk, a.element, a.buffer, others[3].layout.walk, eager._ready]
    before, blocks = [sys.getrefcount(each) for each in watched], held()[0]
    work(10_000)
    gc.collect()
    assert [sys.getrefcount(each) for each in watched][:2] == before[:2]
    # what is remembered at the end is drawn by chance
    assert all(abs(sys.getrefcount(each) - was) < 50 for each, was in zip(watched, before, strict=True))
    assert abs(held()[0] - blocks) < 2000
    assert (others[0] + others[0]).to_list() == [2]
    assert all((other + other).to_list() == [2] * (1 + i) for i, other in enumerate(others))


def test_runs_keep_the_counts_of_references() -> None:
    """10,000 runs of a plan, fed and refused, leave what they were given as it was."""

    def build(tape: Tape) -> Any:
        x, large, bare = tape.input(np.zeros(3)), tape.input(np.zeros(5000)), tape.input(np.ones(3))
        return x, large, bare, (x * bare).sum() + large.sum()

    network, (x, large, bare, out) = Tape.record(build)
    plan, parameters = network.entry(out).lower(), network.parameters()
    small, array, wrong = np.ones(3, np.float32), np.ones(5000, np.float32), np.ones(4, np.float32)
    tensor = Tensor(array)

    def work(count: int) -> None:
        for _ in range(count):
            run = plan.forward(parameters, {x: small, large: array})
        assert run.of(out).scalar() == 5003
        for _ in range(count // 100):
            assert plan.forward(parameters, {large: tensor, x: [1.0, 2.0, 3.0]}).of(out).scalar() == 5006
            assert plan.forward(parameters, [(bare, small)]).of(out).scalar() == 0
            with pytest.raises(topos.FeedError):
                plan.forward(parameters, {large: array, x: wrong})

    for _ in range(3):
        work(100)
    lowered = plan.lowered
    watched = [small, array, wrong, tensor, x, large, parameters, plan, lowered, plan.schedule]
    before, blocks = [sys.getrefcount(each) for each in watched], held()[0]
    work(10_000)
    gc.collect()
    assert [sys.getrefcount(each) for each in watched] == before
    assert abs(held()[0] - blocks) < 2000


def test_threads_call_and_learn_at_once(settings: None) -> None:
    """Eight threads compute calls that are new, and push others out: each has the numbers of its own."""
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(300):
            size = 1 + (turn * 7 + number) % 40
            tensor = Tensor(np.full(size, number, np.float32))
            for _ in range(3):
                found = tensor * 2.0 + tensor
                if found.to_list() != [3.0 * number] * size:
                    wrong.append((number, turn))

    topos.set_num_threads(2)
    runtime.set_grain(16)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
