"""LogEntry: what readers return and the shipper sends, its forms as text, and collections of entries.

A journal's line is decoded straight into a LogEntry: nothing is converted twice on the way from the disk to a ledger.
"""

from __future__ import annotations

import calendar
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

__all__ = [
    "COMPANION_LOG_ID",
    "EntryContext",
    "LogEntry",
    "ProcessEndings",
    "SeenSequences",
    "decode_cloud",
    "encode_cloud",
    "format_timestamp",
    "make_insert_id",
    "parse_timestamp",
    "split_insert_id",
]

WRITER_LABEL = "writer"
SEQUENCE_LABEL = "seq"


class EntryContext(NamedTuple):
    """The fields that many entries of one writer share."""

    log_id: str
    """The logger's name, as the user gave it."""
    log_name: str
    """`projects/P/logs/L`, L percent-encoded; empty for what a journal holds."""
    resource: Mapping[str, Any]
    """Cloud Logging's monitored resource: type and labels."""
    labels: Mapping[str, str]
    """The labels without writer and sequence number, which are the entry's own."""
    severity: str = "INFO"
    writer: str | None = None
    """The writer of the journal that they were written to; None for entries of other programs."""


_NO_CONTEXT = EntryContext("", "", {}, {})


class LogEntry(msgspec.Struct, gc=False):
    """One entry; `LogEntry.make` builds one from its insertId. `t`, `s`, `p` are the names in a journal's line."""

    timestamp_ns: int = msgspec.field(name="t")
    """When the recording call was made, or the time that it was given: ns since 1970, by the wall clock."""
    sequence: int = msgspec.field(name="s")
    """The number that the writer gave the entry; 0 for an entry without a journal."""
    payload: dict[str, Any] = msgspec.field(name="p")
    context: EntryContext = _NO_CONTEXT
    own_severity: str | None = msgspec.field(name="severity", default=None)
    """Set where the entry differs from its context."""
    foreign_id: str = ""
    """The insertId of an entry that came from no journal."""
    own_resource_labels: dict[str, str] | None = msgspec.field(name="r", default=None)
    """Labels of the monitored resource in which the entry differs from its context."""

    @classmethod
    def make(
        cls,
        timestamp_ns: int,
        insert_id: str,
        payload: dict[str, Any],
        context: EntryContext,
        severity: str | None = None,
    ) -> LogEntry:
        """Make an entry from its insertId: one of a journal if the id has the context's writer, else a foreign one."""
        parts = split_insert_id(insert_id)
        if parts is not None and parts[0] == context.writer:
            return cls(timestamp_ns, parts[1], payload, context, severity)
        return cls(timestamp_ns, 0, payload, context._replace(writer=None), severity, insert_id)

    @property
    def insert_id(self) -> str:
        """Unique in its log, the same wherever the entry is read from."""
        writer = self.context.writer
        return self.foreign_id if writer is None else f"{writer}.{self.sequence}"

    @property
    def severity(self) -> str:
        """The entry's own, else its context's."""
        return self.own_severity or self.context.severity

    @property
    def resource(self) -> Mapping[str, Any]:
        """Cloud Logging's monitored resource: the context's, with the entry's own labels."""
        resource = self.context.resource
        if not self.own_resource_labels:
            return resource
        return {**resource, "labels": {**(resource.get("labels") or {}), **self.own_resource_labels}}

    def resource_label(self, name: str) -> str:
        """Return a label of the monitored resource; empty if it has none of that name."""
        own = self.own_resource_labels
        if own is not None and name in own:
            return own[name]
        return str((self.context.resource.get("labels") or {}).get(name, ""))


def make_insert_id(writer: str, sequence: int) -> str:
    """Return the insertId of a writer's entry; ids of one writer sort in the order of its sequence."""
    return f"{writer}.{sequence}"


def split_insert_id(insert_id: str) -> tuple[str, int] | None:
    """Return (writer, sequence) of an id of `make_insert_id`; None for any other id."""
    writer, dot, digits = insert_id.rpartition(".")
    if not writer or not dot or len(digits) != 12 or not (digits.isascii() and digits.isdigit()):
        return None
    return writer, int(digits)


