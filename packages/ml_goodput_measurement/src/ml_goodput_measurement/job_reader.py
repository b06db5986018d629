"""Reads a job's log into its ledger, and goes on from where this process, or an earlier one, was."""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement._ledger import Ledger
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._record.arguments import checked_name, retention_ns
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.liveness import Liveness, ProcessState
from ml_goodput_measurement.sources import LogSource, PayloadSource, UserLogger, UserLoggerSource
from ml_goodput_measurement.state_store import DEFAULT_CACHE_DIR, StateStore, checked_gcs_path, state_folder

if TYPE_CHECKING:
    from ml_goodput_measurement._compat.cloud_logger import _CloudLogger

__all__ = ["DEFAULT_CACHE_DIR", "JobReader", "state_path"]

_CHUNK = 10_000
"""Payloads that are turned into events at a time: enough to be fast, few enough to need no memory."""

_SAVE_AFTER_EVENTS = 20_000


class JobReader:
    """The log of one job, as a ledger that each `read` brings up to date."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: UserLogger | None,
        retention: datetime.timedelta | float | None,
        gcs_path: str | None,
        cache_dir: str,
        clock_ns: Callable[[], int],
        patience_seconds: float | None,
    ) -> None:
        """Reads nothing yet; the arguments are `GoodputCalculator`'s.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, cannot be used.
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
        if _is_ours(cloud_logger) and cloud_logger.log_name == self.logger_name:
            # It has the very log that is read without it, and there nothing that is late is missed.
            self._retention_ns = self._retention_ns or cloud_logger.retention_ns
            cloud_logger = None
        self._cloud_logger, self._cache_dir = cloud_logger, cache_dir
        self._gcs_path = checked_gcs_path(gcs_path)
        self._clock_ns, self._patience_seconds = clock_ns, patience_seconds
        self._begin()

    def _begin(self) -> None:
        """Forgets everything, to go on from the saved state or begin with nothing."""
        self._was_interrupted, self._is_resumed, self._unsaved_events = False, False, 0
        self._recorders = Recorders(self.job_name)
        self._store: StateStore | None = None
        self._source: PayloadSource
        if self._cloud_logger is not None:
            self._source = UserLoggerSource(self._cloud_logger)
            return
        start_ns = None if self._retention_ns is None else self._clock_ns() - self._retention_ns
        self._source = LogSource(
            self.logger_name,
            self.job_name,
            root=diagnostics_directory(),
            start_ns=start_ns,
            patience_seconds=self._patience_seconds,
        )
        self._liveness = Liveness(diagnostics_directory())

    def read(self, *, local_only: bool = False) -> Ledger:
        """Reads what is new, saves the state after much of it, and returns the ledger.

        Args:
            local_only: Whether to wait for no network.
        """
        if self._was_interrupted:
            self._begin()
        try:
            if not self._is_resumed:
                self._resume(local_only=local_only)
            for writer, payloads in self._source.read_new(local_only=local_only):
                for begin in range(0, len(payloads), _CHUNK):
                    self._recorders.add(writer, payloads[begin : begin + _CHUNK])
                self._unsaved_events += len(payloads)
            if self._unsaved_events >= _SAVE_AFTER_EVENTS:
                self.save_state()
        except BaseException as error:
            self.broken_off_by(error)
            raise
        return self._recorders.ledger

    def broken_off_by(self, error: BaseException) -> None:
        """Has the next read begin anew, after an error or an interrupt: it may have struck anywhere.

        All but what a logger of the user's raises, for that strikes before anything is done.
        """
        if not isinstance(self._source, UserLoggerSource) or error is not self._source.error:
            self._was_interrupted = True

    def save_state(self) -> None:
        """Saves what was read, so that another process goes on from here; nothing to do with a `cloud_logger`."""
        if self._was_interrupted:
            return
        position = self._source.position()
        if self._store is None or position is None:
            return
        is_saved = self._store.save(self._recorders, position)
        # The journal drops nothing on the word of a state in a folder that may be anybody's to wipe.
        if is_saved and isinstance(self._source, LogSource) and self._cache_dir == DEFAULT_CACHE_DIR:
            self._source.save_position()
        self._unsaved_events = 0

    def sync_to_gcs(self) -> None:
        """Copies what was read to `gcs_path`, so that other machines go on from here."""
        if self._gcs_path is None:
            return
        if self._was_interrupted or not self._is_resumed:
            self.read()
        position = self._source.position()
        if self._store is not None and position is not None:
            self._store.sync(self._recorders, position)

    def is_gone(self, ledger: Ledger, now_ns: int) -> bool:
        """Return True if the process that records the job is gone: asks this machine, or judges by its silence.

        Args:
            ledger: What `read` returned.
            now_ns: The moment of the query.
        """
        if not isinstance(self._source, LogSource):  # An object of the user's does not say which process wrote what.
            return False
        state = self._liveness.state(self._recorders.last_writer())
        return ledger.is_silent(now_ns) if state is ProcessState.UNKNOWN else state is ProcessState.GONE

    def notes_on_end(self) -> list[str]:
        """Return how the process that recorded the job ended, if its companion recorded that."""
        writer = self._recorders.last_writer()
        message = self._liveness.ending(writer)
        return [] if message is None else [f"{writer}: {message}"]

    def notes(self) -> list[str]:
        """Says what a reader of the figures should know."""
        return [*self._source.notes(), *self._recorders.notes()]

    def nothing_recorded(self) -> NoGoodputError:
        """Returns the error for a job of which nothing is known."""
        return NoGoodputError(
            f"Nothing was recorded for job {self.job_name[:200]!r} in log {self.logger_name[:200]!r}. Was its "
            "GoodputRecorder given the same two names and logging_enabled=True? Searched: "
            f"{self._source.searched()}{''.join('; ' + note for note in self._source.notes())}."
        )

    def _resume(self, *, local_only: bool) -> None:
        """Goes on from the saved state of the same log, project and reach, if there is one."""
        self._is_resumed = True
        if not isinstance(self._source, LogSource):
            return
        path = state_path(
            diagnostics_directory(),
            self._cache_dir,
            self.job_name,
            self.logger_name,
            self._source.project(),
            self._retention_ns,
        )
        self._store = StateStore(path, self._gcs_path)
        state = self._store.load(self.job_name, local_only=local_only)
        if state is not None:
            self._recorders = state.recorders
            self._source.resume(state.position)


def _is_ours(cloud_logger: object) -> TypeGuard[_CloudLogger]:
    """Whether it is of this library; it is not loaded to find out."""
    module = sys.modules.get("ml_goodput_measurement._compat.cloud_logger")
    return module is not None and isinstance(cloud_logger, module._CloudLogger)


def state_path(
    root: Path, cache_dir: str, job_name: str, logger_name: str, project: str = "", retention_ns: int | None = None
) -> Path:
    """Returns where the state of a job is saved: a file for each log, project and reach that it was read with."""
    # The names may be of any length and hold anything.
    whose = repr((logger_name, job_name, project, retention_ns))
    return state_folder(root, cache_dir) / f"{hashlib.sha256(whose.encode()).hexdigest()[:32]}.goodput"
