"""Paths of profiles: the layout that XProf reads, and the folders that one run's files pass through."""

from __future__ import annotations

import enum
import glob
import os
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ml_diagnostics_common import processes
from ml_diagnostics_common.files import (
    in_bucket,
    is_network_filesystem,
    native_path,
    open_lock_file,
    unlock,
    wait_for_lock,
)

from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
from google_cloud_mldiagnostics.exceptions import ProfilingError

__all__ = [
    "SESSIONS",
    "SUFFIX",
    "TRACE_JSON_SUFFIX",
    "Location",
    "UploadMode",
    "captured_file",
    "file_of",
    "location_of",
    "logdir_of",
    "opening_command",
    "scratch_folder",
    "session_folder",
    "sessions_folder",
    "xplane_name",
]

SESSIONS: Final = ("plugins", "profile")
"""The folders between a logdir and its sessions."""
SUFFIX: Final = ".xplane.pb"
"""The end of the names of the files."""
TRACE_JSON_SUFFIX: Final = ".trace.json.gz"
"""The end of the name of the same trace for chrome://tracing and Perfetto, if it was asked for."""


def sessions_folder(logdir: str) -> str:
    """Return the folder of a logdir's sessions."""
    return "/".join((logdir, *SESSIONS))


def session_folder(logdir: str, session_id: str) -> str:
    """Return the folder of one session."""
    return f"{sessions_folder(logdir)}/{session_id}"


def logdir_of(folder: str) -> str:
    """Return the logdir for XProf, from the folder of a session or of all of them."""
    return folder.partition(f"/{'/'.join(SESSIONS)}")[0]


def opening_command(logdir: str) -> str:
    """Return the command that shows a logdir: that of xprofiler, which stays on loopback, if it is installed."""
    quoted = shlex.quote(logdir)
    if find_spec("xprofiler") is None:
        return f"xprof --logdir {quoted} --port 8791"
    return f"xprofiler serve -l {quoted}"


def file_of(host: str) -> str:
    """Return the name of a host's file."""
    return host + SUFFIX


def captured_file(folder: Path) -> Path:
    """Find the xplane that a profiler has written in or below a folder.

    Raises:
        ProfilingError: There is no xplane.
    """
    found = sorted(folder.rglob(file_of("*")))
    if not found:
        raise ProfilingError(f"the profiler ended without an error and left no xplane.pb in {folder}")
    return found[-1]


_LOCK_SECONDS: Final = 2.0


class UploadMode(enum.Enum):
    """The transfer of a file to its location."""

    MOVED = "moved"
    """Moved at once: the location is on a disk of this machine."""
    UPLOADED = "uploaded"
    """Sent by a thread: the location is behind a network."""
    STAGED = "staged"
    """Sent later, by `mldiagnostics sync`: the location is in a cloud, and there is none."""


@dataclass(frozen=True)
class Location:
    """The location of a run's sessions.

    Attributes:
        logdir: The argument of XProf: `gs://...` or a folder; it has `plugins/profile/<session>` below it.
        staging: The folder of the same form on this machine for files that are not delivered yet.
        mode: The transfer of a file to the location.
    """

    logdir: str
    staging: Path
    mode: UploadMode

    def session(self, session_id: str) -> str:
        """Return the folder of a session's files."""
        return session_folder(self.logdir, session_id)

    def staged_session(self, session_id: str) -> Path:
        """Return the folder of the files until they are delivered."""
        return self.staging.joinpath(*SESSIONS, session_id)

    @property
    def captures(self) -> Path:
        """The folder that an outside profiler makes this process write to; each session is a folder in it."""
        return (Path(self.logdir) if self.mode is UploadMode.MOVED else self.staging).joinpath(*SESSIONS)


def location_of(active: ActiveRun) -> Location:
    """Return the location of a run's profiles.

    Raises:
        ProfilingError: The run has no gcs_path and is kept in a cloud.
    """
    given = active.run.gcs_path
    staging = active.folder / "staged"
    if not given:
        if not active.is_local:
            raise ProfilingError(
                f"the run {active.run.name} has no path for profiles: give machinelearning_run("
                "gcs_path='gs://bucket/folder'), or a local folder"
            )
        folder = active.folder / "profiles"
    elif in_bucket(given):
        return Location(
            f"{given}/{active.run.name}", staging, UploadMode.STAGED if active.is_local else UploadMode.UPLOADED
        )
    else:
        folder = Path(native_path(given)).expanduser().absolute() / active.run.name
    return Location(str(folder), staging, UploadMode.UPLOADED if is_network_filesystem(folder) else UploadMode.MOVED)


def scratch_folder(active: ActiveRun) -> Path:
    """Make an empty folder for one trace on a disk of this machine, and remove the folders of killed processes.

    Raises:
        OSError: No folder can be made.
    """
    parent = active.folder / "scratch"
    if is_network_filesystem(parent):
        return Path(tempfile.mkdtemp(prefix="ml-diagnostics-xprof-"))
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in parent.glob(f"{glob.escape(active.host)}.*"):
        pid, _, started = left.name.removeprefix(f"{active.host}.").rpartition(".")[0].partition(".")
        if pid.isdecimal() and not _lives(int(pid), started):
            shutil.rmtree(left, ignore_errors=True)
    pid = str(os.getpid())
    return Path(tempfile.mkdtemp(prefix=f"{active.host}.{pid}.{processes.start_mark(os.getpid())}.", dir=parent))


def xplane_name(
    active: ActiveRun, process_index: int, process_count: int, *, lock_seconds: float = _LOCK_SECONDS
) -> str:
    """Return the name of this process's file in each session, without `.xplane.pb`.

    This is the host's name. If a host has several processes, only one uses the plain name; the others add their index,
    since they would overwrite its file. The first process to call this has the name until it ends.

    Args:
        active: The run.
        process_index: The index of this process.
        process_count: The number of the run's processes.
        lock_seconds: The longest to wait for another process that claims the name.
    """
    if process_count <= 1:
        return active.host
    try:
        is_first = _claim(active.folder / "hosts" / active.host, lock_seconds)
    except OSError:  # No locks on this file system.
        is_first = False
    return active.host if is_first else f"{active.host}-{process_index}"


def _claim(path: Path, lock_seconds: float) -> bool:
    """Return True if this process owns a file, or takes it over from a process that has ended."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = open_lock_file(path)
    try:
        wait_for_lock(descriptor, lock_seconds)
        holder, _, started = os.read(descriptor, 100).decode().partition(" ")
        if holder.isdigit() and int(holder) != os.getpid() and _lives(int(holder), started):
            return False
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"{os.getpid()} {processes.start_mark(os.getpid())}".encode())
        return True
    finally:
        unlock(descriptor)
        os.close(descriptor)


def _lives(pid: int, started: str) -> bool:
    return processes.start_mark(pid) == started if started else processes.exists(pid)
