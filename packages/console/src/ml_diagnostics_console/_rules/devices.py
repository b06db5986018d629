"""The states of devices while a job ran, by metrics that are recorded when they change. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.stuck import stuck_job
from ml_diagnostics_console.verdict import VerdictClass

__all__ = ["STATE_SECONDS", "State", "began_before_failure", "class_of", "held_seconds", "in_force", "state_of"]

_SECOND_NS: Final = 1_000_000_000
STATE_SECONDS: Final = 60.0
"""A state is recorded each minute: that of a job which is stuck may have begun so long before its record."""


class State(NamedTuple):
    """A bad state of a device: that at the failure of the job, else the one that it still has."""

    value: float
    since_ns: int
    is_last: bool
    """True if the device still has it."""


def in_force(curve: Curve, start_ns: int, end_ns: int) -> list[float]:
    """Return the values of a time range, and the one before, which held until the next."""
    points = curve.points()
    before = [value for time_ns, value in points if time_ns < start_ns]
    return [*before[-1:], *(value for time_ns, value in points if start_ns <= time_ns <= end_ns)]


def held_seconds(curve: Curve, least: float, until_ns: int) -> float:
    """Return for how long the newest values have been at least so high; 0 if the last one is not."""
    since_ns = None
    for time_ns, value in reversed(curve.points()):
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


def state_of(facts: Facts, curve: Curve, least: float) -> State | None:
    """Return the state of a device with a value of at least `least`: that at the failure, else the last; or None.

    Args:
        facts: The facts.
        curve: The values of its state: higher ones are worse.
        least: The lowest value that is bad.
    """
    found: list[tuple[State, int | None]] = []
    current: State | None = None
    for time_ns, value in curve.points():
        if value >= least:
            current = (
                State(max(value, current.value), current.since_ns, True) if current else State(value, time_ns, True)
            )
        elif current is not None:
            found.append((current._replace(is_last=False), time_ns))
            current = None
    if current is not None:
        found.append((current._replace(value=curve.last), None))
    failed_ns = _failure_ns(facts, curve.key.host)
    for state, until_ns in found:
        if failed_ns is not None and state.since_ns <= failed_ns and (until_ns is None or until_ns > failed_ns):
            return state
    return found[-1][0] if current is not None else None


def began_before_failure(facts: Facts, host: str, since_ns: int) -> bool:
    """Return True if a state of a host's device is as old as the failure of the job, so that it may have caused it."""
    failed_ns = _failure_ns(facts, host)
    return failed_ns is not None and since_ns <= failed_ns


def _failure_ns(facts: Facts, host: str) -> int | None:
    """Return by when a cause of the failure is recorded, by the clock of a host; None if the job has not failed."""
    attempt = facts.attempt
    if attempt is None:
        return None
    offset_ns = attempt.clock_offsets_ns.get(host, 0)
    job = stuck_job(facts)
    if job is not None:
        return job.since_ns + offset_ns + round(STATE_SECONDS * _SECOND_NS)
    ends = [process.end.ended_ns for process in attempt.first if process.end.ended_ns is not None]
    # Not a minute later: the end of a host also breaks the links to it.
    return min(ends) + offset_ns + attempt.clock_uncertainty_ns if ends else None
