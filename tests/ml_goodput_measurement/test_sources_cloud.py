"""The entries that a query reads from the cloud: those that the journal does not have, once, whatever fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.entry import encode_cloud, format_timestamp
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.log_source import Cloud
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Fault, Hang, Reset, Status
from ml_goodput_measurement.cli import main
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder
from ml_goodput_measurement.partition import Bucket

from ..waiting import LONG_SECONDS
from .histories import BASE, JOB, History, MemoryLog, Payload
from .written_life import LIFE, LOG, NOW_NS, calculator, contents_of, record, root


@pytest.fixture
def truth() -> tuple[Any, ...]:
    """The report of LIFE, from an object in memory."""
    return contents_of(calculator(cloud_logger=MemoryLog(LIFE.payloads)).report())


@pytest.fixture
def cloud(cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> CloudLoggingServer:
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    return cloud_logging_server


@pytest.fixture
def _without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once after a failure."""
    monkeypatch.setattr(Cloud, "pause_seconds", 0.0)


def as_the_reference_wrote(payloads: Iterable[Payload], each: float = 0.01) -> list[dict[str, Any]]:
    """Stamped when it was sent, seconds after the event; no insertId, no label of ours."""
    return [
        {
            "timestamp": format_timestamp(int((BASE + 600 + index * each) * 1e9)),
            "severity": "INFO",
            "labels": {"python_logger": f"_ml_goodput_async.{LOG}.140123"},
            "jsonPayload": payload,
        }
        for index, payload in enumerate(payloads)
    ]


def ship(server: CloudLoggingServer, part: slice = slice(None)) -> None:
    """Send the entries of the journal to the cloud."""
    entries = [entry for batch in JournalReader(LOG, root=root()).read_new() for entry in batch]
    server.write([encode_cloud(entry) for entry in entries[part]], log_id=LOG)


def test_what_the_public_library_wrote_is_read_from_the_cloud(
    cloud: CloudLoggingServer, truth: tuple[Any, ...]
) -> None:
    cloud.write(as_the_reference_wrote(LIFE.payloads), log_id=LOG)
    assert contents_of(calculator().report()) == truth


@pytest.mark.parametrize("part", [slice(None), slice(0), slice(12), slice(12, None), slice(None, None, 3)], ids=str)
def test_the_union_of_journal_and_cloud_is_the_job_whatever_was_shipped(
    cloud: CloudLoggingServer, truth: tuple[Any, ...], part: slice
) -> None:
    record(LIFE.payloads)
    ship(cloud, part)
    report = calculator().report()
    assert (contents_of(report), report.notes) == (truth, [])


def test_a_part_from_another_machine_is_joined_with_the_journal(
    cloud: CloudLoggingServer, truth: tuple[Any, ...]
) -> None:
    """The first attempt ran with the public library elsewhere, the second runs here."""
    second = next(i for i, payload in enumerate(LIFE.payloads) if payload.get("job_start_time") == BASE + 300)
    cloud.write(as_the_reference_wrote(LIFE.payloads[:second]), log_id=LOG)
    record(LIFE.payloads[second:])
    assert contents_of(calculator().report()) == truth


def test_the_cloud_is_read_on_from_where_a_saved_state_left_off(
    cloud: CloudLoggingServer, truth: tuple[Any, ...]
) -> None:
    """The reader requests again only its overlap of a minute; here an entry is written every ten minutes."""
    entries = as_the_reference_wrote(LIFE.payloads, each=-600)
    cloud.write(entries[-20:], log_id=LOG)
    first = calculator()
    first.report()
    first.save_state()
    asked = len(cloud.requests)
    cloud.write(entries[:-20], log_id=LOG)
    assert contents_of(calculator().report()) == truth
    read = [request.entries or 0 for request in cloud.requests[asked:] if request.operation == "list"]
    assert sum(read) <= len(entries) - 20 + 1


