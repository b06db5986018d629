"""The promises of the public calculator: both spellings, every key and unit, and clear messages for errors."""

from __future__ import annotations

import copy
import datetime
import json
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError
from ml_goodput_measurement import goodput, goodput_elastic
from ml_goodput_measurement.goodput import BadputType, GoodputCalculator, GoodputType, JobGoodput, MetricType
from ml_goodput_measurement.partition import Bucket

from .accounts import moment_ns
from .histories import BASE, JOB, History, MemoryLog, Payload

LOG = "goodput_job"

LIFE = (
    History()
    .start(0)
    .init(0, 5)
    .prepare(5, 8)
    .load(8, 9)
    .step(0, 10)
    .steps(range(1, 10), at=30)
    .save(5, 70, 73)
    .custom(80, 84)
    .load(90, 91)
    .start(300)
    .restore(5, 301, 305)
    .steps(range(5, 21), at=310)
    .end(470)
)
"""Ten steps, the first of 20 s; a crash; 16 steps more, from step 5 on."""


class Clock:
    def __init__(self, now: float = 1000) -> None:
        self.now = now

    def __call__(self) -> int:
        return moment_ns(self.now)


def calculator_of(log: Any, now: float = 1000, job: str = JOB) -> GoodputCalculator:
    return GoodputCalculator(job, LOG, log, _clock_ns=Clock(now))


def calculator(history: History = LIFE, now: float = 1000) -> GoodputCalculator:
    return calculator_of(MemoryLog(history.payloads), now)


# --- What a query returns -----------------------------------------------------------------------------------------


def test_both_documented_spellings_work() -> None:
    """The seed formats the answer as a number; the library of today unpacks it."""
    answer = calculator(History().start(0).steps(range(4), at=0).end(40)).get_job_goodput()
    assert f"{answer:.2f}%" == "100.00%"
    percent, badput, step = answer
    assert (percent, badput, step) == (100.0, {}, 3)
    assert (answer.goodput, answer.badput_breakdown, answer.last_step) == (100.0, {}, 3)


def test_an_answer_is_as_good_as_its_percentage() -> None:
    answer = JobGoodput(61.804, {BadputType.OTHER: 38.196}, 7)
    assert float(answer) == 61.804
    assert (round(answer), round(answer, 1)) == (62, 61.8)
    assert math.isclose(answer, 61.804)
    assert (f"{answer:8.1f}", f"{answer:g}", f"{answer:.0f}") == ("    61.8", "61.804", "62")
    assert f"{answer}" == str(answer) == repr(answer)
    assert "61.804" in f"{answer}"
    assert 50 < answer < 90
    assert 61.804 <= answer <= 61.804
    assert not answer > 61.804
    assert not answer < 61.804
    assert answer >= 61
    assert answer == 61.804
    assert answer != 61
    assert max(answer, 99.0) == 99.0


def test_an_answer_is_still_a_tuple() -> None:
    answer = JobGoodput(50.0, {}, 7)
    assert answer == (50.0, {}, 7)
    assert answer == JobGoodput(50.0, {}, 7)
    assert answer != (50.0, {}, 8)
    assert answer != JobGoodput(50.0, {}, 8)
    assert answer < (50.0, {}, 8)
    assert answer <= (50.0, {}, 7)
    assert answer > (49.0, {}, 8)
    assert answer >= (50.0, {}, 7)
    assert sorted([JobGoodput(60.0, {}, 1), answer])[0] is answer
    assert len(answer) == 3
    assert answer[0] == answer[-3] == 50.0
    assert answer._replace(last_step=8).last_step == 8
    assert answer != "50.0"
    with pytest.raises(TypeError):
        answer < "50.0"  # noqa: B015
    with pytest.raises(ValueError, match=r"Unknown format code|Invalid format"):
        f"{answer:%Y}"


