"""The writers of the journal's logs, by their labels: from the headers of their files, each read once."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from google_cloud_mldiagnostics.reading import LOG_ID
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.journal import (
    Segment,
    list_segments,
    log_folder_name,
    read_header,
    writer_start_ns,
)

__all__ = ["GOODPUT_LEFT_OUT", "GoodputWriters", "JournalWriters", "LogWriters", "Writer"]

GOODPUT_LEFT_OUT: Final = (LOG_ID, COMPANION_LOG_ID)
"""Logs of the other libraries."""
_LEAST_PAUSE_SECONDS: Final = 1.0
_MOST_PAUSE_SECONDS: Final = 30.0
_FRESH_NS: Final = 2_000_000_000
"""A folder that changed so shortly ago may have changed again within the resolution of its time."""


class Writer(NamedTuple):
    """A writer of a log.

    Attributes:
        log_id: The log's name.
        name: The writer's name.
        started_ns: When it started, in ns since 1970; 0 if its name does not show it.
        run: The run's id in its labels; empty if it did not know it.
        job: The job's name in its labels.
        host: The host.
        pid: The process id, as text.
    """

    log_id: str
    name: str
    started_ns: int
    run: str
    job: str
    host: str
    pid: str


class LogWriters:
    """The writers of one log's folder.

    Args:
        folder: The folder of its segments, which may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = -1
        self._known: dict[str, Writer] = {}
        self._unreadable: set[str] = set()

    def refresh(self) -> dict[str, Writer]:
        """Return the writers by name; the folder is listed again only if a file was added to it."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return self._known
        if changed_ns == self._changed_ns:
            return self._known
        is_settled = time.time_ns() - changed_ns > _FRESH_NS
        self._changed_ns = changed_ns if is_settled else -1
        for segment in list_segments(self._folder):
            if segment.writer not in self._known and segment.path not in self._unreadable:
                self._add(segment, is_settled=is_settled)
        return self._known

    def _add(self, segment: Segment, *, is_settled: bool) -> None:
        try:
            header = read_header(segment)
        except OSError:
            header = None
        if header is None:
            if is_settled:
                self._unreadable.add(segment.path)
            return
        labels = header.labels
        self._known[segment.writer] = Writer(
            header.log_id,
            segment.writer,
            writer_start_ns(segment.writer),
            labels.get("run", ""),
            labels.get("job", ""),
            labels.get("host", ""),
            labels.get("pid", ""),
        )


class _Folders:
    """All logs of a journal but some.

    Args:
        root: The diagnostics folder.
        except_logs: The names of the logs to leave out.
    """

    def __init__(self, root: Path, except_logs: Collection[str]) -> None:
        self._journal = root / "journal"
        self._left_out = set(map(log_folder_name, except_logs))
        self._logs: dict[str, LogWriters] = {}
        self._changed_ns = -1

    def refresh(self) -> Iterator[LogWriters]:
        """Yield the logs."""
        try:
            changed_ns = self._journal.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                for path in self._journal.iterdir():
                    if path.name not in self._left_out and path.name not in self._logs and path.is_dir():
                        self._logs[path.name] = LogWriters(path)
                self._changed_ns = changed_ns if time.time_ns() - changed_ns > _FRESH_NS else -1
        except OSError:
            pass  # There is no journal yet, or it has vanished.
        yield from self._logs.values()


class GoodputWriters:
    """The writers of all goodput logs, by run and by job; looked up again at most so often.

    Args:
        root: The diagnostics folder.
    """

    def __init__(self, root: Path) -> None:
        self._folders = _Folders(root, GOODPUT_LEFT_OUT)
        self._rests_until = -float("inf")
        self._by_run: dict[str, list[Writer]] = {}
        self._by_job: dict[str, list[Writer]] = {}

    def of(self, run_id: str, jobs: Collection[str], start_ns: int, end_ns: int) -> list[Writer]:
        """Return the writers of a run, the oldest first.

        Args:
            run_id: Its id: a writer with it in its labels is of the run.
            jobs: Names of its job: a writer with one of them that knew no run is of it if it started in its time.
            start_ns: The start of that time, in ns since 1970.
            end_ns: Its end.
        """
        self._refresh()
        found = list(self._by_run.get(run_id, ()))
        for job in dict.fromkeys(jobs):
            found += [
                writer
                for writer in self._by_job.get(job, ())
                if not writer.run and start_ns <= writer.started_ns <= end_ns
            ]
        return sorted(found, key=lambda writer: (writer.started_ns, writer.name))

    def _refresh(self) -> None:
        if time.monotonic() < self._rests_until:
            return
        started = time.thread_time()
        self._by_run, self._by_job = {}, {}
        for log in self._folders.refresh():
            for writer in log.refresh().values():
                self._by_run.setdefault(writer.run, []).append(writer)
                self._by_job.setdefault(writer.job, []).append(writer)
        self._by_run.pop("", None)
        # To check the folders of a thousand logs takes some milliseconds: a thousandth of the time at most.
        cost_seconds = min(_MOST_PAUSE_SECONDS, 1000 * (time.thread_time() - started))
        self._rests_until = time.monotonic() + max(_LEAST_PAUSE_SECONDS, cost_seconds)


class JournalWriters:
    """The writers of the logs of one diagnostics folder: one list for all of its runs.

    Args:
        root: The diagnostics folder.

    Attributes:
        root: The diagnostics folder.
        goodput: The writers of the goodput logs.
        companions: The writers of the companions' log.
        metrics: The writers of the log of runs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.goodput = GoodputWriters(root)
        self.companions = LogWriters(root / "journal" / log_folder_name(COMPANION_LOG_ID))
        self.metrics = LogWriters(root / "journal" / log_folder_name(LOG_ID))
