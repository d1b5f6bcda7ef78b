"""`Module`: a named, parameterized recording function, the unit of model composition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from topos.graph import Network, Symbol, Tape, Value
from topos.neural.paths import Path, Segment
from topos.payload import Tensor


# ---- modules and walks over them
class Visitor(ABC):
    """What a walk over a tree of modules calls.

    Attributes:
        at: the path to the module that is visited, as `enter` and `leave` keep it.

    >>> class Count(Visitor):
    ...     parameters = 0
    ...     def parameter(self, name, symbol):
    ...         self.parameters += 1
    >>> count = Count()
    >>> Linear(Tape(), [[1.0]], [0.0]).visit(count)
    >>> count.parameters
    2
    """

    at: tuple[Segment, ...] = ()

    @abstractmethod
    def parameter(self, name: str, symbol: Symbol) -> None:
        """Take a parameter of the module that is visited."""

    def running(self, name: str, symbol: Symbol, layer: Any) -> None:  # noqa: B027 - a walk may ignore it
        """Take a slot that runs update and no optimizer: a running statistic of `layer`."""

    def enter(self, segment: Segment) -> None:
        """Go down to a child."""
        self.at = (*self.at, segment)

    def leave(self) -> None:
        """Come back from a child."""
        self.at = self.at[:-1]

    def child(self, step: int | str, module: Members) -> None:
        """Visit a child module under a position or a name."""
        self.enter(Segment.Name(step) if isinstance(step, str) else Segment.Index(step))
        module.visit(self)
        self.leave()


class Members:
    """What shows its parameters to a visitor: the half of `Module` that `BatchNorm` has too.

    Attributes:
        members: the names of the attributes that `visit` shows: parameters and modules; None is passed over.
    """

    members: ClassVar[tuple[str, ...]] = ()

    def visit(self, visitor: Visitor) -> None:
        """Show every parameter, and every child with ``visitor.child(name, module)``: the `members` by default."""
        for name in self.members:
            member = getattr(self, name)
            if isinstance(member, Members):
                visitor.child(name, member)
            elif member is not None:
                visitor.parameter(name, member)

    def parameters(self) -> list[Symbol]:
        """Return the symbols of all parameters in visit order."""
        return parameters(self)


class Module(Members, ABC):
    """What records an expression of its input. It keeps symbols of parameters, never their payloads.

    >>> class Residual(Module):
    ...     def __init__(self, inner):
    ...         self.inner = inner
    ...     def express(self, input):
    ...         return input + self.inner.express(input)
    ...     def visit(self, visitor):
    ...         visitor.child("inner", self.inner)
    >>> tape = Tape()
    >>> block = Residual(Linear(tape, [[1.0]], [0.0]))
    >>> [str(path) for path, _ in named_parameters(block)]
    ['inner.weights', 'inner.bias']
    """

    @abstractmethod
    def express(self, input: Value) -> Value:
        """Record this module's expression of `input`, on its tape, and return the output."""

    def __call__(self, input: Value) -> Value:
        """Record `express`."""
        return self.express(input)


class Weighted(Module):
    """A module of weights and a bias, which may be None."""

    members = ("weights", "bias")
    weights: Symbol
    bias: Symbol | None


class _Collector(Visitor):
    """Lists what a walk meets: parameters, and running statistics where they are asked for."""

    def __init__(self, running: bool) -> None:
        self.found: list[tuple[Path, Symbol]] = []
        self.layers: list[Any] = []
        self.wants_running = running

    def parameter(self, name: str, symbol: Symbol) -> None:
        self.found.append((Path((*self.at, Segment.Name(name))), symbol))

    def running(self, name: str, symbol: Symbol, layer: Any) -> None:
        if self.wants_running:
            self.parameter(name, symbol)
        if not any(layer is known for known in self.layers):
            self.layers.append(layer)


def collect(module: Members, running: bool) -> _Collector:
    """Walk a tree and return what was met."""
    collector = _Collector(running)
    module.visit(collector)
    return collector


def parameters(module: Members) -> list[Symbol]:
    """Return the symbols of every parameter of a tree, in visit order: what to differentiate by.

    >>> len(parameters(Linear(Tape(), [[1.0]], [0.0])))
    2
    """
    return [symbol for _, symbol in named_parameters(module)]


def named_parameters(module: Members) -> list[tuple[Path, Symbol]]:
    """Return every parameter of a tree with its path, in visit order.

    >>> [str(path) for path, _ in named_parameters(Linear(Tape(), [[1.0]], [0.0]))]
    ['weights', 'bias']
    """
    return collect(module, False).found


def name_parameters(tape: Tape, module: Module) -> None:
    """Name every parameter of a tree by its path, so that ``network.symbol("0.weights")`` finds it.

    Raises:
        SymbolError: another value has such a name.

    >>> tape = Tape()
    >>> name_parameters(tape, Linear(tape, [[1.0]], [0.0]))
    >>> tape.into_network().symbol("bias")
    n#1
    """
    with tape.transaction():
        for path, symbol in collect(module, True).found:
            tape.name(tape.resolve(symbol), str(path))


def expressed(network: Network, module: Module, shape: Any) -> tuple[Network, Symbol, Symbol]:
    """Express a module again over an input of another shape (batch, say), sharing its parameters.

    The network is reopened, so use the one that is returned: (network, input, output). Tables of parameters
    stay valid, and so do plans that were lowered before. Where the module refuses the shape, the network is
    as it was.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> network, x, y = expressed(network, layer, [3, 1])
    >>> print(network.forward(network.parameters(), {x: [[1.0], [2.0], [3.0]]}).of(y))
    [[3.0], [5.0], [7.0]]
    """

    def build(tape: Tape) -> tuple[Value, Value]:
        value = tape.input(Tensor.counted(shape, 0, element=tape.element))
        return value, module.express(value)

    extended, (x, y) = network.extend(build)
    return extended, x, y


# ---- training and inference
_INFERENCE: ContextVar[bool] = ContextVar("inference", default=False)


@contextmanager
def inference() -> Iterator[None]:
    """Let modules record what they do after training: running statistics, no dropout.

    >>> tape = Tape()
    >>> x, dropout = tape.input([1.0]), Dropout(tape, [1])
    >>> with inference():
    ...     dropout.express(x) == x
    True
    """
    token = _INFERENCE.set(True)
    try:
        yield
    finally:
        _INFERENCE.reset(token)


def is_inference() -> bool:
    """Return whether `inference` is in force."""
    return _INFERENCE.get()
