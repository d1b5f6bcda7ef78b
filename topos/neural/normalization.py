"""Normalizations: over a batch, with or without running statistics, and over features."""

from typing import Any, NamedTuple

from topos.engine.run import Run
from topos.errors import SymbolError, UnreadableError
from topos.graph import Parameters, Symbol, Tape, Value
from topos.neural.layers import biased, check, each, record, recorded, spread
from topos.neural.module import Members, Module, Visitor, collect, is_inference
from topos.payload import Tensor


class Normalization(NamedTuple):
    """A recorded batch normalization: the output, and the batch statistics that it normalized by.

    >>> tape = Tape()
    >>> result = BatchNorm(tape, [1.0], [0.0]).express(tape.input([[1.0], [3.0]]))
    >>> mean = result.mean.symbol
    >>> network = tape.into_network()
    >>> print(network.forward(network.parameters()).of(mean))
    [2.0]
    """

    output: Value
    mean: Value
    variance: Value


class _Norm(Members):
    """What the normalizations share: learned scale and shift per feature, and an epsilon that is a leaf."""

    members = ("scale", "shift")

    def __init__(self, tape: Tape, scale: Any, shift: Any, epsilon: Any = 1e-5) -> None:
        name = type(self).__name__
        scale, shift, small = each(tape.payload_of, scale, shift, epsilon)
        fits = scale.shape.rank == 1 and (shift is None or shift.shape == scale.shape)
        check(fits, name, "needs scale [features] and shift of that shape", scale=scale, shift=shift)
        check(small.shape.volume == 1, name, "a single value is needed", epsilon=small)
        self.features = scale.shape[0]
        self.scale: Symbol
        self.shift: Symbol | None
        with tape.transaction():
            self.scale, self.shift = record(tape, scale, shift)
            self.epsilon: Symbol = tape.leaf(small.reshape([])).symbol

    def _deviation(self, variance: Value) -> Value:
        """Record sqrt(variance + epsilon)."""
        epsilon = variance.tape.resolve(self.epsilon)
        return (variance + epsilon.broadcast(variance.shape)).sqrt()

    def _transformed(self, normal: Value, axis: int) -> Value:
        """Record ``normal * scale + shift`` along an axis; a norm without a shift adds none."""
        scale, shift = each(normal.tape.resolve, self.scale, self.shift)
        return biased(normal * spread(scale, normal.shape, axis), shift, axis)

    def _checked(self, input: Value, axis: int) -> int:
        """Return an axis, which holds the features, counted from the front."""
        fits = -input.shape.rank <= axis < input.shape.rank and input.shape[axis] == self.features
        rule = f"axis {axis} has to hold {self.features} features"
        check(fits, f"{type(self).__name__}.express", rule, input=input)
        return input.axis(axis)


class LayerNorm(_Norm, Module):
    """Every row standardized by its own mean and variance, then ``* scale + shift`` (Ba et al., 2016).

    Arguments:
        tape: where the parameters are recorded.
        scale: ``[features]``.
        shift: ``[features]``.
        epsilon: added to the variance, a single value.

    Raises:
        ShapeError: ranks or features disagree, or the epsilon holds several values.

    >>> tape = Tape()
    >>> y = LayerNorm(tape, [1.0, 1.0], [0.0, 0.0], 0.0).express(tape.input([[1.0, 3.0]])).symbol
    >>> network = tape.into_network()
    >>> print(network.forward(network.parameters()).of(y))
    [[-1.0, 1.0]]
    """

    @recorded
    def express(self, input: Value) -> Value:
        """Record the normalization of ``[..., features]`` along the last axis.

        Raises:
            ShapeError: the last axis does not hold the features.
        """
        last = self._checked(input, -1)
        centered = input - input.mean_along(last).broadcast_along(last, self.features)
        deviation = self._deviation((centered * centered).mean_along(last))
        return self._transformed(centered / deviation.broadcast_along(last, self.features), last)


