"""The text of Cloud Logging's filters: names and values go in escaped, whatever they contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

from ml_diagnostics_common.entry import format_timestamp

__all__ = [
    "ORDER",
    "entries_filter",
    "full_log_name",
    "gaps_filter",
    "late_entries_filter",
    "log_filter",
    "quoted",
]

_LONGEST_JOB_NAME = 10_000

ORDER = "timestamp asc"
"""The order in which entries are asked for: the reference's."""


def full_log_name(project: str, log_id: str) -> str:
    """The name of a log as Cloud Logging writes it: `projects/P/logs/L`, the log's id percent-encoded."""
    return f"projects/{project}/logs/{quote(log_id, safe='')}"


def quoted(value: str) -> str:
    r"""A string literal of the filter language: quotes, backslashes and control characters cannot end it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{escaped}"'


def log_filter(
    project: str, log_id: str, job_name: str | None, resource_labels: Mapping[str, str] | None = None
) -> str:
    """Selects the entries of one log, and of one job in it; in the reference's words.

    It may select too much, which the caller must sort out: the language compares without regard to case, and a
    filter must not be longer than 20,000 characters, so that a very long name is left out of it.

    Args:
        project: The project's id.
        log_id: The log's id, not encoded.
        job_name: The job; None is every job.
        resource_labels: Selects by labels of the monitored resource; then at any severity.
    """
    clauses = [f"logName={quoted(full_log_name(project, log_id))}"]
    if resource_labels:
        clauses += [f"resource.labels.{name}={quoted(value)}" for name, value in resource_labels.items()]
    else:
        clauses.append("severity=INFO")
    if job_name is not None and len(quoted(job_name)) <= _LONGEST_JOB_NAME:
        clauses.append(f"jsonPayload.job_name={quoted(job_name)}")
    return " AND ".join(clauses)


def entries_filter(selection: str, *, after_ns: int, until_ns: int) -> str:
    """Narrows a `log_filter` to `after_ns` < timestamp <= `until_ns`; in the reference's words and order."""
    until, after = format_timestamp(until_ns), format_timestamp(after_ns)
    return f'{selection} AND timestamp<="{until}" AND timestamp>"{after}"'


def late_entries_filter(selection: str, *, after_ns: int, until_ns: int, received_since_ns: int) -> str:
    """Narrows an `entries_filter` to what Cloud Logging received since a point in time, however old it is."""
    received = f'receiveTimestamp>="{format_timestamp(received_since_ns)}"'
    return f"{entries_filter(selection, after_ns=after_ns, until_ns=until_ns)} AND {received}"


def gaps_filter(project: str, log_id: str, gaps: Mapping[str, Iterable[tuple[str, str]]], *, after_ns: int) -> str:
    """Selects entries by writer and insertId, at any severity: what is missing may be anything.

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