def test_an_answer_can_be_hashed_copied_and_sent() -> None:
    answer = JobGoodput(50.0, {BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 1.5}}, 7)
    assert {answer: 1}[JobGoodput(50.0, answer.badput_breakdown, 7)] == 1
    assert hash(answer) == hash(50.0)  # It equals 50.0.
    for same in (copy.copy(answer), copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
        assert same == answer
        assert type(same) is JobGoodput
        assert f"{same:.1f}" == "50.0"


NORMAL_KINDS = {kind for kind in BadputType if not kind.name.startswith("ELASTIC")}


def test_the_breakdown_has_every_kind_and_sums_to_the_whole() -> None:
    answer = calculator().get_job_goodput(include_badput_breakdown=True)
    assert set(answer.badput_breakdown) == NORMAL_KINDS
    assert answer.last_step == 20
    custom = answer.badput_breakdown[BadputType.CUSTOM_BADPUT_EVENTS]
    assert isinstance(custom, dict)
    assert custom == {}  # The event lies in a step that was wasted: its time is.
    parts = [
        share
        for kind, share in answer.badput_breakdown.items()
        if isinstance(share, float) and kind is not BadputType.DATA_LOADING_ASYNC
    ]
    assert len(parts) == len(NORMAL_KINDS) - 2
    assert answer.goodput + sum(parts) == pytest.approx(100)
    assert answer.badput_breakdown[BadputType.DATA_LOADING_ASYNC] == pytest.approx(100 * 1 / 470)


def test_without_the_breakdown_there_is_none() -> None:
    assert calculator().get_job_goodput().badput_breakdown == {}


def test_a_job_with_nothing_but_steps_has_every_kind_with_zero() -> None:
    answer = calculator(History().start(0).steps(range(4), at=0).end(40)).get_job_goodput(True)
    zeros: dict[BadputType, Any] = dict.fromkeys(NORMAL_KINDS, 0.0)
    assert answer.badput_breakdown == {**zeros, BadputType.CUSTOM_BADPUT_EVENTS: {}}


def test_elastic_kinds_are_there_when_they_have_time() -> None:
    life = History().start(0).steps(range(10), at=0).wait(10, 20).wait(30, 35, "scale_up").reinitialize(40, 42).end(100)
    answer = calculator(life).get_job_goodput(True)
    assert answer.badput_breakdown[BadputType.ELASTIC_SLICE_DOWN] == 10
    assert answer.badput_breakdown[BadputType.ELASTIC_SCALE_UP] == 5
    assert answer.badput_breakdown[BadputType.ELASTIC_REINITIALIZATION] == 2


# --- Details ------------------------------------------------------------------------------------------------------


def test_the_details_have_the_documented_keys_types_and_units() -> None:
    details = calculator().get_job_goodput_details()
    assert list(details) == [kind.value for kind in MetricType]
    assert set(details["goodput_time"]) == {GoodputType.TOTAL}
    assert set(details["badput_time"]) == NORMAL_KINDS
    assert details["total_elapsed_time"] == 470.0
    assert details["disruption_count"] == 1
    assert details["max_productive_step"] == 20
    assert details["total_excluded_time"] == 0.0
    assert details["ideal_step_time"] == 10.0
    assert {type(value) for value in (details["max_productive_step"], details["disruption_count"])} == {int}
    badput = details["badput_time"]
    assert badput[BadputType.TPU_INITIALIZATION] == 5.0
    assert badput[BadputType.TRAINING_PREP] == 3.0
    assert badput[BadputType.DATA_LOADING_SYNC] == 1.0
    assert badput[BadputType.DATA_LOADING_ASYNC] == 1.0
    assert badput[BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME] == 4.0
    assert badput[BadputType.WASTED_PROGRESS_FROM_DISRUPTION] == 50.0
    total = sum(time for kind, time in badput.items() if isinstance(time, float) and "ASYNC" not in kind.name)
    assert total + details["goodput_time"][GoodputType.TOTAL] == pytest.approx(470)


def test_the_deviations_are_of_every_kept_step_that_another_follows() -> None:
    deviations = calculator().get_job_goodput_details()["step_time_deviation"]
    assert set(deviations) == set(range(20))  # Step 20 is followed by none.
    assert deviations[0] == 10.0
    assert {deviations[step] for step in range(5, 20)} == {0.0}
    assert len(deviations) == 20
    assert repr(dict(deviations)) == repr(deviations)
    with pytest.raises(KeyError):
        deviations[20]


def test_details_are_of_the_last_query_without_another_query() -> None:
    log = MemoryLog(LIFE.payloads)
    subject = calculator_of(log)
    first = subject.get_job_goodput_details()  # No query yet: so it asks.
    read = log.entries_read
    assert read == len(LIFE.payloads)
    log.payloads += History().start(500).steps(range(21, 25), at=500).payloads
    assert subject.get_job_goodput_details() == first
    assert log.entries_read == read
    subject.get_job_goodput()
    assert subject.get_job_goodput_details()["max_productive_step"] == 23


@pytest.mark.parametrize("kind", [goodput.GoodputCalculator, goodput_elastic.ElasticGoodputCalculator])
def test_the_details_of_a_job_without_records_are_zeros(kind: type[GoodputCalculator]) -> None:
    log = MemoryLog()
    subject = kind(JOB, "log", log)
    details = subject.get_job_goodput_details()
    assert details["goodput_time"] == {GoodputType.TOTAL: 0.0}
    badput = dict(details["badput_time"])
    assert badput.pop(BadputType.CUSTOM_BADPUT_EVENTS) == {}
    assert set(badput.values()) == {0.0}
    assert dict(details["step_time_deviation"]) == {}
    rest = set(details) - {"goodput_time", "badput_time", "step_time_deviation"}
    assert {name: details[name] for name in rest} == dict.fromkeys(rest, 0)  # type: ignore[literal-required]
    log.payloads += LIFE.payloads
    known = subject.get_job_goodput_details()
    assert known["max_productive_step"] == 20, "the next call asks again"
    assert set(known) == set(details)
    assert set(known["badput_time"]) == set(details["badput_time"])


def test_the_details_are_zeros_while_the_log_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenLog(MemoryLog):
        def read_cloud_logging_entries(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError("no network")

    assert GoodputCalculator(JOB, "log", BrokenLog()).get_job_goodput_details()["total_elapsed_time"] == 0.0
    assert "The details of job 'job' are not known: no network" in caplog.text


def test_details_after_a_report_are_there_too() -> None:
    subject = calculator()
    report = subject.report()
    details = subject.get_job_goodput_details()
    assert details["total_elapsed_time"] * 1e9 == report.wall_ns
    assert details["ideal_step_time"] == report.ideal_step_seconds


def test_details_can_be_copied_and_sent() -> None:
    details = calculator().get_job_goodput_details()
    for same in (copy.deepcopy(details), pickle.loads(pickle.dumps(details))):
        assert same == details
    assert json.loads(json.dumps(dict(details["step_time_deviation"])))["0"] == 10.0


def test_a_configured_ideal_step_time_is_what_deviations_are_from() -> None:
    subject = calculator()
    subject.get_job_goodput(configured_ideal_step_time=8)
    details = subject.get_job_goodput_details()
    assert details["ideal_step_time"] == 8
    assert details["step_time_deviation"][0] == 12
    assert details["step_time_deviation"][7] == 2
    subject.get_job_goodput()
    assert subject.get_job_goodput_details()["ideal_step_time"] == 10


@pytest.mark.parametrize("seconds", ["5", -1, float("nan"), float("inf"), True, [5], datetime.timedelta(seconds=5)])
def test_an_ideal_step_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="configured_ideal_step_time must be a number of seconds"):
        calculator().get_job_goodput(configured_ideal_step_time=seconds)


def test_a_job_without_a_complete_step_has_no_ideal_step_time() -> None:
    details = calculator(History().start(0).init(0, 5).step(0, 6)).get_job_goodput_details()
    assert details["ideal_step_time"] == 0.0
    assert dict(details["step_time_deviation"]) == {}


def test_the_report_and_the_answers_agree() -> None:
    subject = calculator()
    report, answer = subject.report(), subject.get_job_goodput(True)
    assert report.goodput_percent == answer.goodput
    assert report.last_step == answer.last_step
    assert report.buckets[Bucket.TPU_INITIALIZATION] == 5 * 10**9
    assert sum(report.buckets.values()) == report.wall_ns == sum(p.end_ns - p.start_ns for p in report.timeline)


# --- Arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "", " \n", 5, b"job", ["job"], object(), "".join])
@pytest.mark.parametrize("argument", ["job_name", "logger_name"])
def test_a_name_that_is_not_a_text_is_refused(argument: str, name: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"expected {argument} to be text that is not empty") as caught:
        GoodputCalculator(**{"job_name": JOB, "logger_name": LOG, argument: name})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DiagnosticsError)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("logger", [5, "log", object(), MemoryLog])