class RmsNorm(_Norm, Module):
    """Every row divided by its root mean square, then ``* scale`` (Zhang & Sennrich, 2019).

    Arguments:
        tape: where the parameter is recorded.
        scale: ``[features]``.
        epsilon: added to the mean square, a single value.

    Raises:
        ShapeError: the scale's rank is not 1, or the epsilon holds several values.

    >>> tape = Tape()
    >>> y = RmsNorm(tape, [1.0, 1.0], 0.0).express(tape.input([[3.0, -3.0]])).symbol
    >>> network = tape.into_network()
    >>> print(network.forward(network.parameters()).of(y))
    [[1.0, -1.0]]
    """

    def __init__(self, tape: Tape, scale: Any, epsilon: Any = 1e-5) -> None:
        super().__init__(tape, scale, None, epsilon)

    @recorded
    def express(self, input: Value) -> Value:
        """Record the normalization of ``[..., features]`` along the last axis.

        Raises:
            ShapeError: the last axis does not hold the features.
        """
        last = self._checked(input, -1)
        root = self._deviation((input * input).mean_along(last))
        return self._transformed(input / root.broadcast_along(last, self.features), last)


class BatchNorm(_Norm):
    """Every feature standardized by its batch, then ``* scale + shift`` (Ioffe & Szegedy, 2015).

    Not a chain's stage, because it also answers the statistics: `RunningBatchNorm` is one.

    Arguments:
        tape: where the parameters are recorded.
        scale: ``[features]``.
        shift: ``[features]``.
        epsilon: added to the variance, a single value.

    Raises:
        ShapeError: ranks or features disagree, or the epsilon holds several values.

    >>> tape = Tape()
    >>> y = BatchNorm(tape, [1.0], [5.0], 0.0).express(tape.input([[1.0], [3.0]])).output.symbol
    >>> network = tape.into_network()
    >>> print(network.forward(network.parameters()).of(y))
    [[4.0], [6.0]]
    """

    @recorded
    def express(self, input: Value) -> Normalization:
        """Record the normalization by the batch's own mean and (biased) variance.

        Arguments:
            input: ``[batch, features]``, or ``[batch, features, ...]`` as images are.

        Raises:
            ShapeError: axis 1 does not hold the features.
        """
        self._checked(input, 1)
        rows = _rows(input)
        mean = _mean(rows)
        centered = rows - spread(mean, rows.shape, 1)
        variance = _mean(centered * centered)
        return Normalization(self._affine(centered, variance, input), mean, variance)

    @recorded
    def express_with(self, input: Value, mean: Value, variance: Value) -> Value:
        """Record the normalization by given statistics of shape ``[features]``.

        Raises:
            ShapeError: axis 1 does not hold the features, or the statistics have another shape.
        """
        self._checked(input, 1)
        fits = all(tuple(given.shape) == (self.features,) for given in (mean, variance))
        rule = f"needs statistics of shape [{self.features}]"
        check(fits, "BatchNorm.express_with", rule, mean=mean, variance=variance)
        rows = _rows(input)
        return self._affine(rows - spread(mean, rows.shape, 1), variance, input)

    def _affine(self, centered: Value, variance: Value, input: Value) -> Value:
        """Record ``centered / deviation * scale + shift`` in the input's shape."""
        shape, deviation = centered.shape, self._deviation(variance)
        if shape.rank == 2:  # the structure that the catalog recognises
            return self._transformed(centered / spread(deviation, shape, 1), 1)
        # Images: one division per feature instead of one per pixel.
        scale, shift = each(input.tape.resolve, self.scale, self.shift)
        result = biased(centered * spread(scale / deviation, shape, 1), shift, 1)
        return result if shape == input.shape else result.reshape(input.shape)


