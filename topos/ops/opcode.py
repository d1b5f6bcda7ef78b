"""`Opcode`: one kind of node. The closed set is in the modules beside this one, a family each."""

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from topos.errors import ShapeError, UsageError
from topos.ops.emit import Emitter, Operand
from topos.ops.objects import Evaluator
from topos.payload import Element, Recordable, Shape, Tensor

R = TypeVar("R", bound=Recordable)

# One per operand: None for data, else a function that speaks the operand's cotangent when it is wanted.
Cotangents = tuple[Callable[[], Any] | None, ...]

# In `Opcode.reads`: the node's own output.
OUT = -1


@dataclass_transform(frozen_default=True)
class Opcode(tuple[Any, ...]):  # noqa: SLOT001 - kinds have several bases
    """What a node does. Parameters are declared as a dataclass's fields are, and never change.

    It is the tuple of its kind and parameters, so that Python itself hashes and compares it: what a call on tensors
    looks its program up by.

    A family module states, for each kind: the shape rule (`infer`), the derivative rule over the
    recordable vocabulary (`rule`), which payload values that rule reads (`reads`: operand positions and
    `OUT`), which operands are data, to which no cotangent flows (`data`), the rows that compute it (`lower`),
    and, where that appends rows itself, its meaning for a user's number type (`evaluate`).
    """

    arity: ClassVar[int] = 1
    reads: ClassVar[frozenset[int]] = frozenset()
    data: ClassVar[frozenset[int]] = frozenset()
    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        for name, kind in inspect.get_annotations(cls).items():
            if "ClassVar" not in str(kind):
                cls.fields += (name,)
                setattr(cls, name, property(operator.itemgetter(len(cls.fields))))

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Return the opcode of these parameters, by position or name."""
        if named:
            given += tuple([named.pop(name) for name in cls.fields[len(given) :] if name in named])
        if named or len(given) != len(cls.fields):
            raise TypeError(f"{cls.__name__} takes the parameters ({', '.join(cls.fields)})")
        return tuple.__new__(cls, (cls, *cls.checked(given)))

    @classmethod
    def checked(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the parameters in the form in which equal ones compare equal."""
        return given

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name} never changes: make another one")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self[1:]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in zip(self.fields, self[1:], strict=True))})"

    @property
    def name(self) -> str:
        """The kind, as ``describe`` prints it."""
        return type(self).__name__

    @property
    def is_source(self) -> bool:
        """Whether a node of this kind has no operands: Leaf, Parameter, Input."""
        return self.arity == 0

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(zip(self.fields, self[1:], strict=True))

    # A kind names its operands. To type checkers, `*Any` and `**Any` together admit any such signature.
    def infer(self, *shapes: Any, **_: Any) -> Shape:
        """Return the shape of the result.

        Raises:
            ShapeError: the operands' shapes or the parameters break the kind's rule.
        """
        raise NotImplementedError

    def rule(self, g: Any, out: Any, *operands: Any, **_: Any) -> Cotangents:
        """Return the operands' cotangents for the output's cotangent `g`, each as a function."""
        raise NotImplementedError

    def lower(self, emitter: Emitter, *operands: Any, **_: Any) -> Operand:
        """Append the rows that compute this, or answer with a view of an operand."""
        raise NotImplementedError

    def evaluate(self, element: Element, *operands: Any, **_: Any) -> Tensor:
        """Compute over tensors of a user's number type."""
        found: Any = self.lower(Evaluator(), *operands)  # type: ignore[arg-type]
        return found  # type: ignore[no-any-return]

    def express(self, operands: Sequence[R]) -> R:
        """Apply this over any `Recordable`: a `Tensor` computes, a `Trace` records.

        Raises:
            UsageError: this is a source, or the count of operands is not the arity.
        """
        self._check(operands)
        return operands[0].apply(self, tuple(operands))

    def vjp(self, operands: Sequence[R], output: R, seed: R) -> list[R | None]:
        """Return one cotangent per operand, None for data operands.

        Raises:
            UsageError: this is a source, or the count of operands is not the arity.
        """
        self._check(operands)
        return [speak() if speak is not None else None for speak in self.rule(seed, output, *operands)]

    def _check(self, operands: Sequence[Any]) -> None:
        if self.is_source:
            raise UsageError(f"{self.name} is a source: it has no operands to apply")
        if len(operands) != self.arity:
            raise UsageError(f"{self.name} takes {self.arity} operands, {len(operands)} given")

    def fail(self, rule: str, *shapes: Shape) -> ShapeError:
        """Return a ShapeError that shows the operation as the user wrote it, its shapes and the rule."""
        return ShapeError(f"{self.signature(*shapes)}: {rule}")

    def signature(self, *shapes: Shape) -> str:
        """Return ``Narrow([4], axis=0, start=3, length=2)``."""
        given = [str(shape) for shape in shapes] + [f"{k}={text_of(v)}" for k, v in self.parameters.items()]
        return f"{self.name}({', '.join(given)})"

    def sized(self, result: Shape, *shapes: Shape) -> Shape:
        """Return a result's shape; raise where its bytes do not fit 64 bits."""
        try:
            _ = result.volume
        except ShapeError as error:
            raise self.fail(str(error), *shapes) from None
        return result

    def check_axis(self, axis: int, rank: int, *shapes: Shape) -> None:
        """Raise unless ``0 <= axis < rank``."""
        if not 0 <= axis < rank:
            bound = f"axes run from 0 to {rank - 1}" if rank else "rank 0 has no axes"
            raise self.fail(f"axis {axis} is outside the rank; {bound}", *shapes)

    def check_positive(self, *shapes: Shape, **values: int) -> None:
        """Raise unless every named value is positive."""
        for name, value in values.items():
            if value <= 0:
                raise self.fail(f"{name} has to be positive", *shapes)


def text_of(value: Any) -> str:
    """Return a parameter as messages and ``describe`` print it."""
    return str(list(value)) if isinstance(value, tuple) else str(value)


class Typed(Opcode):
    """A kind whose parameters are ints."""

    @classmethod
    def checked(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the parameters as ints.

        Raises:
            ShapeError: one is none.
        """
        try:
            return tuple(map(operator.index, given))
        except TypeError:
            pairs = zip(cls.fields, given, strict=True)
            name, value = next(pair for pair in pairs if not hasattr(pair[1], "__index__"))
            raise ShapeError(f"{cls.__name__}: {name} is an int, not {value!r}") from None
