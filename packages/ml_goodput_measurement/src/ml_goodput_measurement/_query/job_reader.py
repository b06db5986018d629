"""Reads a job's log into its ledger, and continues from where this process, or an earlier one, stopped."""

from __future__ import annotations

import datetime
import enum
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ml_diagnostics_common.entry import COMPANION_LOG_ID, LogEntry, ProcessEndings
from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.journal import is_open, writer_start_ns
from ml_diagnostics_common.log_source import PATIENCE_SECONDS, Cloud, LogSource, notes_of
from ml_diagnostics_common.processes import process_started_ns, start_mark

from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._query.payloads import OwnLogger, Payloads, UserLogger, UserLoggerReader, by_writer
from ml_goodput_measurement._query.sources import Sources, open_source
from ml_goodput_measurement._query.state_store import DEFAULT_CACHE_DIR, StateStore, checked_gcs_path, state_folder
from ml_goodput_measurement._record.arguments import checked_name, retention_ns
from ml_goodput_measurement.exceptions import NoGoodputError

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger import Ledger
    from ml_goodput_measurement._ledger.writers import Writer
    from ml_goodput_measurement.partition import Inference

__all__ = ["DEFAULT_CACHE_DIR", "JobReader", "state_path"]

_CHUNK = 10_000
"""Payloads that are converted to events at a time: enough to be fast, few enough to take little memory."""

_SAVE_AFTER_EVENTS = 20_000
_SLACK_NS = 5 * 10**9
"""The largest difference of the kernel's clock, in whole seconds, and times of entries."""
_READ_ENDINGS_EVERY_SECONDS = 10.0


