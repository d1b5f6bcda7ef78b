"""Tensors in files: every kind of number and storage comes back with its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.helpers import ELEMENTS, same_bits, special, strided
from topos import CheckpointError, Tensor, load_tensors, save_tensors


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_layout(element: Any, tmp_path: Path) -> None:
    """Views, constants and selections are written as they read; rank 0 too."""
    given = dict(strided((2, 3), element)) | {"scalar": special((), element)}
    given["selection"] = Tensor.selection([1, 0], 3, element=element)
    save_tensors(tmp_path / "t", given)
    tensors, metadata = load_tensors(tmp_path / "t")
    assert metadata == {}
    assert tensors.keys() == given.keys()
    for name, tensor in given.items():
        assert tensors[name].element is tensor.element
        assert same_bits(tensors[name], tensor)


def test_integers_and_strange_numbers(tmp_path: Path) -> None:
    """Integers and booleans come as arrays; numbers that no element has are refused by name."""
    arrays = {kind: np.arange(3).astype(kind) for kind in ("i1", "u2", "i4", "u8", "?")}
    save_tensors(tmp_path / "t", arrays | {"big endian": np.array([1.0, 2.0], ">f8")}, {"a": "b"})
    found, metadata = load_tensors(tmp_path / "t")
    assert metadata == {"a": "b"}
    assert found.pop("big endian").to_list() == [1.0, 2.0]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert (found[name] == array).all()
    save_file({"x": np.array([1j], np.complex64)}, tmp_path / "t")
    with pytest.raises(CheckpointError, match="'x' of C64"):
        load_tensors(tmp_path / "t")
    with pytest.raises(CheckpointError, match="'x' holds Python objects"):
        save_tensors(tmp_path / "t", {"x": np.array([object()])})
