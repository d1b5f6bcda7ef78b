"""Schedules: their shapes, their ends, and a sequence of steps that follows one."""

from __future__ import annotations

import numpy as np
import pytest

from topos import Sgd, Tape, UsageError, schedules


def test_shapes() -> None:
    """Each starts and ends where it says, and goes one way between."""
    for schedule in (schedules.linear(1.0, 0.25, 50), schedules.cosine(1.0, 50, 0.25)):
        rates = schedules.rates(schedule, 60)
        assert rates[0] == 1
        assert (rates[50:] == 0.25).all()
        assert (np.diff(rates[:51]) < 0).all()
    expected = 0.25 + 0.75 * (1 + np.cos(np.pi * np.arange(51) / 50)) / 2
    np.testing.assert_allclose(schedules.rates(schedules.cosine(1.0, 50, 0.25), 51), expected, rtol=1e-14)
    expected = 3.0 * 0.9 ** (np.arange(40) // 3)
    np.testing.assert_allclose(schedules.rates(schedules.exponential(3.0, 0.9, 3), 40), expected, rtol=1e-14)
    piecewise = schedules.piecewise([3.0, 2.0, 1.0], [2, 4])
    assert schedules.rates(piecewise, 6).tolist() == [3, 3, 2, 2, 1, 1]
    warm = schedules.warmup(4, schedules.linear(1.0, 0.0, 2))
    assert schedules.rates(warm, 7).tolist() == [0.25, 0.5, 0.75, 1, 1, 0.5, 0]
    assert schedules.rates(warm, 2, first=5).tolist() == [0.5, 0]


def test_refusals() -> None:
    """No steps, and rates that do not match the boundaries."""
    for attempt in (
        lambda: schedules.linear(1.0, 0.0, 0),
        lambda: schedules.cosine(1.0, -1),
        lambda: schedules.warmup(0, schedules.constant(1.0)),
        lambda: schedules.exponential(1.0, 0.5, 0),
        lambda: schedules.piecewise([1.0], [3]),
    ):
        with pytest.raises(UsageError):
            attempt()


def test_a_sequence_of_steps_follows_one() -> None:
    """`plan.steps` takes the rates: the bits of a step at a time."""

    def build(tape: Tape) -> object:
        w, x = tape.parameter(3.0), tape.input(0.0)
        return x, tape.differentiate((w - x) * (w - x), w)

    network, (x, adjoints) = Tape.record(build)
    plan, feeds = network.entry(adjoints.roots).lower(), np.arange(10.0)
    schedule = schedules.warmup(3, schedules.cosine(0.3, 6))
    _, together = plan.steps(network.parameters(), {x: feeds}, Sgd(), schedules.rates(schedule, 10))
    alone = network.parameters()
    for step, feed in enumerate(feeds):
        _, alone = plan.step(alone, {x: feed}, Sgd(), schedule(step))
    assert alone.buffer.tobytes() == together.buffer.tobytes()
