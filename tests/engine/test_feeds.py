"""Feeds in every form a caller may give: the same values, in rooms or bound where they lie."""

from __future__ import annotations

import array
import ctypes
import sys
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits
from topos import DataError, FeedError, Network, SealedError, Symbol, Tape, Tensor
from topos.engine.feeds import bind_feeds, pairs
from topos.engine.frames import Frame
from topos.engine.program import Lowered
from topos.payload.layout import Layout
from topos.payload.shape import Shape


def model(element: Any, size: int) -> tuple[Network, list[Symbol]]:
    """Record sums of a number, a row of `size`, and a row that nobody feeds."""

    def build(tape: Tape) -> Any:
        number, row, rest = tape.input(0.5), tape.input(np.zeros(size)), tape.input(np.ones(size))
        unused = tape.input([1.0, 2.0])
        return [number, row, unused, (row * number.broadcast([size]) + rest) * 1.0]

    network, (number, row, unused, out) = Tape.record(build, element=element)
    return network, [number, row, unused, out]


@pytest.mark.parametrize("size", [3, 5000], ids=["in its room", "large"])
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_forms_of_a_feed(element: Any, size: int) -> None:
    """Numbers and arrays of any type, layout and owner: one result, by plans and the interpreter."""
    network, (number, row, unused, out) = model(element, size)
    plan, parameters = network.entry(out).lower(), network.parameters()
    values = (np.arange(size) % 7).astype(element.dtype)
    spread = np.empty(2 * size, element.dtype)
    spread[::2] = values
    numbers = [
        2.0,
        2,
        np.float32(2),
        np.float64(2),
        np.array(2.0),
        np.array(2.0, element.dtype),
        Tensor(2.0, element=element),
    ]
    rows = [values, spread[::2], values.astype(np.float64), list(map(float, values)), Tensor(values)]
    expected = bits(plan.forward(parameters, {number: numbers[-1], row: rows[-1]}).of(out)).tobytes()
    for fed in [*((n, rows[0]) for n in numbers), *((numbers[0], r) for r in rows)]:
        feeds: Any = {number: fed[0], row: fed[1], unused: [3.0, 4.0]}
        for form in (feeds, list(feeds.items())):
            assert bits(plan.forward(parameters, form).of(out)).tobytes() == expected
            run = network.forward(parameters, form)
            assert bits(run.of(out)).tobytes() == expected
            assert run.of(number).scalar() == 2
            assert run.of(unused).to_list() == [3, 4]


def test_the_last_feed_of_an_input_counts() -> None:
    """Whatever the forms of the earlier ones."""
    network, (number, row, _, out) = model("f32", 3)
    plan, parameters = network.entry(out).lower(), network.parameters()
    ones = np.ones(3, np.float32)
    for first, last in ((Tensor(5.0), 2.0), (2.5, Tensor(2.0)), (7.0, 2.0)):
        feeds = [(number, first), (row, ones), (number, last)]
        assert plan.forward(parameters, feeds).of(out).to_list() == [3, 3, 3]
        assert network.forward(parameters, feeds).of(number).scalar() == 2
    assert plan.forward(parameters, None).of(out).to_list() == [1, 1, 1]


def test_a_refused_feed_leaves_no_trace() -> None:
    """Feeds before the refused one were bound; the next run binds its own."""
    network, (number, row, _, out) = model("f32", 3)
    plan, parameters = network.entry(out).lower(), network.parameters()
    ones, bad = np.ones(3, np.float32), np.ones(4, np.float32)
    for _ in range(6):
        assert plan.forward(parameters, {number: 2.0, row: ones}).of(out).to_list() == [3, 3, 3]
        for value in (9.0, Tensor(9.0)):
            with pytest.raises(FeedError, match=r"has shape \[3\], the feed \[4\]"):
                plan.forward(parameters, {number: value, row: bad})
        assert plan.forward(parameters, {row: ones}).of(out).to_list() == [1.5] * 3
        assert plan.forward(parameters, {number: Tensor(4.0)}).of(out).to_list() == [1, 1, 1]


