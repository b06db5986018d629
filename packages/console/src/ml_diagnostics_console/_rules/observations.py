"""Notes beside the verdicts: lost entries, silent logs, clocks that differ, processes that recorded nothing. Pure."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics.reading import State
from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts
from ml_diagnostics_console._rules.stuck import missing_of
from ml_diagnostics_console._rules.wording import clock, named

__all__ = ["observations"]

_SECOND_NS: Final = 1_000_000_000
_CLOCKS_NS: Final = _SECOND_NS
"""Clocks are trusted to a second."""
_SHOWN: Final = 5


def observations(facts: Facts) -> list[str]:
    """Return sentences on what limits the answer of the doctor."""
    attempt = facts.attempt
    if attempt is None:
        return []
    return [*_losses(attempt), *_silent(facts, attempt), *_clocks(attempt), *_unknown(attempt)]


def _losses(attempt: AttemptFacts) -> list[str]:
    lossy = [process for process in attempt.processes if process.lost_entries > 0]
    if not lossy:
        return []
    lost = sum(process.lost_entries for process in lossy)
    return [f"{format_count(lost, 'entry', 'entries')} of {named(lossy)} could not be recorded: facts may be missing."]


def _silent(facts: Facts, attempt: AttemptFacts) -> list[str]:
    if not facts.is_live:
        return []
    silent = [process for process in attempt.processes if process.state is State.STALE and not process.has_ended]
    if not silent:
        return []
    last_ns = max(process.last_event_ns for process in silent)
    ago = format_duration(max(0, facts.now_ns - last_ns) // _SECOND_NS)
    return [f"{named(silent)}: no event since {clock(last_ns)}, {ago} ago."]


def _clocks(attempt: AttemptFacts) -> list[str]:
    offsets = {host: offset for host, offset in attempt.clock_offsets_ns.items() if abs(offset) > _CLOCKS_NS}
    texts = [
        f"{host} by {'+' if offset > 0 else '-'}{format_duration(abs(offset) / _SECOND_NS)}"
        for host, offset in sorted(offsets.items(), key=lambda item: -abs(item[1]))
    ]
    if not texts:
        return []
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return [
        f"Clocks differ from that of the first host: {', '.join(texts[:_SHOWN])}{more}; times are corrected by that."
    ]


def _unknown(attempt: AttemptFacts) -> list[str]:
    indexes, expected = missing_of(attempt)
    absent = expected - len(attempt.processes)
    if absent <= 0:
        return []
    shown = ", ".join(map(str, indexes[:_SHOWN])) + (
        f" and {len(indexes) - _SHOWN} more" if len(indexes) > _SHOWN else ""
    )
    which = f" ({shown})" if indexes else ""
    return [f"Nothing is known of {absent} of {format_count(expected, 'process', 'processes')}{which}."]
