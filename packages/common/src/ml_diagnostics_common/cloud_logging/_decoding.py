"""Pages of entries as Cloud Logging's JSON, decoded to `LogEntry`.

Google's `list_entries` makes an object for each entry and field, which takes 19 parts of 20 of its time. Here the
labels and the resource of a writer are decoded with its first entry only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from ml_diagnostics_common.cloud_logging._transport import Page
from ml_diagnostics_common.entry import (
    SEQUENCE_LABEL,
    WRITER_LABEL,
    EntryContext,
    LogEntry,
    parse_timestamp,
    split_insert_id,
)

__all__ = ["UNREADABLE", "PageDecoder", "TimestampParser"]

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""The exceptions that decoding raises for a body that is not a page."""

_MAX_CACHED = 4096
_SECOND = 1_000_000_000

_DIFFERS_BY_ENTRY = EntryContext("", "", {}, {})
"""Stands for the contexts of a writer with resource labels that differ by entry."""


class _Entry(msgspec.Struct, gc=False):
    """The fields of a LogEntry that are read; labels and resource are decoded when they are needed."""

    timestamp: str = ""
    receiveTimestamp: str = ""  # noqa: N815  # The API's names.
    insertId: str = ""  # noqa: N815
    logName: str = ""  # noqa: N815
    severity: str = "DEFAULT"
    jsonPayload: dict[str, Any] = msgspec.field(default_factory=dict)  # noqa: N815
    labels: msgspec.Raw = msgspec.Raw(b"{}")
    resource: msgspec.Raw = msgspec.Raw(b"{}")


class _Listing(msgspec.Struct, gc=False):
    entries: list[_Entry] = msgspec.field(default_factory=list)
    nextPageToken: str = ""  # noqa: N815


class _LooseListing(msgspec.Struct, gc=False):
    """The same page, with entries that are decoded one by one."""

    entries: list[msgspec.Raw] = msgspec.field(default_factory=list)
    nextPageToken: str = ""  # noqa: N815


