"""The next process completes a run at the control plane if its end could not be reported there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from google_cloud_mldiagnostics import machinelearning_run
from google_cloud_mldiagnostics._run_state.unreported_runs import UnreportedRuns
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_testing.faults import Hang, Status

from ..loopback.control_plane import ControlPlaneServer
from ..waiting import wait_until
from . import run_programs as programs
from .asked_control_planes import Time, connected

HASTE = "pauses=Pauses(end_seconds=2.0)"
UNTIL_INPUT = """
ready()
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def server(cloud_of_a_run: ControlPlaneServer) -> ControlPlaneServer:
    return cloud_of_a_run


def end_unreported(server: ControlPlaneServer, ending: str = "", **arguments: str) -> programs.Ended:
    """Let the run one-w end in a process of its own while the control plane answers 503; then clear the fault."""
    given = "".join(f", {name}={text!r}" for name, text in arguments.items())
    process = programs.start(f"start_run('one', {HASTE}, strict=True{given})\n{UNTIL_INPUT}\n{ending}")
    programs.await_line(process, "ready")
    server.faults.always(Status(503))
    ended = programs.end(process, 30.0, "\n")
    server.faults.clear()
    return ended


def marks() -> list[str]:
    return [path.parent.name for path in programs.runs_folder().glob("*/unreported")]


def local() -> LocalControlPlane:
    return LocalControlPlane(diagnostics_directory())


@pytest.fixture
def plane(server: ControlPlaneServer) -> GoogleControlPlane:
    return connected(server, Time())


# --- The next process ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "phase"), [("", "COMPLETED"), ("sys.exit(3)", "FAILED")])
def test_the_next_process_reports_an_end_that_the_control_plane_did_not_take(
    server: ControlPlaneServer, ending: str, phase: str
) -> None:
    ended = end_unreported(server, ending)
    assert f"Run one-w ended as {phase}, but the control plane may still show ACTIVE" in ended.errors
    assert "Run: mldiagnostics sync one-w" in ended.errors
    assert server.run("one-w")["runPhase"] == "ACTIVE"
    assert marks() == ["one-w"]

    process = programs.start(f"machinelearning_run('two', log_system_metrics=False)\n{UNTIL_INPUT}")
    wait_until(lambda: server.run("one-w")["runPhase"] == phase)
    assert server.run("two-w")["runPhase"] == "ACTIVE"
    assert programs.end(process, 30.0, "\n").code == 0
    assert server.run("two-w")["runPhase"] == "COMPLETED"
    wait_until(lambda: not marks())


def test_a_run_that_the_control_plane_never_took_is_created(server: ControlPlaneServer) -> None:
    server.faults.always(Status(503))
    programs.run(f"""
start_run('one', {HASTE})
from google_cloud_mldiagnostics.core.global_manager import active_run
while active_run().registration.error is None:
    time.sleep(0.01)
""")
    assert (server.runs(), marks()) == ([], ["one-w"])
    server.faults.clear()
    process = programs.start(f"machinelearning_run('two', log_system_metrics=False)\n{UNTIL_INPUT}")
    wait_until(lambda: {run["runPhase"] for run in server.runs()} == {"ACTIVE", "COMPLETED"})
    programs.end(process, 30.0, "\n")
    assert server.run("one-w")["runPhase"] == "COMPLETED"


@pytest.mark.timing
def test_a_process_leaves_in_time_while_the_report_of_another_run_is_not_answered(server: ControlPlaneServer) -> None:
    end_unreported(server)
    server.faults.script([None, Hang()], on="get")  # The first request is for the run itself.
    process = programs.start(f"machinelearning_run('two', log_system_metrics=False)\n{UNTIL_INPUT}")
    wait_until(lambda: ("get", Hang()) in server.faults.injected)
    released_at = time.monotonic()
    ended = programs.end(process, 30.0, "\n")
    assert time.monotonic() - released_at < 8.0  # A request may take ten.
    assert ended.code == 0
    assert server.run("two-w")["runPhase"] == "COMPLETED"


def test_a_run_of_another_region_is_left_alone(server: ControlPlaneServer) -> None:
    end_unreported(server)
    asked = len(server.requests)
    process = programs.start(
        f"machinelearning_run('two', log_system_metrics=False, strict=True, region='europe-west4')\n{UNTIL_INPUT}"
    )
    programs.await_line(process, "ready")
    time.sleep(0.5)
    programs.end(process, 30.0, "\n")
    assert not [request for request in server.requests[asked:] if "one-w" in request.path]
    assert marks() == ["one-w"]