def _rows(input: Value) -> Value:
    """Return ``[batch, features, ...]`` with the axes of an image merged: sums then run along memory."""
    shape = input.shape
    return input if shape.rank <= 3 else input.reshape([*shape[:2], shape.volume // (shape[0] * shape[1])])


def _mean(rows: Value) -> Value:
    """Record the mean of each feature of ``[batch, features]`` or ``[batch, features, positions]``."""
    total = (rows.sum_along(2) if rows.shape.rank == 3 else rows).sum_along(0)
    return total / total.constant_like(rows.shape.volume // rows.shape[1])


class RunningBatchNorm(Module):
    """`BatchNorm` as a module: batch statistics in training, running ones under `inference`.

    The running mean and variance are slots of the caller's `Parameters`, saved with it. No optimizer moves
    them: `update_statistics` does, from what a training run observed.

    Arguments:
        tape: where the parameters and the running statistics are recorded.
        scale: ``[features]``.
        shift: ``[features]``.
        epsilon: added to the variance, a single value.
        momentum: the weight of a new batch in the running statistics.

    Raises:
        ShapeError: ranks or features disagree, or the epsilon holds several values.

    >>> tape = Tape()
    >>> norm = RunningBatchNorm(tape, [1.0], [0.0], momentum=0.5)
    >>> loss = norm.express(tape.input([[1.0], [3.0]])).sum().symbol
    >>> network = tape.into_network()
    >>> plan = network.entry([loss]).observe(statistics(norm)).lower()
    >>> parameters = network.parameters()
    >>> parameters = update_statistics(parameters, plan.forward(parameters), norm)
    >>> print(parameters.of(norm.running_mean), parameters.of(norm.running_variance))
    [1.0] [1.5]
    """

    def __init__(self, tape: Tape, scale: Any, shift: Any, epsilon: Any = 1e-5, momentum: float = 0.1) -> None:
        self.momentum = momentum
        self.recordings: list[tuple[Symbol, Symbol, int]] = []
        with tape.transaction():
            self.norm = BatchNorm(tape, scale, shift, epsilon)
            zeros = Tensor.counted([self.norm.features], 0, element=tape.element)
            self.running_mean = tape.parameter(zeros).symbol
            self.running_variance = tape.parameter(zeros.one_like()).symbol

    @recorded
    def express(self, input: Value) -> Value:
        """Record the normalization of ``[batch, features, ...]``.

        Raises:
            ShapeError: axis 1 does not hold the features.
        """
        tape, length = input.tape, len(input.tape)
        if is_inference():
            running = each(tape.resolve, self.running_mean, self.running_variance)
            return self.norm.express_with(input, *running)
        output, mean, variance = self.norm.express(input)
        count = input.shape.volume // self.norm.features
        # Nodes as new as these were taken back by a recording that failed.
        self.recordings = [known for known in self.recordings if known[1].index < length]
        self.recordings.append((mean.symbol, variance.symbol, count))
        return output

    def visit(self, visitor: Visitor) -> None:
        """Show `scale`, `shift`, and the running statistics as such."""
        self.norm.visit(visitor)
        visitor.running("running_mean", self.running_mean, self)
        visitor.running("running_variance", self.running_variance, self)


def statistics(module: Module) -> list[Symbol]:
    """Return the batch statistics that a tree records in training: what its entry has to observe.

    >>> tape = Tape()
    >>> norm = RunningBatchNorm(tape, [1.0], [0.0])
    >>> _ = norm.express(tape.input([[1.0], [3.0]]))
    >>> len(statistics(norm))
    2
    """
    layers = collect(module, True).layers
    return [symbol for layer in layers for recording in layer.recordings for symbol in recording[:2]]


def update_statistics(parameters: Parameters, run: Run, module: Module) -> Parameters:
    """Return the table with every running statistic of a tree moved towards what a training run observed.

    ``running = running * (1 - momentum) + batch * momentum``, with the batch's unbiased variance.

    Raises:
        UnreadableError: the run kept no batch statistics of a layer: observe `statistics`.

    >>> tape = Tape()
    >>> norm = RunningBatchNorm(tape, [1.0], [0.0], momentum=1.0)
    >>> _ = norm.express(tape.input([[1.0], [3.0]]))
    >>> network = tape.into_network()
    >>> parameters = network.parameters()
    >>> print(update_statistics(parameters, network.forward(parameters), norm).of(norm.running_mean))
    [2.0]
    """
    changed: dict[Symbol, Tensor] = {}
    for layer in collect(module, True).layers:
        mean, variance = parameters.of(layer.running_mean), parameters.of(layer.running_variance)
        read = 0
        for mean_symbol, variance_symbol, count in layer.recordings:
            try:
                batch, squares = run.of(mean_symbol), run.of(variance_symbol)
            except (SymbolError, UnreadableError):  # expressed again, in another entry
                continue
            read += 1
            keep, take = 1 - layer.momentum, layer.momentum
            unbiased = squares * (count / max(count - 1, 1))
            mean, variance = mean * keep + batch * take, variance * keep + unbiased * take
        if not read:
            remedy = "lower network.entry(roots).observe(statistics(model))"
            raise UnreadableError(f"update_statistics: the run kept no batch statistics of a layer; {remedy}")
        changed |= {layer.running_mean: mean, layer.running_variance: variance}
    return parameters.with_payloads(changed)
