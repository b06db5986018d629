"""The outcome of a run is recorded even if the process ends meanwhile, or the control plane is slow."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._run.lifecycle import Pauses
from google_cloud_mldiagnostics.cli import main
from ml_diagnostics_common.program_end import UNSEEN_EXIT
from ml_diagnostics_testing.faults import Hang, Status

from ..loopback.control_plane import ControlPlaneServer, SelfHostedServer
from ..waiting import wait_until
from . import run_programs as programs
from .run_programs import start_run

RUN = "train-w"

# A profile with a delivery that takes as long as `finish` waits for one, and calls a function once that waits.
SLOW_PROFILE = """
from google_cloud_mldiagnostics._profiling.uploads import deliveries_of_this_process

def finish_waits_and(call):
    def unfinished_profile():
        nonlocal call
        if call is not None and run.run_phase.value == "COMPLETED":
            call, waiting = None, call
            waiting()
        return 0.01

    deliveries_of_this_process().add(unfinished_profile, is_awaited=True)

"""


@pytest.fixture
def server(cloud_of_a_run: ControlPlaneServer) -> ControlPlaneServer:
    return cloud_of_a_run


# --- The process ends, or is interrupted, while `finish` waits ----------------------------------------


def test_sigterm_while_finish_waits_does_not_change_the_outcome() -> None:
    ended = programs.run_until_ready(
        SLOW_PROFILE
        + """
run = start_run()
finish_waits_and(ready)
run.finish()
""",
        programs.SIGTERM,
    )
    assert ended.code == -signal.SIGTERM
    assert programs.kept_run()["runPhase"] == "COMPLETED"
    assert programs.phases() == ["ACTIVE", "COMPLETED"]


@pytest.mark.parametrize("block", ["run.finish()", "with run: pass"])
def test_an_interrupt_that_the_program_catches_while_finish_waits_still_ends_the_run(block: str) -> None:
    ended = programs.run(
        SLOW_PROFILE
        + f"""
