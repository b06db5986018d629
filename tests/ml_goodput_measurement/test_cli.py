"""`goodput report`: data on standard output, the rest on standard error, and exit codes that can be relied on."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement import cli
from ml_goodput_measurement._cli.report import format_text
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder

from .histories import BASE


@pytest.fixture
def journal() -> Path:
    folder = diagnostics_directory() / "journal"
    folder.mkdir()
    return folder


def record(job: str, logger: str | None = None) -> None:
    """Record a job of 40 s: 30 s of steps, then 10 s until its end."""
    recorder = GoodputRecorder(job, logger or f"goodput_{job}", logging_enabled=True)
    recorder.record_job_start_time(BASE)
    for step in range(4):
        recorder.record_step_start_time(step, BASE + 10 * step)
    recorder.record_job_end_time(BASE + 40)


def test_a_report_is_on_standard_output_and_nothing_else_is(capsys: pytest.CaptureFixture[str]) -> None:
    record("job")
    assert cli.main(["report", "job"]) == 0
    output = capsys.readouterr()
    assert output.out == format_text(GoodputCalculator("job", "goodput_job").report()) + "\n"
    assert "100.00 % goodput" in output.out
    assert output.err == ""


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    record("job")
    assert cli.main(["report", "job", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["wall_seconds"] == 40.0


@pytest.fixture
def holidays(tmp_path: Path) -> Path:
    """A file that excludes the 5th to the 15th second, in two parts that overlap."""
    file = tmp_path / "holidays.json"
    moments = [datetime.datetime.fromtimestamp(BASE + at, datetime.timezone.utc) for at in (5, 11, 10, 15)]
    zulu, naive, eastern, offset = moments
    parts = [
        {"start_time_utc": f"{zulu:%Y-%m-%dT%H:%M:%SZ}", "end_time_utc": f"{naive:%Y-%m-%dT%H:%M:%S}"},
        {
            "start_time_utc": eastern.astimezone(datetime.timezone(datetime.timedelta(hours=9))).isoformat(),
            "end_time_utc": offset.isoformat(),
        },
    ]
    file.write_text(json.dumps(parts))
    return file


def test_excluded_time_does_not_count(holidays: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record("job")
    assert cli.main(["report", "job", "--format", "json", "--exclude", str(holidays)]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["wall_seconds"], output["excluded_seconds"]) == (40.0, 10.0)
    assert output["buckets"]["PRODUCTIVE"] == {"seconds": 30.0, "percent": 100.0}
    assert cli.main(["report", "job", "--exclude", str(holidays)]) == 0
    assert "\n  excluded     10.0 s of it; the percentages are of the rest\n" in capsys.readouterr().out


def test_excluded_time_outside_of_the_job_changes_nothing(holidays: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record("job")
    holidays.write_text('[{"start_time_utc": "2001-01-01T00:00:00Z", "end_time_utc": "2001-01-02T00:00:00Z"}]')
    assert cli.main(["report", "job"]) == 0
    whole = capsys.readouterr().out
    assert cli.main(["report", "job", "--exclude", str(holidays)]) == 0
    assert capsys.readouterr().out == whole


def test_a_wrong_file_of_exclusions_is_exit_code_2_with_the_position(
    holidays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record("job")
    holidays.write_text('[{"start_time_utc": "2026-11-21T05:00:00Z"}]')
    with pytest.raises(SystemExit) as exit_:
        cli.main(["report", "job", "--exclude", str(holidays)])
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert f"argument --exclude: {holidays}, interval 1: end_time_utc is missing" in output.err
    assert "Traceback" not in output.err


def test_a_missing_file_of_exclusions_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record("job")
    assert cli.main(["report", "job", "--exclude", str(tmp_path / "none.json")]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"goodput: cannot access '{tmp_path / 'none.json'}': No such file or directory\n"


def test_the_timeline_is_drawn_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    record("job")
    assert cli.main(["report", "job", "--plot", str(tmp_path / "job.PNG")]) == 0
    assert (tmp_path / "job.PNG").read_bytes().startswith(b"\x89PNG")
    assert "goodput" in capsys.readouterr().out


def test_a_missing_matplotlib_is_reported_with_its_extra_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record("job")
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", "job", "--plot", str(tmp_path / "job.png")]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "pip install 'ml-goodput-measurement[plot]'" in output.err


def test_a_missing_job_is_reported_with_the_existing_ones(capsys: pytest.CaptureFixture[str]) -> None:
    record("first")
    record("second", "another_log")
    assert cli.main(["report", "third"]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "'third'" in output.err
    assert "has these jobs: first, second." in output.err


def test_a_long_list_of_jobs_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(25):
        record(f"job-{number:02}")
    assert cli.main(["report", "job"]) == 3
    assert "job-00, job-01, " in (output := capsys.readouterr().err)
    assert "job-19 and 5 more.\n" in output


def test_an_empty_journal_is_reported(capsys: pytest.CaptureFixture[str], journal: Path) -> None:
    assert cli.main(["report", "job"]) == 3
    assert f"The journal {journal} is empty: no job was recorded on this machine" in capsys.readouterr().err


def test_a_job_is_found_in_the_only_log_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    record("job", "log/of our own")
    record("other", "goodput_other")
    assert cli.main(["report", "job"]) == 0
    assert capsys.readouterr().out.startswith("job: ")


def test_the_usual_log_goes_before_others(capsys: pytest.CaptureFixture[str]) -> None:
    record("job", "another_log")
    record("job")
    assert cli.main(["report", "job"]) == 0
    assert capsys.readouterr().out.startswith("job: ")


def test_a_job_in_several_logs_is_asked_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    record("job", "log_a")
    record("job", "log_b")
    assert cli.main(["report", "job"]) == 2
    assert "choose one with --logger: log_a, log_b" in capsys.readouterr().err
    assert cli.main(["report", "job", "--logger", "log_b"]) == 0


@pytest.mark.parametrize("log", ["ml_diagnostics_metric", "tpu.googleapis.com/runtime_monitor"])
def test_a_job_in_logs_of_our_other_libraries_is_found_in_its_own(capsys: pytest.CaptureFixture[str], log: str) -> None:
    record("job", "log_a")
    for job in ("job", "a-run"):
        Journal(log, root=diagnostics_directory(), labels={"job": job}).append({"values": [1.0]})
    assert cli.main(["report", "job"]) == 0
    assert cli.main(["report", "another"]) == 3
    assert "has these jobs: job." in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["report"],
        ["report", "job", "--format", "xml"],
        ["report", "job", "--plot", "job.docx"],
        ["forecast", "job"],
    ],
)
def test_a_command_that_is_not_understood_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "usage: goodput" in output.err


def test_foreign_files_in_the_journal_do_no_harm(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record("job", "another_log")
    (journal / "notes.txt").write_text("not a log")
    (journal / "folder").mkdir()
    (journal / "folder" / "writer.0.jsonl").write_bytes(b"\xff\xfe not a header\n")
    (journal / "folder" / "writer.1.jsonl").mkdir()
    assert cli.main(["report", "job"]) == 0
    assert capsys.readouterr().out.startswith("job: ")


@pytest.mark.parametrize(
    "job", ['a "quoted" job', "runs/2026/7", "-dashed", "ジョブ", "x" * 10_000, "line\nbreak", "%00"]
)
def test_a_job_may_have_any_name(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    record(job)
    assert cli.main(["report", "--format", "json", "--", job]) == 0
    assert json.loads(capsys.readouterr().out)["job_name"] == job


GOODPUT = (sys.executable, "-c", "import sys; from ml_goodput_measurement.cli import main; sys.exit(main())")


def run(*arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    environment = {**os.environ, **environment}
    return subprocess.run(
        [*GOODPUT, *arguments], env=environment, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
    )


def test_a_terminal_without_the_letters_of_a_name_still_gets_its_report() -> None:
    record("ジョブ")
    result = run("report", "ジョブ", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(rb"\u30b8\u30e7\u30d6: 100.00 % goodput")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_behind_standard_output_is_one_message() -> None:
    record("job")
    full = os.open("/dev/full", os.O_WRONLY)
    result = run("report", "job", stdout=full)
    os.close(full)
    assert (result.returncode, result.stderr) == (
        1,
        b"goodput: cannot write to standard output: No space left on device\n",
    )


def test_a_reader_that_has_seen_enough_is_nothing_to_talk_about() -> None:
    record("job")
    reading, writing = os.pipe()
    os.close(reading)
    result = run("report", "job", stdout=writing)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_help_loads_nothing_heavy() -> None:
    program = """
