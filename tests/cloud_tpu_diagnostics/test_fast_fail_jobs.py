"""Real processes under diagnose(): when one fails, all end at once, and the first cause is recorded by each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from cloud_tpu_diagnostics.entries import FAST_FAIL, JOB_ENDED

from benchmarks import fast_fail_crowd, process

from ..waiting import is_alive, wait_until
from .fast_fail_jobs import AS_PROCESS_1, STAND_IN, TRAINER, FastFailJob, can_be_process_1, fast_fail_job

RUN = (sys.executable, "-m", "cloud_tpu_diagnostics", "run", "--")
SIGKILL = -int(signal.SIGKILL)
FAULTS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", SIGKILL, "was ended by SIGKILL"),
    "SIGSEGV": ("os.kill(os.getpid(), signal.SIGSEGV)", -int(signal.SIGSEGV), "was ended by SIGSEGV"),
    "exit code": ("os._exit(3)", 3, "exited with code 3"),
    "SystemExit": ("sys.exit(4)", 4, "exited with code 4"),
    "exception": ("raise ValueError('batch 12 is empty')", 1, "raised ValueError: batch 12 is empty"),
}
CASES = [*zip(FAULTS, (0, 1, 2, 1, 0), strict=True)]


@pytest.mark.parametrize(("fault", "culprit"), CASES)
def test_all_processes_end_and_record_which_one_failed_first(fault: str, culprit: int, tmp_path: Path) -> None:
    command, code, what = FAULTS[fault]
    with fast_fail_job(tmp_path, *[STAND_IN] * 3) as job:
        job.do(culprit, command)
        assert job.codes() == [code if index == culprit else 76 for index in range(3)]
        ends = job.wait_for_entries(JOB_ENDED, 3)
        for index, end in enumerate(ends):
            assert end["first_cause"]["process_indices"] == [culprit]
            assert what in end["first_cause"]["message"]
            assert end["is_first_cause"] is (index == culprit)
            assert end.get("ended_by") == (None if index == culprit else "fast_fail")
            if index != culprit:
                assert end["message"].startswith(f"Fast-fail ended the job: process {culprit} on ")
                assert f"process {culprit} on" in job.printed(index)
        decisions = job.wait_for_entries(FAST_FAIL, 3)
        assert [each["role"] for each in decisions] == ["hub", "member", "member"]


def test_processes_that_end_well_in_any_order_end_no_other(tmp_path: Path) -> None:
    with fast_fail_job(tmp_path, *[STAND_IN] * 3) as job:
        for index in (0, 2, 1):
            assert job.processes[index].process.poll() is None
            job.do(index, "running = False")
            assert job.processes[index].process.wait(60) == 0
        assert all("first_cause" not in end for end in job.wait_for_entries(JOB_ENDED, 3))
        assert job.entries(FAST_FAIL) == []


@pytest.mark.timing
def test_a_process_that_cannot_run_python_leaves_its_stacks_and_is_killed(tmp_path: Path) -> None:
    stuck = """
