"""The metrics of the attempt that is judged, and none of another one: a link that broke later explains no end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import AttemptFacts, Facts

__all__ = ["metrics_of"]

_NEVER_NS: Final = 2**63


def metrics_of(facts: Facts) -> Curves:
    """Return the metrics that the processes of the judged attempt recorded on their hosts."""
    attempt, judged = facts.attempt, facts.judged
    if attempt is None or judged is None or len(facts.attempts) == 1:
        return facts.metrics
    later = [(_starts_of(each), each.started_ns) for each in facts.attempts[judged + 1 :]]
    # Before the first attempt there is none: its first points may be older than the entry on its start.
    spans = {
        host: (start_ns if judged else 0, _next_start_ns(later, host, start_ns))
        for host, start_ns in _starts_of(attempt).items()
    }
    return facts.metrics.within(spans)


def _starts_of(attempt: AttemptFacts) -> Mapping[str, int]:
    """Return when the first process of each host started, by the clock of the host."""
    starts: dict[str, int] = {}
    for process in attempt.processes:
        starts[process.host] = min(process.started_ns, starts.get(process.host, process.started_ns))
    return starts


def _next_start_ns(later: Sequence[tuple[Mapping[str, int], int | None]], host: str, start_ns: int) -> int:
    """Return when a host, or else the job, started its next attempt.

    Args:
        later: The later attempts: when each of their hosts started, and the job.
        host: The host.
        start_ns: When it started this attempt.
    """
    for starts, job_start_ns in later:
        next_ns = starts.get(host, job_start_ns)
        if next_ns is not None and next_ns > start_ns:
            return next_ns
    return _NEVER_NS
