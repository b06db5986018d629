"""The jobs in a journal follow from a few of its lines, with any other files in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from ml_diagnostics_common.journal import Journal, jobs_by_log, log_directory, newest_job
from ml_diagnostics_common.journal.layout import Header, decode_header
from ml_diagnostics_common.journal.newest import last_payloads, newest_writers


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

    monkeypatch.setattr("ml_diagnostics_common.journal.layout.decode_header", decode_and_count)
    assert jobs_by_log(tmp_path) == {"log": {"job"}}
    assert len(decoded) == 2


def test_a_segment_without_a_header_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    journal = record(tmp_path, "log", "job", entries=2)
    (log_directory(tmp_path, "log") / f"{journal.writer}.0.jsonl").write_bytes(b'{"schema":1,"lo')
    assert jobs_by_log(tmp_path) == {"log": {"job"}}


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