def format_timestamp(timestamp_ns: int) -> str:
    """Return a time as RFC 3339 in UTC with nine digits: 2026-11-21T05:36:43.123456789Z."""
    seconds, fraction = divmod(timestamp_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z"


_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):?(\d\d))",
    re.ASCII,
)


def parse_timestamp(text: str) -> int:
    """Parse RFC 3339 to ns since 1970, to the nanosecond; raises ValueError on anything else."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 timestamp such as 2026-11-21T05:36:43.123456789Z")
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = match.groups()
    seconds = calendar.timegm((int(year), int(month), int(day), int(hour), int(minute), int(second)))
    if sign is not None:
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds -= offset if sign == "+" else -offset
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def encode_cloud(entry: LogEntry) -> dict[str, Any]:
    """Return the entry as Cloud Logging's REST LogEntry."""
    context = entry.context
    labels = dict(context.labels)
    if context.writer is not None:
        labels[WRITER_LABEL] = context.writer
        labels[SEQUENCE_LABEL] = str(entry.sequence)
    encoded: dict[str, Any] = {
        "timestamp": format_timestamp(entry.timestamp_ns),
        "severity": entry.severity,
        "insertId": entry.insert_id,
        "labels": labels,
        "jsonPayload": entry.payload,
    }
    if context.log_name:
        encoded["logName"] = context.log_name
    if context.resource:
        encoded["resource"] = dict(entry.resource)
    return encoded


def decode_cloud(encoded: Mapping[str, Any], log_id: str = "") -> LogEntry:
    """Return a LogEntry from Cloud Logging's REST form, of any writer.

    Args:
        encoded: the entry; only a timestamp is required.
        log_id: the logger's name; without it, it is read from logName.
    """
    labels = dict(encoded.get("labels") or {})
    writer = labels.pop(WRITER_LABEL, None)
    labels.pop(SEQUENCE_LABEL, None)
    log_name = encoded.get("logName", "")
    context = EntryContext(
        log_id=log_id or _log_id(log_name),
        log_name=log_name,
        resource=encoded.get("resource") or {},
        labels=labels,
        severity=encoded.get("severity", "DEFAULT"),
        writer=writer,
    )
    return LogEntry.make(
        parse_timestamp(encoded["timestamp"]),
        encoded.get("insertId", ""),
        encoded.get("jsonPayload") or {},
        context,
    )


def _log_id(log_name: str) -> str:
    from urllib.parse import unquote  # Only here: most callers know their log.

    return unquote(log_name.partition("/logs/")[2])


