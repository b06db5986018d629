"""How XProf and TensorBoard have the files of profiles: `<logdir>/plugins/profile/<session>/<host>.xplane.pb`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from google_cloud_mldiagnostics.exceptions import ProfilingError

__all__ = [
    "SESSIONS",
    "SUFFIX",
    "TRACE_JSON_SUFFIX",
    "captured_file",
    "file_of",
    "logdir_of",
    "session_folder",
    "sessions_folder",
]

SESSIONS: Final = ("plugins", "profile")
"""The folders between a logdir and its sessions."""
SUFFIX: Final = ".xplane.pb"
"""The end of the names of the files."""
TRACE_JSON_SUFFIX: Final = ".trace.json.gz"
"""The end of the name of the same trace for chrome://tracing and Perfetto, if it was asked for."""


def sessions_folder(logdir: str) -> str:
    """Returns where the sessions of a logdir are."""
    return "/".join((logdir, *SESSIONS))


def session_folder(logdir: str, session_id: str) -> str:
    """Returns where the files of one session are."""
    return f"{sessions_folder(logdir)}/{session_id}"


def logdir_of(folder: str) -> str:
    """Returns what XProf is given to show a session, from the folder of that session or of all of them."""
    return folder.partition(f"/{'/'.join(SESSIONS)}")[0]


def file_of(host: str) -> str:
    """Returns what a host's file is called."""
    return host + SUFFIX


def captured_file(folder: Path) -> Path:
    """Find the one xplane that a profiler has left somewhere in a folder.

    Raises:
        ProfilingError: There is no xplane.
    """
    found = sorted(folder.rglob(file_of("*")))
    if not found:
        raise ProfilingError(f"the profiler ended without an error and left no xplane.pb in {folder}")
    return found[-1]