class JobReader:
    """The log of one job, as a ledger that each `read` brings up to date."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: UserLogger | None,
        *,
        retention: datetime.timedelta | float | None,
        gcs_path: str | None,
        cache_dir: str,
        clock_ns: Callable[[], int],
        patience_seconds: float | None,
        logs_failures: bool,
        sources: Sources | None = None,
    ) -> None:
        """Read nothing yet; the arguments are those of `GoodputCalculator`.

        Raises:
            ConfigurationError: An argument, ML_DIAGNOSTICS_BACKEND or ML_DIAGNOSTICS_MIRROR cannot be used.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        self.job_name = checked_name("job_name", job_name)
        self.logger_name = checked_name("logger_name", logger_name)
        if cloud_logger is not None and not callable(getattr(cloud_logger, "read_cloud_logging_entries", None)):
            raise ConfigurationError(
                f"cloud_logger is a {type(cloud_logger).__name__} without read_cloud_logging_entries(); "
                "pass an object that has it, or nothing to read the journal and Cloud Logging"
            )
        self._retention_ns = retention_ns(retention)
        given: object = cloud_logger
        if isinstance(given, OwnLogger) and given.log_name == self.logger_name:
            # It reads the same log; without it, late entries are found as well.
            self._retention_ns = self._retention_ns or given.retention_ns
            cloud_logger = None
        self._cloud_logger, self._cache_dir = cloud_logger, cache_dir
        self._gcs_path = checked_gcs_path(gcs_path)
        self._clock_ns, self._patience_seconds = clock_ns, patience_seconds or PATIENCE_SECONDS
        self._logs_failures = logs_failures
        self._sources = sources or Sources()
        self._start()

    def _start(self) -> None:
        """Forget everything, to continue from the saved state or to start with nothing."""
        self._was_interrupted, self._is_resumed, self._unsaved_events = False, False, 0
        self._recorders = Recorders(self.job_name)
        self.labels: Mapping[str, str] = {}
        """The labels of the process that recorded the job's last entry of those that were read."""
        self._store: StateStore | None = None
        self._user_logger = UserLoggerReader(self._cloud_logger) if self._cloud_logger is not None else None
        self._cloud: Cloud | None = None
        self._log: LogSource | None = None
        if self._user_logger is None:
            if self._sources.asks_cloud:
                self._cloud = Cloud.configured(
                    patience_seconds=self._patience_seconds, logs_failures=self._logs_failures
                )
            self._log = open_source(
                self.logger_name,
                cloud=self._cloud,
                job_name=self.job_name,
                start_ns=None if self._retention_ns is None else self._clock_ns() - self._retention_ns,
                sources=self._sources,
                clock_ns=self._clock_ns,
            )
            self._liveness = _Liveness(diagnostics_directory())

    def read(self, *, local_only: bool = False) -> Ledger:
        """Read what is new, save the state after much of it, and return the ledger.

        Args:
            local_only: True to read only this machine's journal. Before a cloud was searched for, that is without the
                saved state, whose name contains the project.
        """
        if self._was_interrupted:
            self._start()
        try:
            if not self._is_resumed:
                self._resume(local_only=local_only)
            for writer, payloads in self._new_payloads(local_only=local_only):
                for first in range(0, len(payloads), _CHUNK):
                    self._recorders.add(writer, payloads[first : first + _CHUNK])
                self._unsaved_events += len(payloads)
            if self._unsaved_events >= _SAVE_AFTER_EVENTS:
                self.save_state()
        except BaseException as error:
            self.broken_off_by(error)
            raise
        return self._recorders.ledger

    def _new_payloads(self, *, local_only: bool) -> Iterator[tuple[Writer, Payloads]]:
        if self._user_logger is not None:
            return self._user_logger.read_new()
        assert self._log is not None
        batches = map(self._noting_labels, self._log.read_new(local_only=local_only))
        return itertools.chain.from_iterable(map(by_writer, batches))

    def _noting_labels(self, entries: list[LogEntry]) -> list[LogEntry]:
        labels = entries[-1].context.labels
        if labels.get("job") == self.job_name:
            self.labels = labels
        return entries

    def broken_off_by(self, error: BaseException) -> None:
        """Have the next read start from the saved state, after an error or an interrupt at any point.

        Not after what a logger of the user's raises: that happens before anything is done.
        """
        if self._user_logger is None or error is not self._user_logger.error:
            self._was_interrupted = True

    def save_state(self) -> None:
        """Save the state, so that another process continues from it; do nothing with a `cloud_logger`."""
        if self._was_interrupted or self._store is None or self._log is None:
            return
        is_saved = self._store.save(self._recorders, self._log.position())
        # The journal drops nothing because of a state in a folder that any user may delete.
        if is_saved and self._cache_dir == DEFAULT_CACHE_DIR:
            self._log.save_position(f"goodput {self.job_name}", job=self.job_name)
        self._unsaved_events = 0

    def sync_to_gcs(self) -> None:
        """Copy the state to `gcs_path`, so that other machines continue from it."""
        if self._gcs_path is None:
            return
        if self._was_interrupted or not self._is_resumed:
            self.read()
        if self._store is not None and self._log is not None:
            self._store.sync(self._recorders, self._log.position())

    def is_gone(self, ledger: Ledger, now_ns: int) -> bool:
        """Return True if the process that records the job is gone, by this machine or by its silence.

        Args:
            ledger: The result of `read`.
            now_ns: The time of the query.
        """
        if self._log is None:  # An object of the user's does not show which process recorded an entry.
            return False
        state = self._liveness.state(self._recorders.last_writer())
        return ledger.is_silent(now_ns) if state is _ProcessState.UNKNOWN else state is _ProcessState.GONE

    def notes_on_end(self) -> list[str]:
        """Return the outcome of the process that recorded the job, if its companion recorded that."""
        writer = self._recorders.last_writer()
        message = self._liveness.ending(writer)
        return [] if message is None else [f"{writer}: {message}"]

    def notes(self) -> list[str]:
        """Return sentences that a reader of the results should know."""
        return [*self._log_notes(), *self._recorders.notes()]

    def lost_entries(self) -> int:
        """Return how many entries the job's recorders report as not written."""
        return sum(sum(lost.values()) for lost in self._recorders.lost.values())

    def mirror_lag_seconds(self) -> float | None:
        """Return how far the mirror of the log is behind; None without one."""
        return None if self._log is None else self._log.mirror_lag_seconds()

    def ask_to_hurry(self) -> None:
        """Ask the job's processes to write to the mirror more often for the next minutes."""
        if self._log is not None and self._log.mirror is not None:
            self._log.mirror.ask_to_hurry()

    def inferred(self) -> tuple[Inference, ...]:
        """Return the kinds of time that the program did not record itself."""
        return tuple(self._recorders.inferred)

    def _log_notes(self) -> list[str]:
        return [] if self._log is None else notes_of([self._log])

    def nothing_recorded(self) -> NoGoodputError:
        """Return the error for a job without records."""
        if self._log is not None:
            searched = self._log.searched()
        else:
            searched = f"the cloud_logger that was given, a {type(self._cloud_logger).__name__}"
        return NoGoodputError(
            f"Nothing was recorded for job {self.job_name[:200]!r} in log {self.logger_name[:200]!r}.\nWas its "
            "GoodputRecorder given the same two names and logging_enabled=True? Searched: "
            f"{searched}{''.join('; ' + note for note in self._log_notes())}."
        )

    def _resume(self, *, local_only: bool) -> None:
        """Continue from the saved state of the same log, project and retention, if there is one."""
        if local_only and self._cloud is not None and not self._cloud.project and self._cloud.absence is None:
            return  # A later read resumes, when it knows the project.
        self._is_resumed = True
        if self._log is None:
            return
        project = self._cloud.project if self._cloud is not None and self._cloud.is_found() else ""
        path = state_path(
            diagnostics_directory(),
            self._cache_dir,
            self.job_name,
            self.logger_name,
            project,
            self._retention_ns,
            self._sources.mirror,
        )
        self._store = StateStore(path, self._gcs_path)
        state = self._store.load(self.job_name, local_only=local_only)
        if state is not None:
            self._recorders = state.recorders
            self._log.resume(state.position)


