"""Runs to profile, with a real log and a registration that only remembers sessions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google_cloud_mldiagnostics._entries import PROCESS, SESSION
from google_cloud_mldiagnostics._profiling import captures, on_demand, uploads
from google_cloud_mldiagnostics._profiling.locations import file_of
from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.mlrun_types import MLRun
from ml_diagnostics_common.environment import diagnostics_directory

from .kept_entries import kept_payloads


class FileEngine:
    """An engine that writes plain files as profiles, without JAX."""

    def start(self, folder: Path) -> None:
        (folder / file_of("trace")).write_bytes(b"")

    def stop(self, folder: Path, *, trace_json: bool) -> Path:
        return folder / file_of("trace")

    def abandon(self) -> None:
        pass

    def has_accelerator(self) -> bool:
        return False


class RememberedSessions:
    """Stands for the registration, which sends sessions to control planes."""

    def __init__(self) -> None:
        self.sessions: list[tuple[str, Resource]] = []

    def put_session(self, session_id: str, session: Resource) -> None:
        self.sessions.append((session_id, session))


@contextlib.contextmanager
def profiled_run(
    name: str,
    *,
    finish_seconds: float = 5.0,
    is_local: bool = True,
    process_index: int = 0,
    process_count: int = 1,
    **fields: Any,
) -> Iterator[ActiveRun]:
    """Run the block with an active run."""
    log = RunLog(name, location="us-central1", project="", labels={}, is_shipped=False)
    active = ActiveRun(
        run=MLRun(name=name, **fields),
        log=log,
        folder=diagnostics_directory() / "runs" / name,
        host="host-a",
        process_index=process_index,
        process_count=process_count,
        pid=os.getpid(),
        is_local=is_local,
        registration=RememberedSessions(),  # type: ignore[arg-type]
    )
    set_active_run(active)
    try:
        yield active
    finally:
        on_demand.stop_on_demand_xprof()
        captures.finish_profiles(finish_seconds)
        uploads.deliveries_of_this_process()._jobs.clear()
        uploads.start_afresh()
        captures.start_afresh()
        set_active_run(None)


def sessions_put(active: ActiveRun) -> list[tuple[str, Resource]]:
    """Return the sessions that a control plane would have received, in order."""
    assert isinstance(active.registration, RememberedSessions)
    return active.registration.sessions  # type: ignore[unreachable]


def reported_sessions(run_id: str) -> list[tuple[str, str]]:
    """Return (session, phase) of each entry about a profile, in order."""
    return [(payload["session_id"], payload["phase"]) for payload in kept_payloads(SESSION, run_id=run_id)]


def reported_processes(run_id: str) -> list[dict[str, Any]]:
    return kept_payloads(PROCESS, run_id=run_id)


def xplanes(folder: Path | str) -> list[str]:
    """Return the files of profiles below a folder, as relative paths."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.xplane.pb"))
