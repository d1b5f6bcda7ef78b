"""`Tensor`: constructors and their errors, readers, views that never copy, exchange with NumPy and DLPack."""

from __future__ import annotations

import ctypes
import gc
import pickle
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.helpers import ELEMENTS, bits, dense_copy, drawn, same_bits, special, strided
from topos import F32, F64, Bf16, Element, ElementError, ExportError, Shape, ShapeError, Tensor
from topos.payload.dlpack import _recoded


def shares(view: Tensor, of: Tensor) -> bool:
    """Return whether two tensors read one buffer."""
    return view.buffer is of.buffer


# ---- constructors


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_from_data(element: Element) -> None:
    """Numbers, nested lists, arrays, tensors and counted elements all make row-major tensors."""
    matrix = Tensor([[1, 2, 3], [4, 5, 6]], element=element)
    assert (matrix.shape, matrix.element, str(matrix.shape)) == ((2, 3), element, "[2, 3]")
    assert matrix.to_list() == [1, 2, 3, 4, 5, 6]
    same = [
        Tensor((2, 3), range(1, 7), element=element),
        Tensor([2, 3], np.arange(1.0, 7.0), element=element),
        Tensor(np.arange(1, 7).reshape(2, 3), element=element),
        Tensor(np.asfortranarray(np.arange(1, 7).reshape(2, 3)), element=element),
        Tensor(matrix),
        Tensor([matrix, matrix]).narrow(0, 1, 1).reshape([2, 3]),
        Tensor([[Tensor(float(3 * i + j), element=element) for j in (1, 2, 3)] for i in (0, 1)]),
        Tensor(np.arange(6.0, 0.0, -1.0)[::-1].reshape(2, 3), element=element),
    ]
    for tensor in same:
        assert tensor == matrix
        assert tensor.element is element
    assert Tensor(2.5, element=element).shape == ()
    assert Tensor(2.5, element=element).scalar() == float(Tensor(2.5, element=element)) == 2.5
    assert [bool(Tensor(number, element=element)) for number in (0.0, -0.0, 2.0, float("nan"))] == [
        False,
        False,
        True,
        True,
    ]
    for refused, what in ((bool, "the truth of a tensor"), (float, r"scalar\(\)")):
        with pytest.raises(ShapeError, match=rf"{what} of shape \[1\]: only rank 0 is one number"):
            refused(Tensor([1.0], element=element))


def test_elements_default_to_f32() -> None:
    """Python numbers and integer arrays make F32; arrays of a float type keep it."""
    assert Tensor([1, 2]).element is F32
    assert Tensor(np.arange(3)).element is F32
    assert Tensor(np.arange(3.0)).element is F64
    assert Tensor([[Fraction(1, 2)]]).element.name == "Fraction"
    assert Tensor(np.float16(1)).element.name == "f16"
    assert Tensor(np.zeros(2, ml_dtypes.bfloat16)).element.name == "bf16"
    assert Tensor(np.arange(3.0), element=np.float16).element.name == "f16"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Tensor([2, 3], [1.0, 2.0]), ShapeError, "Tensor([2, 3], ...): 6 elements expected, 2 given"),
        (lambda: Tensor([2], [[1.0, 2.0, 3.0]]), ShapeError, "Tensor([2], ...): 2 elements expected, 3 given"),
        (lambda: Tensor([]), ShapeError, "Tensor of shape [0]: a tensor holds at least one element"),
        (lambda: Tensor([[], []]), ShapeError, "Tensor of shape [2, 0]: a tensor holds at least one element"),
        (lambda: Tensor([2, 0], []), ShapeError, "Tensor of shape [2, 0]: a tensor holds at least one element"),
        (
            lambda: Tensor(np.zeros((3, 0, 2))),
            ShapeError,
            "Tensor of shape [3, 0, 2]: a tensor holds at least one element",
        ),
        (lambda: Tensor.filled([0], 1), ShapeError, "Tensor.filled([0], ...): a tensor holds at least one element"),
        (
            lambda: Tensor.filled([2], Tensor([1, 2])),
            ShapeError,
            "Tensor.filled takes one value, not a tensor of shape [2]",
        ),
        (
            lambda: Tensor.selection([], 4),
            ShapeError,
            "Tensor.selection of shape [0, 4]: a tensor holds at least one element",
        ),
        (
            lambda: Tensor.selection([0], 0),
            ShapeError,
            "Tensor.selection of shape [1, 0]: a tensor holds at least one element",
        ),
        (lambda: Tensor.selection([0, 4], 4), IndexError, "Tensor.selection: index 4 at position 1 is outside 0..3"),
        (lambda: Tensor.selection([-1], 4), IndexError, "Tensor.selection: index -1 at position 0 is outside 0..3"),
        (lambda: Tensor.selection([0.5], 4), ElementError, "Tensor.selection: indices are integers, not float64"),
        (
            lambda: Tensor([1.0, 2.0]).scalar(),
            ShapeError,
            "scalar() of shape [2]: only rank 0 is one number; read numpy() or iterate",
        ),
        (
            lambda: Tensor([1.0]).scalar(),
            ShapeError,
            "scalar() of shape [1]: only rank 0 is one number; read numpy() or iterate",
        ),
        (
            lambda: Tensor(1.0) + Tensor(np.float64(1)),
            ElementError,
            "a tensor of f64 beside one of f32: convert it, e.g. tensor.convert('f32')",
        ),
    ],
)
def test_refused(make: Any, error: type[Exception], message: str) -> None:
    """A mistake is refused where it is made; the message names the shapes and the rule."""
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value) == message