def test_a_state_saved_without_a_cloud_goes_on_with_one_and_back(
    cloud: CloudLoggingServer, truth: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(LIFE.payloads[:20])
    ship(cloud)
    cloud.write(as_the_reference_wrote(LIFE.payloads[30:]), log_id=LOG)
    for backend, payloads in [("local", LIFE.payloads[20:25]), ("auto", LIFE.payloads[25:30]), ("local", [])]:
        monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", backend)
        subject = calculator()
        subject.report()
        subject.save_state()
        record(payloads)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    assert contents_of(calculator().report()) == truth


def be_patient(subject: GoodputCalculator) -> None:
    """Have it wait for a cloud that answers again: on a busy machine that may take longer than for one that fails."""
    pages = subject._reader._log._pages
    pages._timeout_seconds = pages._patience_seconds = LONG_SECONDS


@pytest.mark.usefixtures("_without_pause")
@pytest.mark.parametrize("fault", [Status(503), Status(403), Status(429), Hang(), Reset()], ids=repr)
def test_a_cloud_that_fails_leaves_the_journals_answer_and_a_note(
    cloud: CloudLoggingServer, truth: tuple[Any, ...], fault: Fault
) -> None:
    record(LIFE.payloads)
    cloud.faults.always(fault, on="list")
    subject = calculator(_patience_seconds=0.2)
    report = subject.report()
    assert contents_of(report) == truth
    [note] = report.notes
    assert note.startswith("Cloud Logging could not be read to the end: ")
    assert contents_of(subject.report()) == truth  # nothing is lost by asking again
    cloud.faults.clear()
    be_patient(subject)
    assert subject.report().notes == []


def test_the_command_prints_a_failure_of_the_cloud_once(
    cloud: CloudLoggingServer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    record(LIFE.payloads)
    cloud.faults.always(Status(403), on="list")
    assert main(["report", JOB, "--logger", LOG]) == 0
    assert capsys.readouterr().out.count("Cloud Logging could not be read to the end: ") == 1
    assert caplog.messages == []
    calculator(_patience_seconds=0.2).report()
    assert len(caplog.messages) == 1  # A monitor has no page: its warning stays.


@pytest.mark.usefixtures("_without_pause")
def test_a_cloud_that_fails_between_two_pages_loses_nothing(cloud: CloudLoggingServer) -> None:
    long = History().start(0).steps(range(3000), at=10).end(30_010)
    record(long.payloads[2000:])
    cloud.write(as_the_reference_wrote(long.payloads[:2500]), log_id=LOG)
    cloud.faults.script([None, None, *[Status(503)] * 50], on="list")
    subject = calculator(_patience_seconds=0.2)
    partial = subject.report()
    assert partial.notes
    assert partial.last_step == 2999
    subject.save_state()
    cloud.faults.clear()
    be_patient(subject)
    for whole in (subject.report(), calculator().report()):
        assert (whole.notes, whole.steps_kept, len(whole.attempts)) == ([], 3000, 1)
        assert whole.buckets[Bucket.PRODUCTIVE] == 30_000 * 10**9


@pytest.mark.parametrize(
    ("variable", "value"),
    [("CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING", "not an address"), ("ML_DIAGNOSTICS_LOGGING_TRANSPORT", "http")],
)
def test_an_endpoint_that_is_none_is_refused_by_its_name(
    cloud: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    record(LIFE.payloads)
    with pytest.raises(ConfigurationError, match=variable):
        calculator().report()


def test_a_reader_backs_off_from_a_cloud_that_failed(
    cloud: CloudLoggingServer, truth: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor that reads twice a minute does not wait each time, and knows that its numbers are incomplete."""
    record(LIFE.payloads)
    cloud.faults.always(Status(503), on="list")
    subject = calculator(_patience_seconds=0.2)
    first = subject.report()
    asked = len(cloud.requests)
    second = subject.report()
    assert len(cloud.requests) == asked
    assert (contents_of(second), second.notes) == (truth, first.notes)
    assert second.notes


@pytest.mark.parametrize("job", ['a "quoted" job', "a/b", "back\\slash", "unicode 火", "new\nline", "a" * 10_000])
def test_a_job_of_any_name_is_found_in_the_cloud(cloud: CloudLoggingServer, job: str) -> None:
    entries = as_the_reference_wrote(History(job).start(0).steps(range(5), at=10).end(60).payloads)
    cloud.write(entries + as_the_reference_wrote(History("b").start(-100).payloads), log_id=LOG)
    assert GoodputCalculator(job, LOG, _clock_ns=lambda: NOW_NS).report().steps_kept == 5


def test_a_retention_is_what_is_asked_of_the_cloud(cloud: CloudLoggingServer) -> None:
    cloud.write(as_the_reference_wrote(LIFE.payloads), log_id=LOG)
    with pytest.raises(ValueError, match="Nothing was recorded"):
        calculator(max_logs_retention_period=60).get_job_goodput()
    assert calculator(max_logs_retention_period=1e6).get_job_goodput().last_step == 19


def test_a_recorder_and_a_calculator_meet_in_the_cloud(
    cloud: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorder = GoodputRecorder(JOB, LOG, True, background_grace_period_s=LONG_SECONDS)
    recorder.record_job_start_time(BASE)
    for step in range(5):
        recorder.record_step_start_time(step, BASE + 10 * step)
    recorder.record_job_end_time(BASE + 50)
    recorder.flush()
    here = calculator().report()
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / "elsewhere"))
    there = calculator().report()
    assert contents_of(here) == contents_of(there)
    assert there.steps_kept == 5


def test_what_was_read_of_one_project_or_one_day_is_not_taken_for_all(
    cloud: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = History().start(0).steps(range(300), at=1000, each=1000).end(301_000)
    cloud.write(as_the_reference_wrote(long.payloads, each=1000), log_id=LOG)
    asked_at: dict[str, Any] = {"_clock_ns": lambda: int((BASE + 302_000) * 1e9)}
    day = GoodputCalculator(JOB, LOG, max_logs_retention_period=86_400, **asked_at)
    assert day.report().steps_kept < 100
    day.save_state()
    assert GoodputCalculator(JOB, LOG, **asked_at).report().steps_kept == 300
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "another-project")
    with pytest.raises(NoGoodputError):
        GoodputCalculator(JOB, LOG, **asked_at).report()


def test_the_last_moments_of_a_process_wait_for_no_network(
    cloud: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = GoodputRecorder("run", "goodput_run", True, background_grace_period_s=LONG_SECONDS)
    recorder.record_job_start_time(1e9)
    for step in range(5):
        recorder.record_step_start_time(step, 1e9 + 10 * step)
    recorder.flush()
    asked = len(cloud.requests)
    cloud.faults.always(Hang())
    calculator = GoodputCalculator("run", "goodput_run")
    snapshot = calculator.snapshot(local_only=True)
    assert snapshot.cumulative is not None
    assert snapshot.cumulative.max_productive_step == 3
    assert len(cloud.requests) == asked
    cloud.faults.clear()
    assert calculator.get_job_goodput().last_step == 3
    assert len(cloud.requests) > asked


def test_the_last_moments_of_a_process_search_for_no_cloud_and_a_later_read_uses_the_saved_state(
    cloud: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = History().start(0).steps(range(300), at=1000, each=1000).end(301_000)
    cloud.write(as_the_reference_wrote(steps.payloads, each=1000), log_id=LOG)
    asked_at: dict[str, Any] = {"_clock_ns": lambda: int((BASE + 302_000) * 1e9)}
    earlier = GoodputCalculator(JOB, LOG, **asked_at)
    assert earlier.report().steps_kept == 300
    earlier.save_state()
    recorder = GoodputRecorder(JOB, LOG, True)
    recorder.record_job_start_time(BASE + 301_500)
    recorder.record_step_start_time(300, BASE + 301_600)
    recorder.flush()
    calculator = GoodputCalculator(JOB, LOG, _patience_seconds=0.2, **asked_at)
    with monkeypatch.context() as in_last_moments:
        in_last_moments.setattr(Cloud, "connect", lambda _: pytest.fail("searched for a cloud"))
        assert calculator.snapshot(local_only=True).cumulative is not None
        calculator.save_state()
    cloud.faults.always(Status(503), on="list")
    assert calculator.report().steps_kept == 300
