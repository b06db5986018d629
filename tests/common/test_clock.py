"""A change of the machine's clock does not change durations."""

from __future__ import annotations

import time

import pytest
from ml_diagnostics_common import clock


def test_it_starts_as_the_wall_clock_and_never_goes_back() -> None:
    assert abs(clock.now_ns() - time.time_ns()) < 60 * 10**9
    stamps = [clock.now_ns() for _ in range(1000)]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_jump_of_the_wall_clock_moves_it_not(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.now_ns()
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3600 * 10**9)
    assert 0 <= clock.now_ns() - before < 60 * 10**9
    # What a user reads off the wall clock now is now; an old stamp stays.
    assert clock.steadied(time.time()) == pytest.approx(real(), abs=30)
    assert clock.steadied(1_000_000_000.0) == 1_000_000_000.0


def test_without_a_jump_a_moment_stays_what_it_is() -> None:
    moment = time.time() - 3.25
    assert clock.steadied(moment) == moment


@pytest.mark.parametrize("jump_seconds", [-300, -20, 20, 300])
def test_a_moment_from_before_a_small_jump_stays_and_later_ones_follow_it(
    jump_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a step is read, the clock is set, and only then the step is recorded."""
    start = time.time()
    monkeypatch.setattr(clock, "now_ns", lambda: int((start + 3) * 1e9))
    monkeypatch.setattr(time, "time", lambda: start + 3 + jump_seconds)
    assert clock.steadied(start + 1) == start + 1
    assert clock.steadied(start + 3 + jump_seconds) == pytest.approx(start + 3)
    assert clock.steadied(start + 2 + jump_seconds) == pytest.approx(start + 2)
