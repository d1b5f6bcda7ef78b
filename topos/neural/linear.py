"""Layers of products: `Linear` and the chain of them that `Mlp` is."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from topos.graph import Tape, Value
from topos.neural.layers import affine, check, each, record, recorded
from topos.neural.module import Module, Visitor, Weighted


class Linear(Weighted):
    """``input @ weights + bias`` over the last axis; leading axes are any.

    Arguments:
        tape: where the parameters are recorded.
        weights: ``[in, out]``.
        bias: ``[out]``, or None for none.

    Raises:
        ShapeError: a rank is wrong, or the outputs disagree.

    >>> tape = Tape()
    >>> layer = Linear(tape, init.xavier(7)([3, 2]), [0.0, 0.0])
    >>> layer.express(tape.input([[1.0, 2.0, 3.0]])).shape
    [1, 2]
    """

    def __init__(self, tape: Tape, weights: Any, bias: Any = None) -> None:
        weights, bias = each(tape.payload_of, weights, bias)
        fits = weights.shape.rank == 2 and (bias is None or bias.shape == weights.shape[1:])
        check(fits, "Linear", "needs weights [in, out] and bias [out]", weights=weights, bias=bias)
        self.inputs, self.outputs = weights.shape
        self.weights, self.bias = record(tape, weights, bias)

    @recorded
    def express(self, input: Value) -> Value:
        """Record the affine transform of ``[..., in]``, giving ``[..., out]``.

        Raises:
            ShapeError: the last axis does not hold `in` features.
        """
        shape = input.shape
        fits = shape.rank >= 1 and shape[-1] == self.inputs
        check(fits, "Linear.express", f"the last axis has to hold {self.inputs} features", input=input)
        rows = input if shape.rank == 2 else input.reshape([shape.volume // self.inputs, self.inputs])
        result = affine(rows, self.weights, self.bias)
        return result if shape.rank == 2 else result.reshape([*shape[:-1], self.outputs])


class Mlp(Module):
    """Affine stages chained by `sizes`, an activation after each but the last.

    Arguments:
        tape: where the parameters are recorded.
        sizes: features of the input, of each hidden layer and of the output.
        activation: a module without parameters, e.g. ``Activation.RELU``.
        initializer: called per stage with ``[in, out]``, then with ``[out]``.

    Raises:
        ShapeError: there are fewer than two sizes.

    >>> tape = Tape()
    >>> model = Mlp(tape, [2, 8, 1], Activation.TANH, init.xavier(7))
    >>> [str(path) for path, _ in named_parameters(model)]
    ['0.weights', '0.bias', '1.weights', '1.bias']
    """

    def __init__(self, tape: Tape, sizes: Sequence[int], activation: Module, initializer: Callable[[Any], Any]) -> None:
        check(len(sizes) >= 2, "Mlp", "needs at least the sizes of input and output", sizes=list(sizes))
        self.activation = activation
        with tape.transaction():
            self.stages = [Linear(tape, initializer([m, n]), initializer([n])) for m, n in pairwise(sizes)]

    @recorded
    def express(self, input: Value) -> Value:
        """Record all stages over ``[..., sizes[0]]``, giving ``[..., sizes[-1]]``."""
        value = self.stages[0].express(input)
        for stage in self.stages[1:]:
            value = stage.express(self.activation.express(value))
        return value

    def visit(self, visitor: Visitor) -> None:
        """Show each stage under its position."""
        for position, stage in enumerate(self.stages):
            visitor.child(position, stage)
