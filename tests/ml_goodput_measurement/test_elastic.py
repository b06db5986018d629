"""Elastic jobs: waiting for slices and reinitialisation have their own buckets, in the same partition."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement import goodput, goodput_elastic
from ml_goodput_measurement.goodput import BadputType

from .accounts import REINIT, SCALE_UP, SLICE_DOWN, account_of, flat, moment_ns
from .histories import BASE, History, MemoryLog
from .test_intervals import at


def counts(history: History, second: float, active: int, total: int, available: int) -> History:
    return history.add(
        active_slices=active,
        total_slices=total,
        available_slices=available,
        elastic_slice_counts_timestamp=BASE + second,
    )


def calculator(history: History, now: float, tmp_path: Path) -> goodput_elastic.ElasticGoodputCalculator:
    return goodput_elastic.ElasticGoodputCalculator(
        "job",
        "log",
        cloud_logger=MemoryLog(history.payloads),
        cache_dir=str(tmp_path),
        _clock_ns=lambda: moment_ns(now),
    )


def test_recorded_events_give_the_same_numbers(tmp_path: Path) -> None:
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    recorder.record_job_start_time(at(0))
    recorder.record_elastic_slice_counts(2, 4, 3, at(0))
    recorder.record_elastic_wait_start_time("slice_down", at(10))
    recorder.record_elastic_wait_end_time("slice_down", at(30))
    recorder.record_elastic_wait_start_time("My_Scale_Up", start_time=at(40))
    recorder.record_elastic_wait_end_time("My_Scale_Up", end_time=at(45))
    recorder.record_elastic_reinit_start_time(at(50))
    recorder.record_elastic_reinit_end_time(end_time=at(57))
    recorder.record_elastic_slice_counts(active_slices=4, total_slices=4, available_slices=4, timestamp=at(75))
    recorder.record_job_end_time(at(100))
    subject = goodput_elastic.ElasticGoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
    subject.get_job_goodput()
    details = subject.get_job_goodput_details()
    assert details["badput_time"][BadputType.ELASTIC_SLICE_DOWN] == 20
    assert details["badput_time"][BadputType.ELASTIC_SCALE_UP] == 5
    assert details["badput_time"][BadputType.ELASTIC_REINITIALIZATION] == 7
    assert details["stepping_slice_efficiency"] == pytest.approx((75 * 2 / 4 + 25) / 100)
    assert details["available_slice_efficiency"] == pytest.approx((75 * 3 / 4 + 25) / 100)


def test_the_keys_on_the_wire_are_the_public_ones() -> None:
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    recorder.record_elastic_slice_counts(2, 4, 3, at(0))
    recorder.record_elastic_wait_start_time('a "type"', at(1))
    recorder.record_elastic_wait_end_time('a "type"', at(2))
    recorder.record_elastic_reinit_start_time(at(3))
    recorder.record_elastic_reinit_end_time(at(4))
    head = {"job_name": "job"}
    wait = {**head, "elastic_wait_event_type": 'a "type"'}
    assert log.payloads == [
        {
            **head,
            "active_slices": 2,
            "total_slices": 4,
            "available_slices": 3,
            "elastic_slice_counts_timestamp": BASE,
        },
        {**wait, "elastic_wait_start_time": BASE + 1},
        {**wait, "elastic_wait_end_time": BASE + 2},
        {**head, "elastic_reinit_start_time": BASE + 3},
        {**head, "elastic_reinit_end_time": BASE + 4},
    ]


def test_a_wait_inside_a_step_is_badput_and_not_productive_too() -> None:
    history = History().start(0).steps(range(4), at=0, each=40).wait(50, 70).end(160)
    account = account_of(history)
    assert account.seconds[SLICE_DOWN] == 20
    assert sum(account.seconds.values()) == 160


def test_initialisation_within_a_reinitialisation_counts_once() -> None:
    history = History().start(0).reinitialize(0, 30).init(5, 15).prepare(15, 40).steps(range(3), at=40).end(70)
    account = account_of(history)
    assert account.seconds[REINIT] == 30
    assert "TPU_INITIALIZATION" not in {bucket.value for bucket in account.seconds}
    assert sum(account.seconds.values()) == 70


def test_waits_are_paired_by_their_type() -> None:
    history = History().start(0).add(elastic_wait_event_type="scale_up", elastic_wait_start_time=BASE + 10)
    history.add(elastic_wait_event_type="slice_down", elastic_wait_start_time=BASE + 20)
    history.add(elastic_wait_event_type="scale_up", elastic_wait_end_time=BASE + 30)
    history.add(elastic_wait_event_type="slice_down", elastic_wait_end_time=BASE + 50).end(100)
    account = account_of(history)
    assert account.seconds[SLICE_DOWN] == 30
    assert account.seconds[SCALE_UP] == 10


def test_the_three_buckets_are_there_also_where_nothing_was_waited_for(tmp_path: Path) -> None:
    history = History().start(0).steps(range(5), at=0).end(50)
    _, breakdown, _ = calculator(history, 60, tmp_path).get_job_goodput(True)
    assert set(breakdown) == set(BadputType)
    assert flat(breakdown)["ELASTIC_SLICE_DOWN"] == 0


def test_time_before_the_first_report_of_slices_is_left_out(tmp_path: Path) -> None:
    history = counts(History().start(0), 60, 1, 2, 2).end(100)
    subject = calculator(history, 200, tmp_path)
    subject.get_job_goodput()
    details = subject.get_job_goodput_details()
    assert (details["stepping_slice_efficiency"], details["available_slice_efficiency"]) == (0.5, 1.0)


def test_a_job_without_reports_has_no_efficiency(tmp_path: Path) -> None:
    subject = calculator(History().start(0).steps(range(5), at=0).end(50), 60, tmp_path)
    assert subject.get_job_goodput_details()["stepping_slice_efficiency"] == 0.0
    assert subject.snapshot().cumulative is not None
    assert subject.snapshot().cumulative.slice_efficiency is None


def test_an_interval_has_the_efficiency_of_its_own_time(tmp_path: Path) -> None:
    history = counts(counts(History().start(0), 0, 1, 4, 2), 50, 4, 4, 4).end(100)
    subject = calculator(history, 200, tmp_path)
    details = subject.get_interval_metric_details(at(25), at(75))
    assert details["stepping_slice_efficiency"] == pytest.approx((1 / 4 + 1) / 2)
    assert details["available_slice_efficiency"] == pytest.approx((2 / 4 + 1) / 2)
    assert subject.get_interval_metric_details(at(300), at(400))["stepping_slice_efficiency"] == 0.0


def test_only_the_jobs_life_and_what_is_not_excluded_of_it_counts(tmp_path: Path) -> None:
    history = counts(counts(counts(History().start(0), 0, 4, 4, 4), 60, 1, 4, 8), 90, 4, 4, 4).end(100)
    subject = calculator(history, 2000, tmp_path)
    details = subject.get_interval_metric_details(at(50), at(1000))
    assert details["stepping_slice_efficiency"] == pytest.approx((10 + 30 / 4 + 10) / 50)
    assert details["available_slice_efficiency"] == 1.0
    subject.get_job_goodput_with_exclusions([(at(60), at(90))])
    assert subject.get_job_goodput_details()["stepping_slice_efficiency"] == 1.0


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 0, 1, 1, 2, 2]])
def test_reports_may_be_late_and_duplicated(order: list[int], tmp_path: Path) -> None:
    log = MemoryLog(History().start(0).end(90).payloads)
    subject = goodput_elastic.ElasticGoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
    reports = [counts(History(), second, active, 4, 4).payloads for second, active in ((0, 4), (30, 2), (60, 1))]
    for index in order:
        log.payloads += reports[index]
        subject.get_job_goodput()
    assert subject.get_job_goodput_details()["stepping_slice_efficiency"] == pytest.approx((1 + 0.5 + 0.25) / 3)


@pytest.mark.parametrize(
    "wrong", [{"total_slices": 0}, {"active_slices": -1}, {"active_slices": 9}, {"total_slices": "x"}]
)
def test_a_senseless_report_is_counted_and_passed_over(wrong: dict[str, Any], tmp_path: Path) -> None:
    good = {"active_slices": 1, "total_slices": 2, "available_slices": 2, "elastic_slice_counts_timestamp": BASE + 1}
    history = History().start(0).add(**{**good, **wrong}).end(100)
    subject = calculator(history, 200, tmp_path)
    assert subject.get_job_goodput_details()["available_slice_efficiency"] == 0.0
    assert "1 entries were passed over: malformed entry" in subject.report().notes


def test_an_elastic_recorder_that_is_not_enabled_records_nothing() -> None:
    log = MemoryLog()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", False, log)
    recorder.record_elastic_slice_counts(1, 1, 1)
    recorder.record_elastic_wait_start_time("scale_up")
    recorder.record_elastic_wait_end_time("scale_up")
    recorder.record_elastic_reinit_start_time()
    recorder.record_elastic_reinit_end_time(datetime.datetime.now(datetime.timezone.utc))
    assert log.payloads == []


def test_the_plain_calculator_also_reports_elastic_time(tmp_path: Path) -> None:
    log = MemoryLog(History().start(0).steps(range(4), at=0, each=40).wait(50, 70).end(160).payloads)
    subject = goodput.GoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
    percent, breakdown, _ = subject.get_job_goodput(True)
    assert breakdown[BadputType.ELASTIC_SLICE_DOWN] == 12.5
    assert percent + sum(flat(breakdown).values()) == pytest.approx(100)
