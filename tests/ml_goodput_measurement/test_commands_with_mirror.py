"""The commands that read jobs, on a machine that has a mirror and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status
from ml_goodput_measurement import cli
from ml_goodput_measurement.exporters.board import Board
from ml_goodput_measurement.exporters.gauges import GAUGES

from .laptops import Laptop, steps

SAVE = {"advise": ("--save", "5"), "what-if": ("--save", "5")}


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    return Laptop(tmp_path, str(tmp_path / "mirror"), monkeypatch)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert cli.main([*arguments]) == code
    output = capsys.readouterr()
    return output.out, output.err


def data_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(run(capsys, *arguments, "--format", "json", code=code)[0])


@pytest.mark.parametrize("is_from_environment", [False, True])
def test_a_report_is_read_from_the_mirror(
    laptop: Laptop,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_from_environment: bool,
) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    if is_from_environment:
        monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", laptop.mirror)
    options = () if is_from_environment else ("--mirror", laptop.mirror)
    report = data_of(capsys, "report", "run-7", "--strict", *options)
    assert (report["wall_seconds"], report["last_step"], report["notes"]) == (1000.0, 93, [])
    assert report["goodput_percent"] == pytest.approx(94)


def test_an_empty_mirror_option_reads_none(
    laptop: Laptop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", laptop.mirror)
    _, err = run(capsys, "report", "run-7", "--mirror", "", code=3)
    assert "Nothing was recorded for job 'run-7'" in err
    assert run(capsys, "list", "--mirror", "")[0] == ""


def test_a_job_is_found_in_any_log_of_the_mirror(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94), log="training")
    laptop.mirrored("run-8", steps(time.time() - 3_000, 44), log="training")
    assert data_of(capsys, "report", "run-7", "--mirror", laptop.mirror)["last_step"] == 93
    _, err = run(capsys, "report", "rum-7", "--mirror", laptop.mirror, code=3)
    assert "Did you mean run-7, run-8?" in err
    assert f"The mirror {laptop.mirror} has these jobs: run-7, run-8." in err
    assert f"Searched: the journal in {laptop.folder / 'laptop'}, the mirror {laptop.mirror}; not Cloud" in err


def test_a_gap_is_noted_and_strict_fails(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    writer = laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    lost = laptop.lose("run-7", 3)
    note = f"entries {lost.first} to {lost.last} of writer {writer} are not in the mirror"
    out, err = run(capsys, "report", "run-7", "--mirror", laptop.mirror)
    assert f"Note: incomplete: {note}" in out
    for command in (("advise",), ("what-if", "--interval", "100"), ("compare", "run-7")):
        out, err = run(capsys, command[0], "run-7", *command[1:], "--mirror", laptop.mirror, *SAVE.get(command[0], ()))
        assert f"Note: incomplete: {note}" in out or f"Note: run-7: incomplete: {note}" in out
    assert data_of(capsys, "advise", "run-7", *SAVE["advise"], "--mirror", laptop.mirror)["notes"] == [
        f"incomplete: {note}"
    ]
    out, err = run(capsys, "list", "--mirror", laptop.mirror)
    assert err == "incomplete: entries of 1 job are missing, such as of 'run-7'; its report lists them\n"
    for arguments in (
        ("report", "run-7"),
        ("report", "run-7", "--since", "1d"),
        ("list",),
        ("compare", "run-7", "run-7"),
        ("advise", "run-7", "--save", "5"),
        ("what-if", "run-7", "--save", "5", "--interval", "100"),
    ):
        out, err = run(capsys, *arguments, "--mirror", laptop.mirror, "--strict", code=1)
        assert f"entries are missing: {note}" in err, arguments
        assert out
    laptop.take_journal(0)
    run(capsys, "report", "run-7", "--mirror", laptop.mirror, "--strict")


COMMANDS = [
    ("report", "run-7"),
    ("report", "run-7", "--since", "1d"),
    ("list",),
    ("watch", "run-7", "--count", "1"),
    ("compare", "run-7", "run-7"),
    ("advise", "run-7", "--save", "5"),
    ("what-if", "run-7", "--save", "5", "--interval", "100"),
]


def test_a_damaged_object_is_named_and_strict_fails(
    laptop: Laptop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    damaged = sorted((tmp_path / "mirror").rglob("*.jsonl.gz"))[4]
    damaged.write_bytes(damaged.read_bytes()[:-20] + 20 * b"x")
    out, _ = run(capsys, "report", "run-7", "--mirror", laptop.mirror)
    assert f"Note: incomplete: {damaged} is damaged" in out
    for arguments in COMMANDS:
        if arguments[0] != "watch":  # It has no --strict; it shows that the mirror is incomplete.
            out, err = run(capsys, *arguments, "--mirror", laptop.mirror, "--strict", code=1)
            assert "entries are missing: " in err
            assert "is damaged" in err or "are not in the mirror" in err
            assert out
    out, _ = run(capsys, "watch", "run-7", "--count", "1", "--mirror", laptop.mirror)
    assert out.rstrip().endswith(", incomplete")
    laptop.take_journal(0)
    report = data_of(capsys, "report", "run-7", "--mirror", laptop.mirror, "--strict")
    assert report["notes"] == [f"{damaged} is damaged; its entries were read from the journal"]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_mirror_of_a_newer_version_fails_the_command(
    arguments: tuple[str, ...], laptop: Laptop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    (tmp_path / "mirror" / "v2").mkdir()
    (tmp_path / "mirror" / "v2" / "something").touch()
    out, err = run(capsys, *arguments, "--mirror", laptop.mirror, code=1)
    assert out == ""
    assert "written by a newer version" in err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_bucket_that_refuses_is_stated_and_the_journal_is_read(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bucket: CloudStorageServer,
) -> None:
    laptop = Laptop(tmp_path, "gs://bucket/team", monkeypatch)
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    laptop.take_journal(0)
    bucket.faults.always(Status(403))
    is_list = arguments[0] == "list"
    out, err = run(capsys, *arguments, "--mirror", laptop.mirror, code=1 if is_list else 0)
    assert "run-7" in out or "range" in out or " sure, " in out
    if is_list:
        assert err.startswith("goodput: the mirror gs://bucket/team cannot be read: ")
    if arguments[0] in ("report", "compare"):
        assert "incomplete: the mirror could not be read to the end: " in out
    if arguments[0] != "watch":
        _, err = run(capsys, *arguments, "--mirror", laptop.mirror, "--strict", code=1)
        assert "cannot be read: " in err or "could not be read to the end: " in err


def test_an_exporter_of_named_jobs_reads_the_mirror_and_exports_how_far_it_is_behind(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    now = time.time()
    laptop.mirrored("run-7", steps(now - 400, 30, is_ended=False), is_ended=False)
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", laptop.mirror)
    written = time.time()
    board = Board(lambda: [("run-7", "goodput_run-7")], clock_ns=lambda: int((written + 20) * 1e9))
    board.refresh()
    (lag,) = (gauge for gauge in GAUGES if gauge.prometheus == "ml_diagnostics_mirror_lag_seconds")
    ((labels, value),) = lag.read(board.shown())
    assert labels == {"log": "goodput_run-7"}
    assert 19 < value < 21 + (written - now)
    (tmp_path / "mirror" / "v2").mkdir()
    (tmp_path / "mirror" / "v2" / "something").touch()
    other = Board(lambda: [("run-7", "goodput_run-7")])
    other.refresh()
    assert other.shown().states == []
    assert "written by a newer version" in caplog.text


def test_a_text_that_is_no_mirror_is_a_usage_error(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "report", "run-7", "--mirror", "s3://bucket/x", code=2)
    assert "s3://bucket/x" in err


def test_cloud_logging_is_asked_only_on_request_if_the_mirror_is_complete(
    laptop: Laptop,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cloud_logging_server: CloudLoggingServer,
) -> None:
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94))
    run(capsys, "report", "run-7", "--mirror", laptop.mirror)
    run(capsys, "list", "--mirror", laptop.mirror)
    assert cloud_logging_server.requests == []
    run(capsys, "report", "run-7", "--mirror", laptop.mirror, "--also", "cloud")
    assert [request.operation for request in cloud_logging_server.requests] == ["list"]


def test_jobs_of_the_mirror_and_of_this_machine_are_listed(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94), team="llm")
    laptop.take_journal(0)
    laptop.mirrored("run-8", steps(time.time() - 5_000, 44), log="training", team="vision", chips="256")
    laptop.mirrored("run-9", steps(time.time() - 400, 30, is_ended=False), is_ended=False)
    jobs = data_of(capsys, "list", "--mirror", laptop.mirror)["jobs"]
    assert [(job["job"], job["team"], job["log"], job["state"]) for job in jobs] == [
        ("run-9", None, "goodput_run-9", "running"),
        ("run-7", "llm", "goodput_run-7", "ended"),
        ("run-8", "vision", "training", "ended"),
    ]
    assert data_of(capsys, "list", "--mirror", laptop.mirror, "--since", "20m")["jobs"][0]["job"] == "run-9"
    assert len(data_of(capsys, "list", "--mirror", laptop.mirror, "--since", "20m")["jobs"]) == 2


def test_chips_for_money_come_from_the_mirror(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    laptop.mirrored("run-7", steps(time.time() - 2_000, 94), chips="256")
    out, _ = run(capsys, "report", "run-7", "--cost", "3.22/chip-hour", "--mirror", laptop.mirror)
    assert "x 256 chips" in out


def test_background_parts_of_saves_come_from_the_mirror(laptop: Laptop, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.time() - 2_000
    saves: list[dict[str, object]] = [
        {
            "event_type": "save",
            "step": 10 * number,
            "wait_for_prev_start_time": started + 100 * number,
            "wait_for_prev_duration_secs": 30.0,
            "checkpoint_manager_blocking_start_time": started + 100 * number,
            "checkpoint_manager_blocking_duration_secs": 40.0,
        }
        for number in range(2, 6)
    ]
    laptop.mirrored("run-7", [*steps(started, 94)[:-1], *saves, {"job_end_time": started + 1000}])
    assert data_of(capsys, "advise", "run-7", "--mirror", laptop.mirror)["background_seconds"] == pytest.approx(90)
