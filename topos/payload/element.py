"""Elements: what numbers a `Tensor` holds. Four are built in; any Python number type is one too."""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from topos.errors import ElementError, ShapeError

# What an element is given as: an `Element`, a NumPy dtype, a name such as ``"f64"``, or a number class.
ElementLike: TypeAlias = Any


class Differentiable(Protocol):
    """The arithmetic half of a number type: all that the rational operations need.

    A class may add hooks: ``fma(self, b, c)`` (default ``self*b + c``), ``is_zero(self)`` (the additive
    identity in every component; default ``self == 0``), ``maximum(self, other)``, ``step(self, threshold)``,
    and at class level ``from_count(n)`` (default ``cls(n)``).
    """

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...


class Elementary(Protocol):
    """The half of maps: ``negative_infinity()`` at class level serves the log-domain operations.

    Further hooks at class level take whole tasks: ``map(task: MapTask)`` answers one value per element,
    ``gemm(task: GemmTask)`` m·n values row-major, ``batch_norm(task: BatchNormTask)`` a `Normalized`. Each
    may answer None, to decline; an answer of another length is an `ElementError`.
    """

    def exp(self) -> Any: ...
    def ln(self) -> Any: ...
    def sqrt(self) -> Any: ...
    def tanh(self) -> Any: ...
    def sin(self) -> Any: ...
    def cos(self) -> Any: ...
    def log1p(self) -> Any: ...
    def expm1(self) -> Any: ...
    def erf(self) -> Any: ...
    def erf_derivative(self) -> Any: ...
    def powf(self, exponent: Any, /) -> Any: ...


