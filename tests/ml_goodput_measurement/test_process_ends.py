"""A job without a recorded end still has one: its process records its exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement._cli.report import as_dict, format_text
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import AttemptEnd, Bucket, JobReport

from .accounts import calculator_of
from .histories import BASE, JOB, History, MemoryLog
from .reference.process import Reference, ReferenceRaisedError
from .test_recorder import payloads

LOG = "goodput_job"
TRAINER = """
import atexit, json, os, signal, sys, threading, time
from ml_goodput_measurement import goodput, goodput_elastic


def train(enabled=True, job="job"):
    recorder = goodput.GoodputRecorder(job, "goodput_job", logging_enabled=enabled)
    recorder.record_job_start_time()
    for step in range(3):
        recorder.record_step_start_time(step)
    return recorder

"""


def run(program: str) -> int:
    return subprocess.run([sys.executable, "-c", TRAINER + program], capture_output=True, timeout=60).returncode


def ends() -> list[dict[str, Any]]:
    return [entry for entry in payloads(LOG) if "process_outcome" in entry or "job_end_time" in entry]


def report() -> JobReport:
    return GoodputCalculator(JOB, LOG).report()


@pytest.mark.parametrize(
    ("program", "status", "outcome", "exception"),
    [
        ("train()", 0, "returned", None),
        ("def main():\n    train()\nmain()", 0, "returned", None),
        ("train(); threading.Thread(target=lambda: 1 / 0).start()", 0, "returned", None),
        ("train()\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", 0, "returned", None),
        ("train(); sys.exit()", 0, "exited", None),
        ("train(); sys.exit(3)", 3, "exited", None),
        ("train(); raise ValueError('a secret')", 1, "failed", "ValueError"),
        ("sys.excepthook = lambda *_: None\ntrain(); raise ValueError", 1, "failed", "ValueError"),
        ("train(); raise KeyboardInterrupt", -signal.SIGINT, "failed", "KeyboardInterrupt"),
    ],
)
def test_a_process_records_how_it_exits(program: str, status: int, outcome: str, exception: str | None) -> None:
    assert run(program) == status
    [end] = ends()
    assert (end["process_outcome"], end.get("process_exception")) == (outcome, exception)
    assert ("job_end_time" in end) == (outcome == "returned")
    assert "secret" not in json.dumps(end)
    found = report()
    assert not found.running
    assert found.attempts[-1].exception == (exception or "")
    assert found.attempts[-1].ended is (AttemptEnd.FAILED if exception else AttemptEnd.EXITED)
    assert found.wall_ns == sum(found.buckets.values())
    again = report()
    assert (again.end_ns, again.buckets) == (found.end_ns, found.buckets), "the clock stands"


@pytest.mark.parametrize(
    "program",
    [
        "train(enabled=False)",
        "train().record_job_end_time()",
        "recorder = train(); atexit.register(recorder.record_job_end_time)",
        "recorder = train()\ntry:\n    1 / 0\nfinally:\n    recorder.record_job_end_time()",
        "train(); os._exit(0)",
        "train(); os.kill(os.getpid(), signal.SIGTERM)",
        "train(); train(); recorder = train(); recorder.record_job_end_time()",
        "goodput.GoodputRecorder('job', 'goodput_job', True).record_step_start_time(0)",
        "goodput.CheckpointLogger(job_name='job').log_entry({'event_type': 'save', 'step': 1})",
    ],
    ids=range(9),
)
def test_nothing_is_added_where_the_user_recorded_the_end_or_nothing_is_known(program: str) -> None:
    run(program)
    assert not [end for end in ends() if "process_outcome" in end]


def test_an_end_that_an_exit_function_records_later_wins() -> None:
    run("atexit.register(lambda: recorder.record_job_end_time()); recorder = train()")
    assert report().attempts[-1].ended is AttemptEnd.JOB_END


def test_a_forked_child_does_not_end_its_parents_job() -> None:
    program = """
