"""The element functions by name: maps and arithmetics, each written once over `table.Table`."""

from collections.abc import Callable
from typing import NamedTuple

from topos.kernels.maps import arithmetic, double, single
from topos.kernels.table import Lanes


class Function(NamedTuple):
    """An element function of `arity` operands, by compute precision."""

    arity: int
    single: Callable[..., Lanes]
    double: Callable[..., Lanes]

    def at(self, width: int) -> Callable[..., Lanes]:
        return self.single if width == 32 else self.double


MAPS = ("exp", "ln", "sqrt", "tanh", "sin", "cos", "log1p", "expm1", "erf", "erf_derivative")

# By arity.
_NAMES = {
    1: ("neg", "finite_or_zero", "positive_zero", *MAPS),
    2: ("add", "sub", "mul", "div", "maximum", "step", "scale", "ratio", "log_difference", "powf"),
    3: ("select",),
}

# What is no arithmetic is written for each width.
_SINGLE, _DOUBLE = (vars(arithmetic) | vars(maps) for maps in (single, double))

FUNCTIONS = {name: Function(arity, _SINGLE[name], _DOUBLE[name]) for arity, names in _NAMES.items() for name in names}
