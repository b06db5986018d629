"""The entries that a query reads: new ones, of all writers, from the journal, with a cloud or without one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError
from ml_diagnostics_common.files import read_at
from ml_diagnostics_common.journal import JournalCap
from ml_goodput_measurement._ledger import recorders
from ml_goodput_measurement.goodput import GoodputCalculator

from .histories import BASE, History, MemoryLog
from .written_life import LIFE, LOG, NOW_NS, calculator, contents_of, journal_folder, record, root


@pytest.fixture
def truth() -> tuple[Any, ...]:
    """The report of LIFE, from an object in memory."""
    return contents_of(calculator(cloud_logger=MemoryLog(LIFE.payloads)).report())


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of all positional reads, which is how the journal is read."""
    sizes: list[int] = []

    def counting_read_at(descriptor: int, length: int, offset: int) -> bytes:
        data = read_at(descriptor, length, offset)
        sizes.append(len(data))
        return data

    for module in ("_segment_reader", "_layout"):
        monkeypatch.setattr(f"ml_diagnostics_common.journal.{module}.read_at", counting_read_at)
    return sizes  # type: ignore[return-value]


def test_a_query_reads_only_new_entries(bytes_read: list[int]) -> None:
    journal = record(History().start(0).steps(range(3000), at=10).payloads)
    subject = calculator()
    subject.get_job_goodput()
    whole = sum(bytes_read)
    assert whole >= sum(path.stat().st_size for path in journal_folder().iterdir())

    for queries in range(5):
        bytes_read.clear()
        assert subject.get_job_goodput().last_step == 2998 + queries
        assert sum(bytes_read) < whole / 100  # one line of 3000
        journal.append(History().steps([3000 + queries], at=30_010 + 10 * queries).payloads[0])
    bytes_read.clear()
    subject.get_job_goodput()
    subject.get_job_goodput_details()
    assert sum(bytes_read) < whole / 100


def test_attempts_of_several_writers_are_one_job(truth: tuple[Any, ...]) -> None:
    second = next(i for i, payload in enumerate(LIFE.payloads) if payload.get("job_start_time") == BASE + 300)
    record(LIFE.payloads[second:]).close()  # the files' order is not the job's
    record(LIFE.payloads[:second]).close()
    assert contents_of(calculator().report()) == truth


def test_late_writers_are_included(truth: tuple[Any, ...]) -> None:
    """Processes that replaced each other; the entries of the first arrive last."""
    subject = calculator()
    second = next(i for i, payload in enumerate(LIFE.payloads) if payload.get("job_start_time") == BASE + 300)
    for part in (LIFE.payloads[-6:], LIFE.payloads[second:-6], LIFE.payloads[:4], LIFE.payloads[4:second]):
        record(part)
        report = subject.report()
    assert contents_of(report) == truth


def test_a_job_is_found_once_it_has_started() -> None:
    subject = calculator()
    with pytest.raises(ValueError, match="Nothing was recorded"):
        subject.get_job_goodput()
    record(LIFE.payloads)
    assert subject.get_job_goodput().last_step == 19


def test_other_jobs_of_the_log_are_none_of_this_one(truth: tuple[Any, ...]) -> None:
    record(History("another").start(-500).steps(range(100), at=-400, each=20).payloads)
    record(LIFE.payloads)
    report = calculator().report()
    assert (contents_of(report), report.notes) == (truth, [])


def test_lines_that_are_not_entries_are_skipped_with_a_note(truth: tuple[Any, ...]) -> None:
    journal = record(LIFE.payloads)
    journal.close()
    [segment] = journal_folder().glob("*.jsonl")
    with segment.open("a") as file:
        file.write('\n{"t":1,"s":5}\n{"t":17000000')
    report = calculator().report()
    assert contents_of(report) == truth
    assert report.notes == ["2 entries could not be read"]


def test_a_query_that_is_interrupted_loses_nothing(truth: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook, in the middle of reading: the next query is right."""
    record(LIFE.payloads[:30])
    subject = calculator()
    read_events = recorders.read_events  # type: ignore[attr-defined]

    def interrupted(*arguments: Any) -> Any:
        read_events(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(recorders, "read_events", interrupted)
    with pytest.raises(KeyboardInterrupt):
        subject.get_job_goodput()
    monkeypatch.setattr(recorders, "read_events", read_events)
    record(LIFE.payloads[30:])
    assert contents_of(subject.report()) == truth


def test_a_query_of_one_job_does_not_protect_another_of_the_same_log(truth: tuple[Any, ...]) -> None:
    """If no cloud has the journal, its cap drops entries that were read by a query of their own job."""
    record(LIFE.payloads)
    record([{**payload, "job_name": "other"} for payload in LIFE.payloads], job="other")
    subject = calculator()
    assert contents_of(subject.report()) == truth
    subject.save_state()
    JournalCap(root(), limit_bytes=0, clock=lambda: time.time() + 2 * 86400).check()
    assert len(list(journal_folder().glob("*.jsonl"))) == 1
    assert contents_of(GoodputCalculator("other", LOG, _clock_ns=lambda: NOW_NS).report()) == truth


def test_no_journal_is_dropped_on_the_word_of_a_state_that_lies_elsewhere(tmp_path: Path) -> None:
    record(LIFE.payloads)
    subject = calculator(cache_dir=str(tmp_path / "cache"))
    subject.report()
    subject.save_state()
    JournalCap(root(), limit_bytes=0, clock=lambda: time.time() + 2 * 86400).check()
    assert len(list(journal_folder().glob("*.jsonl"))) == 1


# --- Backends -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A laptop: no project, no credentials, no metadata server."""
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.timing
@pytest.mark.usefixtures("_no_cloud")
def test_without_a_cloud_the_journal_answers_at_once_and_logs_nothing(
    truth: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    record(LIFE.payloads)
    started = time.monotonic()
    report = calculator().report()
    assert time.monotonic() - started < 5
    assert (contents_of(report), report.notes) == (truth, [])
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("_no_cloud")
@pytest.mark.parametrize("content", ["not json", "{}", '{"type": "service_account"}', "\x00", None])
def test_broken_credentials_leave_the_journals_answer(
    truth: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    key = tmp_path / "key.json"
    if content is not None:
        key.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    record(LIFE.payloads)
    assert contents_of(calculator().report()) == truth


@pytest.mark.usefixtures("_no_cloud")
def test_an_empty_result_notes_that_only_the_journal_was_read() -> None:
    with pytest.raises(ValueError, match="not Cloud Logging, because this machine has no Google Cloud project"):
        calculator().get_job_goodput()


@pytest.mark.usefixtures("_no_cloud")
def test_the_cloud_backend_without_credentials_raises_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    with pytest.raises(CredentialsError, match="ML_DIAGNOSTICS_BACKEND=local"):
        calculator()


def test_a_backend_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "clod")
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_BACKEND"):
        calculator()
