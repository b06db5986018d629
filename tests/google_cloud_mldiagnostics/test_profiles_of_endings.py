"""A run that ends in any manner stops its open profile: it is kept and reported, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._profiling import captures
from google_cloud_mldiagnostics.core.xprof import Xprof
from ml_diagnostics_common import worker
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..loopback.control_plane import ControlPlaneServer
from ..waiting import wait_until
from . import run_programs as programs
from .kept_entries import kept_payloads
from .profiled_runs import FileEngine, profiled_run, reported_sessions, sessions_put, xplanes

pytest.importorskip("jax")

OPEN = f"""
import jax
from google_cloud_mldiagnostics import xprof

def train():
    return jax.numpy.ones((64, 64)).sum().block_until_ready()

train()
run = start_run({programs.PATIENT})
profile = xprof(session_id="open")
profile.start()
train()
"""
HASTY_OPEN = OPEN.replace(programs.PATIENT, "pauses=Pauses(end_seconds=3.0)")


def the_session() -> dict[str, Any]:
    (path,) = _folder().glob("sessions/*.json")
    session: dict[str, Any] = json.loads(path.read_text())
    return session


def phases_of(session: dict[str, Any]) -> list[str]:
    return [target["sessionPhase"] for target in session["targetSessions"].values()]


def reported_phases() -> list[str]:
    return [payload["phase"] for payload in kept_payloads("mlrun_session")]


def kept_files() -> list[str]:
    return [path.parent.name for path in _folder().rglob("*.xplane.pb")]


def _folder() -> Path:
    (folder,) = programs.runs_folder().iterdir()
    return folder


def assert_it_was_kept() -> None:
    assert reported_phases() == ["ACTIVE", "SUCCEEDED"]
    session = the_session()
    assert phases_of(session) == ["SUCCEEDED"]
    assert not any(target["endTime"].startswith("0001") for target in session["targetSessions"].values())
    assert kept_files() == ["open"]
    assert list((_folder() / "scratch").iterdir()) == []


def test_a_run_that_is_finished_ends_its_profile_and_another_can_start() -> None:
    ended = programs.run(
        OPEN
        + """
run.finish()
with open(os.path.join(os.environ["ML_DIAGNOSTICS_DIR"], "runs", run.name, "sessions", "open.json")) as file:
    assert "SUCCEEDED" in file.read()  # When finish() has returned.
train()
profile.stop()  # It has ended already.
second = start_run("second")
with xprof(session_id="next"):
    train()
"""
    )
    assert ended.code == 0, ended.errors
    sessions = {path.stem: json.loads(path.read_text()) for path in programs.runs_folder().glob("*/sessions/*.json")}
    assert {name: phases_of(session) for name, session in sessions.items()} == {
        "open": ["SUCCEEDED"],
        "next": ["SUCCEEDED"],
    }
    assert [run["runPhase"] for run in programs.kept_runs()] == ["COMPLETED", "COMPLETED"]


def test_sigterm_while_a_profile_is_open_keeps_it() -> None:
    ended = programs.run_until_ready(OPEN, programs.SIGTERM)
    assert ended.code == -signal.SIGTERM
    assert programs.kept_run()["runPhase"] == "FAILED"
    assert_it_was_kept()


@pytest.mark.parametrize("end", ["run.finish()", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_profile_that_ends_with_its_run_is_reported_to_the_control_plane(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    cloud_storage_server: CloudStorageServer,
    end: str,
) -> None:
    pytest.importorskip("google.cloud.storage")
    cloud_storage_server.create_bucket("bucket")
    settings: dict[str, str] = {}
    for server in (control_plane_server, cloud_logging_server, cloud_storage_server):
        settings |= server.environment()
    program = OPEN.replace("start_run(", "start_run(strict=True, gcs_path='gs://bucket', ") + end
    ended = programs.run(program, ML_DIAGNOSTICS_BACKEND="cloud", RUN_WORKLOAD_ID="w", **settings)
    assert ended.code in (0, -signal.SIGTERM), ended.errors
    phase = "COMPLETED" if end == "run.finish()" else "FAILED"
    assert control_plane_server.run("train-w")["runPhase"] == phase
    (session,) = control_plane_server.sessions("train-w")
    assert phases_of(session) == ["SUCCEEDED"]
    assert len(cloud_storage_server.names("bucket")) == 1


def test_a_profiler_that_does_not_end_in_time_costs_the_profile_and_not_the_end() -> None:
    ended = programs.run_until_ready(
        """