def test_a_run_keeps_what_it_was_fed() -> None:
    """A small feed lies in the run's memory: arrays that change, and later runs, change nothing."""
    network, (number, row, _, out) = model("f64", 3)
    parameters, array = network.parameters(), np.array([1.0, 2.0, 3.0])
    runs = [network.forward(parameters, {number: float(i), row: array * i}) for i in range(8)]
    array[:] = 0
    for i, run in enumerate(runs):
        assert run.of(number).scalar() == i
        assert run.of(row).to_list() == [i, 2 * i, 3 * i]
        assert run.of(out).to_list() == [i * i + 1, 2 * i * i + 1, 3 * i * i + 1]


def test_pairs() -> None:
    """Any mapping or pairs; a feed by itself becomes a tensor."""
    network, (number, _, _, _) = model("f32", 3)
    assert list(pairs(None)) == []
    assert list(pairs([(1, 2)])) == [(1, 2)]
    assert list(pairs([[1, 2]])) == [[1, 2]]
    assert list(pairs(zip([1], [2], strict=True))) == [(1, 2)]
    assert list(bind_feeds(network.columns, {number: 3})) == [number.index]
    for refused in (network.forward, network.entry(number).lower().forward):
        for feeds in (5, Tensor(0.0), Tensor([0.0, 0.0]), np.zeros(1), np.zeros(3), "ab", (number, 3.0), [number]):
            with pytest.raises(FeedError, match=rf"feeds are .*, or pairs of these, not {type(feeds).__name__} "):
                refused(network.parameters(), feeds)


