"""`Sequential`, and the stages in it that hold no parameters or one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topos.errors import UsageError
from topos.graph import Symbol, Tape, Value
from topos.neural.layers import check, recorded
from topos.neural.module import Module, Visitor, is_inference
from topos.payload import Shape, Tensor


class Sequential(Module):
    """A chain of modules, each fed the output of the one before; an empty chain is the identity.

    >>> tape = Tape()
    >>> model = Sequential().then(Linear(tape, [[2.0]])).then(Activation.RELU)
    >>> len(model), [str(path) for path, _ in named_parameters(model)]
    (2, ['0.weights'])
    """

    def __init__(self, *stages: Module) -> None:
        wrong = [stage for stage in stages if not hasattr(stage, "express")]
        if wrong:
            raise UsageError(f"Sequential: {wrong[0]!r} is no Module; give stages one by one: Sequential(*stages)")
        self.stages = stages

    def then(self, stage: Module) -> Sequential:
        """Return the chain with one more stage."""
        return Sequential(*self.stages, stage)

    @property
    def is_empty(self) -> bool:
        """Whether there are no stages."""
        return not self.stages

    def __len__(self) -> int:
        return len(self.stages)

    def __bool__(self) -> bool:
        return True

    @recorded
    def express(self, input: Value) -> Value:
        """Record the stages in order."""
        value = input
        for stage in self.stages:
            value = stage.express(value)
        return value

    def visit(self, visitor: Visitor) -> None:
        """Show each stage under its position."""
        for position, stage in enumerate(self.stages):
            visitor.child(position, stage)


@dataclass(frozen=True)
class Flatten(Module):
    """Merges the axes from `start` on into one.

    >>> Flatten().express(Tape().input([[[1.0], [2.0]]])).shape
    [1, 2]
    """

    start: int = 1

    def express(self, input: Value) -> Value:
        """Record the reshape."""
        return input.flatten(self.start)


class Dropout(Module):
    """Multiplies by a mask, an input that is all ones unless a run feeds it (Srivastava et al., 2014).

    Training feeds masks from ``init.dropout(seed, keep)``; an unfed run is the identity.

    Arguments:
        tape: where the mask is declared.
        shape: of the values that are dropped.

    >>> tape = Tape()
    >>> dropout = Dropout(tape, [4])
    >>> y = dropout.express(tape.leaf([1.0, 2.0, 3.0, 4.0])).symbol
    >>> network = tape.into_network()
    >>> print(network.forward(network.parameters(), {dropout.mask: [2, 0, 0, 2]}).of(y))
    [2.0, 0.0, 0.0, 8.0]
    """

    def __init__(self, tape: Tape, shape: Any) -> None:
        self.shape = Shape(shape)
        self.mask: Symbol = tape.input(Tensor.counted(self.shape, 1, element=tape.element)).symbol

    @recorded
    def express(self, input: Value) -> Value:
        """Record ``input * mask``; under `inference` the input itself.

        Raises:
            ShapeError: the input has another shape than the mask.
        """
        check(input.shape == self.shape, "Dropout.express", f"the mask has shape {self.shape}", input=input)
        return input if is_inference() else input * input.tape.resolve(self.mask)


class Embedding(Module):
    """A table of vectors, looked up by a one-hot selection or by integer ids that a run feeds.

    Arguments:
        tape: where the table is recorded.
        weights: ``[vocabulary, features]``.

    Raises:
        ShapeError: the rank is not 2.

    >>> tape = Tape()
    >>> table = Embedding(tape, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> ids = table.ids(tape, 2)
    >>> x, y = ids.symbol, table.express(ids).symbol
    >>> network = tape.into_network()
    >>> print(network.forward(network.parameters(), {x: np.array([2, 0])}).of(y))
    [[5.0, 6.0], [1.0, 2.0]]
    """

    members = ("weights",)

    def __init__(self, tape: Tape, weights: Any) -> None:
        weights = tape.payload_of(weights)
        check(weights.shape.rank == 2, "Embedding", "needs [vocabulary, features]", weights=weights)
        self.vocabulary, self.features = weights.shape
        self.weights = tape.parameter(weights).symbol

    @property
    def table(self) -> Any:
        """The parameter."""
        return self.weights

    def ids(self, tape: Tape, count: int, name: str | None = None) -> Value:
        """Declare an input of `count` rows that is fed integer ids, and is one-hot ``[count, vocabulary]``."""
        return tape.input(Tensor.selection([0] * count, self.vocabulary, element=tape.element), name)

    @recorded
    def express(self, input: Value) -> Value:
        """Record the rows that a one-hot ``[count, vocabulary]`` selection names: ``[count, features]``."""
        return input.tape.resolve(self.weights).gather(input)