import sys
before = set(sys.modules)  # with what .pth files of other packages loaded
from ml_goodput_measurement.cli import main
try:
    main(["report", "--help"])
except SystemExit:
    pass
heavy = {"msgspec", "numpy", "matplotlib", "google", "grpc", "requests", "jax", "orbax"}
assert not heavy & {name.partition(".")[0] for name in set(sys.modules) - before}, sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_last_is_the_job_that_started_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "last"]) == 3
    assert "there is no last job. The journal " in capsys.readouterr().err
    for job in ("first", "second"):
        record(job, "training log")
    assert cli.main(["report", "last"]) == 0
    assert capsys.readouterr().out.startswith("second: ")
    record("last")
    record("third")
    assert cli.main(["report", "last"]) == 0
    assert capsys.readouterr().out.startswith("last: "), "a job of that name wins"


def test_an_unknown_job_comes_with_hints(capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("vision-1", "vision-2", "text-1"):
        record(job, "training")
    assert cli.main(["report", "Vison-1"]) == 3
    first, *hints = capsys.readouterr().err.splitlines()
    assert first == "goodput: Nothing was recorded for job 'Vison-1' in log 'goodput_Vison-1'."
    assert hints[0] == "  Did you mean vision-1, vision-2?"
    assert hints[1].endswith("has these jobs: text-1, vision-1, vision-2.")
    assert hints[2].startswith(
        "  Was its GoodputRecorder given the same two names and logging_enabled=True? Searched: "
    )
    assert len(hints) == 3
    assert cli.main(["report", "text-1", "--logger", "elsewhere"]) == 3
    assert (
        "\n  The journal has this job in other logs: training. Give one of these as --logger.\n"
        in capsys.readouterr().err
    )


def test_a_source_that_was_not_searched_is_named_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
    assert cli.main(["report", "job"]) == 3
    assert "not Cloud Logging, because ML_DIAGNOSTICS_BACKEND is local." in capsys.readouterr().err