def address_in(frame: Frame, memory: Any) -> bool:
    """Whether a run reads an array where it lies."""
    return np.asarray(memory).ctypes.data in list(frame.words)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_native_code_puts_feeds_in_place(element: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers, arrays and tensors of the element, small and large: nothing is left to Python; others are."""
    left: list[Any] = []
    take = Lowered.take

    def taken(lowered: Lowered, frame: Frame, source: Any, data: Any) -> None:
        left.extend([data] if data is not lowered.columns.payloads[source.node] else [])
        take(lowered, frame, source, data)

    monkeypatch.setattr(Lowered, "take", taken)
    for size in (3, 5000):
        network, (number, row, _, out) = model(element, size)
        plan, parameters = network.entry(out).lower(), network.parameters()
        array = (np.arange(size) % 7).astype(element.dtype)
        other = "f4" if element.raw.char == "d" else "f8"
        natives = [
            array,
            np.frombuffer(array.tobytes(), array.dtype),
            Tensor(array),
            Tensor(np.tile(array, 3)).narrow(0, size, size),
        ]
        strangers = [
            array[::-1],
            array.astype(other),
            array.astype(element.raw.newbyteorder()),
            Tensor(np.repeat(array, 2)).reshape([size, 2]).narrow(1, 0, 1).reshape([size]),
        ]
        if size < 9:  # one dimension more is refused, and so are other extents
            for bad in (array[None], array[1:]):
                with pytest.raises(FeedError, match="has shape"):
                    plan.forward(parameters, {number: 2.0, row: bad})
        for rows, is_native in ((natives, True), (strangers, False)):
            for given in rows:
                for figure in (2.0, np.array(2, element.dtype), np.array(2, element.dtype)[()], 2):
                    left.clear()
                    found = plan.forward(parameters, {number: figure, row: given}).of(out)
                    is_number = type(figure) is np.ndarray or element.raw.char in (
                        "fd" if type(figure) is float else "fde"
                    )
                    assert len(left) == (not is_native) + (type(figure) is int or not is_number)
                    expected = np.asarray(given).astype(np.float64) * 2 + 1
                    assert found.numpy().astype(np.float64).tolist() == expected.tolist()


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_borrowed_arrays(element: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large array is read where it lies where nothing of it is asked for later, and its form allows it."""
    size = 5000
    network, (_, row, _, out) = model(element, size)
    parameters, held = network.parameters(), list[Any]()

    def start(lowered: Lowered, feeds: Any) -> Frame:
        frame = started(lowered, feeds)
        held[:] = [each for each in frame.held if address_in(frame, each)]
        return frame

    started = Lowered.start
    monkeypatch.setattr(Lowered, "start", start)
    array = np.ones(size, element.dtype)
    readonly, odd = array.copy(), np.frombuffer(bytearray(size * array.itemsize + 1), np.uint8)[1:].view(element.dtype)
    readonly.flags.writeable = False
    plan, keeps = network.entry(out).lower(), network.entry(out).observe([row]).lower()
    for given, lies in ((array, True), (readonly, True), (Tensor(array), True), (odd, False), (array[::-1], False)):
        run = plan.forward(parameters, {row: given})
        assert any(np.shares_memory(memory, np.asarray(given)) for memory in held) is lies
        assert bits(run.of(out)).tobytes() == bits(network.forward(parameters, {row: given}).of(out)).tobytes()
    for kept in (keeps, network.entry(out).backward().lower()):
        run = kept.forward(parameters, {row: array})
        assert not any(np.shares_memory(memory, array) for memory in held)
        array[:] += array
        assert keeps is not kept or run.of(row).numpy()[0] * 2 == array[0]


def test_a_refused_payload_leaves_no_bank_behind() -> None:
    """A run that fails for what was not fed changes nothing: the next one reads its feeds in every way of running."""

    def build(tape: Tape) -> Any:
        first = tape.input(np.full((2, 2), 7.0))
        chosen = tape.input([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])  # not one-hot: it has to be fed
        table = tape.parameter(np.arange(6.0).reshape(3, 2))
        return first, chosen, (table.gather(chosen) * first).sum()

    network, (first, chosen, total) = Tape.record(build)
    plan, entry, parameters = network.entry(total).lower(), network.entry(total), network.parameters()
    feeds = {first: np.ones((2, 2), np.float32), chosen: Tensor.selection([2, 0], 3)}
    for run in (network.forward, plan.forward, entry.interpret):
        for _ in range(2):
            assert run(parameters, feeds).of(total).scalar() == 10.0
            with pytest.raises(DataError, match="not one-hot"):
                run(parameters, {})


def test_memory_that_may_move_is_not_lent() -> None:
    """A large array of another class than NumPy's is no memory to read during a run: it may be resized meanwhile."""
    network, (_, row, _, out) = model("f32", 5000)
    plan, parameters = network.entry(out).lower(), network.parameters()
    lowered = plan.lowered
    assert lowered is not None
    given = array.array("f", range(5000))
    for data, is_lent in ((np.asarray(given), True), (given, False), (memoryview(given), False)):
        frame = lowered.start({row: data})
        assert any(each is data for each in frame.held) is is_lent
        assert plan.forward(parameters, {row: data}).of(out).numpy()[-1] == 0.5 * 4999 + 1


def test_a_plan_keeps_no_tape_that_its_feeds_named() -> None:
    """Values as keys are not remembered: they are refused once their tape is sealed, and the tape goes."""
    tape = Tape()
    x = tape.input(2.0)
    out = (x * 3.0).symbol
    bound = Tape.record(lambda other: other.input(1.0))[0]
    assert len(bound) == 1
    network = tape.into_network()
    plan, parameters = network.entry(out).lower(), network.parameters()
    symbol = Symbol(out.family, 0)
    for _ in range(2):
        with pytest.raises(SealedError):
            plan.forward(parameters, {x: 1.0})
        assert plan.forward(parameters, {symbol: 4.0}).of(out).scalar() == 12.0


def test_a_refused_feed_lets_the_others_go() -> None:
    """Nothing of a call that failed is kept by the memory of later ones."""
    network, (number, row, _, out) = model("f32", 5000)
    plan, parameters = network.entry(out).lower(), network.parameters()
    given = np.ones(5000, np.float32)
    kept = weakref.ref(given)
    with pytest.raises(FeedError):
        plan.forward(parameters, {row: given, number: [1.0, 2.0]})
    del given
    assert kept() is None


def test_a_small_result_of_many_gaps_keeps_no_arena() -> None:
    """A column of a large value is copied out: who keeps it keeps its own numbers alone."""
    x = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
    network, column = Tape.record(lambda tape: (tape.input(x) * 2.0).narrow(1, 3, 1))
    found = network.entry(column).lower().forward(network.parameters()).of(column).narrow(0, 0, 100)
    assert found.numpy().reshape(-1).tolist() == (x[:100, 3] * 2).tolist()
    network, column = Tape.record(lambda tape: (tape.input(x) * 2.0).narrow(1, 3, 1).narrow(0, 0, 100))
    found = network.entry(column).lower().forward(network.parameters()).of(column)
    assert found.numpy().reshape(-1).tolist() == (x[:100, 3] * 2).tolist()
    assert found.dense_buffer().base is None or found.dense_buffer().base.nbytes <= 400


# ---- what happens while native code asks Python


class Key(Symbol):
    """A symbol whose == does something first."""

    __slots__ = ()
    __hash__ = Symbol.__hash__
    before: Any = None

    def __eq__(self, other: object) -> bool:
        """Do it, and compare as symbols do."""
        return type(self).before() or Symbol.__eq__(self, other)


def raising(error: type[BaseException]) -> Any:
    """Return what raises an error."""

    def act(*_: Any) -> Any:
        raise error

    return act


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_a_comparison_of_keys_raises_is_raised(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is cleared, and the next run is not affected."""
    network, (number, row, _, out) = model("f32", 3)
    plan, parameters = network.entry(out).lower(), network.parameters()
    ones = np.ones(3, np.float32)
    monkeypatch.setattr(Key, "before", raising(error))
    for _ in range(2):
        assert plan.forward(parameters, {number: 2.0, row: ones}).of(out).to_list() == [3, 3, 3]
        for key in (Key(row.family, row.index), Key(number.family, number.index)):
            feeds = {number: 2.0, key: ones} if key.index == row.index else {key: 2.0, row: ones}
            with pytest.raises(error):
                plan.forward(parameters, feeds)


def test_keys_that_equal_each_other_name_their_own_inputs() -> None:
    """A run finds its feeds without asking keys again: of one input by equal symbols, of two that say they are equal."""

    class Same(Symbol):
        __slots__ = ()
        compared: ClassVar[list[Any]] = []

        def __eq__(self, other: object) -> bool:
            self.compared.append(other)
            return isinstance(other, Same)

        def __hash__(self) -> int:
            return 1

    network, (number, row, _, out) = model("f32", 3)
    plan, parameters = network.entry(out).lower(), network.parameters()
    ones = np.ones(3, np.float32)
    keys = Same(number.family, number.index), Same(row.family, row.index)
    for _ in range(3):
        for run in (plan.forward, network.forward):
            found = run(parameters, [(keys[0], 5.0), (keys[1], ones), (number, 2.0)])
            assert found.of(out).to_list() == [3, 3, 3]
    assert not Same.compared


def test_a_key_lives_while_it_is_compared() -> None:
    """Its == may empty the dictionary that held it, and leave the answer to the other symbol."""
    events: list[str] = []

    class Known(Symbol):
        __slots__ = ()
        __hash__ = Symbol.__hash__

        def __eq__(self, other: object) -> bool:
            events.append("compared")
            return Symbol.__eq__(self, other)

    class Fed(Known):
        __slots__ = ()
        __hash__ = Symbol.__hash__

        def __eq__(self, other: object) -> bool:
            feeds.clear()
            return NotImplemented

        def __del__(self) -> None:
            events.append("gone")

    network, (number, _, _, out) = model("f32", 3)
    plan, parameters = network.entry(out).lower(), network.parameters()
    plan.forward(parameters, {Known(number.family, number.index): 3.0})
    feeds: dict[Any, Any] = {Fed(number.family, number.index): 3.0}
    plan.forward(parameters, feeds)
    assert events == ["compared", "gone"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a class has no __buffer__")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_a_buffer_raises_is_raised_unless_it_refuses(error: type[BaseException]) -> None:
    """TypeError, BufferError and ValueError say that there is no such buffer: the feed is read in another way."""
    network, (_, row, _, out) = model("f32", 3)
    plan, parameters = network.entry(out).lower(), network.parameters()
    kept = np.ones(3, np.float32)

    class Given:
        def __init__(self, error: type[BaseException]) -> None:
            self.errors = [error]

        def __buffer__(self, flags: int) -> memoryview:
            if self.errors:
                raise self.errors.pop()
            return memoryview(kept)

        def __array__(self, *_: Any, **__: Any) -> Any:
            return kept

    for refusal in (TypeError, BufferError, ValueError):
        assert plan.forward(parameters, {row: Given(refusal)}).of(out).to_list() == [1.5] * 3
    with pytest.raises(error):
        plan.forward(parameters, {row: Given(error)})


# ---- memory that is not what it seems


@pytest.mark.parametrize("size", [3, 5000], ids=["in its room", "large"])
def test_a_tensor_over_strided_memory_is_not_read_as_if_it_were_dense(size: int) -> None:
    """It is refused, as the reference does."""
    network, (_, row, _, out) = model("f32", size)
    plan, parameters = network.entry(out).lower(), network.parameters()
    numbers = np.arange(2 * size, dtype=np.float32)
    for memory in (numbers[::2], np.lib.stride_tricks.as_strided(numbers, (size,), (0,))):
        given = Tensor.of_buffer(network.columns.element, memory, Layout.dense(Shape((size,))))
        for run in (plan.forward, network.forward):
            with pytest.raises(ValueError, match="contiguous"):
                run(parameters, {row: given})


def exporter(letters: bytes, item: int, kept: list[Any]) -> Any:
    """Return an object whose buffer of three numbers says it has a format, and how many bytes each takes."""
    facts = ctypes.create_string_buffer(24), ctypes.create_string_buffer(letters), (ctypes.c_int64 * 2)(3, item)
    at = [ctypes.addressof(each) for each in facts]

    def fill(_: Any, view: int, flags: int) -> int:
        words = (ctypes.c_int64 * 10).from_address(view)
        words[:] = at[0], 0, 3 * item, item, 1 | 1 << 32, at[1], at[2], at[2] + 8, 0, 0
        return 0

    class Slot(ctypes.Structure):
        _fields_ = (("which", ctypes.c_int), ("function", ctypes.c_void_p))

    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(fill)
    slots = (Slot * 2)(Slot(1, ctypes.cast(function, ctypes.c_void_p).value), Slot(0, None))
    words = (ctypes.c_int64 * 4)(0, object.__basicsize__, 0, ctypes.addressof(slots))
    name = ctypes.create_string_buffer(b"tests.Exporter")
    words[0] = ctypes.addressof(name)
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p]
    kept.extend((facts, function, slots, name, words))
    return make(ctypes.addressof(words))()


@pytest.mark.parametrize(
    ("element", "letters", "item", "is_left"),
    [
        ("f32", b"f", 4, False),
        ("f32", b"f", 8, True),
        ("f64", b"d", 4, True),
        ("bf16", b"", 2, True),
        ("f16", b"", 2, True),
    ],
)
def test_buffers_are_known_by_format_and_size(
    element: Any, letters: bytes, item: int, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of other sizes, and a format of no letter, are left to Python in every element."""
    left: list[Any] = []
    monkeypatch.setattr(Lowered, "take", lambda _, __, ___, data: left.append(data))
    network, (_, row, _, out) = model(element, 3)
    lowered = network.entry(out).lower().lowered
    assert lowered is not None
    kept: list[Any] = []
    given = exporter(letters, item, kept)
    lowered.start({row: given})
    assert any(each is given for each in left) is is_left