def test_ragged_lists_are_refused() -> None:
    """Nested lists of unequal lengths are a ShapeError, for a number class too."""
    for data, element in (([[1, 2], [3]], None), ([[1.0], 2.0], "f64")):
        with pytest.raises(ShapeError, match="the nested lists are ragged"):
            Tensor(data, element=element)
    with pytest.raises(ShapeError, match="the nested lists are ragged"):
        Tensor([[Fraction(1), Fraction(2)], [Fraction(3)]])


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_constants(element: Any) -> None:
    """A filled tensor stores one number, whatever its shape."""
    filled = Tensor.filled([2, 3], 5, element=element)
    assert filled.buffer.size == 1
    assert filled.to_list() == [5] * 6
    assert filled.as_constant() == 5
    assert Tensor.counted([4], 3, element=element).is_counted([4], 3)
    assert not filled.is_counted([3, 2], 5)
    assert not filled.is_counted([2, 3], 4)
    assert Tensor([[5, 5, 5]] * 2, element=element).is_counted([2, 3], 5)
    assert Tensor([5, 5], element=element).as_constant() is None
    assert Tensor([5, 6], element=element).as_constant() is None
    assert Tensor(5, element=element).as_constant() == 5
    zeros, ones = filled.zero_like(), filled.one_like()
    assert (zeros.as_constant(), ones.as_constant(), ones.shape, ones.buffer.size) == (0, 1, (2, 3), 1)


def test_filled_takes_a_tensor() -> None:
    """The value may be a tensor of one element; `element` converts it."""
    value = Tensor(1 / 3, element="f64")
    assert Tensor.filled([2], value).element is F64
    assert Tensor.filled([2], value, element="f32").to_list() == [np.float32(1 / 3)] * 2
    narrowed = Tensor([1.0, 2.0, 3.0]).narrow(0, 1, 1)
    assert Tensor.filled([2, 2], narrowed).to_list() == [2.0] * 4


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_selections(element: Any) -> None:
    """A one-hot matrix is kept as its indices, and reads as the matrix that it is."""
    selection = Tensor.selection([2, 0, 2], 4, element=element)
    dense = Tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0]], element=element)
    assert selection.is_selection
    assert not dense.is_selection
    assert selection.buffer is None
    assert selection == dense
    assert selection.as_constant() is None
    assert selection.dense() == dense
    assert dense.dense() is dense
    assert selection.indices().tolist() == dense.indices().tolist() == [2, 0, 2]
    assert Tensor.filled([3, 1], 1, element=element).indices().tolist() == [0, 0, 0]
    for bad in ([[0, 0]], [[1, 1]], [[0, 2]], [[1, 0], [0, 3]]):
        assert Tensor(bad, element=element).indices() is None
    assert Tensor([1, 0], element=element).indices() is None
    assert Tensor.selection(np.array([1], np.uint8), 2, element=element).indices().dtype == np.int64


# ---- an array handed over is copied (case 22)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_the_caller_may_change_its_array(element: Element) -> None:
    """A later change of an array, of a list or of indices changes no tensor."""
    array = np.ones((2, 2), element.dtype)
    nested = [[1.0, 1.0], [1.0, 1.0]]
    indices = np.array([0, 1])
    tensors = [
        Tensor(array),
        Tensor([2, 2], array),
        Tensor(nested, element=element),
        Tensor(array[::-1].T),
        Tensor.filled([2, 2], array[0, 0], element=element),
        Tensor(np.ones((2, 2), element.dtype)) + array - array,
    ]
    selection = Tensor.selection(indices, 2, element=element)  # type: ignore[arg-type]
    array[...], nested[0][0], indices[...] = 7, 7.0, 0
    for tensor in tensors:
        assert tensor.to_list() == [1] * 4
    assert selection.to_list() == [1, 0, 0, 1]


