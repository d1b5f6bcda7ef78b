"""`Emittable`: how an element is called and written in MLIR. Literals round-trip to the same bits."""

import math
from typing import Any, NamedTuple

import numpy as np

from topos.errors import EmitError
from topos.payload import BUILT_IN, Element
from topos.payload.tensor import nested

# Numbers up to which a dense constant is written in decimals; a longer one is written as its bytes.
READABLE = 64


class Emittable(NamedTuple):
    """An element that text can render. A user's number class gives one as a static method ``emittable()``.

    Arguments:
        name: the MLIR type, ``f32``, ``f64``, ``bf16`` or ``f16``: numbers are written as ``float`` gives them.
        accumulation: the type in which sums and maps are computed, where it is another one.
    """

    name: str
    accumulation: str | None = None

    @property
    def element(self) -> Element:
        """The built-in element that has these bits."""
        return BUILT_IN[self.name]

    def literal(self, number: Any) -> str:
        """Return the shortest decimal that comes back; infinities and NaN are written as bits.

        MLIR reads a decimal as a double and rounds it once more, so that is how it has to come back.
        """
        exact = float(number)
        if not math.isfinite(exact):
            bits = self.element.to_bits(number)
            return f"0x{bits:0{2 * self.element.raw.itemsize}X}"
        short = repr(exact) if self.name == "f64" else str(np.float32(exact))
        if self.element(float(short)) != number:
            short = repr(exact)
        mantissa, e, exponent = short.partition("e")
        return (mantissa if "." in mantissa else f"{mantissa}.0") + e + exponent

    def dense(self, array: Any) -> str:
        """Return what stands between ``dense<`` and ``>``: one number where all have its bits."""
        flat = np.ascontiguousarray(array, self.element.dtype).reshape(-1)
        raw = flat.view(f"u{flat.itemsize}")
        if (raw == raw[0]).all():
            return self.literal(flat[0])
        if flat.size > READABLE:
            return f'"0x{raw.astype(raw.dtype.newbyteorder("<")).tobytes().hex().upper()}"'
        return nested([self.literal(x) for x in flat], np.shape(array))


TYPES = {name: Emittable(name, "f32" if name in ("bf16", "f16") else None) for name in BUILT_IN}


def emittable(element: Element) -> Emittable:
    """Return how an element is written.

    Raises:
        EmitError: a user's number class that says nothing about it.
    """
    if element.kind is None:
        return TYPES[element.name]
    hook = getattr(element.kind, "emittable", None)
    if hook is None:
        simple = "convert the network's numbers to a built-in element"
        remedy = "give the class a static method emittable() that returns an Emittable"
        raise EmitError(f"{element.name} has no form in StableHLO: {simple}, or {remedy}")
    found: Emittable = hook()
    if found.name not in TYPES:
        raise EmitError(f"{element.name}: emittable() names the type {found.name!r}; one of {', '.join(TYPES)}")
    return found
