"""The wall clock as it was when this process began to look, and the time that has passed since.

Whoever sets the machine's clock in mid-job (ntpdate, a hypervisor, a person) must not make steps longer, shorter, or
end before they begin. So a process reads the wall clock once, and from then on counts on; a sleep of the machine counts
as time. What it cannot mend is a clock that is wrong when the process starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["now_ns", "steadied"]

_NOISE_SECONDS = 0.005
_LATELY_SECONDS = 600.0

# Nanoseconds since some moment that do not jump: with the time that the machine slept, where the system can tell.
_elapsed_ns: Callable[..., int] = time.clock_gettime_ns if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
_CLOCK = (time.CLOCK_BOOTTIME,) if hasattr(time, "CLOCK_BOOTTIME") else ()

# The process may be held up between the two readings, which only makes the difference smaller: the largest is right.
_BEGAN_NS = max(time.time_ns() - _elapsed_ns(*_CLOCK) for _ in range(5))


def now_ns() -> int:
    """Return nanoseconds since 1970; never less than before in this process."""
    return _BEGAN_NS + _elapsed_ns(*_CLOCK)


def steadied(seconds: float) -> float:
    """Return a moment that was read off the wall clock lately as this process counts.

    They differ once the clock has been set. A moment that was read before that, one of long ago, and one of another
    clock stay as they are.

    Args:
        seconds: Since 1970.
    """
    wall_seconds, steady_seconds = time.time(), now_ns() / 1e9
    skew_seconds = steady_seconds - wall_seconds
    age_seconds = wall_seconds - seconds
    if abs(skew_seconds) < _NOISE_SECONDS or abs(age_seconds) > _LATELY_SECONDS:
        return seconds
    # A moment is mostly recorded soon after it was read: it was read off that clock by which it is the more recent.
    if -_NOISE_SECONDS < steady_seconds - seconds < abs(age_seconds):
        return seconds
    return seconds + skew_seconds
