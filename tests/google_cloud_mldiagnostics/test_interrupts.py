"""A job that Ctrl-C ends dies of SIGINT, as without us, whenever that is: shells stop their loops only then."""

from __future__ import annotations

import signal

import pytest

from ..loopback.control_plane import ControlPlaneServer
from . import run_programs as programs

SECONDS = [0.0, 0.3, *(pytest.param(seconds, marks=pytest.mark.slow) for seconds in (0.1, 1.0, 3.0))]

RECORDER = """
from ml_goodput_measurement import goodput
goodput.GoodputRecorder("train", "goodput_train", logging_enabled=True).record_job_start_time()
"""


def interrupted_after(seconds: float, program: str) -> programs.Ended:
    return programs.run(f"{program}\ntime.sleep({seconds})\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)")


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("program", ["start_run()", RECORDER])
def test_ctrl_c_ends_a_job_without_a_cloud_by_the_signal(seconds: float, program: str) -> None:
    ended = interrupted_after(seconds, program)
    assert (ended.code, "KeyboardInterrupt" in ended.errors) == (-signal.SIGINT, True), ended.errors


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("program", [f"start_run({programs.PATIENT})", RECORDER], ids=["run", "recorder"])
def test_ctrl_c_ends_a_job_with_a_cloud_by_the_signal(
    cloud_of_a_run: ControlPlaneServer, seconds: float, program: str
) -> None:
    ended = interrupted_after(seconds, program)
    assert (ended.code, "KeyboardInterrupt" in ended.errors) == (-signal.SIGINT, True), ended.errors
    assert [run["runPhase"] for run in cloud_of_a_run.runs()] == ([] if program == RECORDER else ["FAILED"])


@pytest.mark.parametrize("seconds", SECONDS)
def test_a_run_that_ends_in_its_first_second_is_created_active_then_patched_with_its_configs(
    cloud_of_a_run: ControlPlaneServer, seconds: float
) -> None:
    interrupted_after(seconds, f"start_run(configs={{'lr': 0.1}}, {programs.PATIENT})")
    created = [request for request in cloud_of_a_run.requests if request.operation == "create"]
    assert [request.body["runPhase"] for request in created] == ["ACTIVE"]
    (run,) = cloud_of_a_run.runs()
    assert run["runPhase"] == "FAILED"
    assert run["configs"]["userConfigs"] == {"lr": "0.1"}
    assert run["configs"]["softwareConfigs"]["framework"] == "JAX"
