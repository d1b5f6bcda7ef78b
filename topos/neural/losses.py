"""Losses, each rank 0 and a mean."""

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
def cross_entropy(logits: Value, targets: Value) -> Value:
    """Record ``-sum(targets * log_softmax(logits)) / sum(targets)`` over ``[batch, classes]``, rank 0.

    The mean negative log-likelihood for one-hot targets, normalised by mass for weighted ones. A target of
    0 contributes exactly 0, also beside a logit of -inf. A run whose targets sum to 0 raises `DataError`.

    Raises:
        ShapeError: a rank is not 2, or the shapes differ.

    >>> network, loss = Tape.record(lambda tape: cross_entropy(tape.input([[9.0, 9.0]]), tape.input([[1.0, 0.0]])))
    >>> print(network.forward(network.parameters()).of(loss))
    0.6931472
    """
    fits = logits.shape.rank == 2 and logits.shape == targets.shape
    check(fits, "cross_entropy", "needs two values of one shape [batch, classes]", logits=logits, targets=targets)
    return _likelihood(targets.sum(), targets.scale(logits.log_softmax(1)))


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
    return _likelihood(targets.sum(), targets.scale(log_probabilities))


def _likelihood(mass: Value, shares: Value) -> Value:
    """Record ``-sum(shares) / mass``, which a run refuses whose mass is 0."""
    loss = -shares.sum() / mass
    mass.tape.require_nonzero(mass)
    return loss
