"""A job that was restarted thousands of times: a query and a report cost what was recorded, and no more."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import JobReport

from .histories import BASE, JOB, History
from .written_life import LOG, record

SMALL, LARGE = 60, 300


def attempt(number: int) -> History:
    """Five steps, of which the next attempt repeats two."""
    start = 60 * number
    return History().start(start).steps(range(3 * number, 3 * number + 5), at=start + 10)


def write(attempts: int, *, writers: int) -> None:
    """Write attempts that this number of processes recorded one after the other."""
    for writer in range(writers):
        numbers = range(attempts * writer // writers, attempts * (writer + 1) // writers)
        record([payload for number in numbers for payload in attempt(number).payloads]).close()


def calls_of_a_report(attempts: int) -> int:
    """Query the goodput and the report of a job of many attempts; return the number of calls of functions."""
    calculator = GoodputCalculator(JOB, LOG, _clock_ns=lambda: int((BASE + 60 * attempts + 60) * 1e9))
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        calculator.get_job_goodput(include_badput_breakdown=True)
        report = calculator.report()
    finally:
        sys.setprofile(None)
    check(report, attempts)
    return calls


def check(report: JobReport, attempts: int) -> None:
    assert (len(report.attempts), len(report.disruptions)) == (attempts, attempts - 1)
    assert {disruption.steps_lost for disruption in report.disruptions} == {2}
    assert (report.last_step, report.notes) == (3 * attempts, [])


@pytest.mark.parametrize("processes", ["one", "one each"])
def test_a_report_is_linear_in_the_attempts(processes: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    calls = []
    for attempts in (SMALL, LARGE):
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / str(attempts)))
        write(attempts, writers=1 if processes == "one" else attempts)
        calls.append(calls_of_a_report(attempts))
    assert calls[1] / calls[0] < 1.2 * LARGE / SMALL


def test_a_process_for_each_attempt_costs_little_more_than_one_for_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    calls = []
    for writers in (1, LARGE):
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / str(writers)))
        write(LARGE, writers=writers)
        calls.append(calls_of_a_report(LARGE))
    assert calls[1] / calls[0] < 1.8


def test_writers_at_the_same_time_are_merged_at_a_linear_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """All processes run at once, as many as there were restarts, and one of them counts."""
    calls = []
    for writers in (SMALL, LARGE):
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / str(writers)))
        for writer in range(writers):
            record(History().start(writer / 1000).steps(range(5), at=10 + writer / 1000).payloads).close()
        calculator = GoodputCalculator(JOB, LOG, _clock_ns=lambda: int((BASE + 100) * 1e9))
        count = 0

        def counted(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counted)
        try:
            report = calculator.report()
        finally:
            sys.setprofile(None)
        assert (len(report.attempts), len(report.disruptions), len(report.notes)) == (1, 0, 1)
        calls.append(count)
    assert calls[1] / calls[0] < 1.2 * LARGE / SMALL
