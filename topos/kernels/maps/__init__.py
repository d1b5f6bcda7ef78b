"""The element functions by name: maps and arithmetics, each written once over `table.Table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topos.kernels.maps import arithmetic, double, single
from topos.kernels.table import Lanes


@dataclass(frozen=True)
class Function:
    """An element function of `arity` operands, by compute precision."""

    arity: int
    single: Callable[..., Lanes]
    double: Callable[..., Lanes]

    def at(self, width: int) -> Callable[..., Lanes]:
        return self.single if width == 32 else self.double


MAPS = ("exp", "ln", "sqrt", "tanh", "sin", "cos", "log1p", "expm1", "erf", "erf_derivative")

_ARITHMETIC = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "neg": 1,
    "sqrt": 1,
    "maximum": 2,
    "step": 2,
    "select": 3,
    "scale": 2,
    "ratio": 2,
    "finite_or_zero": 1,
    "log_difference": 2,
}

FUNCTIONS: dict[str, Function] = {
    **{n: Function(a, getattr(arithmetic, n), getattr(arithmetic, n)) for n, a in _ARITHMETIC.items()},
    **{n: Function(1, getattr(single, n), getattr(double, n)) for n in MAPS if n != "sqrt"},
    "powf": Function(2, single.powf, double.powf),
}
