"""A profile: its summary, once that is read, the viewer that shows it, and the command that starts one."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.texts import format_bytes

from ml_diagnostics_console._web.answers import Answer, NotThereError, json_answer
from ml_diagnostics_console._web.overview import session_row
from ml_diagnostics_console._web.queries import Query, quoted
from ml_diagnostics_console._web.sentences import safe_line
from ml_diagnostics_console._web.summaries import Key

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading import SessionView

    from ml_diagnostics_console._web.run_data import RunData
    from ml_diagnostics_console._web.store import Store

__all__ = ["log_directory_of", "profile", "read_summaries"]

_MOST_BYTES: Final = 200_000_000
"""XProf takes about ten times as much memory."""
_PLUGIN: Final = "plugins/profile"


def profile(run: RunData, session_id: str, query: Query, store: Store) -> Answer:
    """Answer a profile: its summary if it is known, else that it is being read."""
    session = next((each for each in run.view.sessions if each.session_id == session_id), None)
    if session is None:
        raise NotThereError(f"The run {run.id} has no profile {quoted(session_id)}.")
    answer = {"session": session_row(session), "summary": None, "error": None, "xprof": _xprof(run, session, store)}
    problem, files = _files(session)
    if problem:
        return json_answer({**answer, "state": "failed", "error": problem})
    found = store.summaries.get(session.folder, files)
    if found is None:
        return json_answer({**answer, "state": "working"})
    if isinstance(found, str):
        return json_answer({**answer, "state": "failed", "error": f"This profile cannot be read: {safe_line(found)}"})
    return json_answer({**answer, "state": "ready", "summary": found})


def read_summaries(store: Store, run_id: str, seconds: float) -> None:
    """Read the summaries of a run's profiles, the newest first: a file that is written now has them.

    Args:
        store: The runs.
        run_id: The run.
        seconds: How long to wait for all of them together at most; those that are not read by then are left out.
    """
    deadline = time.monotonic() + seconds
    with store.lock:
        sessions = list(store.run(run_id).view.sessions)
    for session in reversed(sessions):
        problem, files = _files(session)
        if not problem:
            store.summaries.wait(session.folder, files, max(0.0, deadline - time.monotonic()))


def _files(session: SessionView) -> tuple[str, Key]:
    """Return why a profile cannot be read, or its files."""
    folder = session.folder
    if session.phase == "ACTIVE":
        return "This profile is being recorded.", ()
    if not folder:
        return "It is not known where the files of this profile are.", ()
    if in_bucket(folder):
        return f"The files are in a bucket. Read them with: xprofiler summary {shlex.quote(folder)}", ()
    try:
        found = [(str(path), path.stat()) for path in sorted(Path(folder).glob("*.xplane.pb"))]
    except (OSError, ValueError) as error:
        return f"The files of this profile cannot be read: {safe_line(getattr(error, 'strerror', None) or error)}", ()
    if not found:
        return f"The files of this profile are not on this machine: {safe_line(folder)}", ()
    size = sum(status.st_size for _, status in found)
    if size > _MOST_BYTES:
        return (
            f"This profile has {format_bytes(size)}: read it with: xprofiler summary {shlex.quote(folder)}",
            (),
        )
    return "", tuple((path, status.st_size, status.st_mtime_ns) for path, status in found)


def _xprof(run: RunData, session: SessionView, store: Store) -> dict[str, Any]:
    """Return the viewer that shows the profile, and the command that starts one: the page starts nothing by itself."""
    folder = log_directory_of(session.folder)
    if not folder:
        return {"command": None, "url": None}
    return {"command": f"xprofiler serve -l {shlex.quote(folder)}", "url": store.viewers.url(folder, run.id)}


def log_directory_of(folder: str) -> str:
    """Return the log directory of a session's folder, as XProf takes it: the part before `plugins/profile`."""
    head, found, _ = folder.rstrip("/").rpartition(f"/{_PLUGIN}/")
    return head if found else folder
