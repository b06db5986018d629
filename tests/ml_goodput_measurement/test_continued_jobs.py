"""A job that recorded its end and is started again is reported: mostly two jobs were given one name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder

from .accounts import calculator_of
from .histories import History, MemoryLog

ATTEMPT = """
import datetime
import sys
from ml_goodput_measurement import goodput
from ml_goodput_measurement._record import recorder as recorders

name, end = sys.argv[1:]
start, tasks = recorders.start, []
recorders.start = lambda *given: tasks.append(start(*given)) or tasks[-1]
recorder = goodput.GoodputRecorder(name, f"goodput_{name}", logging_enabled=True)
recorder.record_job_start_time()
for step in range(3):
    recorder.record_step_start_time(step)
if end == "recorded":
    recorder.record_job_end_time()
elif end == "an hour and a half ago":
    recorder.record_job_end_time(datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=90))
assert tasks and all(task.wait(60) for task in tasks)  # The training goes on while the warning is logged.
"""


def attempt(name: str, end: str) -> str:
    done = subprocess.run([sys.executable, "-c", ATTEMPT, name, end], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_continuing_a_job_that_recorded_its_end_is_one_warning() -> None:
    assert attempt("run-7", "recorded") == ""
    [line] = attempt("run-7", "recorded").splitlines()
    assert line.startswith("continuing job 'run-7', which ended ")
    assert line.endswith(" s ago; use another name for another job")
    assert attempt("run-8", "recorded") == "", "another job is not a continuation"


def test_the_time_since_the_end_reads_as_in_all_output() -> None:
    assert attempt("run-7", "an hour and a half ago") == ""
    assert attempt("run-7", "recorded").startswith(
        "continuing job 'run-7', which ended 1 h 30 min ago; use another name"
    )


def test_a_restart_of_a_job_that_did_not_record_its_end_is_silent() -> None:
    assert attempt("run-7", "recorded") == ""
    assert "run-7" in attempt("run-7", "not recorded")
    assert attempt("run-7", "recorded") == "", "the last attempt was cut short: this one is a restart"


FINALLY = """
import contextlib, sys
from ml_goodput_measurement import goodput

ending = {"raised": ValueError("NaN"), "exited": SystemExit(0), "returned": None}[sys.argv[1]]
recorder = goodput.GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)


@contextlib.contextmanager
def recorded_job():
    recorder.record_job_start_time()
    try:
        yield
    finally:
        recorder.record_job_end_time()


with contextlib.suppress(ValueError, SystemExit), recorded_job():
    recorder.record_step_start_time(0)
    if ending is not None:
        raise ending
"""


@pytest.mark.parametrize(("ending", "is_reported"), [("raised", False), ("exited", True), ("returned", True)])
def test_a_restart_after_an_exception_is_silent_though_a_finally_recorded_the_end(
    ending: str, *, is_reported: bool
) -> None:
    subprocess.run([sys.executable, "-c", FINALLY, ending], check=True, timeout=60)
    assert ("continuing job" in attempt("run-7", "recorded")) is is_reported
    for _ in range(2):  # The second one continues from the saved state of the first.
        calculator = GoodputCalculator("run-7", "goodput_run-7")
        report = calculator.report()
        assert [one.exception for one in report.attempts] == ["" if is_reported else "ValueError", ""]
        assert bool(report.notes) is is_reported
        calculator._reader.save_state()


def test_the_same_name_in_another_log_is_another_job(caplog: pytest.LogCaptureFixture) -> None:
    for log in ("goodput_a", "goodput_b"):
        recorder = GoodputRecorder("run-7", log, logging_enabled=True)
        recorder.record_job_start_time()
        recorder.record_job_end_time()
    assert not caplog.messages


def test_a_large_journal_is_not_read(tmp_path: Path) -> None:
    """Ten thousand writers, and a last segment of 100 MB: the end is found in its last 64 KiB."""
    assert attempt("run-7", "recorded") == ""
    folder = Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "journal" / "goodput_run-7"
    [segment] = folder.glob("*.jsonl")
    text = segment.read_bytes()
    header, _, entries = text.partition(b"\n")
    with segment.open("wb") as file:
        file.write(header)
        file.seek(100 * 2**20)  # A hole: it uses no space on the disk.
        file.write(b"\n" + entries)
    for number in range(2_000):
        (folder / f"host-1-{number}-0.0.jsonl").write_bytes(header)
    assert "continuing job 'run-7'" in attempt("run-7", "recorded")


def test_the_report_notes_that_a_job_was_continued(tmp_path: Path) -> None:
    history = History().start(0).steps(range(3), at=1, each=1).end(4).start(9).steps(range(3), at=10, each=1).end(13)
    report = calculator_of(MemoryLog(history.payloads), 20, tmp_path).report()
    [note] = report.notes
    assert note.startswith("attempt 2 continued this job 5.00 s after attempt 1 had recorded its end")
    cut_short = History().start(0).steps(range(3), at=1, each=1).start(9).steps(range(3), at=10, each=1).end(13)
    assert not calculator_of(MemoryLog(cut_short.payloads), 20, tmp_path / "other").report().notes


def test_recording_costs_the_same_when_the_folder_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    monkeypatch.setattr(os, "listdir", lambda path: (_ for _ in ()).throw(PermissionError(path)))
    recorder.record_job_start_time()
    recorder.record_job_end_time()
    assert GoodputCalculator("run-7", "goodput_run-7").report().running is False
