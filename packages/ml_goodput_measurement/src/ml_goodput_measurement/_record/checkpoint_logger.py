"""CheckpointLogger: Orbax's entries on each save and restore, in the job's journal."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.clock import steadied
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.file_systems import announce_checkpoint_folder
from ml_diagnostics_common.guard import guarded

from ml_goodput_measurement._record.arguments import RebuiltFromArguments

if TYPE_CHECKING:
    from ml_goodput_measurement._record.recorder import GoodputRecorder

__all__ = ["CheckpointLogger"]

_OPERATIONS = ("save", "restore", "emergency_restore")


class CheckpointLogger(RebuiltFromArguments):
    """An Orbax logger that records each save and restore of a job, for its goodput.

    Pass it to any of Orbax's checkpoint managers:

        ocp.CheckpointManager(directory, logger=CheckpointLogger(recorder))

    It never fails a checkpoint: entries that cannot be recorded are counted and logged once. Other entries of Orbax's
    are ignored. To keep another Orbax logger too, put both into an `orbax.checkpoint.logging.CompositeLogger`.
    """

    def __init__(
        self, recorder: GoodputRecorder | None = None, *, job_name: str | None = None, logger_name: str | None = None
    ) -> None:
        """Take the job's recorder, or the names of the job and its log.

        Args:
            recorder: A recorder of the same job. If its logging is disabled, nothing is recorded here either.
            job_name: The full run name of the job, if there is no recorder.
            logger_name: The name of the log, if there is a `job_name`; the default is `goodput_<job_name>`.

        Raises:
            ConfigurationError: Neither a recorder nor a job's name is passed, or both.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        if recorder is None and job_name is not None:
            from ml_goodput_measurement._record.recorder import GoodputRecorder

            recorder = GoodputRecorder(job_name, logger_name or f"goodput_{job_name}", logging_enabled=True)
        elif recorder is None or job_name is not None or logger_name is not None:
            raise ConfigurationError("expected either the job's recorder, or a job_name and optionally a logger_name")
        self._recorder = recorder
        _register_with_orbax()
        self._remember(CheckpointLogger, arguments, names_before)

    @guarded
    def log_entry(self, entry: Any, *_: Any, **__: Any) -> None:
        """Record one of Orbax's structured entries; called by Orbax.

        Args:
            entry: A dictionary with an `event_type`; all but saves and restores are ignored.
        """
        if not isinstance(entry, Mapping) or entry.get("event_type") not in _OPERATIONS:
            return
        if entry["event_type"] == "save" and entry.get("directory"):
            announce_checkpoint_folder(str(entry["directory"]))
        self._recorder.record_payload({key: _plain(key, value) for key, value in entry.items()})
        if entry["event_type"] == "save":
            self._recorder.sync()  # Steps in a checkpoint must not be missing in the log.


def _plain(key: str, value: Any) -> Any:
    """Return a time as POSIX seconds, like all times in the log; the journal writes other values unchanged."""
    if isinstance(value, datetime.datetime):
        value = value.timestamp()
    return steadied(value) if isinstance(value, float) and key.endswith("_start_time") else value


def _register_with_orbax() -> None:
    """Make `CheckpointLogger` a subclass of Orbax's `AbstractLogger`, if there is an Orbax.

    Without inheritance: it would import Orbax, and JAX, to record steps.
    """
    try:
        from orbax.checkpoint.logging import AbstractLogger
    except ImportError:
        return
    AbstractLogger.register(CheckpointLogger)


# Pickles contain the public names.
CheckpointLogger.__module__ = "ml_goodput_measurement.goodput"
