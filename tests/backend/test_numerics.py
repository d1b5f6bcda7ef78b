"""Postures and certificates: what is asked for, and what meets it."""

from __future__ import annotations

import threading

import pytest

from topos import Fidelity, Numerics


def test_what_meets_what() -> None:
    """An envelope satisfies only a requirement of envelope; the others satisfy all."""
    exact, composed, envelope = Fidelity.BIT_IDENTICAL, Fidelity.COMPOSED, Fidelity.ENVELOPE
    assert all(have.meets(need) for have in (exact, composed) for need in Fidelity)
    assert [envelope.meets(need) for need in (exact, composed, envelope)] == [False, False, True]
    assert Numerics.EXACT.fidelity is exact
    assert Numerics.FAST.fidelity is envelope


def test_scopes_nest_and_end() -> None:
    """EXACT by default; scopes nest, take a callable, and end when an exception leaves them."""
    assert Numerics.current() is Numerics.EXACT
    with Numerics.fast() as posture:
        assert Numerics.current() is posture is Numerics.FAST
        with Numerics.exactly():
            assert Numerics.current() is Numerics.EXACT
            assert Numerics.fast(Numerics.current) is Numerics.FAST
        assert Numerics.current() is Numerics.FAST
        assert Numerics.exactly(Numerics.current) is Numerics.EXACT
        with pytest.raises(ZeroDivisionError):
            Numerics.exactly(lambda: 1 / 0)
        assert Numerics.current() is Numerics.FAST
    assert Numerics.current() is Numerics.EXACT
    assert Numerics.fast(lambda: 7) == 7


def test_scopes_belong_to_a_thread() -> None:
    """Another thread does not see the posture of this one."""
    seen = []
    with Numerics.fast():
        worker = threading.Thread(target=lambda: seen.append(Numerics.current()))
        worker.start()
        worker.join()
    assert seen == [Numerics.EXACT]