run = start_run()
finish_waits_and(lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    {block}
except KeyboardInterrupt:
    print("caught", flush=True)
"""
    )
    assert (ended.code, ended.output) == (0, "caught\n"), ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"
    assert programs.phases() == ["ACTIVE", "COMPLETED"]


# --- The control plane is slow, or fails --------------------------------------------------------------


def test_a_slow_operation_does_not_stop_the_end_from_being_sent(
    server: ControlPlaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    run = start_run(strict=True, pauses=Pauses(end_seconds=2.0))
    server.operations.seconds = 3600
    run.configs.update(lr=0.1)
    wait_until(lambda: "update" in [request.operation for request in server.requests])
    run.finish()
    assert server.run(RUN)["runPhase"] == "COMPLETED"
    assert "not done yet" in caplog.text  # The warning that the arrival was not confirmed.


def test_an_end_for_which_there_is_no_time_is_one_warning(
    server: ControlPlaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    start_run(strict=True, pauses=Pauses(end_seconds=0.4)).finish()  # Less than a request is given.
    assert server.run(RUN)["runPhase"] == "ACTIVE"
    assert "ended as COMPLETED, but the control plane may still show ACTIVE (no answer in time)" in caplog.text


def test_an_unanswered_request_does_not_stop_the_end_from_being_sent(server: ControlPlaneServer) -> None:
    run = start_run(strict=True)
    server.faults.script([Hang()], on="update")
    run.configs.update(lr=0.1)
    wait_until(lambda: "update" in [request.operation for request in server.requests])
    run.finish()
    assert server.run(RUN)["runPhase"] == "COMPLETED"
    assert server.run(RUN)["configs"]["userConfigs"] == {"lr": "0.1"}


def test_an_end_that_could_not_be_sent_is_one_warning(
    server: ControlPlaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    run = start_run(strict=True, pauses=Pauses(end_seconds=1.0))
    server.faults.always(Hang())
    run.finish()

    def warnings() -> list[logging.LogRecord]:
        return [record for record in caplog.records if RUN in record.getMessage() and record.levelname == "WARNING"]

    wait_until(warnings)  # By the thread that waits for the control plane.
    (warning,) = warnings()
    assert "COMPLETED" in warning.getMessage()
    assert f"mldiagnostics sync {RUN}" in warning.getMessage()


@pytest.mark.parametrize("polls", [1, 3, 5])
def test_a_run_that_ends_while_it_is_created_is_created_and_ended(server: ControlPlaneServer, polls: int) -> None:
    server.operations.polls = polls
    run = start_run()
    wait_until(lambda: "poll" in [request.operation for request in server.requests])
    run.finish()
    assert server.run(RUN)["runPhase"] == "COMPLETED"


@pytest.mark.parametrize(("ending", "phase"), [("pass", "COMPLETED"), ("sys.exit(3)", "FAILED")])
def test_an_end_that_the_control_plane_refuses_temporarily_is_sent_again(
    server: ControlPlaneServer, ending: str, phase: str
) -> None:
    process = programs.start(f"start_run(strict=True, {programs.PATIENT}); ready(); sys.stdin.readline(); {ending}")
    programs.await_line(process, "ready")
    server.faults.script([Status(500), Status(500)], on="update")
    programs.end(process, input_text="go on\n")
    assert server.run(RUN)["runPhase"] == phase


@pytest.mark.parametrize(("ending", "state"), [("sys.exit(2)", "STATE_FAILED"), ("pass", "STATE_ACTIVE")])
def test_a_process_other_than_the_first_reports_only_its_failure_to_a_self_hosted_control_plane(
    ending: str, state: str
) -> None:
    with SelfHostedServer() as own:
        job = {"TORCHELASTIC_RUN_ID": "t", "RUN_WORKLOAD_ID": "w", "DIAGON_BASE_URL": own.url, "WORLD_SIZE": "2"}
        first = programs.start("start_run(strict=True); ready(); sys.stdin.readline()", RANK="0", **job)
        programs.await_line(first, "ready")
        programs.run(f"start_run(); {ending}", RANK="1", **job)
        states = [run["workload"]["state"] for run in own.runs.values()]
        assert programs.end(first, input_text="go on\n").code == 0
        states += [run["workload"]["state"] for run in own.runs.values()]
        assert states == [state, {"STATE_ACTIVE": "STATE_SUCCEEDED"}.get(state, state)]


def test_a_self_hosted_control_plane_keeps_one_run_per_name_under_its_own_resource_name() -> None:
    with SelfHostedServer() as own:
        for name in ("train", "train", "evaluate"):
            assert programs.run(f"start_run({name!r}, strict=True)", DIAGON_BASE_URL=own.url).code == 0
        ids = [request.body["workload"]["workloadId"] for request in own.requests if request.operation == "register"]
        assert ids == ["train", "train", "evaluate"]
        ended = {request.body["name"] for request in own.requests if request.operation == "update"}
        assert ended == {run["name"] for run in own.runs.values()}
        assert [run["workload"]["state"] for run in own.runs.values()] == ["STATE_SUCCEEDED"] * 2


# --- Ends that are none, or not seen ------------------------------------------------------------------


def test_an_exception_in_a_thread_does_not_fail_the_run() -> None:
    ended = programs.run("""
        start_run()
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    """)
    assert ended.code == 0
    assert "ZeroDivisionError" in ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"


@pytest.mark.parametrize(("left_by", "code"), [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(4)", 4), ("1 / 0", 1)])
def test_a_caught_and_stored_system_exit_does_not_end_the_run(left_by: str, code: int) -> None:
    ended = programs.run(f"""
        start_run()
        kept = []
        try:
            sys.exit(3)
        except SystemExit as error:
            kept.append(error)
        {left_by}
    """)
    assert ended.code == code
    assert programs.kept_run()["runPhase"] == ("FAILED" if code else "COMPLETED")


def test_a_system_exit_that_is_kept_and_raised_again_ends_the_program() -> None:
    ended = programs.run("""
        start_run()
        def main():
            try:
                sys.exit(3)
            except SystemExit as error:
                kept = error
                raise
        main()
    """)
    assert ended.code == 3
    assert programs.kept_run()["errorDetails"] == "sys.exit(3)"


UNSEEN = ["raise SystemExit({})", "leave({})", "sys.exit = leave; sys.exit({})"]


@pytest.mark.parametrize("leave", UNSEEN)
@pytest.mark.parametrize("code", [0, 3])
def test_a_run_records_an_unknown_exit_code_after_an_unseen_system_exit(leave: str, code: int) -> None:
    assert programs.run(f"from sys import exit as leave; start_run(); {leave.format(code)}").code == code
    run = programs.kept_run()
    assert run["runPhase"] == "COMPLETED"
    assert run["attempts"][-1]["reason"] == UNSEEN_EXIT
    assert "errorDetails" not in run


@pytest.mark.parametrize("arguments", [["-m", "left"], ["left.py"], ["."]])
def test_a_program_that_reached_its_last_line_is_recognised_however_it_was_started(
    arguments: list[str], tmp_path: Path
) -> None:
    for name in ("left.py", "__main__.py"):
        (tmp_path / name).write_text(programs.PREAMBLE + "start_run()\nif len(sys.argv) > 1: raise SystemExit(3)\n")
    for raised in ([], ["raised"]):
        subprocess.run([sys.executable, *arguments, *raised], cwd=tmp_path, check=not raised)
    returned, raised_by_hand = programs.kept_runs()
    assert returned["attempts"][-1]["reason"] == ""
    assert raised_by_hand["attempts"][-1]["reason"] == UNSEEN_EXIT


COMPANION = """
from pathlib import Path
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.environment import identity

def record_end(how, message):
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    journal = Journal("tpu.googleapis.com/runtime_monitor", root=root, labels=identity().labels())
    journal.append({"kind": "job_ended", "how": how, "message": message})

"""


@pytest.mark.parametrize(("how", "phase"), [("exit", "FAILED"), ("clean", "COMPLETED")])
def test_the_companion_that_sees_the_exit_code_corrects_the_run(
    how: str, phase: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"RUN_WORKLOAD_ID": "w"}
    programs.run(COMPANION + f"start_run(); record_end('{how}', 'The job exited'); raise SystemExit(3)", **job)
    for command in (["show", RUN], ["runs"]):
        assert main(command) == 0
        assert phase in capsys.readouterr().out
    second = programs.start("start_run(); sys.stdin.readline()", **job)
    wait_until(lambda: len(attempts := programs.kept_run()["attempts"]) == 2 and attempts[0]["phase"] == phase)
    assert programs.end(second, input_text="go on\n").code == 0
    assert programs.kept_run()["attempts"][0]["phase"] == phase


def test_the_hooks_of_runs_that_are_over_do_not_pile_up() -> None:
    ended = programs.run("""
        start_run("first")
        ours = sys.exit
        threads = [threading.Thread(target=start_run, args=(f"run-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
            thread.join()
        last = start_run("last")
        depth, hook = 0, sys.exit
        while isinstance(hook, type(ours)):
            depth, hook = depth + 1, hook.args[0]
        print(depth, flush=True)
        sys.exit(3)
    """)
    assert (ended.code, ended.output) == (3, "1\n"), ended.errors
    assert [run["runPhase"] for run in programs.kept_runs()] == ["COMPLETED"] * 9 + ["FAILED"]


def test_two_programs_of_one_workload_at_once_are_one_attempt_in_the_cloud_too(server: ControlPlaneServer) -> None:
    trainer = programs.start("start_run(strict=True); ready(); sys.stdin.readline()")
    programs.await_line(trainer, "ready")
    assert programs.run("start_run(strict=True)").code == 0
    kept = server.run(RUN)
    assert (kept["runPhase"], kept["labels"]["attempt"]) == ("ACTIVE", "1")
    assert programs.end(trainer, input_text="go on\n").code == 0
    kept = server.run(RUN)
    assert (kept["runPhase"], kept["labels"]["attempt"]) == ("COMPLETED", "1")
