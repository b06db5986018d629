"""The jobs in a journal follow from a few of its lines, with any other files in its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ml_diagnostics_common.journal import (
    Header,
    Journal,
    is_open,
    jobs_by_log,
    last_payloads,
    log_directory,
    newest_job,
    newest_writers,
    processes_of_job,
    writer_start_ns,
)
from ml_diagnostics_common.journal._layout import decode_header


def record(root: Path, log_id: str, job: str, entries: int = 1) -> Journal:
    """Writes a job's entries, each to a segment of its own."""
    journal = Journal(log_id, root=root, labels={"job": job} if job else {}, segment_bytes=1)
    for number in range(entries):
        journal.append({"n": number})
    journal.close()
    return journal


def test_the_jobs_of_each_log_are_listed_by_their_full_names(tmp_path: Path) -> None:
    long = "log/of our own " * 20
    record(tmp_path, "goodput_a", "a")
    record(tmp_path, long, "b")
    record(tmp_path, long, "ジョブ\n")
    record(tmp_path, long, "b")
    assert jobs_by_log(tmp_path) == {"goodput_a": {"a"}, long: {"b", "ジョブ\n"}}


def test_a_folder_without_a_journal_holds_no_job(tmp_path: Path) -> None:
    assert jobs_by_log(tmp_path) == {}
    assert jobs_by_log(tmp_path / "gone") == {}


def test_one_header_a_writer_is_read_however_many_segments_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        record(tmp_path, "log", "job", entries=5)
    assert len(list(log_directory(tmp_path, "log").glob("*.jsonl"))) >= 10
    decoded = []

    def decode_and_count(line: bytes) -> Header | None:
        decoded.append(line)
        return decode_header(line)

    monkeypatch.setattr("ml_diagnostics_common.journal._layout.decode_header", decode_and_count)
    assert jobs_by_log(tmp_path) == {"log": {"job"}}
    assert len(decoded) == 2


def test_a_segment_without_a_header_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    journal = record(tmp_path, "log", "job", entries=2)
    (log_directory(tmp_path, "log") / f"{journal.writer}.0.jsonl").write_bytes(b'{"schema":1,"lo')
    assert jobs_by_log(tmp_path) == {"log": {"job"}}


def test_the_log_of_another_user_hides_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of logs are for their user alone; the tests may run as one who can open all."""
    record(tmp_path, "log", "job")
    private = record(tmp_path, "private", "job-2")
    scan = os.scandir

    def scan_own(folder: str | Path) -> object:
        if Path(folder).name == "private":
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scan_own)
    assert jobs_by_log(tmp_path) == {"log": {"job"}}
    assert processes_of_job(tmp_path, "job-2") == set()
    monkeypatch.undo()
    assert {started.started_ns for started in processes_of_job(tmp_path, "job-2")} == {writer_start_ns(private.writer)}


def test_what_is_none_of_ours_is_passed_over(tmp_path: Path) -> None:
    record(tmp_path, "log", "job")
    record(tmp_path, "without", "")
    folder = tmp_path / "journal" / "folder"
    folder.mkdir()
    (tmp_path / "journal" / "notes.txt").write_text("not a log")
    (folder / "writer.0.jsonl").write_bytes(b"\xff\xfe not a header\n")
    (folder / "writer.1.jsonl").mkdir()
    (folder / "endless.0.jsonl").write_bytes(b"[" * 3_000_000)
    (folder / "gone.0.jsonl").symlink_to(tmp_path / "nowhere")
    assert jobs_by_log(tmp_path) == {"log": {"job"}}


def test_the_newest_job_is_the_one_whose_recorder_started_last(tmp_path: Path) -> None:
    assert newest_job(tmp_path) is None
    for log_id, job in (("log", "a"), ("another log", "b"), ("log", "c"), ("metrics", "d"), ("unnamed", "")):
        record(tmp_path, log_id, job)
    assert newest_job(tmp_path) == ("metrics", "d")
    assert newest_job(tmp_path, except_logs=["metrics"]) == ("log", "c")


def test_the_last_payloads_come_from_the_last_segment_newest_first(tmp_path: Path) -> None:
    record(tmp_path, "log", "job", entries=3)
    journal = Journal("log", root=tmp_path, labels={"job": "job"})
    for number in range(5):
        journal.append({"n": number})
    journal.close()
    newest, earlier = newest_writers(log_directory(tmp_path, "log"), 2)
    assert newest.writer == journal.writer
    assert [payload["n"] for payload in last_payloads(newest)] == [4, 3, 2, 1, 0]
    assert [payload["n"] for payload in last_payloads(earlier)] == [2]
    with Path(newest.path).open("ab") as file:
        file.write(b'\n{"t":1,"s":1,"p":{"n":')  # a killed writer's last line
    assert [payload["n"] for payload in last_payloads(newest, tail_bytes=100)] == [4]


def test_the_processes_of_a_job_are_found_under_its_name_and_as_its_run(tmp_path: Path) -> None:
    def of(log_id: str, **labels: str) -> int:
        journal = Journal(log_id, root=tmp_path, labels={"host": "host-a", "pid": "0", **labels}, segment_bytes=1)
        for number in range(2):
            journal.append({"n": number})
        journal.close()
        return writer_start_ns(journal.writer)

    starts = of("goodput_a", job="job-7"), of("metrics", job="other", run="job-7")
    of("goodput_a", job="another")
    assert processes_of_job(tmp_path, "job-7") == {("host-a", str(os.getpid()), start) for start in starts}
    assert processes_of_job(tmp_path, "missing") == set()


def test_a_headless_segment_names_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "journal" / "log"
    folder.mkdir(parents=True)
    (folder / "host-1-2.0.jsonl").write_bytes(b"not a header\n")
    assert processes_of_job(tmp_path, "job") == set()


def test_a_writer_is_open_while_its_process_writes_its_last_segment(tmp_path: Path) -> None:
    journal = Journal("log", root=tmp_path, labels={"job": "job"}, segment_bytes=1)
    for number in range(3):
        journal.append({"n": number})
    (log_directory(tmp_path, "log") / f"{journal.writer}.x.jsonl").write_text("not a segment")
    assert is_open(tmp_path, journal.writer)
    writer = journal.writer
    del journal
    assert not is_open(tmp_path, writer)
    assert not is_open(tmp_path, "host-1-2")