def test_objects_are_copied_too() -> None:
    """The same for an object array of a number class."""
    array = np.array([Fraction(1), Fraction(2)], object)
    tensor = Tensor(array)
    array[0] = Fraction(9)
    assert tensor.to_list() == [1, 2]


# ---- views


@pytest.mark.parametrize("element", [*ELEMENTS, Fraction], ids=str)
def test_views_share_the_buffer(element: Any) -> None:
    """No movement copies a dense buffer, and each reads what NumPy reads."""
    base = Tensor(np.arange(24).reshape(2, 3, 4), element=element)
    array = base.numpy()
    views = [
        (base.permute([2, 0, 1]), array.transpose(2, 0, 1)),
        (base.narrow(2, 1, 2), array[:, :, 1:3]),
        (base.broadcast_along(0, 2), np.stack([array, array])),
        (base.reshape([6, 4]), array.reshape(6, 4)),
        (base.reshape([4, 6]).permute([1, 0]).reshape([6, 1, 4]), array.reshape(4, 6).T[:, None]),
        (base.unfold(2, 2, 1), np.stack([array[:, :, i : i + 2] for i in range(3)], 2)),
        (base.narrow(0, 1, 1).reshape([12]), array[1].reshape(12)),
    ]
    for view, wanted in views:
        assert np.array_equal(view.numpy(), wanted)
        if element is not Fraction:
            assert shares(view, base)
    if element is not Fraction:
        copied = base.permute([2, 1, 0]).reshape([24])
        assert not shares(copied, base)
        assert np.array_equal(copied.numpy(), array.T.reshape(24))
        assert shares(base.narrow(1, 2, 1).narrow(2, 3, 1).narrow(0, 0, 1).broadcast([5]), base)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_constants_stay_constant(element: Element) -> None:
    """Operations over constants compute one element: a shape of 2**50 elements costs nothing."""
    huge = Tensor.filled([2**25, 2**25], 3, element=element)
    results = [
        huge + huge, huge * 2, -huge, huge.sqrt(), huge.maximum(huge), huge.step(1.0).select(huge, huge),
        huge.reshape([2**50]), huge.permute([1, 0]), huge.narrow(0, 5, 2**24), huge.unfold(0, 3, 2),
        huge.broadcast_along(0, 4), huge.convert("f32").convert(element),
    ]  # fmt: skip
    assert [float(result.as_constant()) for result in results] == pytest.approx(
        [6, 6, -3, 3**0.5, 3, 3, 3, 3, 3, 3, 3, 3], rel=2**-7
    )
    assert all(result.buffer.nbytes <= 128 for result in results)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_elementwise_over_a_broadcast_stays_a_view(element: Element) -> None:
    """Only the addressed window is computed, if it is narrower than the volume."""
    row = drawn([3], element)
    spread = row.broadcast_along(0, 2**40)
    result = (spread * spread + 1).tanh()
    assert result.shape == (2**40, 3)
    assert result.layout.strides[0] == 0
    assert result.buffer.nbytes <= 256
    assert same_bits(result.narrow(0, 2**39, 1).reshape([3]), (row * row + 1).tanh())
    mixed = drawn([4, 1], element).reshape([4]).broadcast_along(1, 3) + row.broadcast_along(0, 4)
    assert mixed.layout.is_dense


def test_storage_survives_its_views() -> None:
    """A view keeps the memory that it reads alive."""
    view = (drawn([1000], F64) + 1).narrow(0, 500, 3)
    before = view.to_list()
    gc.collect()
    junk = [np.full(1000, 7.0) for _ in range(50)]
    assert view.to_list() == before
    assert len(junk) == 50


# ---- readers, comparison, text


def test_iteration_is_row_major() -> None:
    """Iterating gives the numbers of the logical order, of the element's type."""
    matrix = Tensor([[1.0, 2.0], [3.0, 4.0]]).permute([1, 0])
    assert list(matrix) == matrix.to_list() == [1.0, 3.0, 2.0, 4.0]
    assert {type(number) for number in matrix} == {np.float32}
    assert list(Tensor(2.0)) == [2.0]


