"""Runs to profile: with a real log, and a control plane's thread that only remembers."""

import contextlib
import os
import time
from pathlib import Path

from google_cloud_mldiagnostics.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.entries import PROCESS, SESSION
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics.profiling import captures, deliveries, on_demand
from google_cloud_mldiagnostics.run_log import RunLog
from google_cloud_mldiagnostics.run_reader import run_reader
from ml_diagnostics_common.environment import diagnostics_directory


class Registration:
    """Remembers the sessions that it was given."""

    def __init__(self):
        self.sessions = []

    def put_session(self, session_id, session):
        self.sessions.append((session_id, session))


@contextlib.contextmanager
def profiled_run(name, *, finish_seconds=5.0, is_local=True, process_index=0, process_count=1, **fields):
    """The run of this process, while the block lasts."""
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
        registration=Registration(),
    )
    set_active_run(active)
    try:
        yield active
    finally:
        on_demand.stop_on_demand_xprof()
        captures.finish_profiles(finish_seconds)
        deliveries.deliveries_of_this_process()._jobs.clear()
        deliveries._deliveries.forget()
        captures._captures.forget()
        set_active_run(None)


def payloads(run_id, namespace):
    """What the run's log has, of one kind."""
    reader = run_reader(run_id)
    entries = [entry for batch in reader.read_new() for entry in (batch if isinstance(batch, list) else [batch])]
    return [entry.payload for entry in entries if entry.resource["labels"]["namespace"] == namespace]


def sessions_told(run_id):
    """(session, phase) of each entry about a profile, in their order."""
    return [(payload["session_id"], payload["phase"]) for payload in payloads(run_id, SESSION)]


def processes_told(run_id):
    return payloads(run_id, PROCESS)


def xplanes(folder):
    """The files of profiles below a folder, as paths from there."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.xplane.pb"))


def eventually(holds, timeout_seconds=30.0):
    """Waits until something holds, and returns it."""
    end = time.monotonic() + timeout_seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found