class PageDecoder:
    """Decodes pages; entries share their contexts.

    The entries of one writer differ in time, payload and sequence number only. If their resource may have labels that
    differ by entry (each but `global`), the resources are compared as JSON. Entries that no journal wrote share a
    context if their labels and resource are equal as JSON.
    """

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_Listing).decode
        self._decode_loosely = msgspec.json.Decoder(_LooseListing).decode
        self._decode_entry = msgspec.json.Decoder(_Entry).decode
        self._timestamp_ns = TimestampParser()
        self._of_writers: dict[tuple[str, str], EntryContext | None] = {}
        self._of_resources: dict[tuple[str, str, bytes], EntryContext] = {}
        self._of_others: dict[tuple[str, str, bytes, bytes], EntryContext] = {}

    def page(self, body: bytes) -> Page:
        """Decode a page; entries that cannot be decoded are left out and listed in `unreadable`.

        Raises:
            msgspec.DecodeError, ValueError, RecursionError: The body is not a page.
        """
        try:
            listing = self._decode(body)
            return self._page(listing.entries, self._entries(listing.entries), listing.nextPageToken)
        except UNREADABLE:
            return self._page_of_readable_entries(body)

    def _page_of_readable_entries(self, body: bytes) -> Page:
        listing = self._decode_loosely(body)
        read: list[_Entry] = []
        entries: list[LogEntry] = []
        unreadable: list[int] = []
        for encoded in listing.entries:
            try:
                entry = self._decode_entry(encoded)
                entries += self._entries([entry])
                read.append(entry)
            except UNREADABLE:
                unreadable.append(hash(bytes(encoded)))
        return self._page(read, entries, listing.nextPageToken, unreadable)

    def _page(self, read: list[_Entry], entries: list[LogEntry], token: str, unreadable: Sequence[int] = ()) -> Page:
        def received_ns(index: int) -> int:
            try:
                return self._timestamp_ns(read[index].receiveTimestamp)
            except ValueError:
                return entries[index].timestamp_ns

        return Page(entries, token, received_ns, unreadable)

    def _entries(self, entries: list[_Entry]) -> list[LogEntry]:
        timestamp_ns = self._timestamp_ns
        decoded: list[LogEntry] = []
        # Most entries have the writer and the severity of the entry before them, and so its context.
        shared: EntryContext | None = None
        writer_dot, id_length, severity = "", 0, ""
        for entry in entries:
            insert_id = entry.insertId
            if (
                shared is not None
                and entry.severity == severity
                and len(insert_id) == id_length
                and insert_id.startswith(writer_dot)
                and (digits := insert_id[-12:]).isdecimal()
            ):
                decoded.append(LogEntry(timestamp_ns(entry.timestamp), int(digits), entry.jsonPayload, shared))
                continue
            decoded.append(self._entry(entry))
            shared = self._shared_context(decoded[-1].context)
            if shared is not None:
                writer_dot, severity = f"{shared.writer}.", entry.severity
                id_length = len(writer_dot) + 12
        return decoded

    def _entry(self, entry: _Entry) -> LogEntry:
        time_ns, insert_id, severity = self._timestamp_ns(entry.timestamp), entry.insertId, entry.severity
        writer, dot, digits = insert_id.rpartition(".")
        if dot and len(digits) == 12 and digits.isdecimal():
            try:
                context = self._of_writers[writer, severity]
            except KeyError:
                context = self._writer_context(entry)
            if context is _DIFFERS_BY_ENTRY:
                context = self._resource_context(writer, entry)
            if context is not None:
                return LogEntry(time_ns, int(digits), entry.jsonPayload, context)
        key = (entry.logName, severity, bytes(entry.labels), bytes(entry.resource))
        known = self._of_others.get(key)
        if known is None:
            known = _context(entry, *_labels_and_resource(entry), None)
            _limit(self._of_others)
            self._of_others[key] = known
        return LogEntry(time_ns, 0, entry.jsonPayload, known, None, insert_id)

    def _shared_context(self, context: EntryContext) -> EntryContext | None:
        """Return the context of all entries of a context's writer and severity; None if they differ."""
        shared = self._of_writers.get((context.writer or "", context.severity))
        return None if shared is _DIFFERS_BY_ENTRY else shared

    def _writer_context(self, entry: _Entry) -> EntryContext | None:
        """Return the context of a journal's writer; None if the insertId is only similar to those of a journal."""
        parts = split_insert_id(entry.insertId)
        labels, resource = _labels_and_resource(entry)
        if parts is None or labels.get(WRITER_LABEL) != parts[0]:
            return None
        is_constant = resource.get("type") == "global"
        context = _context(entry, labels, resource, parts[0]) if is_constant else _DIFFERS_BY_ENTRY
        _limit(self._of_writers)
        self._of_writers[parts[0], entry.severity] = context
        return context

    def _resource_context(self, writer: str, entry: _Entry) -> EntryContext:
        """Return the context of those of a writer's entries that have the resource of this one."""
        key = (writer, entry.severity, bytes(entry.resource))
        known = self._of_resources.get(key)
        if known is None:
            known = _context(entry, *_labels_and_resource(entry), writer)
            _limit(self._of_resources)
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
                _limit(self._minutes)
                self._minutes[text[:17]] = minute_ns
                return minute_ns + int(text[17:19]) * _SECOND + int(fraction.ljust(9, "0"))
        return self._parse(text)

    def _parse(self, text: str) -> int:
        timestamp_ns = parse_timestamp(text)
        if text[-1] == "Z":
            _limit(self._hours)
            self._hours[text[:14]] = timestamp_ns - timestamp_ns % (3600 * _SECOND)
        return timestamp_ns


def _labels_and_resource(entry: _Entry) -> tuple[dict[str, str], dict[str, Any]]:
    labels, resource = msgspec.json.decode(entry.labels), msgspec.json.decode(entry.resource)
    if not isinstance(labels, dict) or not isinstance(resource, dict):
        raise ValueError("labels and resource of an entry must be objects")
    return labels, resource


def _context(entry: _Entry, labels: Mapping[str, str], resource: Mapping[str, Any], writer: str | None) -> EntryContext:
    rest = {name: value for name, value in labels.items() if name not in (WRITER_LABEL, SEQUENCE_LABEL)}
    log_id = unquote(entry.logName.partition("/logs/")[2])
    return EntryContext(log_id, entry.logName, resource, rest, entry.severity, writer)


def _limit(cache: dict[Any, Any]) -> None:
    if len(cache) >= _MAX_CACHED:
        cache.clear()
