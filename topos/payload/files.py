"""Tensors in safetensors files, which other libraries read too. Reading executes nothing from the file."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from topos.errors import CheckpointError
from topos.kernels.store import replace
from topos.payload.element import BUILT_IN
from topos.payload.tensor import Tensor

# What a file is named by.
PathLike: TypeAlias = str | os.PathLike[str]

# Elements by the format's names: F32, F64, BF16, F16.
_ELEMENTS = {element.name.upper(): element for element in BUILT_IN.values()}

_WHOLE = {f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)}
_OTHERS = {"BOOL": np.dtype(bool), **_WHOLE}


def save_tensors(path: PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors (or NumPy arrays) to a safetensors file, with a mapping of texts beside them.

    The file is written under a temporary name and renamed: whatever happens, a whole file stands at `path`.

    Raises:
        CheckpointError: a tensor holds a user's number type.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors(f"{folder}/w.safetensors", {"w": Tensor([1.0, 2.0])}, {"epoch": "3"})
    ...     tensors, metadata = load_tensors(f"{folder}/w.safetensors")
    >>> print(tensors["w"], metadata)
    [1.0, 2.0] {'epoch': '3'}
    """
    from safetensors.numpy import save

    arrays = {}
    for name, tensor in tensors.items():
        array = np.asarray(tensor.numpy() if isinstance(tensor, Tensor) else tensor)
        if array.dtype.hasobject:
            raise CheckpointError(f"{path}: {name!r} holds Python objects, which no tensor file can")
        arrays[name] = np.array(array, array.dtype.newbyteorder("="), order="C")
    data = save(arrays, None if metadata is None else dict(metadata))
    replace(Path(path), data, 0o666, is_safe=True)


def load_tensors(path: PathLike) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file: (tensors by name, metadata). Integers and booleans come as NumPy arrays.

    Raises:
        OSError: the file cannot be read.
        CheckpointError: it is truncated, corrupted, or holds numbers of an unknown kind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors(f"{folder}/w.safetensors", {"ids": np.array([3, 1])})
    ...     load_tensors(f"{folder}/w.safetensors")[0]
    {'ids': array([3, 1])}
    """
    from safetensors import SafetensorError, deserialize

    data = Path(path).read_bytes()
    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is no whole safetensors file: {error}") from error
    found: dict[str, Any] = {}
    unknown = []
    for name, entry in entries:
        kind, shape = entry["dtype"], tuple(entry["shape"])
        if kind in _ELEMENTS:
            element = _ELEMENTS[kind]
            array = np.frombuffer(entry["data"], element.raw).reshape(shape)
            found[name] = Tensor(array.view(element.dtype), element=element)
        elif kind in _OTHERS:
            found[name] = np.frombuffer(entry["data"], _OTHERS[kind]).reshape(shape)
        else:
            unknown.append(f"{name!r} of {kind}")
    if unknown:
        raise CheckpointError(f"{path} holds numbers that no element has: {', '.join(sorted(unknown))}")
    return found, header.get("__metadata__", {})
