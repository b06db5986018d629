"""Report the ends of this machine's runs that the control plane has not confirmed.

A process that ends its run leaves a marker in the run's folder before it reports the end, and removes it once the
control plane has confirmed it. The marker names the control plane, so that a run is never sent to another one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.files import read_regular
from ml_diagnostics_common.guard import LOSSES, job_logger, warn_once
from ml_diagnostics_common.worker import start

from google_cloud_mldiagnostics._run_state.attempts import ENDED, last_attempt
from google_cloud_mldiagnostics._run_state.mirroring import as_cloud_run, attempt_of, mirrored
from google_cloud_mldiagnostics._run_state.process_life import is_alive
from google_cloud_mldiagnostics.control_plane import ControlPlane, Resource
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunNotFoundError

__all__ = [
    "UnreportedRuns",
    "send_run",
    "warn_end_not_reported",
    "warn_folder_failed",
    "warn_not_reported",
    "warn_session_not_kept",
]

logger = job_logger("google_cloud_mldiagnostics")

_MARKER: Final = "unreported"
_MOST_BYTES: Final = 4096
_MOST_MARKERS: Final = 200
_MOST_RUNS = 20
_MOST_SECONDS = 60.0


class UnreportedRuns:
    """The runs of this machine that wait for one control plane to confirm their end.

    Args:
        local: The runs of this machine.
        address: The control plane's URL, with project and location.
    """

    def __init__(self, local: LocalControlPlane, address: str) -> None:
        self._local = local
        self._address = address
        self._added: set[str] = set()
        self._is_report_started = False

    def add(self, run_id: str) -> None:
        """Mark a run, once: a later call may follow `remove`. Without effect if its folder cannot be written."""
        if run_id in self._added:
            return
        self._added.add(run_id)
        path = self._marker(run_id)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            # O_EXCL: neither a link nor a named pipe of another program is opened.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(self._address.encode("utf-8", "backslashreplace"))

    def remove(self, run_id: str) -> None:
        """Remove a run's mark, if it has one."""
        with contextlib.suppress(OSError):
            self._marker(run_id).unlink(missing_ok=True)

    def start_report(self, plane: ControlPlane, is_over: Callable[[], bool]) -> None:
        """Call `report` in a separate thread, once."""
        if not self._is_report_started:
            self._is_report_started = True
            start(lambda: self.report(plane, is_over), "mldiagnostics-unreported")

    def report(self, plane: ControlPlane, is_over: Callable[[], bool]) -> None:
        """Report the end of the newest marked runs, 20 at most, for one minute at most.

        Two processes may do so at the same time: the control plane's etag orders their updates, which are the same.

        Args:
            plane: The control plane.
            is_over: Called before each run; return True to stop.
        """
        give_up_at = time.monotonic() + _MOST_SECONDS
        sent = 0
        for run in self._ended():
            if sent >= _MOST_RUNS or is_over() or time.monotonic() >= give_up_at:
                return
            run_id = str(run["name"])
            sent += 1
            try:
                send_run(run, plane)
            except ControlPlaneError as error:
                logger.info("The end of run %s could not be reported to the control plane: %s", run_id, error)
                if error.is_temporary:
                    return  # Other runs would fail, too.
                continue
            self.remove(run_id)
            logger.info("Run %s is now %s at the control plane, too", run_id, run["runPhase"])

    def _ended(self) -> Iterator[Resource]:
        """Yield the marked runs that have ended here, the newest first."""
        for path in self._markers():
            with contextlib.suppress(OSError, ControlPlaneError):
                if read_regular(path, _MOST_BYTES) == self._address.encode("utf-8", "backslashreplace"):
                    run = self._local.get_run(path.parent.name)
                    if run.get("runPhase") in ENDED and not _has_live_process(run):
                        yield {**run, "name": path.parent.name}

    def _markers(self) -> list[Path]:
        marked = []
        for path in self._local.runs_folder.glob(f"*/{_MARKER}"):
            with contextlib.suppress(OSError):  # The other process has removed it.
                marked.append((path.lstat().st_mtime_ns, path))
        return [path for _, path in sorted(marked, reverse=True)[:_MOST_MARKERS]]

    def _marker(self, run_id: str) -> Path:
        return self._local.folder(run_id) / _MARKER


def _has_live_process(run: Resource) -> bool:
    """Return True if a process of the last attempt still runs and has not recorded its end."""
    host, update_time = identity().host, run.get("updateTime")
    return any(
        process.get("phase") not in ENDED and is_alive({**process, "updateTime": update_time}, host)
        for process in (last_attempt(run) or {}).get("processes") or ()
    )


def send_run(run: Resource, cloud: ControlPlane) -> bool:
    """Create the run at a control plane, or update it there to its state on this machine.

    Args:
        run: The run as this machine keeps it, with its real phase.
        cloud: The control plane.

    Returns:
        True if it was created.

    Raises:
        ControlPlaneError: The request was refused, or not answered.
    """
    run_id = str(run["name"])
    try:
        cloud.get_run(run_id)
    except RunNotFoundError:
        cloud.create_run(run_id, as_cloud_run(run))
        return True
    cloud.update_run(run_id, lambda kept: mirrored(_not_behind(run, kept))(kept))
    return False


def _not_behind(run: Resource, kept: Resource) -> Resource:
    """Return the run without fields that a later attempt, on another machine, has changed."""
    if attempt_of(kept) <= attempt_of(run):
        return run
    labels = {**(run.get("labels") or {}), "attempt": str(attempt_of(kept))}
    return {**run, "labels": labels, "runPhase": kept.get("runPhase")}


# --- Warnings -----------------------------------------------------------------------------------------


def warn_folder_failed(run_id: str, error: ControlPlaneError) -> None:
    """Count a folder that cannot be read or written, and warn once per run."""
    LOSSES.add(f"run.json: {type(error).__name__}")
    warn_once(
        ("run.json", run_id),
        "The run %s could not be updated in its folder: %s. Its entries are in the journal.",
        run_id,
        error,
    )


def warn_session_not_kept(run_id: str, error: ControlPlaneError) -> None:
    """Count a profiler session that cannot be written to the run's folder, and warn once per run."""
    LOSSES.add("session_not_kept")
    warn_once(
        ("session not kept", run_id),
        "A profile of the run %s could not be written to its folder: %s. `mldiagnostics show` reads it from the "
        "journal.",
        run_id,
        str(error).rstrip("."),
    )


def warn_not_reported(run_id: str, folder: str, error: Exception) -> None:
    """Warn that a run could not be reported, once per kind of failure."""
    known = isinstance(error, ControlPlaneError)
    warn_once(
        ("registration", run_id, type(error), getattr(error, "code", None)),
        "Run %s is recorded in %s, but could not be reported to the control plane: %s. The job continues, and "
        "the report is repeated until the run ends. To send it later, run: mldiagnostics sync %s",
        run_id,
        folder,
        str(error).rstrip(".") if known else f"{type(error).__name__}: {error}",
        run_id,
    )


def warn_end_not_reported(run_id: str, phase: str, error: Exception | None, *, can_sync: bool) -> None:
    """Warn once that the end of a run may be missing at the control plane."""
    warn_once(
        ("end not reported", run_id),
        "Run %s ended as %s, but the control plane may still show ACTIVE (%s).%s",
        run_id,
        phase,
        str(error).rstrip(".") if error is not None else "no answer in time",
        f" Run: mldiagnostics sync {run_id}" if can_sync else "",
    )
