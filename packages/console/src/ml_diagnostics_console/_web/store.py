"""All runs of a source, kept up to date: one reader of their entries, one of their companions'.

`refresh` is called by one thread, about once a second. Requests read under `lock`, which `refresh` holds for one batch
of entries at a time: so the page can show the first runs while a large journal is still read. What the pages of one
run alone need (goodput, stacks, logs, proofs) is read from the journal when it is asked for. No request asks a cloud.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google_cloud_mldiagnostics.reading import CloudSource, LocalSource, RunSource
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.environment import diagnostics_directory

from ml_diagnostics_console._web.allocator import give_back
from ml_diagnostics_console._web.answers import NotThereError
from ml_diagnostics_console._web.changes import Changes
from ml_diagnostics_console._web.companions import Companions
from ml_diagnostics_console._web.dispatch import Dispatch
from ml_diagnostics_console._web.doctor_process import DoctorProcess
from ml_diagnostics_console._web.entry_sources import EntrySources
from ml_diagnostics_console._web.first_rows import FirstRows
from ml_diagnostics_console._web.judging import Doctor
from ml_diagnostics_console._web.kept_run import KeptRun
from ml_diagnostics_console._web.queries import quoted
from ml_diagnostics_console._web.row_updates import News, RowUpdates
from ml_diagnostics_console._web.run_data import Project, Resource, RunData
from ml_diagnostics_console._web.run_list import RunList
from ml_diagnostics_console._web.saved_state import SavedState
from ml_diagnostics_console._web.summaries import Summaries
from ml_diagnostics_console._web.viewers import Viewers
from ml_diagnostics_console._web.writers import JournalWriters

__all__ = ["Store"]

_LAST: Final = "last"
_CLOUD_NS: Final = 30_000_000_000
_CHEAP_POLL_SECONDS: Final = 0.005
_REST_FACTOR: Final = 200
_MOST_REST_SECONDS: Final = 3.0
_SETTLED_AT: Final = 200_000
_MOST_WAIT_SECONDS: Final = 30.0
_MOST_CLOUD_WAIT_SECONDS: Final = 3.0
_SHOWN_SECONDS: Final = 2.0


class Store:
    """All runs of a source.

    Args:
        source: The runs of this machine, or of a project.
        clock_ns: The wall clock.
        cache: The folder for what may be lost; None keeps nothing.

    Attributes:
        lock: Held while runs are read or changed.
        place: The folder or the project of the runs, for the user.
        notes: Sentences on what could not be read.
        now_s: The time of the last refresh, in seconds since 1970.
        doctor: The verdicts on its runs.
        doctor_for_files: The process that writes the doctor's part of a case file: the other one may be busy.
        summaries: The summaries of their profiles.
        viewers: The viewers of profiles that run on this machine.
    """

    def __init__(
        self,
        source: RunSource,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        cache: Path | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.source = source
        self.place = str(source.root) if isinstance(source, LocalSource) else source.name
        self.notes: list[str] = []
        self.now_s = clock_ns() / 1e9
        self._clock_ns = clock_ns
        self._is_cloud = isinstance(source, CloudSource)
        self._project = Project(source.project, source.region) if isinstance(source, CloudSource) else None
        self._root = source.root if isinstance(source, LocalSource) else diagnostics_directory()
        self._saved = SavedState(cache / "state", self._root) if cache is not None and not self._is_cloud else None
        self._refreshing = threading.Lock()
        self._first_rows = FirstRows()
        self.doctor, self.doctor_for_files = Doctor(DoctorProcess(self._root)), DoctorProcess(self._root)
        self.summaries, self.viewers = Summaries(), Viewers()
        self._journal = JournalWriters(self._root)
        self._companions = Companions()
        self._kept: dict[str, KeptRun] = {}
        self._listed: list[RunData] | None = None
        self._dispatch = Dispatch(self._data_of)
        self._changes = Changes()
        self._updates = RowUpdates(source, self.lock, self._changes, self.doctor)
        self._run_list = RunList(source)
        self._unsettled = 0
        self._sources = EntrySources(source)
        self._by_process: dict[tuple[str, int], set[str]] = {}
        self._cloud_ns = 0
        self._rests_until = 0.0
        self._was_read = self._had_journal = False
        self._shown_at = 0.0
        self._given_back_at = -_SETTLED_AT
        self._failure = ""

    def close(self) -> None:
        """End the processes that work out verdicts."""
        self.doctor_for_files.end()
        self.doctor.close()

    @property
    def cursor(self) -> str:
        """The version of all rows, as a text."""
        return self._changes.cursor

    def run(self, run_id: str) -> RunData:
        """Return a run by its id; `last` is the one that started last.

        Raises:
            NotThereError: There is no such run.
        """
        if run_id == _LAST:
            runs = self.runs()
            if not runs:
                raise NotThereError(f"There are no runs in {self.place}.")
            return runs[0]
        kept = self._kept.get(run_id)
        if kept is None or not kept.run.resource:
            raise NotThereError(f"There is no run {quoted(run_id)} in {self.place}.")
        return kept.run

    def runs(self) -> Sequence[RunData]:
        """Return all runs, the newest first."""
        if self._listed is None:
            runs = [kept.run for kept in self._kept.values() if kept.run.resource]
            self._listed = sorted(runs, key=lambda run: (run.started_s, run.id), reverse=True)
        return self._listed

    def encoded_row(self, run_id: str) -> bytes:
        """Return the row of a run as JSON."""
        return self._kept[run_id].encoded

    def changes_since(self, cursor: str) -> Mapping[str, Any] | None:
        """Return what changed since a version: see `Changes.since`; None if that is unknown."""
        with self.lock:
            return self._changes.since(cursor, self.now_s)

    def refresh(self) -> None:
        """Read what is new, once. One thread at a time; a failure becomes a note."""
        with self._refreshing:
            now_ns = self._clock_ns()
            if not self._was_read:
                if self._is_cloud and not self.notes:
                    self.notes = [f"There is no answer on {self.place} yet."]
                self._first_rows.expect(_MOST_CLOUD_WAIT_SECONDS if self._is_cloud else _MOST_WAIT_SECONDS)
            try:
                if self._is_due(now_ns):
                    self._read()
                self._update_runs(now_ns)
            finally:
                self._first_rows.have()
            runs = [self._kept[run.id] for run in self.runs()]
            self._updates.read_goodput(runs)
            with self.lock:
                self.now_s = now_ns / 1e9
            has_read_much = self._dispatch.count - self._given_back_at >= _SETTLED_AT
            if has_read_much and not any(run.is_goodput_due for run in runs):
                self._given_back_at = self._dispatch.count
                give_back()  # A tenth of what the page needs of a large journal.

    def wait_for_rows(self) -> None:
        """Wait while the first refresh has nothing to show yet; do not hold the lock."""
        self._first_rows.wait()

    def _read(self) -> None:
        started, sources = time.thread_time(), self._sources
        self._shown_at = time.monotonic()
        if not self._was_read:
            self._load()
        self._set_runs(*self._run_list.read())
        sources.poll_seconds = time.thread_time() - started
        if self._has_journal():
            sources.read_runs([kept.run for kept in self._kept.values() if kept.run.resource], self._take)
            for batch in sources.read_companions(self.runs()):
                with self.lock:
                    self._companions.add(batch)
            self._save()
        # To list the files of thousands of runs each second costs too much. Of the first read, the entries are most.
        is_costly = self._was_read and sources.poll_seconds >= _CHEAP_POLL_SECONDS
        rest_seconds = min(_MOST_REST_SECONDS, sources.poll_seconds * _REST_FACTOR) if is_costly else 0.0
        self._rests_until, self._was_read = time.monotonic() + rest_seconds, True
        with self.lock:
            failures = filter(None, (self._failure, self._updates.failure))
            self.notes = [*self._run_list.notes, *failures, *self.source.entries.notes()]

    def _has_journal(self) -> bool:
        """Return False if the journal was there and is not now: a reader that sees it empty would read it twice."""
        folder = self._root / "journal"
        is_there = folder.is_dir()
        self._had_journal = self._had_journal or is_there
        if is_there or not self._had_journal:
            self._failure = ""
            return True
        if not self._run_list.notes:
            self._failure = f"The folder {folder} does not exist any more: what was read before is shown."
        return self._is_cloud

    def _load(self) -> None:
        """Continue from the state that an earlier store saved."""
        position = self._saved.load(self._data_of) if self._saved is not None else None
        if position is not None:
            self._sources.resume(position)
            self._dispatch.touched |= self._kept.keys()
            self._dispatch.changed |= self._kept.keys()

    def _save(self) -> None:
        """Save the state if much was read since it was saved."""
        if self._saved is not None and self._saved.is_due(self._dispatch.count):
            with self.lock:
                self._settle()
            self._saved.save(self._sources.position, [kept.run for kept in self._kept.values()])

    def _is_due(self, now_ns: int) -> bool:
        """Return True if it is time to read."""
        if not self._is_cloud:
            return time.monotonic() >= self._rests_until
        if 0 <= now_ns - self._cloud_ns < _CLOUD_NS:
            return False
        self._cloud_ns = now_ns
        return True

    def _data_of(self, run_id: str) -> RunData:
        kept = self._kept.get(run_id)
        if kept is None:
            kept = self._kept[run_id] = KeptRun(RunData(run_id, self._companions, self._journal, self._project))
        return kept.run

    def _set_runs(self, changed: Mapping[str, Resource], gone: Sequence[str]) -> None:
        """Take the runs of the control plane that are new or have changed, and hide those that are gone.

        The entries of these are kept, for the case that they return.
        """
        with self.lock:
            for run_id, resource in changed.items():
                run = self._data_of(run_id)
                run.resource = resource
                self._kept[run_id].sessions_ns = None
                self._dispatch.touched.add(run_id)
                self._dispatch.changed.add(run_id)
            for run_id in gone:
                self._kept[run_id].run.resource = {}
                self._changes.remove(run_id)
            if changed or gone:
                self._listed = None

    def _take(self, entries: list[LogEntry]) -> list[LogEntry]:
        """Add entries of runs to these, and return those that are left: none."""
        with self.lock:
            self._dispatch.add(entries)
            self._unsettled += len(entries)
            if self._unsettled > _SETTLED_AT:
                self._settle()
        if not self._was_read and time.monotonic() - self._shown_at > _SHOWN_SECONDS:
            self._update_runs(self._clock_ns())  # Of a long journal, what is known so far.
            with self.lock:
                self.notes = [f"The journal is still read: {self._dispatch.count:,} entries so far."]
            self._shown_at = time.monotonic()
            self._first_rows.have()
        return []

    def _settle(self) -> None:
        for run_id in self._dispatch.touched:
            for column in self._kept[run_id].run.columns:
                column.settle()
        self._unsettled = 0

    def _update_runs(self, now_ns: int) -> None:
        """Work out the state of runs that got entries, or that may have changed with time; then their rows."""
        with self.lock:
            self._settle()
            news = self._news()
        runs = [kept for kept in self._kept.values() if kept.run.resource]
        updated = self._updates.update(
            runs, news, now_ns, with_sessions=self._sources.requested if self._is_cloud else None
        )
        if updated:
            with self.lock:
                for run in updated:
                    for key in run.history.processes:
                        self._by_process.setdefault(key[:2], set()).add(run.id)
                self._listed = None

    def _news(self) -> News:
        """Return the runs of which something was read since the last call. The lock is held."""
        touched, self._dispatch.touched = self._dispatch.touched, set()
        changed, self._dispatch.changed = self._dispatch.changed, set()
        processes, self._companions.touched = self._companions.touched, set()
        # A companion that wrote before its process was known of is found when the process is.
        with_log = {run_id for key in processes for run_id in self._by_process.get(key, ())}
        return News(touched, changed, with_log, self.doctor.take_news())