def state_path(
    root: Path,
    cache_dir: str,
    job_name: str,
    logger_name: str,
    project: str = "",
    retention_ns: int | None = None,
    mirror: str = "",
) -> Path:
    """Return the file of a job's saved state: one for each log, project, retention and mirror that it was read with."""
    # The names may have any length and any characters.
    key = repr((logger_name, job_name, project, retention_ns, *([mirror] if mirror else [])))
    return state_folder(root, cache_dir) / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.goodput"


class _ProcessState(enum.Enum):
    """The state of a process, as far as it is known."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


class _Liveness:
    """Determines if the processes of one job still run, as far as this machine knows.

    Args:
        root: The diagnostics folder, where companions record the ends of processes.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._companions = LogSource(COMPANION_LOG_ID, root=root)
        self._companions_read_at = -float("inf")
        self._endings = ProcessEndings()
        self._running: tuple[Writer, str] | None = None
        """A writer that was found running, and its process's start mark: checking it again costs one small file."""

    def state(self, writer: Writer) -> _ProcessState:
        """Return the state of a writer's process: by the system if it is of this host, else by its companion."""
        if not (writer.host and writer.pid.isdecimal() and len(writer.pid) < 10):
            return _ProcessState.UNKNOWN
        if writer.host == identity().host and os.name != "nt":  # os.kill, which checks this, would be Ctrl-C there.
            return self._state_here(writer, int(writer.pid))
        return _ProcessState.UNKNOWN if self.ending(writer) is None else _ProcessState.GONE

    def ending(self, writer: Writer) -> str | None:
        """Return the outcome of a writer's process; None if its companion recorded nothing."""
        if time.monotonic() - self._companions_read_at > _READ_ENDINGS_EVERY_SECONDS:
            for entries in self._companions.read_new():
                self._endings.add(entries)
            self._companions_read_at = time.monotonic()
        for entry in self._endings.after(writer.host, writer.pid, writer_start_ns(writer.name) - _SLACK_NS):
            return str(entry.payload.get("message") or entry.payload.get("how") or "it ended")
        return None

    def _state_here(self, writer: Writer, pid: int) -> _ProcessState:
        if self._running is not None and self._running[0] == writer and start_mark(pid) == self._running[1]:
            return _ProcessState.RUNNING
        self._running = None
        started_ns = process_started_ns(pid)
        if started_ns is None:
            # A process of another container of this pod has the host's name, and no pid here.
            return _ProcessState.RUNNING if is_open(self._root, writer.name) else _ProcessState.GONE
        writer_ns = writer_start_ns(writer.name)
        is_later = writer_ns > 0 and started_ns > writer_ns + _SLACK_NS
        # If the machine's clock was set forward since, a process seems to have started later than it did.
        if is_later and not _has_open(pid, writer.name):
            return _ProcessState.RUNNING if is_open(self._root, writer.name) else _ProcessState.GONE
        mark = start_mark(pid)
        if mark:
            self._running = writer, mark
        return _ProcessState.RUNNING


def _has_open(pid: int, writer: str) -> bool:
    """Return True if a process has a segment of a writer open, as its recorder has."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        return any(file.readlink().name.startswith(f"{writer}.") for file in folder.iterdir())
    except OSError:
        return False
