"""A monotonic wall clock: the wall clock at the start of this process, and the time since then.

If the machine's clock is set during a job (by ntpdate, a hypervisor, a person), steps must not become longer or
shorter, or end before they start. So a process reads the wall clock once, and adds the elapsed time, which includes
sleeps of the machine. A clock that is wrong when the process starts stays wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["now_ns", "now_seconds", "steadied"]

_NOISE_SECONDS = 0.005
_LATELY_SECONDS = 600.0

# Nanoseconds that do not jump: with the time that the machine slept, if the system counts it.
_elapsed_ns: Callable[..., int] = time.clock_gettime_ns if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
_CLOCK = (time.CLOCK_BOOTTIME,) if hasattr(time, "CLOCK_BOOTTIME") else ()

# A delay between the two readings only makes the difference smaller: the largest is right.
_START_NS = max(time.time_ns() - _elapsed_ns(*_CLOCK) for _ in range(5))


def now_ns() -> int:
    """Return nanoseconds since 1970; never less than before in this process."""
    return _START_NS + _elapsed_ns(*_CLOCK)


def now_seconds() -> float:
    """Return seconds since 1970; never less than before in this process."""
    return now_ns() / 1e9


def steadied(seconds: float) -> float:
    """Return a recent time of the wall clock by this process's clock.

    They differ once the wall clock has been set. Times from before that, of long ago, and of another clock are returned
    unchanged.

    Args:
        seconds: A time in seconds since 1970.
    """
    wall_seconds, steady_seconds = time.time(), now_seconds()
    skew_seconds = steady_seconds - wall_seconds
    age_seconds = wall_seconds - seconds
    if abs(skew_seconds) < _NOISE_SECONDS or abs(age_seconds) > _LATELY_SECONDS:
        return seconds
    # A time is mostly recorded soon after it was read: it was read from the clock by which it is more recent.
    if -_NOISE_SECONDS < steady_seconds - seconds < abs(age_seconds):
        return seconds
    return seconds + skew_seconds