def test_a_run_that_ends_well_leaves_no_mark(server: ControlPlaneServer) -> None:
    machinelearning_run("train", log_system_metrics=False, strict=True).finish()
    assert server.run("train-w")["runPhase"] == "COMPLETED"
    assert marks() == []


# --- Which runs, and how many -------------------------------------------------------------------------


def keep(run_id: str, unreported: UnreportedRuns, phase: str = "COMPLETED") -> None:
    local().create_run(run_id, {"displayName": run_id, "runPhase": phase, "labels": {"attempt": "1"}})
    unreported.add(run_id)


def keep_runs(plane: GoogleControlPlane, count: int) -> UnreportedRuns:
    unreported = UnreportedRuns(local(), plane.address)
    for number in range(count):
        keep(f"run-{number:02}", unreported)
        seconds = 1_700_000_000 + number
        os.utime(programs.runs_folder() / f"run-{number:02}" / "unreported", (seconds, seconds))
    return unreported


def test_an_active_run_is_left_alone(server: ControlPlaneServer, plane: GoogleControlPlane) -> None:
    unreported = UnreportedRuns(local(), plane.address)
    process = programs.start(f"machinelearning_run('one', log_system_metrics=False, strict=True)\n{UNTIL_INPUT}")
    programs.await_line(process, "ready")
    unreported.add("one-w")
    asked = len(server.requests)
    unreported.report(plane, lambda: False)
    # Another process of the run has ended; this one continues.
    local().update_run("one-w", lambda kept: {**kept, "runPhase": "COMPLETED"})
    unreported.report(plane, lambda: False)
    assert len(server.requests) == asked
    assert server.run("one-w")["runPhase"] == "ACTIVE"
    programs.end(process, 30.0, "\n")


def test_the_newest_20_are_reported_and_the_others_by_the_next(
    server: ControlPlaneServer, plane: GoogleControlPlane
) -> None:
    unreported = keep_runs(plane, 25)
    unreported.report(plane, lambda: False)
    assert sorted(marks()) == [f"run-{number:02}" for number in range(5)]
    unreported.report(plane, lambda: False)
    assert (marks(), len(server.runs())) == ([], 25)


def test_nothing_is_reported_once_the_process_ends(server: ControlPlaneServer, plane: GoogleControlPlane) -> None:
    unreported = keep_runs(plane, 3)
    unreported.report(plane, lambda: len(server.runs()) > 0)
    assert (len(marks()), len(server.runs())) == (2, 1)


def test_a_control_plane_that_is_down_is_asked_for_one_run_alone(
    server: ControlPlaneServer, plane: GoogleControlPlane
) -> None:
    unreported = keep_runs(plane, 3)
    server.faults.always(Status(503))
    unreported.report(plane, lambda: False)
    assert len({request.path for request in server.requests}) == 1
    assert len(marks()) == 3


def test_a_failure_and_a_later_attempt_in_the_cloud_are_not_overwritten(
    server: ControlPlaneServer, plane: GoogleControlPlane
) -> None:
    unreported = UnreportedRuns(local(), plane.address)
    for run_id, phase, attempt in (("run-1", "FAILED", "1"), ("run-2", "ACTIVE", "2")):
        keep(run_id, unreported)
        plane.create_run(run_id, {"displayName": run_id, "runPhase": phase, "labels": {"attempt": attempt}})
    unreported.report(plane, lambda: False)
    assert server.run("run-1")["runPhase"] == "FAILED"
    assert (server.run("run-2")["runPhase"], server.run("run-2")["labels"]["attempt"]) == ("ACTIVE", "2")
    assert marks() == []


def test_a_mark_that_is_not_ours_is_left_alone(plane: GoogleControlPlane, tmp_path: Path) -> None:
    unreported = UnreportedRuns(local(), plane.address)
    keep("run-1", unreported)
    mark = programs.runs_folder() / "run-1" / "unreported"
    mark.unlink()
    mark.mkdir()
    unreported.add("run-1")
    unreported.report(plane, lambda: False)
    unreported.remove("run-1")
    assert mark.is_dir()