def test_equality_compares_shapes_and_contents() -> None:
    """Float semantics: zeros of both signs are equal, NaN equals nothing; layout and storage do not matter."""
    matrix = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert matrix == matrix.permute([1, 0]).permute([1, 0])
    assert matrix.permute([1, 0]) == Tensor([[1.0, 3.0], [2.0, 4.0]])
    assert matrix != matrix.permute([1, 0])
    assert Tensor([1.0]) != Tensor(1.0)
    assert Tensor([0.0]) == Tensor([-0.0])
    assert Tensor([np.nan]) != Tensor([np.nan])
    assert Tensor.filled([2], 1) == Tensor([1.0, 1.0])
    assert Tensor([1.0]) != "text"
    assert Tensor([Fraction(1, 2)]) == Tensor([0.5], element="f64")
    with pytest.raises(TypeError, match="unhashable"):
        hash(matrix)


@pytest.mark.parametrize(
    ("tensor", "text", "long"),
    [
        (Tensor(1.5), "1.5", "Tensor(1.5, shape=[], element=f32)"),
        (Tensor([[1, 2], [3, 4]]), "[[1.0, 2.0], [3.0, 4.0]]", None),
        (Tensor([1, -0.0], element="bf16"), "[1, -0]", "Tensor([1, -0], shape=[2], element=bf16)"),
        (Tensor([Fraction(1, 3)]), "[1/3]", "Tensor([1/3], shape=[1], element=Fraction)"),
        (Tensor.selection([1], 2), "[[0.0, 1.0]]", None),
        (Tensor.filled([65], 1), None, "Tensor(..., shape=[65], element=f32)"),
        (Tensor.filled([2**50], 1), None, f"Tensor(..., shape=[{2**50}], element=f32)"),
    ],
)
def test_text(tensor: Tensor, text: str | None, long: str | None) -> None:
    """A bare number at rank 0, nested lists above; `repr` adds shape and element and stays short."""
    assert text is None or str(tensor) == text
    assert long is None or repr(tensor) == long


# ---- conversions


@pytest.mark.parametrize("source", ELEMENTS, ids=str)
@pytest.mark.parametrize("target", ELEMENTS, ids=str)
def test_convert_keeps_the_storage_kind(source: Element, target: Element) -> None:
    """Constants stay constants, selections stay selections, views give their numbers."""
    assert Tensor.filled([2**40], 3, element=source).convert(target).as_constant() == 3
    selection = Tensor.selection([1, 0], 3, element=source).convert(target)
    assert (selection.is_selection, selection.element) == (True, target)
    view = drawn([3, 4], source).permute([1, 0])
    assert same_bits(view.convert(target), dense_copy(view).convert(target))
    assert view.convert(source) is view
    assert view.convert(target.name).element is target


# ---- exchange


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_numpy_is_a_read_only_view(element: Element) -> None:
    """`numpy()` and `np.asarray` share the buffer and refuse to be written; a copy is the caller's own."""
    tensor = drawn([2, 3], element)
    for array in (tensor.numpy(), np.asarray(tensor), tensor.permute([1, 0]).numpy()):
        assert array.dtype == element.dtype
        assert np.shares_memory(array.view(element.raw), tensor.buffer)
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    before = bits(tensor)
    for own in (np.array(tensor), tensor.__array__(copy=True), np.asarray(tensor, np.float64).copy()):
        own[...] = 0
    assert np.array_equal(bits(tensor), before)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    assert np.asarray(tensor, element.dtype).dtype == element.dtype


def test_array_without_a_copy() -> None:
    """`copy=False` is refused where the element differs."""
    with pytest.raises(ValueError, match="a f32 tensor is no float64 array without a copy"):
        np.array(Tensor([1.0]), np.float64, copy=False)
    assert np.array(Tensor([1.0]), copy=False).tolist() == [1.0]


@pytest.mark.parametrize("element", [e for e in ELEMENTS if e.name != "bf16"], ids=str)
def test_dlpack(element: Element) -> None:
    """NumPy reads a tensor of any layout through DLPack without a copy, and read-only."""
    for name, tensor in strided((2, 3), element):
        array = np.from_dlpack(tensor)
        assert np.array_equal(bits(array), bits(tensor)), name
        assert np.shares_memory(array.view(element.raw), tensor.dense().buffer)
        assert not array.flags.writeable
    assert tensor.__dlpack_device__() == (1, 0)


class Foreign:
    """An array of a library that NumPy does not know: DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Old(Foreign):
    """A consumer of the protocol before 1.0: it passes no version."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__()


def test_dlpack_before_version_1_gets_its_own_copy() -> None:
    """Such a consumer could write: it is given memory of its own."""
    tensor = drawn([4], F32)
    array = np.from_dlpack(Old(tensor))  # type: ignore[arg-type]
    assert np.array_equal(bits(array), bits(tensor))
    assert not np.shares_memory(array, tensor.buffer)


