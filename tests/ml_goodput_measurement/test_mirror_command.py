"""`goodput mirror`: how far the mirror of a folder is, what killed processes left, and rules for the bucket."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName, parse_name
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status
from ml_goodput_measurement import cli

_KILLED = """
import os, signal
from ml_goodput_measurement.goodput import GoodputRecorder
recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
recorder.record_job_start_time()
for step in range(8):
    recorder.record_step_start_time(step)
recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def mirror(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


@pytest.fixture
def root() -> Path:
    """The folder of a job that was killed before anything of it was mirrored."""
    subprocess.run([sys.executable, "-c", _KILLED], check=False)
    return diagnostics_directory()


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(["mirror", *arguments]) == code
    output = capsys.readouterr()
    return output.out, output.err


def test_what_a_killed_process_left_is_pushed(root: Path, mirror: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "status", str(root), "--mirror", mirror, "--strict", code=1)
    (row,) = [line.split() for line in out.splitlines() if line.startswith("run-7 ")]
    assert row[2:4] == ["not", "pushed"]
    assert out.endswith(f"mirror {mirror}: 1 process not complete\n")

    out, err = run(capsys, "push", str(root), "--mirror", mirror)
    assert out.splitlines()[2].split()[2:] == ["9", "ended"]
    assert err.endswith(": 9 entries\n")

    out, _ = run(capsys, "status", str(root), "--mirror", mirror, "--strict")
    (row,) = [line.split() for line in out.splitlines() if line.startswith("run-7 ")]
    assert row[2:] == ["ended", "-", "-", "-"]
    assert out.endswith(f"mirror {mirror}: complete\n")

    out, err = run(capsys, "push", str(root), "--mirror", mirror)
    assert (out, err) == ("", f"the mirror {mirror} lacks nothing of {root}\n")


def test_the_folder_and_the_mirror_come_from_the_environment(
    root: Path, mirror: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", mirror)
    out, err = run(capsys, "push", "--format", "json", "--quiet")
    (writer,) = json.loads(out)["writers"]
    assert (writer["log"], writer["entries"], writer["has_end"], err) == ("goodput_run-7", 9, True, "")


def test_objects_that_are_missing_are_counted(root: Path, mirror: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "push", "--mirror", mirror)
    bucket = Bucket(mirror)
    (name,) = (
        name
        for path in bucket.list_paths(LogPaths.of(mirror, "goodput_run-7").folder)
        if isinstance(name := parse_name(path), SegmentName)
    )
    first = bucket.read(LogPaths.of(mirror, "goodput_run-7").path(name))
    later = name._replace(first=name.first + 4)
    bucket.create(LogPaths.of(mirror, "goodput_run-7").path(later), first)
    bucket.delete(LogPaths.of(mirror, "goodput_run-7").path(name))

    out, _ = run(capsys, "status", "--mirror", mirror, "--format", "csv", "--strict", code=1)
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["job"], row["state"], row["missing_entries"]) == ("run-7", "ended", "4")
    document = json.loads(run(capsys, "status", "--mirror", mirror, "--format", "json")[0])
    assert document["is_complete"] is False
    assert document["writers"][0]["gaps"] == [[name.first, name.first + 3]]


def test_a_process_that_runs_may_be_behind(mirror: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ml_goodput_measurement.goodput import GoodputRecorder

    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time()
    recorder.flush()
    document = json.loads(run(capsys, "status", "--mirror", mirror, "--format", "json")[0])
    (writer,) = document["writers"]
    assert (writer["state"], writer["has_end"], writer["entries_to"]) == ("running", False, None)
    assert writer["behind_bytes"] > 100


def test_a_mirror_that_cannot_be_listed_leaves_the_gaps_open(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.faults.always(Status(403))
        out, err = run(capsys, "status", "--mirror", "gs://bucket/mirror", "--format", "json")
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]
    assert json.loads(out)["writers"][0]["gaps"] is None
    assert "what is missing in the mirror is not known: cannot list" in err


@pytest.mark.parametrize("arguments", [("gs://bucket/team",), ("--mirror", "gs://bucket/team"), ("gs://bucket/team/",)])
def test_lifecycle_rules_delete_segments_and_events_after_their_time(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    rules = json.loads(run(capsys, "lifecycle", *arguments)[0])
    conditions = [rule["condition"] for rule in rules["rule"]]
    assert conditions == [
        {"age": 30, "matchesPrefix": ["team/v1/segments/"]},
        {"age": 400, "matchesPrefix": ["team/v1/events/"]},
    ]
    assert all(rule["action"] == {"type": "Delete"} for rule in rules["rule"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("status",), 3, "has no journal: give the ML_DIAGNOSTICS_DIR of a job"),
        (("push", "nowhere"), 3, "nowhere has no journal"),
        (("lifecycle",), 2, "no mirror is known: give --mirror URL, or set ML_DIAGNOSTICS_MIRROR"),
        (("lifecycle", "folder"), 2, "only buckets have lifecycle rules"),
        (("lifecycle", "gs://b/p", "--format", "csv"), 2, "lifecycle prints JSON"),
        (("push", "--strict"), 2, "--strict is an option of"),
    ],
)
def test_bad_input_is_refused_at_once(
    arguments: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run(capsys, *arguments, code=code)[1]


def test_actions_are_completed_in_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--print-completion", "bash"])
    assert "_shtab_goodput_mirror_pos_0_choices=(status push lifecycle)" in capsys.readouterr().out


def test_a_push_to_a_bucket_that_does_not_exist_fails(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        out, err = run(capsys, "push", str(root), "--mirror", "gs://no-such-bucket/m", code=3)
        storage_for("gs://no-such-bucket/m").close()  # type: ignore[attr-defined]
    assert out == ""
    assert "there is no such object, or no such bucket" in err


def test_a_journal_that_cannot_be_read_is_named_and_the_others_are_pushed(
    root: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root / "journal" / "goodput_run-7"
    (folder / "w-1-1-0.0.jsonl").symlink_to(next(folder.glob("*.jsonl")))  # A link, which no journal has.
    out, err = run(capsys, "push", str(root), "--mirror", mirror, code=1)
    assert out.splitlines()[2].split()[2:] == ["9", "ended"]
    assert "w-1-1-0 cannot be read, and is left out" in err
    out, err = run(capsys, "push", str(root), "--mirror", mirror, code=1)
    assert out == ""
    assert "lacks nothing" not in err


def test_what_stays_on_the_machine_is_not_shown_as_missing(
    root: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal("goodput_run-7", root=root, labels={"job": "run-7"}, mirrored=False).append({"text": "what it printed"})
    run(capsys, "push", str(root), "--mirror", mirror)
    out, _ = run(capsys, "status", str(root), "--mirror", mirror, "--strict")
    assert len([line for line in out.splitlines() if line.startswith("run-7 ")]) == 1


def test_a_process_that_mirrors_itself_is_named_and_left_alone(
    root: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mirror may refuse it, and not the user: then nothing was pushed, and that is what the command states."""
    from ml_diagnostics_common.guard import Counters
    from ml_diagnostics_common.mirror._upload import Upload

    writer = next((root / "journal" / "goodput_run-7").glob("*.jsonl")).name.rsplit(".", 2)[0]
    upload = Upload.claim(Bucket(mirror), root, "goodput_run-7", writer, Counters())
    assert upload is not None
    out, err = run(capsys, "push", str(root), "--mirror", mirror)
    assert (out, err) == ("", f"{writer}: left out, because another process writes it to the mirror\n")
    upload.release()
    out, _ = run(capsys, "push", str(root), "--mirror", mirror)
    assert out.splitlines()[2].split()[2:] == ["9", "ended"]
