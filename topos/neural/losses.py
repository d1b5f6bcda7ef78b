"""Losses beside `cross_entropy`, each rank 0 and a mean."""

from topos.graph import Value
from topos.neural.layers import check, recorded


def _same(name: str, **given: Value) -> None:
    shapes = {value.shape for value in given.values()}
    check(len(shapes) == 1, name, "needs two values of one shape", **given)


@recorded
def mse(prediction: Value, target: Value) -> Value:
    """Record the mean of ``(prediction - target)**2``.

    Raises:
        ShapeError: the shapes differ.

    >>> network, loss = Tape.record(lambda tape: mse(tape.input([1.0, 2.0]), tape.input([1.0, 4.0])))
    >>> print(network.forward(network.parameters()).of(loss))
    2.0
    """
    _same("mse", prediction=prediction, target=target)
    error = prediction - target
    return (error * error).mean()


@recorded
def huber(prediction: Value, target: Value, delta: float = 1.0) -> Value:
    """Record the mean of ``e**2 / 2`` where ``|e| <= delta``, else ``delta * (|e| - delta / 2)`` (Huber, 1964).

    Raises:
        ShapeError: the shapes differ, or delta is not positive.

    >>> network, loss = Tape.record(lambda tape: huber(tape.input([1.0, 4.0]), tape.input([1.0, 1.0])))
    >>> print(network.forward(network.parameters()).of(loss))
    1.25
    """
    _same("huber", prediction=prediction, target=target)
    check(delta > 0, "huber", "delta has to be positive", delta=delta)
    distance = (prediction - target).abs()
    bounded = distance.minimum(delta)
    return (bounded * (distance - bounded / 2)).mean()


@recorded
def binary_cross_entropy(logits: Value, targets: Value) -> Value:
    """Record the mean of ``targets * softplus(-logits) + (1 - targets) * softplus(logits)``.

    This is ``-targets ln(p) - (1 - targets) ln(1 - p)`` of the probabilities p = sigmoid(logits), without
    cancellation, and exactly 0 for a certain and right prediction.

    Raises:
        ShapeError: the shapes differ.

    >>> network, loss = Tape.record(
    ...     lambda tape: binary_cross_entropy(tape.input([0.0, float("inf")]), tape.input([1.0, 1.0]))
    ... )
    >>> print(network.forward(network.parameters()).of(loss))
    0.3465736
    """
    _same("binary_cross_entropy", logits=logits, targets=targets)
    ones = targets.one_like()
    return (targets.scale((-logits).softplus()) + (ones - targets).scale(logits.softplus())).mean()


@recorded
def nll(log_probabilities: Value, targets: Value) -> Value:
    """Record ``-sum(targets * log_probabilities) / sum(targets)``; a target of 0 contributes exactly 0.

    A run whose targets sum to 0 raises `DataError`.

    Raises:
        ShapeError: the shapes differ.

    >>> network, loss = Tape.record(lambda tape: nll(tape.input([[-1.0, -2.0]]), tape.input([[0.0, 1.0]])))
    >>> print(network.forward(network.parameters()).of(loss))
    2.0
    """
    _same("nll", log_probabilities=log_probabilities, targets=targets)
    mass = targets.sum()
    loss = -targets.scale(log_probabilities).sum() / mass
    targets.tape.require_nonzero(mass)
    return loss