recorder = train()
if os.fork() == 0:
    recorder.record_job_start_time()
    recorder.record_step_start_time(7)
    sys.exit(1)
os.wait()
recorder.record_step_start_time(3)
recorder.record_job_end_time()
"""
    assert run(program) == 0
    assert [sorted(end) for end in ends()] == [["job_end_time", "job_name"]]


def test_an_elastic_job_that_starts_again_in_its_process_has_one_end() -> None:
    program = """
for attempt in range(3):
    try:
        train()
        raise RuntimeError("a slice is gone")
    except RuntimeError:
        pass
train(job="another")
"""
    assert run(program) == 0
    [end, other] = ends()
    assert (end["job_name"], other["job_name"]) == ("job", "another")
    found = report()
    assert [attempt.ended for attempt in found.attempts] == [AttemptEnd.LOST, AttemptEnd.LOST, AttemptEnd.EXITED]


def test_a_sweep_of_many_jobs_in_one_process_keeps_few_files_open() -> None:
    program = """
for number in range(300):
    train(job=f"job-{number}")
print(len(os.listdir("/proc/self/fd")), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", TRAINER + program], capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 100
    assert len(ends()) == 64


def test_each_attempt_has_the_end_of_its_own_process() -> None:
    for program in ("train(); raise OSError", "train(); sys.exit(1)", "train(); os._exit(1)", "train()"):
        run(program)
    found = report()
    expected = [AttemptEnd.FAILED, AttemptEnd.EXITED, AttemptEnd.LOST, AttemptEnd.EXITED]
    assert [attempt.ended for attempt in found.attempts] == expected
    assert [attempt.exception for attempt in found.attempts] == ["OSError", "", "", ""]
    assert not found.running


def test_a_cloud_logger_gets_the_end_too(tmp_path: Path) -> None:
    program = f"""
class Log:
    def write_cloud_logging_entry(self, entry):
        with open({str(tmp_path / "log")!r}, "a") as file:
            file.write(json.dumps(entry) + chr(10))

goodput.GoodputRecorder("job", "goodput_job", True, cloud_logger=Log()).record_job_start_time()
raise ValueError
"""
    run(program)
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [entry.get("process_outcome") for entry in entries] == [None, "failed"]


# --- What the ledger makes of it ----------------------------------------------------------------------------------


def process_end(history: History, at: float, outcome: str, started: float = 0, exception: str = "") -> History:
    """Add the entries of a recorder's process that recorded a start at `started`."""
    known: dict[str, Any] = {"process_outcome": outcome, "process_began": BASE + started}
    if exception:
        known["process_exception"] = exception
    return history.add(**known, **{"job_end_time" if outcome == "returned" else "process_ended": BASE + at})


def first_attempt() -> History:
    """Ten steps of 10 s, the last one of which starts at 100."""
    return History().start(0).steps(range(10), at=10)


def asked(history: History, now: float, folder: Path) -> JobReport:
    return calculator_of(MemoryLog(history.payloads), now, folder).report()


def test_the_clock_stops_at_the_exit_and_a_step_that_failed_does_not_count(tmp_path: Path) -> None:
    found = asked(process_end(first_attempt(), 105, "failed", exception="ValueError"), 10_000, tmp_path)
    assert found.wall_ns == 105 * 10**9
    assert found.buckets[Bucket.PRODUCTIVE] == 90 * 10**9
    assert found.buckets[Bucket.IN_FLIGHT] == 5 * 10**9
    assert found.last_step == 8
    assert "(failed: ValueError)" in format_text(found)
    assert as_dict(found)["state"] == "failed: ValueError"
    assert as_dict(found)["attempts"][0]["exception"] == "ValueError"


def test_the_last_step_of_a_program_that_returned_counts(tmp_path: Path) -> None:
    returned = asked(process_end(first_attempt(), 112, "returned"), 10_000, tmp_path / "a")
    assert (returned.last_step, returned.buckets[Bucket.PRODUCTIVE]) == (9, 100 * 10**9)
    exited = asked(process_end(first_attempt(), 112, "exited"), 10_000, tmp_path / "b")
    assert (exited.last_step, exited.buckets[Bucket.PRODUCTIVE]) == (8, 90 * 10**9)
    assert "(ended: the process exited without recording the job's end)" in format_text(exited)


@pytest.mark.parametrize("outcome", ["failed", "exited", "returned"])
def test_an_exit_moves_nothing_in_a_job_that_was_restarted(outcome: str, tmp_path: Path) -> None:
    """But the estimated end of the step in flight, which did not outlast the process."""
    for at in (110, 130):
        plain = first_attempt().start(300).steps(range(9, 20), at=310).end(420)
        interrupted = process_end(first_attempt(), at, outcome, exception="OSError" if outcome == "failed" else "")
        interrupted.start(300).steps(range(9, 20), at=310).end(420)
        before, after = (
            asked(history, 500, tmp_path / f"{at}{len(history.payloads)}") for history in (plain, interrupted)
        )
        assert after.buckets == before.buckets
        assert len(after.disruptions) == 1
        assert after.disruptions[0].last_event_ns == int((BASE + at) * 1e9)
        expected = {"failed": "failed (OSError) at", "exited": "exited at", "returned": "exited at"}[outcome]
        assert f"attempt 1 {expected} " in format_text(after)


def test_the_exit_of_an_old_process_does_not_end_the_attempt_that_follows_it(tmp_path: Path) -> None:
    history = process_end(first_attempt().start(300).steps(range(5, 9), at=310), 345, "failed", exception="OSError")
    found = asked(history, 350, tmp_path)
    assert found.running
    assert [attempt.ended for attempt in found.attempts] == [AttemptEnd.FAILED, AttemptEnd.RUNNING]
    history = process_end(history, 349, "failed", started=300, exception="ValueError")
    assert not asked(history, 350, tmp_path / "later").running


def test_an_end_that_another_process_recorded_stands(tmp_path: Path) -> None:
    found = asked(process_end(first_attempt().end(110), 115, "exited"), 10_000, tmp_path)
    assert found.wall_ns == 110 * 10**9
    assert found.attempts[-1].ended is AttemptEnd.JOB_END


def test_the_end_survives_saved_state() -> None:
    run("train(); raise ValueError")
    calculator = GoodputCalculator(JOB, LOG)
    before = calculator.report()
    calculator.save_state()
    after = GoodputCalculator(JOB, LOG).report()
    assert (after.buckets, after.attempts, after.running) == (before.buckets, before.attempts, False)
    assert (Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "state" / "goodput").is_dir()


# --- The public package reads it ----------------------------------------------------------------------------------


def theirs(history: History, now: float, reference: Reference) -> Any:
    return reference.ask("life", payloads=history.payloads, now=BASE + now)


def test_the_public_package_reads_the_exit_of_a_program_that_returned_as_a_job_end(reference: Reference) -> None:
    interrupted = theirs(process_end(first_attempt(), 112, "returned"), 10_000, reference)
    assert interrupted == theirs(first_attempt().end(112), 10_000, reference)
    assert interrupted["elapsed"] == 112


@pytest.mark.parametrize("outcome", ["failed", "exited"])
def test_the_public_package_reads_a_restarted_job_as_if_no_exit_were_recorded(
    outcome: str, reference: Reference
) -> None:
    """It raises while a job goes on after a job end, so an exit that a restart may follow is none to it."""
    plain = first_attempt().start(300).steps(range(8, 20), at=310)
    interrupted = process_end(first_attempt(), 115, outcome).start(300).steps(range(8, 20), at=310)
    assert theirs(interrupted, 431, reference) == theirs(plain, 431, reference)
    with pytest.raises(ReferenceRaisedError, match="Productive training time is invalid"):
        theirs(first_attempt().end(115).start(300).steps(range(8, 20), at=310), 431, reference)