def test_a_cloud_logger_that_cannot_be_read_is_refused(logger: Any) -> None:
    if logger is MemoryLog:
        logger = type("Writer", (), {"write_cloud_logging_entry": None, "read_cloud_logging_entries": 5})()
    with pytest.raises(ConfigurationError, match=r"without read_cloud_logging_entries\(\)"):
        GoodputCalculator(JOB, LOG, logger)


@pytest.mark.parametrize(
    "period", [0, -1, float("nan"), float("inf"), 1e11, True, "7 days", datetime.timedelta(0), datetime.timedelta(-1)]
)
def test_a_retention_that_is_none_is_refused(period: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected max_logs_retention_period to be "):
        GoodputCalculator(JOB, LOG, max_logs_retention_period=period)


@pytest.mark.parametrize("period", [None, 7 * 24 * 60 * 60, 0.5, datetime.timedelta(days=7)])
def test_a_retention_is_a_timedelta_or_seconds(period: Any) -> None:
    log = MemoryLog(LIFE.payloads)
    assert GoodputCalculator(JOB, LOG, log, False, period).get_job_goodput().last_step == 20


def test_arguments_stand_where_the_public_library_has_them() -> None:
    log = MemoryLog(LIFE.payloads)
    subject = GoodputCalculator(JOB, LOG, log, True, datetime.timedelta(days=1), "gs://bucket/run", "/tmp")
    assert (subject.job_name, subject.using_pathways) == (JOB, True)
    assert subject.get_job_goodput(True, 5.0).last_step == 20


NAMES = [
    'a "quoted" job',
    "it's",
    "a/b/../c",
    "back\\slash",
    "火 and 🔥",
    "new\nline",
    "nul\0",
    "two words",
    "%2F",
    "a" * 10_000,
]


@pytest.mark.parametrize("name", [*NAMES, "lone \udc80 surrogate"], ids=lambda name: name[:20].encode("unicode_escape"))
def test_a_job_and_a_log_may_have_any_name(name: str) -> None:
    """The recorder, the journal and the saved state all keep it, beside a job of another name."""
    for job in (name, name + "x"):
        recorder = goodput.GoodputRecorder(job, name, True)
        recorder.record_job_start_time(BASE)
        for step in range(3 if job == name else 9):
            recorder.record_step_start_time(step, BASE + step)
        recorder.record_job_end_time(BASE + 10)
    for _ in range(2):
        subject = GoodputCalculator(name, name)
        assert subject.report().steps_kept == 3
        assert subject.report().job_name == subject.job_name == recorder.job_name.removesuffix("x")
        subject.save_state()


# --- What cannot be answered --------------------------------------------------------------------------------------


def test_a_job_without_records_is_an_error_with_a_remedy() -> None:
    subject = GoodputCalculator("jbo", LOG)
    with pytest.raises(goodput.NoGoodputError) as caught:
        subject.get_job_goodput()
    message = str(caught.value)
    assert "job 'jbo' in log 'goodput_job'" in message
    assert os.environ["ML_DIAGNOSTICS_DIR"] in message
    assert "Was its GoodputRecorder given the same two names and logging_enabled=True?" in message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, goodput.GoodputError)
    with pytest.raises(goodput.NoGoodputError):
        subject.report()


