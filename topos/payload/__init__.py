"""Payloads: shapes, layouts, elements, tensors."""

from topos.payload.element import BUILT_IN, F32, Element, ElementLike, element_of
from topos.payload.files import PathLike, load_tensors, save_tensors
from topos.payload.layout import Layout, dense_strides
from topos.payload.recordable import OPCODES, Recordable
from topos.payload.shape import Shape, ShapeLike
from topos.payload.tensor import Tensor

__all__ = [
    "BUILT_IN", "OPCODES", "Element", "ElementLike", "F32", "Layout", "PathLike", "Recordable", "Shape", "ShapeLike", "Tensor",
    "dense_strides", "element_of", "load_tensors", "save_tensors",
]  # fmt: skip
