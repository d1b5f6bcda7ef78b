"""Recurrent cells: LSTM and GRU, a step at a time or unrolled over a sequence."""

from abc import abstractmethod
from typing import Any, ClassVar

from topos.graph import Tape, Value, stack
from topos.neural.layers import affine, check, each, record, recorded
from topos.neural.module import Module
from topos.payload import Tensor


class _Cell(Module):
    """What cells share: ``[in, gates * hidden]`` and ``[hidden, gates * hidden]`` weights, a bias for each."""

    gates: ClassVar[int]
    states: ClassVar[int]
    members = ("input_weights", "hidden_weights", "input_bias", "hidden_bias")

    def __init__(self, tape: Tape, input_weights: Any, hidden_weights: Any, input_bias: Any, hidden_bias: Any) -> None:
        given = each(tape.payload_of, input_weights, hidden_weights, input_bias, hidden_bias)
        call = dict(zip(self.members, given, strict=True))
        rule = f"needs [in, {self.gates} hidden], [hidden, {self.gates} hidden] and two [{self.gates} hidden]"
        name = type(self).__name__
        check([tensor.shape.rank for tensor in given] == [2, 2, 1, 1], name, rule, **call)
        self.inputs, self.hidden = given[0].shape[0], given[1].shape[0]
        widths = {tensor.shape[-1] for tensor in given}
        check(widths == {self.gates * self.hidden}, name, rule, **call)
        self.input_weights, self.hidden_weights, self.input_bias, self.hidden_bias = record(tape, *given)

    def _split(self, value: Value) -> list[Value]:
        return [value.narrow(1, gate * self.hidden, self.hidden) for gate in range(self.gates)]

    @abstractmethod
    def advance(self, projected: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
        """Record the next states from the input's projection and the states so far."""

    @recorded
    def step(self, input: Value, *states: Value) -> tuple[Value, ...]:
        """Record one step from ``[batch, in]`` and states of ``[batch, hidden]``, and return the next states.

        Raises:
            ShapeError: the count of states or a shape is wrong.
        """
        fits = input.shape.rank == 2 and input.shape[1] == self.inputs and len(states) == self.states
        fits = fits and all(tuple(s.shape) == (input.shape[0], self.hidden) for s in states)
        rule = f"needs [batch, {self.inputs}] and {self.states} states of [batch, {self.hidden}]"
        check(fits, f"{type(self).__name__}.step", rule, input=input, states=[s.shape for s in states])
        return self.advance(affine(input, self.input_weights, self.input_bias), states)

    @recorded
    def express(self, input: Value) -> Value:
        """Record all steps over ``[batch, steps, in]`` from zero states: outputs ``[batch, steps, hidden]``.

        Raises:
            ShapeError: the rank is not 3, or the features differ.
        """
        fits = input.shape.rank == 3 and input.shape[2] == self.inputs
        rule = f"needs [batch, steps, {self.inputs}]"
        check(fits, f"{type(self).__name__}.express", rule, input=input)
        batch, steps, _ = input.shape
        width = self.gates * self.hidden
        # One product for the whole sequence, step after step in memory.
        rows = input.permute([1, 0, 2]).reshape([steps * batch, self.inputs])
        projected = affine(rows, self.input_weights, self.input_bias).reshape([steps, batch, width])
        zero = input.tape.leaf(Tensor.counted([batch, self.hidden], 0, element=input.tape.element))
        states: tuple[Value, ...] = (zero,) * self.states
        outputs = []
        for at in range(steps):
            states = self.advance(projected.narrow(0, at, 1).reshape([batch, width]), states)
            outputs.append(states[0])
        return stack(outputs, 1)


class LstmCell(_Cell):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997; Gers et al., 2000); states (hidden, cell).

    Arguments:
        tape: where the parameters are recorded.
        input_weights: ``[in, 4 hidden]``: input, forget, cell and output gate.
        hidden_weights: ``[hidden, 4 hidden]``.
        input_bias: ``[4 hidden]``.
        hidden_bias: ``[4 hidden]``.

    Raises:
        ShapeError: the shapes disagree.

    >>> tape, draw = Tape(), init.xavier(7)
    >>> cell = LstmCell(tape, draw([2, 12]), draw([3, 12]), draw([12]), draw([12]))
    >>> cell.express(tape.input(np.zeros((4, 5, 2)))).shape
    [4, 5, 3]
    """

    gates, states = 4, 2

    def advance(self, projected: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
        """Record ``c' = f * c + i * g``, ``h' = o * tanh(c')``."""
        hidden, cell = states
        take, keep, new, out = self._split(projected + affine(hidden, self.hidden_weights, self.hidden_bias))
        cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell


class GruCell(_Cell):
    """Gated recurrent unit (Cho et al., 2014), the reset gate after the product; state (hidden,).

    Arguments:
        tape: where the parameters are recorded.
        input_weights: ``[in, 3 hidden]``: reset, update and new gate.
        hidden_weights: ``[hidden, 3 hidden]``.
        input_bias: ``[3 hidden]``.
        hidden_bias: ``[3 hidden]``.

    Raises:
        ShapeError: the shapes disagree.

    >>> tape, draw = Tape(), init.xavier(7)
    >>> cell = GruCell(tape, draw([2, 9]), draw([3, 9]), draw([9]), draw([9]))
    >>> cell.express(tape.input(np.zeros((4, 5, 2)))).shape
    [4, 5, 3]
    """

    gates, states = 3, 1

    def advance(self, projected: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
        """Record ``h' = (1 - z) * n + z * h``."""
        (hidden,) = states
        own, past = self._split(projected), self._split(affine(hidden, self.hidden_weights, self.hidden_bias))
        reset, update = ((a + b).sigmoid() for a, b in zip(own[:2], past[:2], strict=True))
        new = (own[2] + reset * past[2]).tanh()
        return ((update.one_like() - update) * new + update * hidden,)
