"""Pages of Cloud Logging to LogEntry: the labels of a thousand entries of one writer are decoded once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any
from urllib.parse import unquote

from ml_diagnostics_common.entry import (
    SEQUENCE_LABEL,
    WRITER_LABEL,
    EntryContext,
    LogEntry,
    parse_timestamp,
    split_insert_id,
)

__all__ = ["EntryDecoder", "Origin", "TimestampParser"]

_MOST_CONTEXTS = 4096
_SECOND = 1_000_000_000

_DIFFERS_BY_ENTRY = EntryContext("", "", {}, {})
"""Stands for the contexts of a writer whose entries have labels of the resource of their own."""

Origin = tuple[Mapping[str, str], Mapping[str, Any]]
"""An entry's labels and resource."""


class EntryDecoder:
    """Builds entries that share their contexts.

    Entries of one writer agree in all but time, payload and sequence number, so a writer's labels and resource
    are decoded with its first entry only. Where the resource is one that may have labels of an entry's own (all but
    `global`), each entry's is compared with those that were decoded. Entries that no journal wrote are told apart by
    their key.

    Args:
        key: What tells the labels and the resource of an entry, in its encoded form, from other ones.
        resource_key: What tells its resource from other ones.
        origin: Decodes the labels and the resource of an entry.
    """

    def __init__(
        self,
        key: Callable[[Any], Hashable],
        resource_key: Callable[[Any], Hashable],
        origin: Callable[[Any], Origin],
    ) -> None:
        self._key = key
        self._resource_key = resource_key
        self._origin = origin
        self._of_writers: dict[tuple[str, str], EntryContext | None] = {}
        self._of_resources: dict[tuple[str, str, Hashable], EntryContext] = {}
        self._of_others: dict[Hashable, EntryContext] = {}

    def entry(
        self,
        timestamp_ns: int,
        insert_id: str,
        payload: dict[str, Any],
        log_name: str,
        severity: str,
        encoded: Any,
    ) -> LogEntry:
        """One entry.

        Args:
            timestamp_ns: The entry's time in ns since 1970.
            insert_id: The entry's id.
            payload: The entry's jsonPayload.
            log_name: The full name of the log.
            severity: The severity by name.
            encoded: The entry as it came.
        """
        writer, dot, digits = insert_id.rpartition(".")
        if dot and len(digits) == 12 and digits.isdecimal():
            try:
                context = self._of_writers[writer, severity]
            except KeyError:
                context = self._writer_context(insert_id, log_name, severity, encoded)
            if context is not None:
                if context is _DIFFERS_BY_ENTRY:
                    context = self._resource_context(writer, log_name, severity, encoded)
                return LogEntry(timestamp_ns, int(digits), payload, context)
        others = (log_name, severity, self._key(encoded))
        known = self._of_others.get(others)
        if known is None:
            labels, resource = self._origin(encoded)
            known = _context(log_name, resource, labels, severity, None)
            _make_room(self._of_others)
            self._of_others[others] = known
        return LogEntry(timestamp_ns, 0, payload, known, None, insert_id)

    def shared_context(self, entry: LogEntry) -> EntryContext | None:
        """Return the context of all entries of this entry's writer and severity; None if they differ."""
        context = self._of_writers.get((entry.context.writer or "", entry.context.severity))
        return None if context is _DIFFERS_BY_ENTRY else context

    def _writer_context(self, insert_id: str, log_name: str, severity: str, encoded: Any) -> EntryContext | None:
        """The context of a writer of a journal; None if only the insertId looks like one."""
        parts = split_insert_id(insert_id)
        labels, resource = self._origin(encoded)
        if parts is None or labels.get(WRITER_LABEL) != parts[0]:
            return None
        is_constant = resource.get("type") == "global"
        context = _context(log_name, resource, labels, severity, parts[0]) if is_constant else _DIFFERS_BY_ENTRY
        _make_room(self._of_writers)
        self._of_writers[parts[0], severity] = context
        return context

    def _resource_context(self, writer: str, log_name: str, severity: str, encoded: Any) -> EntryContext:
        """The context of those of a writer's entries that have this one's resource."""
        key = (writer, severity, self._resource_key(encoded))
        known = self._of_resources.get(key)
        if known is None:
            labels, resource = self._origin(encoded)
            known = _context(log_name, resource, labels, severity, writer)
            _make_room(self._of_resources)
            self._of_resources[key] = known
        return known


class TimestampParser:
    """RFC 3339 to ns since 1970; entries of one minute, or hour, share the work, which is most of it."""

    def __init__(self) -> None:
        self._hours: dict[str, int] = {}
        self._minutes: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Parse one timestamp; raise ValueError on anything else."""
        minute_ns = self._minutes.get(text[:17])
        if minute_ns is not None and len(text) == 30 and text[19] == "." and text[29] == "Z":
            digits = text[17:19] + text[20:29]
            if digits.isdecimal() and digits < "6":
                return minute_ns + int(digits)
        return self._parse_in_hour(text)

    def _parse_in_hour(self, text: str) -> int:
        hour_ns = self._hours.get(text[:14])
        if hour_ns is not None and 20 <= len(text) <= 30 and text[-1] == "Z" and text[16] == ":":
            fraction = text[20:-1]
            if len(text) == 20 or (text[19] == "." and fraction.isdecimal()):
                minute_ns = hour_ns + 60 * int(text[14:16]) * _SECOND
                _make_room(self._minutes)
                self._minutes[text[:17]] = minute_ns
                return minute_ns + int(text[17:19]) * _SECOND + int(fraction.ljust(9, "0"))
        return self._parse(text)

    def _parse(self, text: str) -> int:
        timestamp_ns = parse_timestamp(text)
        if text[-1] == "Z":
            _make_room(self._hours)
            self._hours[text[:14]] = timestamp_ns - timestamp_ns % (3600 * _SECOND)
        return timestamp_ns


def _context(
    log_name: str,
    resource: Mapping[str, Any],
    labels: Mapping[str, str],
    severity: str,
    writer: str | None,
) -> EntryContext:
    rest = {name: value for name, value in labels.items() if name not in (WRITER_LABEL, SEQUENCE_LABEL)}
    log_id = unquote(log_name.partition("/logs/")[2])
    return EntryContext(log_id, log_name, resource, rest, severity, writer)


def _make_room(cache: dict[Any, Any]) -> None:
    if len(cache) >= _MOST_CONTEXTS:
        cache.clear()
