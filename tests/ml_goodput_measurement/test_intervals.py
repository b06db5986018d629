"""The goodput of a window: the requested window is the whole, and its parts follow from the whole history."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement import goodput
from ml_goodput_measurement.exceptions import ConfigurationError, NoGoodputError

from .accounts import calculator_of, flat
from .histories import BASE, History, MemoryLog

UTC = datetime.timezone.utc


def at(second: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE + second, UTC)


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    def asker(history: History, now: float) -> goodput.GoodputCalculator:
        return calculator_of(MemoryLog(history.payloads), now, tmp_path)

    return asker


STEADY = History().start(0).steps(range(100), at=0).end(1000)


def test_the_window_that_was_asked_for_is_the_denominator(ask: Any) -> None:
    percent, breakdown, last_step, seconds, disruptions = ask(STEADY, 2000).get_job_goodput_interval(at(203), at(403))
    assert (percent, last_step, seconds, disruptions) == (100.0, 39, 200.0, 0)
    assert sum(value for name, value in flat(breakdown).items() if name != "DATA_LOADING_ASYNC") == 0


def test_time_before_and_after_the_job_is_other(ask: Any) -> None:
    percent, breakdown, last_step, seconds, _ = ask(STEADY, 2000).get_job_goodput_interval(at(-500), at(1500))
    assert (percent, last_step, seconds) == (50.0, 99, 2000.0)
    assert flat(breakdown)["OTHER"] == 50.0


def test_what_is_still_to_come_is_in_no_window(ask: Any) -> None:
    history = History().start(0).steps(range(10), at=0)
    percent, _, _, seconds, _ = ask(history, 90).get_job_goodput_interval(at(40), at(4000))
    assert (percent, seconds) == (100.0, 50.0)


def test_a_window_without_an_entry_is_answered_from_what_lies_around_it(ask: Any) -> None:
    history = History().start(0).step(0, 0).step(1, 1000).step(2, 2000).end(3000)
    percent, _, last_step, seconds, _ = ask(history, 3000).get_job_goodput_interval(at(1200), at(1300))
    assert (percent, last_step, seconds) == (100.0, 0, 100.0)


def test_shares_of_a_window_sum_to_all_of_it(ask: Any) -> None:
    history = History().start(0).init(0, 20).prepare(20, 30).load(30, 35).step(0, 40).steps(range(1, 20), at=90)
    history.save(5, 140, 145).custom(200, 260).start(400).init(400, 410).restore(11, 410, 415).steps(
        range(12, 30), at=420
    ).end(600)
    percent, breakdown, _, _, disruptions = ask(history, 600).get_job_goodput_interval(at(10), at(580))
    shares = {name: value for name, value in flat(breakdown).items() if name != "DATA_LOADING_ASYNC"}
    assert percent + sum(shares.values()) == pytest.approx(100)
    assert min(shares[name] for name in shares if not name.startswith("ELASTIC")) > 0
    assert disruptions == 1


def test_details_have_the_same_values_by_name(ask: Any) -> None:
    details = ask(STEADY, 2000).get_interval_metric_details(at(900), at(1100))
    assert details["interval_goodput"] == {goodput.GoodputType.TOTAL: 50.0}
    assert details["interval_badput"][goodput.BadputType.OTHER] == 50.0
    assert details["interval_size"] == 200.0
    assert set(details) == {metric.value for metric in goodput.IntervalMetricType}


@pytest.mark.parametrize(("first", "last"), [(-500, -400), (1001, 1500), (300, 300), (300, 200)])
def test_a_window_outside_of_the_job_has_empty_details_and_a_query_raises(ask: Any, first: float, last: float) -> None:
    calculator = ask(STEADY, 2000)
    details = calculator.get_interval_metric_details(at(first), at(last))
    assert (details["interval_goodput"], details["interval_badput"]) == ({}, {})
    expected = NoGoodputError if first < last else ConfigurationError
    message = "No log entries found within the interval window between" if first < last else "Start time is on or after"
    with pytest.raises(expected, match=message) as caught:
        calculator.get_job_goodput_interval(at(first), at(last))
    assert isinstance(caught.value, ValueError)


def test_a_job_without_records_is_an_error(ask: Any) -> None:
    with pytest.raises(NoGoodputError, match="Nothing was recorded"):
        ask(History(), 0).get_job_goodput_interval(at(0), at(1))


def test_naive_datetimes_are_local_time_and_seconds_are_taken_too(ask: Any) -> None:
    calculator = ask(STEADY, 2000)
    asked = calculator.get_job_goodput_interval(at(203), at(403))
    naive = [datetime.datetime.fromtimestamp(BASE + second) for second in (203, 403)]
    assert calculator.get_job_goodput_interval(*naive) == asked
    assert calculator.get_job_goodput_interval(BASE + 203, BASE + 403) == asked
    zone = datetime.timezone(datetime.timedelta(hours=-7))
    assert calculator.get_job_goodput_interval(at(203).astimezone(zone), at(403)) == asked
    for wrong in ("yesterday", None, 1e308, float("nan"), 10**400):
        with pytest.raises(ConfigurationError, match="Start and end times are required"):
            calculator.get_job_goodput_interval(wrong, at(403))
        assert calculator.get_interval_metric_details(wrong, at(403))["interval_goodput"] == {}


def test_an_interval_does_not_change_the_details_of_the_job(ask: Any) -> None:
    history = History().start(0).steps(range(10), at=0).start(1100).steps(range(10, 20), at=1100).end(1200)
    calculator = ask(history, 1200)
    whole = calculator.get_job_goodput()
    before = {**calculator.get_job_goodput_details()}
    calculator.get_job_goodput_interval(at(0), at(500))
    after = {**calculator.get_job_goodput_details()}
    assert before.pop("step_time_deviation") == after.pop("step_time_deviation")
    assert before == after
    assert before["disruption_count"] == 1
    assert calculator.get_job_goodput() == whole


def test_intervals_may_be_asked_in_any_order_and_while_the_job_goes_on(tmp_path: Path) -> None:
    log = MemoryLog(History().start(0).steps(range(50), at=0).payloads)
    now = [500.0]
    calculator = goodput.GoodputCalculator(
        "job", "log", cloud_logger=log, cache_dir=str(tmp_path), _clock_ns=lambda: int((BASE + now[0]) * 1e9)
    )
    spans = [(400, 480), (0, 100), (50, 450), (0, 500)]
    first = [calculator.get_job_goodput_interval(at(start), at(end)) for start, end in spans]
    assert [answer[0] for answer in first[:3]] == [100.0, 100.0, 100.0]
    log.payloads += History().steps(range(50, 60), at=500).payloads
    now[0] = 600
    assert calculator.get_job_goodput_interval(at(0), at(500))[0] == 100.0
    assert [calculator.get_job_goodput_interval(at(start), at(end)) for start, end in spans[:3]] == first[:3]


def test_queries_from_many_threads_agree(ask: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    calculator = ask(STEADY, 2000)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: calculator.get_job_goodput_interval(at(n), at(n + 500))[0], range(64)))
    assert answers == [100.0] * 64