class SeenSequences:
    """The sequence numbers seen so far of each writer, as disjoint ranges in order.

    Adding is O(1) in order and O(ranges of that writer) otherwise; memory is two integers a range.
    """

    def __init__(self) -> None:
        # writer -> ([first of each range], [last of each range]), both ascending.
        self._ranges: dict[str, tuple[list[int], list[int]]] = {}

    def add(self, writer: str, sequence: int) -> bool:
        """Add one entry; return False if it was seen before."""
        ranges = self._ranges.get(writer)
        if ranges is None:
            self._ranges[writer] = ([sequence], [sequence])
            return True
        firsts, lasts = ranges
        if sequence == lasts[-1] + 1:
            lasts[-1] = sequence
            return True
        position = bisect_right(firsts, sequence) - 1
        if position >= 0 and sequence <= lasts[position]:
            return False
        joins_left = position >= 0 and lasts[position] == sequence - 1
        joins_right = position + 1 < len(firsts) and firsts[position + 1] == sequence + 1
        if joins_left and joins_right:
            lasts[position] = lasts.pop(position + 1)
            firsts.pop(position + 1)
        elif joins_left:
            lasts[position] = sequence
        elif joins_right:
            firsts[position + 1] = sequence
        else:
            firsts.insert(position + 1, sequence)
            lasts.insert(position + 1, sequence)
        return True

    def add_range(self, writer: str, first: int, last: int) -> None:
        """Add all entries from a sequence number to another, both included."""
        firsts, lasts = self._ranges.setdefault(writer, ([], []))
        start, end = bisect_left(lasts, first - 1), bisect_right(firsts, last + 1)
        if start < end:
            first, last = min(first, firsts[start]), max(last, lasts[end - 1])
        firsts[start:end], lasts[start:end] = [first], [last]

    def covers(self, writer: str, first: int, last: int) -> bool:
        """Return True if all entries from a sequence number to another were seen."""
        firsts, lasts = self._ranges.get(writer, ([], []))
        position = bisect_right(firsts, first) - 1
        return position >= 0 and last <= lasts[position]

    def ranges(self, writer: str) -> list[tuple[int, int]]:
        """Return the (first, last) sequence numbers of each range of a writer, in order."""
        return list(zip(*self._ranges.get(writer, ([], [])), strict=True))

    def __contains__(self, entry: tuple[str, int]) -> bool:
        writer, sequence = entry
        firsts, lasts = self._ranges.get(writer, ([], []))
        position = bisect_right(firsts, sequence) - 1
        return position >= 0 and sequence <= lasts[position]

    def gaps(self) -> dict[str, list[tuple[int, int]]]:
        """Return the (first, last) sequence numbers between those seen, of each writer that has any."""
        gaps = {}
        for writer, (firsts, lasts) in self._ranges.items():
            between = [(last + 1, first - 1) for last, first in zip(lasts, firsts[1:], strict=False)]
            if between:
                gaps[writer] = between
        return gaps

    def to_json(self) -> dict[str, list[list[int]]]:
        """Return the ranges as JSON: {writer: [[first, last], ...]}."""
        return {
            writer: [[first, last] for first, last in zip(firsts, lasts, strict=True)]
            for writer, (firsts, lasts) in self._ranges.items()
        }

    @classmethod
    def from_json(cls, ranges: Mapping[str, Iterable[Iterable[int]]]) -> SeenSequences:
        """Return what `to_json` wrote."""
        seen = cls()
        for writer, pairs in ranges.items():
            rows = sorted((int(first), int(last)) for first, last in pairs)
            if rows:
                seen._ranges[writer] = ([first for first, _ in rows], [last for _, last in rows])
        return seen


COMPANION_LOG_ID = "tpu.googleapis.com/runtime_monitor"


class ProcessEndings:
    """The entries on the ends of processes, by host and pid.

    A companion of `cloud_tpu_diagnostics` outlives the process that it watches, and writes an entry of kind
    `job_ended` with the host and pid of that process, and before that `left_block` if the process continued after its
    block (earlier versions: `job_ended` with `goes_on`). The libraries do not import each other: they share this log.
    """

    def __init__(self) -> None:
        self._by_process: dict[tuple[str, str], list[LogEntry]] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the companions' log, in any order; those of other kinds are skipped."""
        for entry in entries:
            if entry.payload.get("kind") in ("job_ended", "left_block"):
                labels = entry.context.labels
                self._by_process.setdefault((labels.get("host", ""), labels.get("pid", "")), []).append(entry)

    def after(self, host: str, pid: int | str, time_ns: int, *, with_blocks: bool = False) -> list[LogEntry]:
        """Return the ends of a process since some time, the oldest first: process ids are used again.

        Args:
            host: The process's host.
            pid: Its id there.
            time_ns: The earliest time of an end, in ns since 1970.
            with_blocks: Include ends of blocks of `diagnose()` in a process that continued.
        """
        entries = self._by_process.get((host, str(pid)), ())
        found = [entry for entry in entries if entry.timestamp_ns >= time_ns]
        if not with_blocks:
            found = [
                entry
                for entry in found
                if entry.payload.get("kind") == "job_ended" and not entry.payload.get("goes_on")
            ]
        return sorted(found, key=lambda entry: entry.timestamp_ns)
