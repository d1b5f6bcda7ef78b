"""DLPack where NumPy does not go: bf16, as its bits under the protocol's own type code."""

import ctypes
from typing import Any

import numpy as np

from topos.errors import ExportError
from topos.payload.element import Bf16, Element

# Type codes of ``DLDataTypeCode``.
UNSIGNED, BFLOAT = 1, 4

# Byte offset of the type code in the structure that a capsule of that name holds (dlpack.h, 1.0).
_CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}


def export(element: Element, array: np.ndarray[Any, Any], options: dict[str, Any]) -> Any:
    """Return the capsule of an array.

    Raises:
        ExportError: the element is a user's number type.
    """
    if element.kernel is None:
        remedy = "convert the tensor, e.g. tensor.convert('f64')"
        raise ExportError(f"DLPack has no type for elements of {element.name}: {remedy}")
    if element is not Bf16:
        return array.__dlpack__(**options)
    return _recoded(array.view(np.uint16).__dlpack__(**options), UNSIGNED, BFLOAT)


def read(data: Any) -> np.ndarray[Any, Any]:
    """Return a foreign array as a view of NumPy's; one of bf16 as ml_dtypes has it."""
    try:
        return np.from_dlpack(data)
    except (RuntimeError, BufferError):  # what NumPy says of a type it lacks
        return np.from_dlpack(_Bits(data)).view(Bf16.dtype)


class _Bits:
    """A foreign bf16 array as uint16."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __dlpack__(self, **options: Any) -> Any:
        return _recoded(self._data.__dlpack__(**options), BFLOAT, UNSIGNED)

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()


def _recoded(capsule: Any, old: int, new: int) -> Any:
    """Return a capsule with another type code."""
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    code = ctypes.c_uint8.from_address(pointer_of(capsule, name) + _CODE_AT[name])
    if code.value != old:
        raise ExportError(f"a DLPack array of type code {code.value} holds no numbers of a built-in element")
    code.value = new
    return capsule