def keep_the_gil():
    sys.setswitchinterval(10)
    print("stuck", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(60)
"""
    stuck += STAND_IN.replace("fast_fail=", "stack_traces=True, fast_fail=")
    with fast_fail_job(tmp_path, STAND_IN, stuck) as job:
        job.do(1, "keep_the_gil()")
        wait_until(lambda: "stuck" in job.printed(1))
        job.do(0, "os._exit(3)")
        assert job.codes() == [3, SIGKILL]
        end = job.wait_for_entries(JOB_ENDED, 2)[1]
        assert (end["signal"], end["ended_by"]) == ("SIGKILL", "fast_fail")
        assert "keep_the_gil" in "".join(payload["message"] for _, payload in job.entries("dump"))


def test_a_callback_has_its_time_and_the_process_ends_though_it_never_returns(tmp_path: Path) -> None:
    program = """
def on_peer_failure(cause):
    print("called with", cause.process_indices, cause.signal, flush=True)
    if index == 2:
        time.sleep(1000)
"""
    program += STAND_IN.replace("enabled=True", "enabled=True, grace_seconds=0.5, on_peer_failure=on_peer_failure")
    program = program.replace("enabled=True", "enabled=True, exit_code=80")
    with fast_fail_job(tmp_path, *[program] * 3) as job:
        job.do(1, "print('not flushed', end='')")
        job.do(0, "print('not flushed', end='')")
        job.do(1, FAULTS["SIGKILL"][0])
        assert job.codes() == [80, SIGKILL, 80]
        for index in (0, 2):
            assert "called with (1,) SIGKILL" in job.printed(index)
        assert "not flushed" in job.printed(0)
        assert "called" not in job.printed(1)


def test_the_process_that_failed_has_the_grace_to_run_its_exit_handlers(tmp_path: Path) -> None:
    program = """
import atexit

def save():
    time.sleep(1.5)
    print("saved", flush=True)

atexit.register(save)
"""
    program += STAND_IN.replace("enabled=True", "enabled=True, grace_seconds=20.0")
    with fast_fail_job(tmp_path, *[program] * 2) as job:
        job.do(1, FAULTS["exception"][0])
        assert job.codes() == [76, 1]
        assert "saved" in job.printed(1)
        assert "saved" not in job.printed(0)


def test_a_process_that_catches_its_failure_outside_the_block_is_ended_as_well(tmp_path: Path) -> None:
    """The others have ended: it would wait for them."""
    with_block = STAND_IN.strip().replace("\n", "\n    ")
    program = f"""
try:
    {with_block}
except ValueError:
    time.sleep(1000)
"""
    with fast_fail_job(tmp_path, *[program] * 2) as job:
        job.do(1, FAULTS["exception"][0])
        assert job.codes() == [76, 1]


def test_strangers_are_refused_counted_and_reported_and_the_job_is_untouched(tmp_path: Path) -> None:
    with fast_fail_job(tmp_path, *[STAND_IN] * 2) as job:
        (file,) = (tmp_path / "shared" / "fast_fail").glob("*.json")
        address = json.loads(file.read_text())
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 10_000, json.dumps(address).encode() + b"\n"):
            with socket.create_connection((address["address"], address["port"])) as end:
                end.sendall(data)
                end.settimeout(30)
                with contextlib.suppress(ConnectionError):
                    while end.recv(4096):  # Its nonce, and then the end.
                        pass
        wait_until(lambda: "Fast-fail has refused a connection" in job.printed(0))
        for index in range(2):
            job.do(index, "running = False")
        assert job.codes() == [0, 0]
        (closed,) = job.wait_for_entries(FAST_FAIL, 1)
        assert (closed["state"], closed["refused"]) == ("closed", {"garbage": 2, "oversize": 1})


def test_secrets_in_an_exception_reach_no_other_process(tmp_path: Path) -> None:
    with fast_fail_job(tmp_path, *[STAND_IN] * 2) as job:
        job.do(1, "raise ValueError('cannot log in with password=hunter2hunter2')")
        assert job.codes() == [76, 1]
        ends = job.wait_for_entries(JOB_ENDED, 2)
        assert "cannot log in with password=" in ends[0]["first_cause"]["exception"]
        assert "hunter2" not in json.dumps(ends) + job.printed(0)


def test_a_status_file_that_cannot_be_written_loses_no_decision_and_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "records" / "state" / "fast_fail"
    with fast_fail_job(tmp_path, *[STAND_IN] * 2) as job:
        folder.rename(folder.with_name("away"))
        folder.write_text("")  # No file can be made in it, as on a full disk.
        job.do(1, "os._exit(3)")
        assert job.codes() == [76, 3]
        decisions = job.wait_for_entries(FAST_FAIL, 2)
        assert [each["is_first_cause"] for each in decisions] == [False, True]


def test_a_dead_hub_ends_no_process(tmp_path: Path) -> None:
    with fast_fail_job(tmp_path, *[STAND_IN] * 3) as job:
        (hub,) = companions_of(job, 0)
        os.kill(hub, signal.SIGKILL)
        wait_until(lambda: not is_alive(hub))
        job.do(1, "os._exit(3)")
        assert job.processes[1].process.wait(60) == 3
        for index in (0, 2):
            job.do(index, "running = False")
        assert job.codes() == [0, 3, 0]


def test_a_process_that_is_asked_to_stop_ends_no_other_while_they_save(tmp_path: Path) -> None:
    program = "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n" + STAND_IN
    with fast_fail_job(tmp_path, *[program] * 3) as job:
        job.processes[1].process.send_signal(signal.SIGTERM)
        wait_until(lambda: "asked" in job.printed(1))
        job.do(1, "time.sleep(0.3); os._exit(1)")
        assert job.processes[1].process.wait(60) == 1
        for index in (0, 2):
            job.do(index, "time.sleep(1.5); running = False")
        assert job.codes() == [0, 1, 0]


def test_run_records_the_first_cause_of_what_it_runs(tmp_path: Path) -> None:
    with fast_fail_job(tmp_path, *[STAND_IN] * 2, prefix=RUN) as job:
        job.do(1, "raise ValueError('batch 12 is empty')")
        assert job.codes() == [76, 1]
        ends = job.wait_for_entries(JOB_ENDED, 2)
        assert [end["is_first_cause"] for end in ends] == [False, True]
        assert [end.get("ended_by") for end in ends] == ["fast_fail", None]
        assert {end["first_cause"]["exception"] for end in ends} == {"ValueError: batch 12 is empty"}


@can_be_process_1
def test_run_as_process_1_of_each_container_reports_the_end_before_the_container_ends(tmp_path: Path) -> None:
    with fast_fail_job(tmp_path, *[STAND_IN] * 2, prefix=(*AS_PROCESS_1, *RUN)) as job:
        job.do(1, FAULTS["SIGKILL"][0])
        assert job.codes() == [76, 128 + int(signal.SIGKILL)]
        ends = job.wait_for_entries(JOB_ENDED, 2)
        assert [(end["is_first_cause"], end.get("ended_by")) for end in ends] == [(False, "fast_fail"), (True, None)]
        assert {tuple(end["first_cause"]["process_indices"]) for end in ends} == {(1,)}


def test_run_reports_a_request_to_stop_that_the_job_does_not_see(tmp_path: Path) -> None:
    """JAX handles SIGTERM in C: here, the job ignores it, which Python does not see either."""
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAND_IN
    with fast_fail_job(tmp_path, *[program] * 2, prefix=RUN) as job:
        job.processes[1].process.send_signal(signal.SIGTERM)
        wait_until(lambda: job.entries("signal"))
        job.do(1, "time.sleep(0.7); os._exit(1)")
        assert job.processes[1].process.wait(60) == 1
        job.do(0, "time.sleep(1.5); running = False")
        assert job.codes() == [0, 1]


def test_the_environment_turns_fast_fail_on_and_off(tmp_path: Path) -> None:
    program = STAND_IN.replace("fast_fail=FastFailConfig(enabled=True)", "")
    with fast_fail_job(tmp_path, *[program] * 2, environ={"ML_DIAGNOSTICS_FAST_FAIL": "1"}) as job:
        job.do(0, "os._exit(3)")
        assert job.codes() == [3, 76]


def test_a_later_block_of_a_process_is_in_the_star_again(tmp_path: Path) -> None:
    two_blocks = f"{STAND_IN}\nnext_command(60)\nrunning = True\n{STAND_IN}"
    with fast_fail_job(tmp_path, STAND_IN, two_blocks) as job:
        job.do(1, "running = False")
        wait_until(lambda: [index for index, _ in job.entries("left_block")] == [1])
        (status,) = (job.records / "state" / "fast_fail").glob(f"{job.processes[1].process.pid}-*")
        status.unlink()
        job.do(1, "go on")
        job.wait_until_joined()
        job.do(0, "os._exit(3)")
        assert job.codes() == [3, 76]


@pytest.mark.slow
def test_a_job_that_is_stuck_as_a_whole_is_ended_if_that_is_wanted(tmp_path: Path) -> None:
    settings = "hangs=HangConfig(enabled=True, step_floor_seconds=5, startup_floor_seconds=5), fast_fail="
    program = STAND_IN.replace("fast_fail=", settings).replace("enabled=True)", "enabled=True, hang=True)")
    program = program.replace("startup_floor_seconds=5, hang=True", "startup_floor_seconds=5")
    program = (
        """
def train_step():
    time.sleep(1000)

def next_batch():
    threading.Event().wait()
"""
        + program
    )
    with fast_fail_job(tmp_path, *[program] * 3) as job:
        for index in range(3):
            job.do(index, "next_batch()" if index == 1 else "train_step()")
        assert job.codes() == [76, 134, 76]
        assert job.wait_for_entries(JOB_ENDED, 3)[0]["first_cause"]["how"] == "hang"


@pytest.mark.slow
def test_no_process_of_a_hundred_healthy_jobs_is_ended() -> None:
    """The benchmark runs 1,000 of them."""
    found = process.ours(fast_fail_crowd.healthy_jobs, first=5_000, count=100, most_at_once=16)
    assert (found["jobs"], found["wrong"], found["not_joined"]) == (100, [], 0)


JAX_FAULTS = [
    ("SIGKILL", 3, 1),
    ("exception", 2, 1),
    pytest.param("SIGSEGV", 2, 0, marks=pytest.mark.slow),
    pytest.param("exit 0", 3, 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("fault", "count", "culprit"), JAX_FAULTS)
def test_a_job_of_jax_ends_at_once_and_names_the_right_process(
    fault: str, count: int, culprit: int, tmp_path: Path
) -> None:
    command = "os._exit(0)" if fault == "exit 0" else FAULTS[fault][0]
    with fast_fail_job(tmp_path, *[TRAINER] * count) as job:
        job.do(culprit, command)
        codes = job.codes(20)  # JAX itself would take 100 s.
        ends = job.wait_for_entries(JOB_ENDED, count)
    for index, end in enumerate(ends):
        assert end["first_cause"]["process_indices"] == [culprit]
        assert end["is_first_cause"] is (index == culprit)
    others = [code for index, code in enumerate(codes) if index != culprit]
    # JAX itself ends the others within moments if the coordinator, process 0, is gone.
    assert set(others) <= ({76, -int(signal.SIGABRT)} if culprit == 0 else {76})
    assert codes[culprit] != 76


@pytest.mark.slow
def test_a_healthy_job_of_jax_that_receives_sigterm_ends_well(tmp_path: Path) -> None:
    """JAX handles SIGTERM in C, and goes on to its end."""
    with fast_fail_job(tmp_path, *[TRAINER] * 2, prefix=RUN, environ={"STEPS": "1000"}) as job:
        job.processes[1].process.send_signal(signal.SIGTERM)
        assert job.codes() == [0, 0]
        assert job.entries(FAST_FAIL) == []


def companions_of(job: FastFailJob, index: int) -> list[int]:
    """Return the companions of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        wanted = [f"ML_DIAGNOSTICS_DIR={job.records}".encode(), f"JAX_PROCESS_ID={index}".encode()]
        is_companion = any(each.startswith(b"ML_DIAGNOSTICS_SIDECAR=") for each in variables)
        if is_companion and all(each in variables for each in wanted) and is_alive(int(folder.name)):
            found.append(int(folder.name))
    return found
