"""The states of devices while a job ran, by metrics that are recorded when they change. Pure."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.stuck import stuck_job
from ml_diagnostics_console.verdict import VerdictClass

__all__ = ["class_of", "held_seconds", "in_force"]

_SECOND_NS: Final = 1_000_000_000


def in_force(curve: Curve, start_ns: int, end_ns: int) -> list[float]:
    """Return the values of a time range, and the one before, which held until the next."""
    before = [value for time_ns, value in zip(curve.times_ns, curve.values, strict=True) if time_ns < start_ns]
    return [*before[-1:], *curve.between(start_ns, end_ns)]


def held_seconds(curve: Curve, least: float, until_ns: int) -> float:
    """Return for how long the newest values have been at least so high; 0 if the last one is not."""
    since_ns = None
    for time_ns, value in zip(reversed(curve.times_ns), reversed(curve.values), strict=True):
        if value < least:
            break
        since_ns = time_ns
    if since_ns is None or curve.last < least:
        return 0.0
    return max(0.0, (max(until_ns, curve.last_ns) - since_ns) / _SECOND_NS)


def class_of(facts: Facts) -> VerdictClass:
    """Return the kind of a verdict on a device: what the job suffers from."""
    if stuck_job(facts) is not None:
        return VerdictClass.STUCK
    attempt = facts.attempt
    return VerdictClass.CRASH if attempt is not None and attempt.has_failed else VerdictClass.SLOW
