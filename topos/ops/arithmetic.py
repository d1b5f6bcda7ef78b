"""Elementwise kinds: arithmetic, comparison, choice, and the two factors of derivative rules."""

from typing import Any

import numpy as np

from topos.ops.emit import Emitter, Operand
from topos.ops.opcode import OUT, Cotangents, Opcode
from topos.payload import Shape


class Elementwise(Opcode):
    """A kind whose operands and result have one shape."""

    arity = 2

    def infer(self, *shapes: Shape) -> Shape:
        first = shapes[0]
        for other in shapes[1:]:
            if other != first:
                found = f"operand 0 has {first} and operand {shapes.index(other)} has {other}"
                rule = f"operands of one shape are needed, {found}; nothing broadcasts by itself"
                raise self.fail(f"{rule}: {_remedy(first, other)}", *shapes)
        return first

    @property
    def function(self) -> str:
        """The element function, after which the block routine that computes it is called too."""
        return self.name.lower()

    def lower(self, emitter: Emitter, *operands: Operand) -> Operand:
        return emitter.elementwise(self.function, *operands)


def _remedy(a: Shape, b: Shape) -> str:
    """Return what makes two shapes equal: a ``broadcast_to`` where NumPy's rule has one."""
    try:
        common = Shape(np.broadcast_shapes(a, b))
    except ValueError:
        return "and these two could not; reshape, permute or broadcast_along(axis, extent) one of them"
    sides = [f"{name}.broadcast_to({common})" for name, shape in (("a", a), ("b", b)) if shape != common]
    return "write " + " and ".join(sides)


class Add(Elementwise):
    """a + b."""

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g, lambda: g)


class Sub(Elementwise):
    """a - b."""

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: g, lambda: -g)


class Product(Elementwise):
    """A kind with the derivative of a product."""

    reads = frozenset({0, 1})

    def rule(self, g: Any, out: Any, a: Any, b: Any) -> Cotangents:
        return (lambda: g.scale(b), lambda: g.scale(a))


class Mul(Product):
    """a * b."""


class Scale(Product):
    """+0 where a or b is 0, else a * b: keeps a branch that was not taken silent, to every order."""


class Quotient(Elementwise):
    """A kind with the derivative of a quotient."""

    reads = frozenset({1, OUT})

    def rule(self, g: Any, out: Any, a: Any, b: Any) -> Cotangents:
        return (lambda: g.ratio(b), lambda: -g.scale(out).ratio(b))


class Div(Quotient):
    """a / b."""


class Ratio(Quotient):
    """+0 where a is 0, else a / b."""


class Neg(Elementwise):
    """-a: the sign bit flipped."""

    arity = 1

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (lambda: -g,)


class Powf(Elementwise):
    """a ** b. The slope in a is 0 where b = 0; the slope in b is 0 where a = 0 and b >= 0."""

    reads = frozenset({0, 1, OUT})

    def rule(self, g: Any, out: Any, a: Any, b: Any) -> Cotangents:

        def base() -> Any:
            return g.scale(b).scale(a.powf(b - b.one_like()))

        def exponent() -> Any:
            zero = a.zero_like()
            flat = b.step(zero).scale(a.step(zero).scale(zero.step(a)))
            return flat.select(zero, g.scale(out).scale(a.ln()))

        return (base, exponent)


class Maximum(Elementwise):
    """a where a >= b or a is NaN, else b: the winner takes the whole cotangent."""

    reads = frozenset({0, 1})

    def rule(self, g: Any, out: Any, a: Any, b: Any) -> Cotangents:
        left = a.step(a).select(a.step(b), g.one_like())
        zero = g.zero_like()
        return (lambda: left.select(g, zero), lambda: left.select(zero, g))


class Step(Elementwise):
    """1 where a >= b, else 0; NaN gives 0. Both operands are data."""

    data = frozenset({0, 1})

    def rule(self, g: Any, out: Any, *operands: Any) -> Cotangents:
        return (None, None)


class Select(Elementwise):
    """b where the mask a is not 0, else c, bits unchanged. The mask is data."""

    arity = 3
    reads = frozenset({0})
    data = frozenset({0})

    def rule(self, g: Any, out: Any, mask: Any, *choices: Any) -> Cotangents:
        return (None, lambda: mask.select(g, g.zero_like()), lambda: mask.select(g.zero_like(), g))