def test_an_error_about_a_name_without_end_is_short() -> None:
    with pytest.raises(goodput.NoGoodputError) as caught:
        GoodputCalculator("j" * 10_000, "l" * 10_000).get_job_goodput()
    assert len(str(caught.value)) < 1500


def test_a_job_of_one_moment_is_an_error_and_not_a_division_by_zero() -> None:
    subject = calculator(History().start(0).end(0))
    with pytest.raises(goodput.NoGoodputError, match="Total job time is zero"):
        subject.get_job_goodput()


def test_a_calculator_goes_on_after_an_error() -> None:
    log = MemoryLog()
    subject = calculator_of(log)
    for _ in range(2):
        with pytest.raises(goodput.NoGoodputError, match="Searched: the cloud_logger that was given, a MemoryLog"):
            subject.get_job_goodput()
    log.payloads += LIFE.payloads
    assert subject.get_job_goodput().last_step == 20


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(), st.integers(), st.dictionaries(st.text(max_size=5), st.text()))))
def test_what_a_cloud_logger_returns_besides_does_no_harm(junk: list[Any]) -> None:
    log = MemoryLog([*junk, *LIFE.payloads, *({"job_name": JOB, "job_start_time": item} for item in junk)])
    assert calculator_of(log).get_job_goodput().last_step == 20


