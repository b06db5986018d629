"""The thread that copies what a process records from its journal to TensorBoard; recording does not know of it.

Each value is written once, also over restarts: the position in the journal is saved with the points. What an earlier
process of this host recorded and could not write is written first. If more is recorded than can be written gently, the
thread uses at most a twentieth of a core until the end of the run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError, MissingExtraError
from ml_diagnostics_common.files import check_scheme, in_bucket
from ml_diagnostics_common.guard import LOSSES, guarded_as, log_once, warn_once
from ml_diagnostics_common.process_hooks import at_fork, import_undisturbed
from ml_diagnostics_common.worker import Worker

from google_cloud_mldiagnostics._entries import LOG_ID

if TYPE_CHECKING:
    from ml_diagnostics_common.event_files import EventLog
    from ml_diagnostics_common.reader import JournalReader

    from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
    from google_cloud_mldiagnostics._tensorboard.points import Batch

__all__ = ["Target", "checked_target", "end_export", "export_to", "is_exported", "run_started", "wait_for_export"]

_MODULES: Final = (
    "ml_diagnostics_common.event_files",
    "ml_diagnostics_common.reader",
    "google_cloud_mldiagnostics._tensorboard.points",
)
_CHUNK_BYTES: Final = 2**15
"""About 270 values: 3 ms of work, which other threads may interrupt, and then two writes that wait for the disk."""
_PAUSE_FOR_WORK: Final = 19.0
"""Seconds of pause for each second of work, while there is more to write."""
_SHORTEST_INTERVAL_SECONDS: Final = 0.1
_LONGEST_INTERVAL_SECONDS: Final = 86_400.0
_TAKE_OVER_SECONDS: Final = 1.0
_LAST_CHUNK_BYTES: Final = 2**18
_UPLOAD_SHARE: Final = 0.5
_OTHER_TARGET_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02
_FORMAT_VERSION: Final = 1
"""In files of this version a value replaces those of its tag at later steps, and of no other tag."""


_sequence = attrgetter("sequence")


@dataclass(frozen=True)
class Target:
    """The destination of values, and the time between two writes.

    Attributes:
        folder: `gs://bucket/folder`, or a folder of this machine.
        interval_seconds: The time between two writes.
    """

    folder: str
    interval_seconds: float


def checked_target(folder: str | os.PathLike[str], interval_seconds: float) -> Target:
    """Return the target of a user's arguments.

    Raises:
        ConfigurationError: One of them is not valid.
        MissingExtraError: The folder is in a bucket, and the client for it is not installed.
    """
    if not isinstance(folder, (str, os.PathLike)) or not (path := os.fspath(folder)) or not isinstance(path, str):
        raise ConfigurationError(f"expected folder as a path or gs://bucket/folder, got {folder!r:.100}")
    if isinstance(interval_seconds, bool) or not isinstance(interval_seconds, (int, float)):
        raise ConfigurationError(f"expected interval_seconds as a number, got {interval_seconds!r:.100}")
    if not _SHORTEST_INTERVAL_SECONDS <= interval_seconds <= _LONGEST_INTERVAL_SECONDS:
        raise ConfigurationError(
            f"expected interval_seconds from {_SHORTEST_INTERVAL_SECONDS:g} to {_LONGEST_INTERVAL_SECONDS:g}, got "
            f"{interval_seconds!r:.100}"
        )
    check_scheme(path)
    if "\0" in path or (in_bucket(path) and not path.removeprefix("gs://").partition("/")[0]):
        raise ConfigurationError(f"expected folder as a path or gs://bucket/folder, got {path!r:.100}")
    if in_bucket(path) and not _has_storage_client():
        raise MissingExtraError("TensorBoard in a bucket", "google-cloud-mldiagnostics", "gcs")
    # A later `os.chdir` of the job does not change the folder.
    return Target(path if in_bucket(path) else str(Path(path).absolute()), float(interval_seconds))


def _has_storage_client() -> bool:
    try:
        return find_spec("google.cloud.storage") is not None
    except ImportError:  # There is no package `google.cloud`.
        return False


@dataclass(frozen=True)
class _Progress:
    """The written values.

    Attributes:
        writers: The position in the journal of each writer whose values are not all written, oldest first.
        last_steps: The last step of each tag.
    """

    writers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    last_steps: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"writers": self.writers, "last_steps": self.last_steps}


def _progress_from_json(saved: Mapping[str, Any]) -> _Progress:
    return _Progress(
        {str(writer): dict(offsets.items()) for writer, offsets in saved["writers"].items()},
        {str(tag): int(step) for tag, step in saved["last_steps"].items()},
    )


# State of the process: the target that waits for the next run, and the export of the run.
_next_target: Target | None = None
_export_of_this_process: _Export | None = None


def export_to(target: Target, run: ActiveRun | None) -> None:
    """Write what is recorded to a target; in a thread, from the start of the run on.

    Args:
        target: The target.
        run: The run; None for the next one that `run_started` is called with.
    """
    global _next_target
    if run is None or run.pid != os.getpid():
        _next_target = target
    else:
        _start(target, run)


@guarded_as("write to TensorBoard")
def run_started(run: ActiveRun) -> None:
    """Start the export of a run, if `export_to` was called before it."""
    global _next_target
    target, _next_target = _next_target, None
    if target is not None:
        _start(target, run)


def is_exported(run: ActiveRun) -> bool:
    """Return True if the values of a run are written to TensorBoard."""
    export = _export_of_this_process
    return export is not None and export.run is run


@guarded_as("write to TensorBoard")
def end_export(run: ActiveRun, deadline: float) -> None:
    """Write the last values of a run, in the thread, if it is exported.

    Args:
        run: The run, all of whose values are in the journal.
        deadline: In monotonic seconds; later values are left to the next process of the job.
    """
    export = _export_of_this_process
    if export is not None and export.run is run:
        export.end(deadline)


@guarded_as("write to TensorBoard")
def wait_for_export(run: ActiveRun, deadline: float) -> None:
    """Wait until `end_export` has written all, or for its deadline."""
    export = _export_of_this_process
    if export is not None and export.run is run:
        export.wait(deadline)


def _start(target: Target, run: ActiveRun) -> None:
    global _export_of_this_process
    previous = _export_of_this_process
    if previous is not None and previous.run is not run:
        previous = None
    if previous is not None:
        if previous.target == target:
            return
        previous.end(time.monotonic() + _OTHER_TARGET_SECONDS)
    _export_of_this_process = _Export(target, run, previous)
    _export_of_this_process.start()


def _forget_in_child() -> None:
    global _export_of_this_process
    _export_of_this_process = None


at_fork(_forget_in_child)


class _Export:
    """Copy the values of one run of this process to TensorBoard.

    Args:
        target: The target.
        run: The run.
        previous: The export of the same run to another target, which may not have ended.
    """

    def __init__(self, target: Target, run: ActiveRun, previous: _Export | None) -> None:
        self.target = target
        self.run = run
        self._previous = previous
        self._writer = run.log.writer
        self._root = diagnostics_directory()
        self._worker = Worker("mldiagnostics-tensorboard", self._do_what_is_due)
        self._log: EventLog[_Progress] | None = None
        self._batches: Iterator[bool] | None = None
        self._stands_by = False
        self._due = 0.0
        self._deadline: float | None = None

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def end(self, deadline: float) -> None:
        """Write the rest, and end the thread."""
        self._deadline = deadline
        if not self._worker.put(self._finish):
            LOSSES.add("tensorboard: no thread")

    def wait(self, deadline: float) -> None:
        """Wait for the end of the thread, and of that of the previous export; report what was left."""
        if self._previous is not None:
            self._previous.wait(deadline)
        if not self._worker.wait(deadline - time.monotonic()):
            self._report_rest()

    # --- The thread -----------------------------------------------------------------------------------

    def _do_what_is_due(self) -> float | None:
        """Write some values; return the seconds until there may be more."""
        now = time.monotonic()
        if self._deadline is not None or now < self._due:
            return max(0.0, self._due - now)
        started = time.thread_time()
        # After a failure the next turn is as soon as after any other.
        if self._worker.attempt(self._write_some, if_failed=False):
            return _PAUSE_FOR_WORK * (time.thread_time() - started)
        seconds = self.target.interval_seconds
        if self._stands_by:
            seconds = min(_TAKE_OVER_SECONDS, seconds)
        self._due = now + seconds
        return seconds

    def _finish(self) -> None:
        """Write the rest without pauses, upload it, and let another process take over."""
        assert self._deadline is not None
        deadline = self._deadline
        try:
            left = max(0.0, deadline - time.monotonic())
            is_in_bucket = in_bucket(self.target.folder)
            is_all = self._write_rest(deadline - _UPLOAD_SHARE * left if is_in_bucket else deadline)
            if self._log is not None and not self._stands_by:
                is_all = self._log.upload(max(_POLL_SECONDS, deadline - time.monotonic())) and is_all
            if not is_all:
                self._report_rest()
        finally:
            if self._log is not None:
                self._log.close()
            self._worker.stop()

    def _write_rest(self, deadline: float) -> bool:
        """Write all that is new; return False if there is no time for all of it, or another process writes."""
        self._batches = None  # What was read last may be from before the last values.
        take_over_until = min(deadline, time.monotonic() + _TAKE_OVER_SECONDS)
        while True:
            if self._write_some(uploads=False):
                until = deadline
            elif self._stands_by:  # Perhaps the last process of this job, which is about to end.
                time.sleep(_POLL_SECONDS)
                until = take_over_until
            else:
                return True
            if time.monotonic() >= until:
                return False

    def _write_some(self, *, uploads: bool = True) -> bool:
        """Write values, about a chunk of the journal; return True if there may be more."""
        try:
            if self._batches is None:
                self._batches = self._all_batches(uploads=uploads)
            if next(self._batches, False):
                return True
            self._batches = None
            return False
        except BaseException:
            self._batches = None  # What was read and not written is read again.
            raise

    def _all_batches(self, *, uploads: bool) -> Iterator[bool]:
        """Write what is new, and yield True after each chunk of it."""
        log = self._opened()
        if log is None:
            return
        for writer in [*log.progress.writers]:
            yield from self._write_new(log, writer)
            if writer != self._writer:  # It belongs to a process that has ended.
                others = {name: at for name, at in log.progress.writers.items() if name != writer}
                log.set_progress(replace(log.progress, writers=others))
        if uploads:
            log.upload()

    def _opened(self) -> EventLog[_Progress] | None:
        """Return the log; None if another process writes it, which this one takes over from later."""
        if self._log is None:
            self._log = self._new_log()
        log = self._log
        self._stands_by = not log.take()
        if self._stands_by:
            log_once(
                logging.INFO,
                ("tensorboard stands by", self.target.folder),
                "Another process on this host writes its metrics to %s; those of this one follow when that one ends. "
                "For two jobs at the same time, give each a folder of its own.",
                self.target.folder,
            )
            return None
        if log.progress.last_steps:
            log.restart_if_removed()
        if self._writer not in log.progress.writers:
            # Saved before there is a point, so that no process has to search for what this one recorded.
            log.save_progress(replace(log.progress, writers={**log.progress.writers, self._writer: {}}))
        return log

    def _new_log(self) -> EventLog[_Progress]:
        import_undisturbed(*_MODULES)  # In a thread: the job may fork meanwhile.
        from ml_diagnostics_common.event_files import EventLog, points_folder

        index = self.run.process_index
        folder = points_folder(self.target.folder, f"metrics_process_{index}" if index else "metrics")
        return EventLog(
            folder,
            _state_path(self._root, folder),
            encode=_Progress.to_json,
            decode=_progress_from_json,
            empty=_Progress(),
            version=_FORMAT_VERSION,
        )

    def _write_new(self, log: EventLog[_Progress], writer: str) -> Iterator[bool]:
        from google_cloud_mldiagnostics._tensorboard.points import Batch

        reader = self._reader(writer, log.progress.writers[writer])
        for entries in reader.read_new():
            batch = Batch(log.progress.last_steps)
            batch.add(sorted(entries, key=_sequence))  # As they were recorded: readers sort by the time of a value.
            time.sleep(0)  # Let the threads of the job run.
            records = batch.records()
            at = reader.position()["writers"].get(writer, {})
            progress = _Progress({**log.progress.writers, writer: at}, batch.last_steps)
            log.append(records, progress, time.time_ns())
            _report_dropped(batch)
            yield True

    def _reader(self, writer: str, offsets: Mapping[str, int]) -> JournalReader:
        """Return a reader of one writer alone: of several, its position would not be exact after each batch."""
        from ml_diagnostics_common.reader import JournalReader

        position = {"writers": {writer: offsets}}
        chunk_bytes = _CHUNK_BYTES if self._deadline is None else _LAST_CHUNK_BYTES
        return JournalReader(LOG_ID, root=self._root, position=position, writers={writer}, chunk_bytes=chunk_bytes)

    def _report_rest(self) -> None:
        LOSSES.add("tensorboard: not written before the end")
        warn_once(
            ("tensorboard rest", self.target.folder),
            "The last metrics of the run %s did not reach %s in time. They are in the journal (`mldiagnostics metrics "
            "%s`), and the next start of the job on this machine writes them.",
            self.run.run.name,
            self.target.folder,
            self.run.run.name,
        )


def _state_path(root: Path, folder: str) -> Path:
    return root / "state" / "tensorboard" / f"{hashlib.sha256(folder.encode('utf-8', 'replace')).hexdigest()[:24]}.json"


def _report_dropped(batch: Batch) -> None:
    if batch.dropped:
        from google_cloud_mldiagnostics._tensorboard.points import MOST_TAGS

        LOSSES.add("tensorboard: too many tags", batch.dropped)
        warn_once(
            "tensorboard tags",
            "The run has more than %s metrics and labels of metrics: the values of further ones are not written to "
            "TensorBoard. The journal has all.",
            f"{MOST_TAGS:,}",
        )
