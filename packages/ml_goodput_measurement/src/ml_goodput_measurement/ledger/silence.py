"""How long a job may record nothing before its process is taken for gone: learned from what it recorded so far.

cloud-tpu-diagnostics takes as long a silence for a hang. The bound follows from the log alone: three times the longest
interval between steps that the job has shown, and never less than half an hour while it starts, or ten minutes later.
"""

from __future__ import annotations

from itertools import islice
from operator import sub

from ml_goodput_measurement.ledger.attempts import Attempts
from ml_goodput_measurement.ledger.facts import NEVER_NS
from ml_goodput_measurement.partition import Bucket

__all__ = ["is_silent"]

_FACTOR = 3
_STARTUP_FLOOR_NS = 1_800 * 10**9
_FLOOR_NS = 600 * 10**9
_FEWEST_STEPS = 5
"""The first steps may be compilation."""
_RECENT_STEPS = 1_000
_WAITS = (Bucket.ELASTIC_SLICE_DOWN, Bucket.ELASTIC_SCALE_UP)


def is_silent(attempts: Attempts, now_ns: int) -> bool:
    """Return True if a job has recorded nothing for longer than a hang may last."""
    bound_ns = _bound_ns(attempts)
    return bound_ns is not None and now_ns - attempts.facts.last_before(NEVER_NS) > bound_ns


def _bound_ns(attempts: Attempts) -> int | None:
    """Return the longest silence of a job that lives; None for any: it waits for slices, however long that takes."""
    facts = attempts.facts
    if any(marks.codes and marks.codes[-1] & 1 for (bucket, _), marks in facts.marks.items() if bucket in _WAITS):
        return None
    last = attempts[len(attempts) - 1]
    if last.stop - last.first < _FEWEST_STEPS:
        startups = [facts.steps.times[one.first] - one.start_ns for one in list(attempts)[-2:] if one.has_steps]
        return max(_STARTUP_FLOOR_NS, _FACTOR * max(startups, default=0))
    times = facts.steps.times[max(last.first, last.stop - _RECENT_STEPS) : last.stop]
    longest_ns: int = max(map(sub, islice(times, 1, None), times))
    return max(_FLOOR_NS, _FACTOR * longest_ns)
