"""`goodput list` and `goodput compare`."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from typing import Any

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Header, log_directory
from ml_diagnostics_common.journal._layout import encode_header, segment_name
from ml_goodput_measurement import cli
from ml_goodput_measurement._query.job_state import JobFollower, JobState
from ml_goodput_measurement.goodput import GoodputRecorder

from .simulated import JOB, SHORT_JOB, record

COST = ("--cost", "3.22/chip-hour")


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main([*arguments]) == code
    return capsys.readouterr().out


def record_with_labels(name: str, ends_at: float, **labels: str) -> None:
    """Record a job of 100 s by a process with more labels than those of its identity."""
    writer = f"host-{time.time_ns()}-{len(name)}"
    header = Header(f"goodput_{name}", writer, {"job": name, "process_index": "0", **labels}, {}, "INFO", ship=False)
    payloads: list[dict[str, Any]] = [{"job_name": name, "job_start_time": ends_at - 100}]
    payloads += [
        {"job_name": name, "step_count": step, "step_start_time": ends_at - 80 + 10 * step} for step in range(8)
    ]
    payloads.append({"job_name": name, "job_end_time": ends_at})
    folder = log_directory(diagnostics_directory(), f"goodput_{name}")
    folder.mkdir(parents=True)
    lines = [encode_header(header)]
    lines += [
        json.dumps({"t": int(ends_at * 1e9), "s": 100_000_000_000 + number, "p": payload}).encode()
        for number, payload in enumerate(payloads)
    ]
    (folder / segment_name(writer, 0)).write_bytes(b"\n".join(lines) + b"\n")


def test_jobs_are_listed_the_latest_first(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    record(SHORT_JOB, "run-6", ends_at=now - 3 * 86_400)
    record(SHORT_JOB, "run-7", ends_at=now)
    record_with_labels("run-8", now - 86_400, team="llm", chips="256")
    lines = output_of(capsys, "list").splitlines()
    assert lines[0].split() == ["job", "team", "state", "started", "wall", "goodput"]
    assert [line.split()[:3] for line in lines[2:]] == [
        ["run-7", "-", "ended"],
        ["run-8", "llm", "ended"],
        ["run-6", "-", "ended"],
    ]
    assert lines[3].endswith("80.0 %")


def test_only_jobs_with_an_event_since_then_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    record(SHORT_JOB, "run-6", ends_at=now - 8 * 86_400)
    record(SHORT_JOB, "run-7", ends_at=now)
    found = json.loads(output_of(capsys, "list", "--since", "7d", "--format", "json"))
    assert [job["job"] for job in found["jobs"]] == ["run-7"]
    rows = list(csv.DictReader(io.StringIO(output_of(capsys, "list", "--since", "9d", "--format", "csv"))))
    assert [row["job"] for row in rows] == ["run-7", "run-6"]
    assert cli.main(["list", "--since", "2100-01-01"]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "no job has an event since then\n"


def test_a_machine_without_jobs_lists_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().err == "no job was recorded on this machine\n"
    assert json.loads(output_of(capsys, "list", "--format", "json")) == {"jobs": []}


def test_a_job_without_an_end_whose_process_is_gone_is_listed_so(capsys: pytest.CaptureFixture[str]) -> None:
    record_with_labels("run-8", time.time(), pid="999999999", host="elsewhere")
    record(SHORT_JOB, "run-7", ends_at=time.time() - 86_400, is_ended=False)
    states = {job["job"]: job["state"] for job in json.loads(output_of(capsys, "list", "--format", "json"))["jobs"]}
    assert states == {"run-7": "running", "run-8": "ended"}  # The process of this test is the recorder of run-7.


def test_two_jobs_are_compared_bucket_by_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    record(SHORT_JOB, "run-6", ends_at=now - 86_400)
    record(JOB, "run-7", ends_at=now)
    found = json.loads(output_of(capsys, "compare", "run-6", "run-7", *COST, "--chips", "256", "--format", "json"))
    rows = found["rows"]
    assert sum(row["before_percent"] for row in rows) == pytest.approx(100)
    assert sum(row["now_percent"] for row in rows) == pytest.approx(100)
    assert sum(row["difference_points"] for row in rows) == pytest.approx(0, abs=1e-9)
    assert abs(sum(row["difference_micro"] for row in rows)) <= len(rows)
    assert sum(row["difference_micro"] for row in found["rows"]) == 0
    assert found["money_is_comparable"]
    text = output_of(capsys, "compare", "run-6", "run-7", *COST, "--chips", "256")
    assert text.splitlines()[0].startswith("before  run-6: ")
    assert text.splitlines()[1].startswith("now     run-7: ")
    assert "wasted progress" in text
    assert "at $3.22/chip-hour and 256 chips" in text


def test_without_a_price_there_is_no_money(capsys: pytest.CaptureFixture[str]) -> None:
    record(SHORT_JOB, "run-6", ends_at=time.time() - 86_400)
    record(SHORT_JOB, "run-7", ends_at=time.time())
    assert "money" not in output_of(capsys, "compare", "run-6", "run-7")
    assert "difference_micro" in output_of(capsys, "compare", "run-6", "run-7", "--format", "csv")


def test_recorded_chips_are_used_and_money_of_different_ones_is_not_comparable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = time.time()
    record_with_labels("run-6", now - 1000, chips="128")
    record_with_labels("run-7", now, chips="256")
    record_with_labels("run-8", now, chips="256")
    text = output_of(capsys, "compare", "run-6", "run-7", *COST)
    assert "not comparable" in text
    assert "run-6 and run-7 have different numbers of chips" in text
    assert "not comparable" not in output_of(capsys, "compare", "run-7", "run-8", *COST)
    found = json.loads(output_of(capsys, "compare", "run-6", "run-7", *COST, "--format", "json"))
    assert not found["money_is_comparable"]
    assert {row["difference_micro"] for row in found["rows"]} == {None}
    assert "x 256 chips" in output_of(capsys, "report", "run-7", *COST)


def test_the_log_of_each_of_two_jobs_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    for number, log in enumerate(("first", "second")):
        recorder = GoodputRecorder("run-7", log, logging_enabled=True)
        recorder.record_job_start_time(now - 100)
        for step in range(5):
            recorder.record_step_start_time(step, now - 10 * (1 + number) * (5 - step))
        recorder.record_job_end_time(now)
    assert cli.main(["compare", "run-7", "run-7"]) == 2
    assert "is in several logs; choose one with --logger-a: first, second" in capsys.readouterr().err
    assert cli.main(["compare", "run-7", "run-7", "--logger-a", "first"]) == 2
    assert "choose one with --logger-b: first, second" in capsys.readouterr().err
    assert cli.main(["compare", "run-7", "run-7", "--logger-a", "first", "--logger-b", "third"]) == 3
    assert "Give one of these as --logger-b." in capsys.readouterr().err
    arguments = ("compare", "run-7", "run-7", "--logger-a", "first", "--logger-b", "second", "--format", "json")
    found = json.loads(output_of(capsys, *arguments))
    assert (found["before"]["goodput_percent"], found["now"]["goodput_percent"]) == (50.0, 100.0)


def test_an_unknown_job_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    record(SHORT_JOB, "run-7", ends_at=time.time())
    assert cli.main(["compare", "run-7", "run-9"]) == 3
    assert "Did you mean run-7?" in capsys.readouterr().err


def test_a_job_that_cannot_be_read_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(SHORT_JOB, "run-6", ends_at=time.time() - 86_400)
    record(SHORT_JOB, "run-7", ends_at=time.time())
    read = JobFollower.read

    def failing(self: JobFollower, *arguments: Any, **options: Any) -> JobState:
        if self.job_name == "run-6":
            raise PermissionError(13, "Permission denied", "/journal")
        return read(self, *arguments, **options)

    monkeypatch.setattr(JobFollower, "read", failing)
    assert cli.main(["list"]) == 1
    output = capsys.readouterr()
    assert [line.split()[0] for line in output.out.splitlines()[2:]] == ["run-7"]
    message = "goodput: job 'run-6' cannot be read: [Errno 13] Permission denied: '/journal'\n"
    assert output.err == message
    shutil.rmtree(log_directory(diagnostics_directory(), "goodput_run-7"))
    assert cli.main(["list"]) == 1
    assert capsys.readouterr() == ("", message)


def test_a_blank_name_is_of_no_recorder_and_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    record_with_labels("  ", time.time())
    record(SHORT_JOB, "run-7", ends_at=time.time())
    assert [line.split()[0] for line in output_of(capsys, "list").splitlines()[2:]] == ["run-7"]
