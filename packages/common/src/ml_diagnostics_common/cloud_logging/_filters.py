"""The text of Cloud Logging's filters: names and values are escaped, whatever they contain."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from urllib.parse import quote

from ml_diagnostics_common.entry import format_timestamp

__all__ = [
    "FASTEST_CLOCK_NS",
    "LONGEST_RETENTION_NS",
    "any_of",
    "entries_filter",
    "full_log_name",
    "gaps_filter",
    "late_entries_filter",
    "log_filter",
    "query_filter",
    "quoted",
]

LONGEST_RETENTION_NS = 3650 * 86_400 * 10**9
FASTEST_CLOCK_NS = 3_600 * 10**9
"""How far the clock of a writer may be ahead of ours."""
_LONGEST_JOB_NAME = 10_000


def full_log_name(project: str, log_id: str) -> str:
    """Return the name of a log as Cloud Logging writes it: `projects/P/logs/L`, the log's id percent-encoded."""
    return f"projects/{project}/logs/{quote(log_id, safe='')}"


def quoted(value: str) -> str:
    r"""Return a string literal of the filter language: quotes, backslashes and control characters cannot end it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{escaped}"'


def any_of(field: str, values: Iterable[str]) -> str:
    """Return the condition that a field has one of some values; it can be part of an AND."""
    terms = [f"{field}={quoted(value)}" for value in values]
    return terms[0] if len(terms) == 1 else f"({' OR '.join(terms)})"


def log_filter(
    project: str, log_id: str, job_name: str | None, resource_labels: Mapping[str, Set[str]] | None = None
) -> str:
    """Select the entries of one log, and of one job in it, with the public package's filter.

    It may select too much, which the caller must sort out: the language compares without regard to case, and a
    filter must not be longer than 20,000 characters, so that a very long name is left out of it.

    Args:
        project: The project's id.
        log_id: The log's id, not encoded.
        job_name: The job; None is every job.
        resource_labels: Selects by labels of the monitored resource, each with one of some values; then at any
            severity.
    """
    clauses = [*_log_clauses(project, log_id, resource_labels), *([] if resource_labels else ["severity=INFO"])]
    if job_name is not None and len(quoted(job_name)) <= _LONGEST_JOB_NAME:
        clauses.append(f"jsonPayload.job_name={quoted(job_name)}")
    return " AND ".join(clauses)


def query_filter(
    project: str,
    log_id: str,
    condition: str,
    resource_labels: Mapping[str, Set[str]] | None = None,
    *,
    after_ns: int | None = None,
) -> str:
    """Select the entries of one log that a condition of the filter language selects, at any severity.

    Args:
        project: The project's id.
        log_id: The log's id, not encoded.
        condition: The condition.
        resource_labels: See `log_filter`.
        after_ns: Only entries after this time; None is all that Cloud Logging keeps.
    """
    selection = " AND ".join([*_log_clauses(project, log_id, resource_labels), f"({condition})"])
    now_ns = time.time_ns()
    earliest_ns = max(0, now_ns - LONGEST_RETENTION_NS) if after_ns is None else after_ns
    return entries_filter(selection, after_ns=earliest_ns, until_ns=now_ns + FASTEST_CLOCK_NS)


def _log_clauses(project: str, log_id: str, resource_labels: Mapping[str, Set[str]] | None) -> list[str]:
    labels = [any_of(f"resource.labels.{name}", sorted(values)) for name, values in (resource_labels or {}).items()]
    return [f"logName={quoted(full_log_name(project, log_id))}", *labels]


def entries_filter(selection: str, *, after_ns: int, until_ns: int) -> str:
    """Narrow a `log_filter` to `after_ns` < timestamp <= `until_ns`, as the public package does."""
    until, after = format_timestamp(until_ns), format_timestamp(after_ns)
    return f'{selection} AND timestamp<="{until}" AND timestamp>"{after}"'


def late_entries_filter(selection: str, *, after_ns: int, until_ns: int, received_since_ns: int) -> str:
    """Narrow an `entries_filter` to what Cloud Logging received since a point in time, however old it is."""
    received = f'receiveTimestamp>="{format_timestamp(received_since_ns)}"'
    return f"{entries_filter(selection, after_ns=after_ns, until_ns=until_ns)} AND {received}"


def gaps_filter(project: str, log_id: str, gaps: Mapping[str, Iterable[tuple[str, str]]], *, after_ns: int) -> str:
    """Select entries by writer and insertId, at any severity: what is missing may be anything.

    Args:
        project: The project's id.
        log_id: The log's id, not encoded.
        gaps: First and last insertId of each stretch that is missing, by writer.
        after_ns: Nothing of this time or older is wanted.
    """
    alternatives = [
        f"(labels.writer={quoted(writer)} AND insertId>={quoted(first)} AND insertId<={quoted(last)})"
        for writer, stretches in gaps.items()
        for first, last in stretches
    ]
    return (
        f"logName={quoted(full_log_name(project, log_id))}"
        f' AND timestamp>"{format_timestamp(after_ns)}" AND ({" OR ".join(alternatives)})'
    )
