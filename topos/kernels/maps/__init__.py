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
_ARITHMETIC = {
    1: ("neg", "sqrt", "finite_or_zero", "positive_zero"),
    2: ("add", "sub", "mul", "div", "maximum", "step", "scale", "ratio", "log_difference"),
    3: ("select",),
}

FUNCTIONS: dict[str, Function] = {
    **{
        name: Function(arity, getattr(arithmetic, name), getattr(arithmetic, name))
        for arity, names in _ARITHMETIC.items()
        for name in names
    },
    **{n: Function(1, getattr(single, n), getattr(double, n)) for n in MAPS if n != "sqrt"},
    "powf": Function(2, single.powf, double.powf),
}