class Element:
    """One kind of number: ``F32(1.5)`` makes one.

    `name` is what messages and files call it. `raw` is the NumPy dtype of its buffers, `kernel` the name
    under which kernels know it, or None for a user's number type, which runs in Python.
    """

    __slots__ = ("__weakref__", "kernel", "kind", "name", "raw")

    def __init__(self, name: str, raw: Any, kernel: str | None, kind: type | None = None) -> None:
        self.name, self.raw, self.kernel, self.kind = name, np.dtype(raw), kernel, kind

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype that `Tensor.numpy` answers with."""
        found: np.dtype[Any] = self.raw
        if self.name == "bf16":
            import ml_dtypes  # when numbers of it first meet NumPy

            found = np.dtype(ml_dtypes.bfloat16)
        return found

    def __call__(self, number: Any) -> Any:
        """Return `number` as this element, rounded once."""
        if self.kind is not None:
            if isinstance(number, self.kind):
                return number
            return self.from_count(number.item() if isinstance(number, np.generic) else number)
        return self.array(number)[()]

    @property
    def zero(self) -> Any:
        """The additive identity."""
        return self.from_count(0)

    @property
    def one(self) -> Any:
        """The multiplicative identity."""
        return self.from_count(1)

    @property
    def negative_infinity(self) -> Any:
        """The identity of maximum; a user's type without the hook has none."""
        if self.kind is None:
            return self(-np.inf)
        hook = getattr(self.kind, "negative_infinity", None)
        if hook is None:
            rule = "logsumexp, log_softmax and their gradients need it"
            remedy = "give the class a static method negative_infinity()"
            raise ElementError(f"{self.name} has no negative_infinity(): {rule}; {remedy}")
        return hook()

    def from_count(self, n: int) -> Any:
        """Return the integer `n` as this element."""
        if self.kind is None:
            return self(n)
        hook: Callable[[int], Any] = getattr(self.kind, "from_count", self.kind)
        try:
            return hook(n)
        except (TypeError, ValueError) as error:
            raise ElementError(f"{self.name}({n!r}) failed: {error}; give the class from_count(n)") from error

    def array(self, data: Any) -> np.ndarray[Any, Any]:
        """Return `data` as a new NumPy array of this element's `dtype`, each number rounded once."""
        if self.kind is not None:
            given = np.array(data, object)
            if any(isinstance(x, (list, tuple)) for x in given.flat):
                raise ShapeError(f"an array of {self.name}: the nested lists are ragged")
            return np.fromiter(map(self, given.flat), object, given.size).reshape(given.shape)
        try:
            given = np.asarray(data)
        except ValueError as error:
            raise ShapeError(f"an array of {self.name}: the nested lists are ragged: {error}") from error
        if given.dtype.kind not in "biufO" and given.dtype.name != "bfloat16":
            raise ElementError(f"an array of {given.dtype.name} holds no {self.name}: give real numbers")
        try:
            if given.dtype.kind in "iu" and np.abs(given.astype(np.float64)).max(initial=0) > 2.0**53:
                given = given.astype(object)
            if given.dtype == object:
                exact = float if self.name == "f64" else _odd_f64
                given = np.array([exact(x) for x in given.flat], np.float64).reshape(given.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                if self.name == "bf16" and given.dtype not in (np.dtype(np.float32), self.dtype):
                    given = _odd_f32(given.astype(np.float64))
                return given.astype(self.dtype, copy=True)
        except (TypeError, ValueError, OverflowError) as error:
            raise ElementError(f"{data!r} holds no numbers of element {self.name}: {error}") from error

    # ---- the conversions of a 16-bit element (surface 2.3)
    def from_f32(self, number: Any) -> Any:
        """Round an f32 to nearest, ties to even."""
        return self(np.float32(number))

    def to_f32(self, number: Any) -> np.float32:
        """Return the number as an f32: exact for elements of 32 bits and fewer."""
        return np.float32(self(number))

    def from_bits(self, bits: int) -> Any:
        """Return the number of these storage bits."""
        return np.array(bits, f"u{self.raw.itemsize}").view(self.dtype)[()]

    def to_bits(self, number: Any) -> int:
        """Return the storage bits of a number."""
        return int(np.asarray(self(number), self.dtype).view(f"u{self.raw.itemsize}")[()])

    def __repr__(self) -> str:
        return self.name if self.kind is not None else self.name.capitalize()

    def __reduce__(self) -> tuple[Any, ...]:
        return element_of, (self.name if self.kind is None else self.kind,)


def is_zero(x: Any) -> bool:
    """Return whether a number is the additive identity in every component."""
    hook = getattr(x, "is_zero", None)
    return bool(hook()) if hook is not None else bool(x == type(x)(0))


def _odd_f64(x: Any) -> float:
    """Round a number to f64 "to odd", so that one more rounding is the only one that counts (Boldo 2008)."""
    near = float(x)
    if near == x or not math.isfinite(near):
        return near
    toward_zero = math.nextafter(near, 0.0) if abs(near) > abs(x) else near
    return float(np.array(np.float64(toward_zero).view(np.int64) | 1).view(np.float64))


def _odd_f32(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round f64 to f32 "to odd"."""
    near = x.astype(np.float32)
    wide = near.astype(np.float64)
    inexact = np.isfinite(x) & (wide != x)
    # One less is the next toward zero.
    bits: np.ndarray[Any, Any] = near.view(np.uint32) - (inexact & (np.abs(wide) > np.abs(x)))
    return np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32).view(np.float32)


F32 = Element("f32", np.float32, "f32")
F64 = Element("f64", np.float64, "f64")
Bf16 = Element("bf16", np.uint16, "bf16")
F16 = Element("f16", np.float16, "f16")

BUILT_IN = {element.name: element for element in (F32, F64, Bf16, F16)}
_NUMPY = {"float32": F32, "float64": F64, "bfloat16": Bf16, "float16": F16}
_NAMED = BUILT_IN | _NUMPY


@functools.cache
def _user(kind: Any) -> Element:
    return Element(kind.__name__, object, None, kind)


def element_of(given: ElementLike) -> Element:
    """Return the element that `given` names.

    Raises:
        ElementError: there is none.
    """
    if isinstance(given, Element):
        return given
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]
    is_number = isinstance(given, type) and hasattr(given, "__mul__") and given.__module__ != "ml_dtypes"
    if is_number and not issubclass(given, (float, int, np.generic)):
        return _user(given)
    try:
        name = np.dtype(given).name if given is not None else ""
    except TypeError:
        name = ""
    if name not in _NUMPY:
        known = ", ".join(repr(name) for name in BUILT_IN)
        raise ElementError(f"{given!r} is no element: give one of {known}, a NumPy float dtype or a number class")
    return _NUMPY[name]


def element_of_data(data: Any) -> Element | None:
    """Return the element that an array or number carries itself; None for plain Python numbers and ints."""
    dtype = getattr(data, "dtype", None)
    if dtype is not None:
        name = getattr(dtype, "name", "")
        if name in _NUMPY:
            return _NUMPY[name]
        if name == "object" and np.size(data):
            return element_of_data(np.ravel(data)[0])
        return None
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    kind = type(data)
    if kind in (bool, int, float, list, tuple, str) or not hasattr(kind, "__mul__"):
        return None
    return element_of_data(data) if hasattr(data, "dtype") else element_of(kind)
