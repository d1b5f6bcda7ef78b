"""`Tensor`: an immutable payload, a shared buffer read through a layout. `topos.ops` gives it arithmetic."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from topos.errors import ElementError, PositionError, ShapeError
from topos.payload import dlpack
from topos.payload.element import F32, Element, ElementLike, element_of, element_of_data, is_zero
from topos.payload.layout import Layout
from topos.payload.recordable import Recordable
from topos.payload.shape import Shape, ShapeLike

# Integers up to this are numbers of f64: what is rounded from there is rounded once.
EXACT = 1 << 53


class Tensor(Recordable):
    """Numbers of one element in a shape; never empty, never changed.

    ``Tensor(data)`` takes a number, nested lists, a NumPy array or anything with DLPack, and copies it;
    ``Tensor(shape, elements)`` takes the elements row-major. The element is that of the data where it
    has one, else F32; ``element=`` converts.

    Storage is a buffer with a layout (views share the buffer), or a selection: a one-hot matrix kept as
    its indices.

    Raises:
        ShapeError: the count of elements differs from the volume, or there are none.
        ElementError: the data holds no numbers of the element.

    >>> print((Tensor([[1.0, 2.0], [3.0, 4.0]]).T * 2).sum_along(0))
    [6.0, 14.0]
    """

    __slots__ = ("__weakref__", "_selection", "buffer", "element", "layout")
    __array_priority__ = 1000  # `array * tensor` is a tensor

    buffer: Any
    _selection: np.ndarray[Any, Any] | None
    max_along: Callable[[int], Tensor]

    def __init__(self, shape: Any, elements: Any = None, *, element: ElementLike = None) -> None:
        data = _foreign(shape if elements is None else elements)
        found = element_of_data(data) or F32
        self.element = found if element is None else element_of(element)
        array = self.element.array(data)
        if elements is not None:
            wanted = Shape(shape)
            if array.size != wanted.volume:
                raise ShapeError(f"Tensor({wanted}, ...): {wanted.volume} elements expected, {array.size} given")
            array = array.reshape(wanted)
        if array.size == 0:
            raise ShapeError(f"Tensor of shape {Shape(array.shape)}: a tensor holds at least one element")
        self.buffer = np.ascontiguousarray(array).reshape(-1).view(self.element.raw)
        self.buffer.flags.writeable = False
        self.layout, self._selection = Layout.dense(Shape(array.shape)), None

    @classmethod
    def of_buffer(cls, element: Element, buffer: Any, layout: Layout) -> Tensor:
        """Return the tensor that reads a flat buffer of `element.raw` through a layout, without a copy."""
        self = cls.__new__(cls)
        self.element = element
        self.buffer = buffer
        self.layout = layout
        self._selection = None
        return self

    @classmethod
    def given(cls, data: Any, element: Element, where: str) -> Tensor:
        """Return a tensor as it is, other data as a tensor of an element.

        Raises:
            ElementError: a tensor of another element; the message says `where` it met this one.
        """
        if not isinstance(data, Tensor):
            return cls(data, element=element)
        if data.element is not element:
            remedy = f"convert it, e.g. tensor.convert({element.name!r})"
            raise ElementError(f"a tensor of {data.element.name} {where} {element.name}: {remedy}")
        return data

    @classmethod
    def single(cls, given: Any, element: ElementLike, what: str) -> Tensor:
        """Return a number or one-element tensor as a rank-0 tensor of an element.

        Raises:
            ShapeError: it holds more than one value; the message says `what` needs one.
        """
        tensor = given.convert(element) if isinstance(given, Tensor) else cls(given, element=element)
        if tensor.shape.volume != 1:
            raise ShapeError(f"{what}: a single value is needed, not shape {tensor.shape}")
        return tensor.reshape([])

    def view(self, layout: Layout) -> Tensor:
        """Return the same memory, which is no selection's, under another layout."""
        return Tensor.of_buffer(self.element, self.buffer, layout)

    @classmethod
    def filled(cls, shape: ShapeLike, value: Any, *, element: ElementLike = None) -> Tensor:
        """Return one number repeated over a shape, stored once.

        Raises:
            ShapeError: the shape holds no element.
        """
        wanted = Shape(shape)
        if wanted.volume == 0:
            raise ShapeError(f"Tensor.filled({wanted}, ...): a tensor holds at least one element")
        single = value if isinstance(value, Tensor) else cls(value, element=element)
        single = single if element is None else single.convert(element)
        if single.shape.volume != 1:
            raise ShapeError(f"Tensor.filled takes one value, not a tensor of shape {single.shape}")
        return cls.of_buffer(single.element, single.dense_buffer()[:1], Layout(wanted, (0,) * wanted.rank))

    @classmethod
    def counted(cls, shape: ShapeLike, n: int | None, *, element: ElementLike = F32) -> Tensor:
        """Return the integer `n` (`Element.from_count`; None: minus infinity) repeated over a shape, stored once."""
        kind = element_of(element)
        return cls.filled(shape, cls(kind.negative_infinity if n is None else kind.from_count(n), element=kind))

    @classmethod
    def selection(cls, indices: Sequence[int], vocabulary: int, *, element: ElementLike = F32) -> Tensor:
        """Return the one-hot matrix ``[len(indices), vocabulary]``, stored as its indices.

        Raises:
            ShapeError: there are no indices, or no vocabulary.
            PositionError: an index is outside the vocabulary.
        """
        given = np.asarray(indices)
        if given.size and given.dtype.kind not in "iu":
            raise ElementError(f"Tensor.selection: indices are integers, not {given.dtype.name}")
        positions = given.astype(np.int64).reshape(-1)
        shape = Shape((positions.size, int(vocabulary)))
        if shape.volume == 0:
            raise ShapeError(f"Tensor.selection of shape {shape}: a tensor holds at least one element")
        outside = (positions < 0) | (positions >= vocabulary)
        if outside.any():
            where = int(np.argmax(outside))
            index = f"index {positions[where]} at position {where}"
            raise PositionError(f"Tensor.selection: {index} is outside 0..{vocabulary - 1}")
        positions.flags.writeable = False
        self = cls.__new__(cls)
        self.element, self.buffer, self.layout = element_of(element), None, Layout.dense(shape)
        self._selection = positions
        return self

    # ---- readers
    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.layout.shape

    @property
    def is_selection(self) -> bool:
        """Whether this is a one-hot matrix stored as indices."""
        return self._selection is not None

    def indices(self) -> np.ndarray[Any, Any] | None:
        """Return the hot positions of a one-hot matrix as int64; None where some row is not one-hot."""
        if self._selection is not None:
            return self._selection
        if self.shape.rank != 2:
            return None
        array = self.numpy()
        hot, cold = array == self.element.one, array == 0
        if self.element.kind is not None:  # number by number: a type may refuse arrays
            tests = functools.partial(operator.eq, self.element.one), is_zero
            hot, cold = (np.frompyfunc(test, 1, 1)(array).astype(bool) for test in tests)
        if not ((hot.sum(axis=1) == 1).all() and (hot | cold).all()):
            return None
        return np.ascontiguousarray(hot.argmax(axis=1), np.int64)

    def dense(self) -> Tensor:
        """Return this tensor with a buffer: a selection is written out, others are returned as they are."""
        if self._selection is None:
            return self
        array = np.full(tuple(self.shape), self.element.zero, self.element.dtype)
        array[np.arange(self.shape[0]), self._selection] = self.element.one
        return Tensor(array, element=self.element)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a read-only NumPy array: a view of the buffer (of a fresh one for a selection)."""
        tensor = self.dense()
        layout, item = tensor.layout, self.element.raw.itemsize
        if layout.is_dense:
            array: np.ndarray[Any, Any] = tensor.dense_buffer().reshape(layout.shape)
        else:
            strides = tuple(stride * item for stride in layout.strides)
            array = np.lib.stride_tricks.as_strided(tensor.buffer[layout.offset :], tuple(layout.shape), strides)
        array.flags.writeable = False
        return array.view(self.element.dtype) if array.dtype != self.element.dtype else array

    def dense_buffer(self) -> Any:
        """Return the elements row-major in a flat buffer of `element.raw`; a copy only where needed."""
        tensor = self.dense()
        layout = tensor.layout
        if layout.is_dense:
            return tensor.buffer[layout.offset : layout.offset + layout.shape.volume]
        return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(self.element.raw)

    def scalar(self) -> Any:
        """Return the number of a rank-0 tensor.

        Raises:
            ShapeError: the rank is not 0.
        """
        if self.shape.rank != 0:
            raise ShapeError(f"scalar() of shape {self.shape}: only rank 0 is one number; read numpy() or iterate")
        return self.numpy()[()]

    def __float__(self) -> float:
        return float(self.scalar())

    def __bool__(self) -> bool:
        if self.shape.rank != 0:
            raise ShapeError(f"the truth of a tensor of shape {self.shape}: only rank 0 is one number; compare numpy()")
        return not is_zero(self.scalar())

    def as_constant(self) -> Any:
        """Return the one stored number that all positions read, or None: a buffer of equal values is no constant."""
        if self._selection is not None or not self.layout.is_constant:
            return None
        return self.numpy()[(0,) * self.shape.rank]

    def is_counted(self, shape: ShapeLike, n: int) -> bool:
        """Return whether this has the shape and every element is the integer `n`."""
        return self.shape == Shape(shape) and bool(np.all(self.numpy() == self.element.from_count(n)))

    def to_list(self) -> list[Any]:
        """Return the elements row-major."""
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy().reshape(-1))

    # ---- conversions
    def convert(self, target: ElementLike) -> Tensor:
        """Return this tensor in another element, each number rounded once; the storage kind is kept."""
        kind = element_of(target)
        if kind is self.element:
            return self
        if self._selection is not None:
            return Tensor.selection(self._selection, self.shape[1], element=kind)  # type: ignore[arg-type]
        if self.layout.is_constant:
            return Tensor.filled(self.shape, Tensor(self.as_constant(), element=kind))
        return Tensor(self.numpy(), element=kind)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if (dtype is None or array.dtype == dtype) and not copy:
            return array
        if copy is False:
            raise ValueError(f"a {self.element.name} tensor is no {np.dtype(dtype)} array without a copy")
        return array.astype(dtype or array.dtype)

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **options: Any) -> Any:
        # Consumers before DLPack 1.0 cannot be told that memory is read-only: they get a copy of their own.
        if max_version is not None and max_version[0] >= 1:
            return dlpack.export(self.element, self.numpy(), {"max_version": max_version, **options})
        return dlpack.export(self.element, np.array(self.numpy()), options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._selection is not None:
            return functools.partial(Tensor.selection, element=self.element), (self._selection, self.shape[1])
        if self.layout.is_constant:
            return functools.partial(Tensor.filled, element=self.element), (tuple(self.shape), self.as_constant())
        return functools.partial(Tensor, element=self.element), (self.numpy(),)

    # ---- Recordable
    def apply(self, opcode: Any, operands: tuple[Tensor, ...]) -> Tensor:
        """Compute an opcode; `topos.ops.eager` says how."""
        raise NotImplementedError

    def defers(self, other: Any) -> bool:
        """Return whether `other` is another interpretation, which takes tensors as constants."""
        return type(other) is not Tensor and isinstance(other, Recordable) and not isinstance(other, Tensor)

    def constant_like(self, count: int | None) -> Tensor:
        """Return a constant of this shape holding an integer; None asks for minus infinity."""
        return Tensor.counted(self.shape, count, element=self.element)

    def lift(self, literal: Any) -> Tensor:
        """Return a number spread over this shape; a tensor or array as it is."""
        kind, element, shape = type(literal), self.element, self.layout.shape
        if element.raw.char in "fd" and (kind is float or (kind is int and abs(literal) <= EXACT)):
            single: Any = np.empty(1, element.raw)
            memoryview(single)[0] = literal  # rounds to infinity without a warning
            single.flags.writeable = False
            return Tensor.of_buffer(element, single, Layout(shape, (0,) * len(shape)))
        other = self.operand(literal)
        is_number = other is not literal and other.shape.rank == 0
        return Tensor.filled(self.shape, other) if is_number and self.shape.rank else other

    def operand(self, given: Any) -> Tensor:
        """Return a tensor as it is, an array or number as a tensor of this element.

        Raises:
            ElementError: a tensor of another element.
        """
        return Tensor.given(given, self.element, "beside one of")

    # ---- comparison and text
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return self.shape == other.shape and bool(np.all(self.numpy() == other.numpy()))

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return nested([str(number) for number in self], self.shape)

    def __repr__(self) -> str:
        body = str(self) if self.shape.volume <= 64 else "..."
        return f"Tensor({body}, shape={self.shape}, element={self.element.name})"


def nested(texts: Sequence[str], shape: Sequence[int]) -> str:
    """Return row-major texts in brackets, one pair per axis."""
    if not shape:
        return texts[0]
    part = len(texts) // shape[0]
    rows = (texts[i * part : (i + 1) * part] for i in range(shape[0]))
    return f"[{', '.join(nested(row, shape[1:]) for row in rows)}]"


def _foreign(data: Any) -> Any:
    """Return what NumPy can read: tensors and arrays of other libraries as views, also inside lists."""
    if isinstance(data, (list, tuple)):
        return [_foreign(item) for item in data]
    if isinstance(data, Tensor):
        return data.numpy()
    if hasattr(data, "__dlpack__") and not isinstance(data, (np.ndarray, np.generic)):
        return dlpack.read(data)
    return data