def test_dlpack_of_objects_is_refused() -> None:
    """The protocol has no type for them: a BufferError, as it asks, that says what to do."""
    with pytest.raises(ExportError, match=r"no type for elements of Fraction: convert the tensor") as caught:
        np.from_dlpack(Tensor([Fraction(1)]))
    assert isinstance(caught.value, BufferError)


class Brain:
    """An array of bf16 in another library: DLPack alone, with the protocol's own type code."""

    def __init__(self, tensor: Tensor, versioned: bool) -> None:
        self.tensor, self.versioned = tensor, versioned

    def __dlpack__(self, max_version: Any = None, **options: Any) -> Any:
        return self.tensor.__dlpack__(max_version=max_version if self.versioned else None, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_dlpack_of_bf16() -> None:
    """Out under the type code of bfloat, with a version and without one, and in again: the same bits."""
    for name, tensor in strided((2, 3), Bf16):
        for versioned in (False, True):
            back = Tensor(Brain(tensor, versioned))
            assert back.element is Bf16, name
            assert same_bits(back, tensor)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for name_, at, options in ((b"dltensor", 20, {}), (b"dltensor_versioned", 52, {"max_version": (1, 0)})):
        capsule = tensor.__dlpack__(**options)  # type: ignore[arg-type]
        assert bytes((ctypes.c_uint8 * 4).from_address(pointer(capsule, name_) + at)) == bytes([4, 16, 1, 0])
        ctypes.c_uint8.from_address(pointer(capsule, name_) + at).value = 9
        with pytest.raises(ExportError, match="type code 9"):
            _recoded(capsule, 4, 1)


def test_dlpack_in() -> None:
    """A foreign array is copied: its owner may change it."""
    array = np.arange(6.0).reshape(2, 3)
    tensor = Tensor(Foreign(array))
    array[...] = 0
    assert (tensor.element, tensor.shape, tensor.to_list()) == (F64, (2, 3), [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_pickling(element: Element) -> None:
    """Every layout and storage kind comes back with its bits; constants and selections stay what they are."""
    for name, tensor in strided((3, 2), element):
        back = pickle.loads(pickle.dumps(tensor))
        assert same_bits(back, tensor), name
        assert back.element is element
        assert back.layout.is_constant == tensor.layout.is_constant
        with pytest.raises(ValueError, match="read-only"):
            back.numpy()[...] = 0
    selection = pickle.loads(pickle.dumps(Tensor.selection([1, 0], 2, element=element)))
    assert (selection.is_selection, selection.element) == (True, element)
    assert len(pickle.dumps(Tensor.filled([2**40], 1, element=element))) < 1000


def test_pickling_objects() -> None:
    """A number class pickles with its numbers."""
    for tensor in (Tensor([Fraction(1, 3), Fraction(2)]), Tensor.filled([3], Fraction(1, 7))):
        back = pickle.loads(pickle.dumps(tensor))
        assert back == tensor
        assert back.element is tensor.element


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_movement_keeps_all_bits(element: Element) -> None:
    """A NaN's payload and sign travel unchanged through views, copies, gathers and pickles."""
    size = element.raw.itemsize
    unsigned = np.dtype(f"u{size}")
    patterns = np.arange(1, 13, dtype=unsigned) | np.array(Tensor([-np.inf], element=element).numpy()).view(unsigned)
    tensor = Tensor(patterns.view(element.dtype).reshape(4, 3))

    def raw(given: Tensor) -> list[int]:
        return np.ascontiguousarray(given.numpy()).view(unsigned).ravel().tolist()

    square = patterns.reshape(4, 3)
    assert raw(tensor) == patterns.tolist()
    assert raw(tensor.permute([1, 0]).reshape([12])) == square.T.ravel().tolist()
    assert raw(tensor.gather(Tensor.selection([3, 1], 4, element=element))) == square[[3, 1]].ravel().tolist()
    assert raw(tensor.pad(0, 1, 6).narrow(0, 1, 4)) == patterns.tolist()
    assert raw(tensor.permute([1, 0]).pad(1, 1, 6).narrow(1, 1, 4)) == square.T.ravel().tolist()
    assert raw(pickle.loads(pickle.dumps(tensor))) == patterns.tolist()


def test_a_special_tensor_is_special() -> None:
    """The drawn data of these tests holds NaN, infinities and zeros of both signs."""
    values = special((200,), F32).numpy()
    assert np.isnan(values).any()
    assert np.isinf(values).any()
    assert {0, 1 << 31} <= set(bits(values).tolist())
    assert Shape(values.shape) == (200,)