# --- Objects of the user's ----------------------------------------------------------------------------------------


class StepwiseLog:
    """A log with three payloads for each call, and any cursor; it has no flush, and does not write."""

    def __init__(self, cursors: Iterator[Any]) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []
        self._payloads = list(LIFE.payloads)
        self._cursors = cursors

    def read_cloud_logging_entries(
        self, start_time: Any, end_time: Any, last_entry_info: Any
    ) -> tuple[list[Payload], Any]:
        self.calls.append((start_time, end_time, last_entry_info))
        payloads, self._payloads = self._payloads[:3], self._payloads[3:]
        return payloads, next(self._cursors)


WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    "cursor",
    [(None, 17), (WHEN, "id"), (WHEN, None), (WHEN, ("a", 3)), (None, b"id"), [WHEN, 5], ("any", ...)],
    ids=repr,
)
def test_a_cursor_is_given_back_as_it_was_whatever_it_holds(cursor: Any) -> None:
    log = StepwiseLog(iter([cursor] * 20))
    subject = calculator_of(log)
    for _ in range(20):
        subject.get_job_goodput()
    assert log.calls[0] == (None, None, None)
    assert {repr(call[2]) for call in log.calls[1:]} == {repr(tuple(cursor))}
    assert subject.get_job_goodput_details()["max_productive_step"] == 20


@pytest.mark.parametrize("nothing", [(None, None), None, []])
def test_a_cursor_of_nothing_leaves_the_last_one(nothing: Any) -> None:
    log = StepwiseLog(iter([nothing, (WHEN, 1), nothing, nothing]))
    subject = calculator_of(log)
    for _ in range(4):
        subject.get_job_goodput()
    assert [call[2] for call in log.calls] == [None, None, (WHEN, 1), (WHEN, 1)]


def test_a_cloud_logger_that_returns_everything_each_time_is_read_right() -> None:
    class Forgetful(MemoryLog):
        def read_cloud_logging_entries(self, *_: Any) -> Any:
            return list(self.payloads), (None, None)

    log = Forgetful(LIFE.payloads)
    subject = calculator_of(log)
    first = subject.get_job_goodput(True)
    assert subject.get_job_goodput(True) == first == calculator().get_job_goodput(True)


def test_an_error_of_a_cloud_logger_is_the_callers_unchanged_and_the_next_query_works() -> None:
    class ShakyError(Exception):
        pass

    class Shaky(MemoryLog):
        error: Exception | None = None

        def read_cloud_logging_entries(self, *arguments: Any) -> Any:
            if self.error:
                raise self.error
            return super().read_cloud_logging_entries(*arguments)

    log = Shaky(LIFE.payloads[:20])
    subject = calculator_of(log)
    subject.get_job_goodput()
    log.error, log.payloads = ShakyError("out of order"), list(LIFE.payloads)
    with pytest.raises(ShakyError) as caught:
        subject.get_job_goodput()
    assert caught.value is log.error
    log.error = None
    assert subject.get_job_goodput().last_step == 20
    assert log.entries_read == len(LIFE.payloads)  # Nothing was read twice.


def test_an_empty_log_that_is_falsy_is_still_the_users_log() -> None:
    class Sized(MemoryLog):
        def __len__(self) -> int:
            return len(self.payloads)

    log = Sized()
    subject = calculator_of(log)
    log.payloads += LIFE.payloads
    assert subject.get_job_goodput().last_step == 20


def test_a_recorder_and_a_calculator_share_an_object_of_the_users() -> None:
    log = MemoryLog()
    recorder = goodput.GoodputRecorder(JOB, LOG, True, log)
    recorder.record_job_start_time(BASE)
    for step in range(5):
        recorder.record_step_start_time(step, BASE + 10 * step)
    recorder.record_job_end_time(BASE + 50)
    assert calculator_of(log).get_job_goodput() == (100.0, {}, 4)


