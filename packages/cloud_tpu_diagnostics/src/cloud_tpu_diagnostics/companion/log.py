"""Entries to the journal and, where there is a cloud, on to Cloud Logging. Nothing is loaded before the first entry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cloud_tpu_diagnostics.entries import DUMP, LOG_ID, entry
from cloud_tpu_diagnostics.traces import Dump

if TYPE_CHECKING:
    from pathlib import Path

    from ml_diagnostics_common.cloud_logging import LoggingTransport
    from ml_diagnostics_common.journal import Journal
    from ml_diagnostics_common.shipper import Shipper

__all__ = ["EntryLog", "dump_entries"]

_MOST_TEXT_BYTES = 180_000
"""Of one entry: Cloud Logging takes 256 KiB, with all labels and names."""
_MOST_PAYLOAD_BYTES = 2**20
_REQUEST_SECONDS = 10.0


class EntryLog:
    """The log of one job.

    Args:
        labels: Of every entry: who the job is.
        is_shipped: Whether entries go to Cloud Logging.
        prepare: Called before anything is loaded.
    """

    def __init__(
        self, labels: Mapping[str, str], *, is_shipped: bool, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._labels = dict(labels)
        self._is_shipped = is_shipped
        self._prepare = prepare
        self._resource: dict[str, Any] | None = None
        self._journal: Journal | None = None
        self._shipper: Shipper | None = None

    def write(self, payload: Mapping[str, Any], *, severity: str | None = None) -> None:
        """Writes an entry, without what looks like a secret in it.

        Args:
            payload: One of `entries.entry`.
            severity: Of Cloud Logging; None is INFO.
        """
        from ml_diagnostics_common.redaction import redact

        journal = self._journal or self._open()
        journal.append(redact(payload, max_bytes=_MOST_PAYLOAD_BYTES), severity=severity)

    @property
    def job(self) -> str:
        """The job's name; empty where it is not known."""
        return self._labels.get("job", "")

    def learn(self, labels: Mapping[str, str]) -> None:
        """Takes note of what the job knows of itself by now, such as its index among all processes."""
        if any(self._labels.get(name) != value for name, value in labels.items()):
            self._labels.update(labels)
            self._journal = None  # Another begins, with another header.

    def close(self, timeout_seconds: float) -> None:
        """Ships what is left, within that time; what is not shipped by then, the next companion ships."""
        deadline = time.monotonic() + timeout_seconds
        if self._journal is not None:
            self._journal.close(min(1.0, timeout_seconds))
        if self._shipper is not None:
            self._shipper.close(max(0.0, deadline - time.monotonic()))

    def _open(self) -> Journal:
        from ml_diagnostics_common.environment import Backend, configured_backend, diagnostics_directory
        from ml_diagnostics_common.exceptions import ConfigurationError
        from ml_diagnostics_common.journal import Journal

        self._prepare()
        root = diagnostics_directory()
        try:
            to_cloud = self._is_shipped and configured_backend() is not Backend.LOCAL
        except ConfigurationError:
            to_cloud = False  # Whoever records in the job is told.
        if self._resource is None:
            self._resource = _resource() if to_cloud else {}
        journal = Journal(
            LOG_ID,
            root=root,
            labels=self._labels,
            resource=self._resource,
            shippable=self._is_shipped,
            queued=False,
            about_pid=int(self._labels["pid"]),
        )
        if to_cloud and self._shipper is None:
            self._shipper = _started_shipper(root)
        self._journal = journal
        return journal


def _resource() -> dict[str, Any]:
    from cloud_tpu_diagnostics.companion.resource import monitored_resource

    return monitored_resource()


def _started_shipper(root: Path) -> Shipper:
    from ml_diagnostics_common.shipper import Shipper

    shipper = Shipper(LOG_ID, root=root, connect=_connect, request_seconds=_REQUEST_SECONDS)
    shipper.start()
    return shipper


def _connect() -> LoggingTransport:
    from ml_diagnostics_common.cloud_logging import connect  # In the shipper's thread: it loads google's clients.

    return connect()


def dump_entries(dump: Dump, number: int, **fields: Any) -> list[tuple[dict[str, Any], str | None]]:
    """Returns the entries of a dump and their severities; more than one where it is too long for one.

    Args:
        dump: What faulthandler wrote.
        number: Tells the parts of one dump of a process from those of others.
        fields: What else the entries have.
    """
    severity = "ERROR" if dump.trigger.is_last else None
    parts = _parts(dump.text)
    return [
        (
            entry(
                DUMP,
                part,
                trigger=dump.trigger.value,
                headline=dump.headline or None,
                threads=len(dump.threads),
                is_cut=dump.is_cut or None,
                dump=number,
                part=index if len(parts) > 1 else None,
                parts=len(parts) if len(parts) > 1 else None,
                **fields,
            ),
            severity,
        )
        for index, part in enumerate(parts, 1)
    ]


def _parts(text: str) -> list[str]:
    """Cuts a text at the ends of lines."""
    parts: list[str] = []
    lines: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        line_size = len(line.encode("utf-8", "replace"))
        if lines and size + line_size > _MOST_TEXT_BYTES:
            parts.append("".join(lines))
            size, lines = 0, []
        size += line_size
        lines.append(line)
    return [*parts, "".join(lines)]