from google_cloud_mldiagnostics._profiling.engines import JaxEngine
JaxEngine.stop = lambda self, folder, trace_json: time.sleep(60)
"""
        + HASTY_OPEN,
        programs.SIGTERM,
    )
    assert ended.code == -signal.SIGTERM
    assert programs.kept_run()["runPhase"] == "FAILED"
    assert reported_phases() == ["ACTIVE", "FAILED"]
    assert phases_of(the_session()) == ["FAILED"]
    assert "the run ended before its profiler had" in kept_payloads("mlrun_session")[-1]["problem"]


class StuckEngine(FileEngine):
    """A profiler that does not stop before it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def stop(self, folder: Path, *, trace_json: bool) -> Path:
        self.released.wait()
        return super().stop(folder, trace_json=trace_json)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch, in_production: None) -> Iterator[StuckEngine]:
    engine = StuckEngine()
    monkeypatch.setattr(captures, "engine_for", lambda framework: engine)
    yield engine
    engine.released.set()


def test_a_profiler_that_never_stops_does_not_block_the_exit(
    stuck: StuckEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with profiled_run("run-1") as active:
        Xprof(session_id="open").start()
        monkeypatch.setattr(worker, "start", lambda *_: None)  # At exit, from Python 3.12 on.
        assert not captures.finish_profiles(0.05)
        assert reported_sessions("run-1") == [("open", "ACTIVE"), ("open", "FAILED")]
        assert phases_of(sessions_put(active)[-1][1]) == ["FAILED"]
        assert "Profile open is lost: the process ended before its profiler had" in caplog.text


def test_a_profile_that_is_being_stopped_when_the_process_exits_is_awaited(stuck: StuckEngine) -> None:
    with profiled_run("run-1") as active:
        profile = Xprof(session_id="open")
        profile.start()
        stopping = threading.Thread(target=profile.stop)
        stopping.start()
        wait_until(captures.captures_of_this_process().current.ending.locked)
        threading.Timer(0.05, stuck.released.set).start()
        assert captures.finish_profiles(20)
        assert xplanes(active.folder / "profiles") == ["plugins/profile/open/host-a.xplane.pb"]
        stopping.join()


def test_a_run_without_a_profile_has_no_thread_for_one() -> None:
    program = """
from ml_diagnostics_common.worker import thread_names
run = start_run()
metrics.record("loss", 1.0)
print("mldiagnostics-profiler" in thread_names().values())
from google_cloud_mldiagnostics._profiling import captures
print("mldiagnostics-profiler" in thread_names().values())
run.finish()
"""
    ended = programs.run(program)
    assert (ended.code, ended.output.split()) == (0, ["False", "False"]), ended.errors


def test_a_program_exits_although_its_profiler_never_stops() -> None:
    ended = programs.run(
        """
from google_cloud_mldiagnostics._profiling import captures
from google_cloud_mldiagnostics._profiling.engines import JaxEngine
finish_profiles = captures.finish_profiles
captures.finish_profiles = lambda: finish_profiles(0.1)
JaxEngine.stop = lambda self, folder, trace_json: time.sleep(600)
"""
        + HASTY_OPEN
    )
    assert ended.code == 0, ended.errors
    assert "Profile open is lost: the process ended before its profiler had" in ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"
    assert reported_phases() == ["ACTIVE", "FAILED"]


def test_sigterm_while_the_profiler_is_being_stopped_does_not_deadlock() -> None:
    ended = programs.run(
        """
from google_cloud_mldiagnostics._profiling.engines import JaxEngine
def stop(self, folder, trace_json):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
JaxEngine.stop = stop
"""
        + HASTY_OPEN
        + "profile.stop()"
    )
    assert ended.code == -signal.SIGTERM
    assert programs.kept_run()["runPhase"] == "FAILED"
    assert phases_of(the_session()) == ["FAILED"]


def test_partial_files_of_a_killed_process_are_removed_by_the_next_profile() -> None:
    assert programs.run_until_ready(OPEN, programs.SIGKILL, RUN_WORKLOAD_ID="w").code == -signal.SIGKILL
    (left,) = (_folder() / "scratch").iterdir()
    neighbour = left.with_name(left.name.replace(left.name.split(".")[-4], "another-host", 1))
    neighbour.mkdir()
    assert programs.run(OPEN + "profile.stop()", RUN_WORKLOAD_ID="w").code == 0
    assert list((_folder() / "scratch").iterdir()) == [neighbour]
    assert os.listdir(neighbour) == []  # noqa: PTH208