def test_with_an_object_of_the_users_nothing_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / "never"))
    subject = GoodputCalculator(JOB, LOG, MemoryLog(LIFE.payloads), cache_dir=str(tmp_path / "cache"))
    subject.report()
    subject.save_state()
    assert list(tmp_path.iterdir()) == []


# --- Threads and clocks -------------------------------------------------------------------------------------------


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    """Threads take turns after a microsecond, so that they meet where they may."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_quick_switches")
def test_threads_may_ask_one_calculator_at_once() -> None:
    log = MemoryLog(History().start(0).steps(range(50), at=0).payloads)
    subject = calculator_of(log, now=100_000)
    failures: list[BaseException] = []
    stop = threading.Event()

    def ask() -> None:
        last = 0
        try:
            while not stop.is_set():
                report = subject.report()
                assert sum(report.buckets.values()) == report.wall_ns
                assert sum(piece.end_ns - piece.start_ns for piece in report.timeline) == report.wall_ns
                step = subject.get_job_goodput(True).last_step
                assert step >= last
                last = step
                details = subject.get_job_goodput_details()
                assert set(details["step_time_deviation"]) >= set(range(last - 1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for step in range(50, 400):
        log.write_cloud_logging_entry(History().step(step, 10.0 * step).payloads[0])
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert subject.get_job_goodput().last_step == 398


def test_a_clock_that_runs_backwards_between_queries_breaks_no_sum() -> None:
    log = MemoryLog(History().start(0).steps(range(10), at=10).payloads)
    clock = Clock()
    subject = GoodputCalculator(JOB, LOG, log, _clock_ns=clock)
    for now in (1000, 150, 100, 99, -5000, 1000):
        clock.now = now
        report = subject.report()
        assert report.end_ns == moment_ns(max(now, 100))  # Not before the last thing that was recorded.
        assert sum(report.buckets.values()) == report.wall_ns
        assert report.steps_kept == 9


def test_a_job_with_a_clock_ahead_of_ours_is_reported_up_to_its_last_event() -> None:
    report = calculator(History().start(0).steps(range(5), at=3600), now=0).report()
    assert (report.running, report.wall_ns) == (True, 3640 * 10**9)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
@pytest.mark.parametrize(
    "function",
    ["ml_goodput_measurement._ledger.recorders.Recorders.add", "ml_goodput_measurement._ledger.books.Books.update"],
)
def test_an_interrupted_query_is_not_saved(
    error: type[BaseException], function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = goodput.GoodputRecorder("run", "goodput_run", True)
    recorder.record_job_start_time(1e9)
    calculator = GoodputCalculator("run", "goodput_run")
    for step in range(10):
        recorder.record_step_start_time(step, 1e9 + 10 * step)
    calculator.get_job_goodput()
    for step in range(10, 20):
        recorder.record_step_start_time(step, 1e9 + 10 * step)
    recorder.record_job_end_time(1e9 + 200)
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise error

        broken.setattr(function, fail)
        with pytest.raises(error):
            calculator.get_job_goodput()
        calculator.save_state()
    for subject in (calculator, GoodputCalculator("run", "goodput_run")):
        assert subject.get_job_goodput() == (100.0, {}, 19)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "1", None, 1e11, [1]])
def test_a_rolling_window_has_a_length(wrong: Any) -> None:
    calculator = GoodputCalculator("run", "goodput_run", cloud_logger=MemoryLog(History("run").start(0).payloads))
    with pytest.raises(ConfigurationError, match="window_seconds"):
        calculator.snapshot(window_seconds=[wrong])


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    log = MemoryLog(History("run").start(0).steps(range(5), at=0).payloads)
    calculator = GoodputCalculator("run", "log", log, max_logs_retention_period=numpy.float32(1e6))
    calculator.get_job_goodput(configured_ideal_step_time=numpy.float32(1.5))
    assert calculator.get_job_goodput_details()["ideal_step_time"] == 1.5


def test_a_report_leaves_the_details_as_they_are() -> None:
    history = History("run").start(0).steps(range(10), at=0).end(100)
    calculator = GoodputCalculator("run", "log", MemoryLog(history.payloads))
    calculator.get_job_goodput()
    calculator.report(exclusions=[tuple(datetime.datetime.fromtimestamp(BASE + at) for at in (0, 50))])  # type: ignore[list-item]
    assert calculator.get_job_goodput_details()["total_excluded_time"] == 0.0
