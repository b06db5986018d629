"""The sources of the entries of all runs and of the companions of their processes, each read on from where it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from google_cloud_mldiagnostics.reading import CloudSource, RunSource
from ml_diagnostics_common.entry import LogEntry, SeenSequences, parse_timestamp
from ml_diagnostics_common.log_source import LogSource

from ml_diagnostics_console._web.run_data import RunData

__all__ = ["EntrySources"]

_MOST_CLOUD_RUNS: Final = 50
_COMPANION_KINDS: Final = (
    'jsonPayload.verb="stacktraceanalyzer" AND jsonPayload.kind!="dump" AND jsonPayload.kind!="snapshot"'
)


class EntrySources:
    """Reads what is new: of this machine the entries of all runs, of a cloud those of the newest ones.

    Args:
        source: The runs.

    Attributes:
        requested: The runs of a cloud of which entries are read.
        poll_seconds: The CPU time that the last reads took to find that there is something, or nothing.
    """

    def __init__(self, source: RunSource) -> None:
        self.requested: set[str] = set()
        self.poll_seconds = 0.0
        self._entries = source.entries
        self._is_cloud = isinstance(source, CloudSource)
        self._of_runs: list[LogSource] = []
        self._of_companions: LogSource | None = None
        self._companions_ns = 0
        self._seen = SeenSequences()

    def read_runs(self, runs: Sequence[RunData], take: Callable[[list[LogEntry]], list[LogEntry]]) -> None:
        """Read the entries of runs.

        Args:
            runs: All runs.
            take: Called with some entries of one writer, or of several by time; returns an empty list.
        """
        if self._is_cloud:
            new = [run for run in _newest(runs) if run.id not in self.requested]
            if new:
                self.requested.update(run.id for run in new)
                self._of_runs.append(self._entries.source_of_runs([run.resource for run in new]))
        elif not self._of_runs:
            self._of_runs.append(self._entries.source_of_runs([]))
        for source in self._of_runs:
            for batch in self._batches(source, take):
                take(batch)

    @property
    def position(self) -> dict[str, Any]:
        """The position behind what was read of the runs of this machine."""
        return self._of_runs[0].position()

    def resume(self, position: Mapping[str, Any]) -> None:
        """Read the runs of this machine on from a position."""
        source = self._entries.source_of_runs([])
        source.resume(position)
        self._of_runs = [source]

    def read_companions(self, runs: Sequence[RunData]) -> Iterator[list[LogEntry]]:
        """Yield the new entries of companions, by time.

        Args:
            runs: All runs.
        """
        if self._of_companions is None or self._is_cloud:  # Cloud Logging answers a query once.
            since_ns = self._companions_ns
            if self._is_cloud and not since_ns:
                since_ns = min(map(_created_ns, _newest(runs)), default=0)
            self._of_companions = self._entries.source_of_companions(since_ns, _COMPANION_KINDS)
        for batch in self._batches(self._of_companions):
            yield self._new_of(batch) if self._is_cloud else batch

    def _new_of(self, entries: list[LogEntry]) -> list[LogEntry]:
        """Return the entries that were not read before, and note the time of the last one."""
        new = []
        for entry in entries:
            writer = entry.context.writer
            if writer is None or self._seen.add(writer, entry.sequence):
                new.append(entry)
                self._companions_ns = max(self._companions_ns, entry.timestamp_ns)
        return new

    def _batches(
        self, source: LogSource, take: Callable[[list[LogEntry]], list[LogEntry]] | None = None
    ) -> Iterator[list[LogEntry]]:
        started = time.thread_time()
        is_first = True

        def note_poll() -> None:
            nonlocal is_first
            if is_first:
                self.poll_seconds += time.thread_time() - started
            is_first = False

        def take_noted(entries: list[LogEntry]) -> list[LogEntry]:
            note_poll()
            return entries if take is None else take(entries)

        for batch in self._entries.read(source, take and take_noted):
            note_poll()
            yield batch
        note_poll()


def _newest(runs: Sequence[RunData]) -> list[RunData]:
    """Return the newest runs, also before anything of them was read."""
    return sorted(runs, key=_created_ns, reverse=True)[:_MOST_CLOUD_RUNS]


def _created_ns(run: RunData) -> int:
    try:
        return parse_timestamp(str(run.resource.get("createTime", "")))
    except ValueError:
        return 0
