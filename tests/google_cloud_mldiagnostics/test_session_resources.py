"""The session of a profile that a control plane receives."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google_cloud_mldiagnostics._profiling.locations import file_of, logdir_of, session_folder, sessions_folder
from google_cloud_mldiagnostics._profiling.sessions import ACTIVE, FAILED, SUCCEEDED, Session, session_resource
from google_cloud_mldiagnostics._run_state.mirroring import is_sent_to_cloud
from ml_diagnostics_common.profiler_service import TracerLevels

from .profiled_runs import profiled_run


def resource(kind: str, phase: str) -> dict[str, Any]:
    with profiled_run("run-1") as active:
        session = Session(
            active=active,
            session_id="s1",
            kind=kind,
            folder="gs://b/run-1/plugins/profile/s1",
            name="host-a",
            process_index=0,
            expected_hosts=1,
            speaks=True,
            started=datetime.datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=datetime.timezone.utc),
            duration_seconds=None if phase == ACTIVE else 1.5,
        )
        return session_resource(session, ["host-a"], phase)


def test_an_active_profile_has_no_end_time() -> None:
    sent = resource("programmatic", ACTIVE)
    assert sent["targetSessions"] == {
        "host-a": {
            "startTime": "2026-11-21T12:00:00.250000000Z",
            "sessionPhase": "ACTIVE",
            "endTime": "0001-01-01T00:00:00Z",
        }
    }
    assert "duration" not in sent


@pytest.mark.parametrize("phase", [SUCCEEDED, FAILED])
def test_an_ended_session_has_its_end_time_and_phase(phase: str) -> None:
    sent = resource("programmatic", phase)
    assert sent["targetSessions"]["host-a"]["endTime"] == "2026-11-21T12:00:01.750000000Z"
    assert sent["targetSessions"]["host-a"]["sessionPhase"] == phase
    assert (sent["duration"], sent["kind"]) == ("1.500s", "KIND_PROGRAMMATIC")


def test_tracer_levels_are_reported_only_where_they_are_known() -> None:
    levels = {"hostTracerLevel": "HOST_TRACER_LEVEL_INFO", "deviceTracerLevel": "DEVICE_TRACER_LEVEL_ENABLED"}
    assert levels.items() <= resource("programmatic", SUCCEEDED).items()
    assert not [name for name in resource("on_demand", SUCCEEDED) if name.endswith("TracerLevel")]
    assert TracerLevels().as_resource() == levels
    assert TracerLevels(3, 0, 0).as_resource() == {"pythonTracerLevel": "PYTHON_TRACER_LEVEL_DISABLED"}


@pytest.mark.parametrize(
    ("folder", "is_sent"), [("gs://b/run-1/plugins/profile/s1", True), ("/mnt/run-1/plugins/profile/s1", False)]
)
def test_a_folder_that_only_this_machine_has_is_not_sent_to_a_cloud(folder: str, is_sent: bool) -> None:
    assert is_sent_to_cloud({"storageFolderUri": folder}) is is_sent


def test_files_are_at_the_path_that_xprof_reads() -> None:
    folder = session_folder("gs://b/run-1", "s1")
    assert f"{folder}/{file_of('host-a')}" == "gs://b/run-1/plugins/profile/s1/host-a.xplane.pb"
    assert logdir_of(folder) == logdir_of(sessions_folder("gs://b/run-1")) == "gs://b/run-1"
