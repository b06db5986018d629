"""Excluded time is taken out of what it lies in and out of the whole, and nothing else changes."""

from __future__ import annotations

import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from ml_goodput_measurement import goodput
from ml_goodput_measurement.exceptions import ConfigurationError, NoGoodputError
from ml_goodput_measurement.partition import Bucket

from .accounts import calculator_of, flat
from .histories import BASE, History, MemoryLog
from .test_intervals import UTC, at

# 100 s of training, an outage of 900 s, 100 s of training.
OUTAGE = History().start(0).steps(range(10), at=0).start(1000).steps(range(10, 20), at=1000).end(1100)


def subject(history: History, tmp_path: Path, now: float = 5000) -> goodput.GoodputCalculator:
    return calculator_of(MemoryLog(history.payloads), now, tmp_path)


def test_an_excluded_outage_costs_no_goodput(tmp_path: Path) -> None:
    calculator = subject(OUTAGE, tmp_path)
    percent, breakdown, max_step, excluded = calculator.get_job_goodput_with_exclusions([(at(100), at(1000))], True)
    assert (percent, max_step, excluded) == (100.0, 19, 900.0)
    assert flat(breakdown)["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == 0
    assert calculator.get_job_goodput().goodput == pytest.approx(100 * 200 / 1100)


def test_no_exclusions_change_nothing(tmp_path: Path) -> None:
    calculator = subject(OUTAGE, tmp_path)
    percent, breakdown, max_step, excluded = calculator.get_job_goodput_with_exclusions([], True)
    assert (percent, breakdown, max_step) == calculator.get_job_goodput(True)
    assert excluded == 0


def test_saves_and_restores_are_also_reported_with_exclusions(tmp_path: Path) -> None:
    history = History().start(0).step(0, 0).steps(range(1, 11), at=5).save(4, 37, 39).end(105)
    percent, breakdown, _, excluded = subject(history, tmp_path).get_job_goodput_with_exclusions(
        [(at(45), at(55))], True
    )
    assert excluded == 10
    assert percent == pytest.approx(100 * 93 / 95)
    assert flat(breakdown)["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == pytest.approx(100 * 2 / 95)


def test_time_that_lies_in_two_activities_is_excluded_once(tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=0).load(42, 45).end(100)
    assert subject(history, tmp_path).get_job_goodput_with_exclusions([(at(40), at(46))])[3] == 6


def test_time_without_records_is_also_excluded(tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=500).end(600)
    percent, _, _, excluded = subject(history, tmp_path).get_job_goodput_with_exclusions([(at(0), at(500))])
    assert (percent, excluded) == (100.0, 500.0)


def test_only_what_lies_in_the_jobs_life_is_excluded(tmp_path: Path) -> None:
    intervals = [(at(-1000), at(0)), (at(1050), at(4000)), (at(-9), at(10))]
    assert subject(OUTAGE, tmp_path).get_job_goodput_with_exclusions(intervals)[3] == 10 + 50


def test_overlapping_and_touching_intervals_count_once(tmp_path: Path) -> None:
    intervals = [(at(300), at(500)), (at(200), at(400)), (at(500), at(600)), (at(200), at(210))]
    assert subject(OUTAGE, tmp_path).get_job_goodput_with_exclusions(intervals)[3] == 400


def test_any_time_zone_will_do_and_naive_times_are_local(tmp_path: Path) -> None:
    calculator = subject(OUTAGE, tmp_path)
    expected = calculator.get_job_goodput_with_exclusions([(at(100), at(1000))], True)
    zones = [ZoneInfo("UTC"), ZoneInfo("Asia/Kolkata"), datetime.timezone(datetime.timedelta(hours=5))]
    for zone in zones:
        shifted = (at(100).astimezone(zone), at(1000).astimezone(zone))
        assert calculator.get_job_goodput_with_exclusions([shifted], True) == expected
    naive = (datetime.datetime.fromtimestamp(BASE + 100), datetime.datetime.fromtimestamp(BASE + 1000))
    assert calculator.get_job_goodput_with_exclusions([naive], True) == expected


def test_an_invalid_interval_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = [(at(50), at(20)), (at(60), at(60)), "junk", (1, None), None]
    percent, _, _, excluded = subject(OUTAGE, tmp_path).get_job_goodput_with_exclusions(
        [*wrong, (at(100), at(1000))]  # type: ignore[list-item]
    )
    assert (percent, excluded) == (100.0, 900.0)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == len(wrong)


def test_a_job_that_is_excluded_whole_has_no_goodput(tmp_path: Path) -> None:
    with pytest.raises(NoGoodputError, match="all of it is excluded"):
        subject(OUTAGE, tmp_path).get_job_goodput_with_exclusions([(at(0), at(1100))])


def test_a_wrong_ideal_step_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="configured_ideal_step_time"):
        subject(OUTAGE, tmp_path).get_job_goodput_with_exclusions([], False, "fast")  # type: ignore[arg-type]


def test_a_job_that_resumed_after_its_end_stays_below_100_percent(tmp_path: Path) -> None:
    history = History().start(0).steps(range(10), at=0).end(100).start(200).steps(range(10, 20), at=200).end(300)
    percent, _, _, excluded = subject(history, tmp_path).get_job_goodput_with_exclusions([(at(120), at(130))])
    assert (percent, excluded) == (pytest.approx(100 * 200 / 290), 10.0)


def test_details_then_have_the_excluded_time(tmp_path: Path) -> None:
    calculator = subject(OUTAGE, tmp_path)
    calculator.get_job_goodput_with_exclusions([(at(100), at(1000))])
    details = calculator.get_job_goodput_details()
    assert details["total_excluded_time"] == 900.0
    assert details["total_elapsed_time"] == 200.0
    calculator.get_job_goodput()
    assert calculator.get_job_goodput_details()["total_excluded_time"] == 0.0


def test_the_report_has_excluded_time_in_its_own_bucket(tmp_path: Path) -> None:
    report = subject(OUTAGE, tmp_path).report(exclusions=[(at(90), at(1000))])
    assert report.buckets[Bucket.EXCLUDED] == 910 * 10**9
    assert report.goodput_percent == 100.0
    assert sum(report.buckets.values()) == report.wall_ns
    excluded = [piece for piece in report.timeline if piece.bucket is Bucket.EXCLUDED]
    assert sum(piece.end_ns - piece.start_ns for piece in excluded) == 910 * 10**9
    assert sum(attempt.buckets.get(Bucket.EXCLUDED, 0) for attempt in report.attempts) == 910 * 10**9
    assert report.timeline[0].start_ns == round((BASE) * 1e9)
    assert datetime.datetime.fromtimestamp(report.start_ns / 1e9, UTC) == at(0)
