"""Averages: exact with several threads, in memory that does not grow."""

from __future__ import annotations

import math
import statistics
import threading

import pytest
from google_cloud_mldiagnostics._recording.run_log import Average, Averages
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=2000), st.integers(1, 700))
def test_the_average_covers_all_values(values: list[float], ask_every: int) -> None:
    average = Average()
    for number, value in enumerate(values):
        average.add(value)
        if number % ask_every == 0:
            average.as_dict()
    averaged = average.as_dict()
    largest = max(map(abs, values))
    assert averaged["count"] == len(values)
    assert averaged["mean"] == pytest.approx(statistics.fmean(values), abs=largest * 1e-12)
    assert (averaged["min"], averaged["max"], averaged["last"]) == (
        min(values),
        max(values),
        values[-1],
    )


def test_the_largest_floats_have_a_mean() -> None:
    average = Average()
    for _ in range(1000):
        average.add(1.7e308)
    assert average.as_dict()["mean"] == pytest.approx(1.7e308)


def test_values_that_are_not_finite_are_counted_and_do_not_change_the_mean() -> None:
    average = Average()
    for value in (1.0, math.nan, 3.0, math.inf):
        average.add(value)
    assert average.as_dict() == {
        "count": 4,
        "mean": 2.0,
        "min": 1.0,
        "max": 3.0,
        "last": "Infinity",
        "not_finite": 2,
    }


def test_before_the_first_value_an_average_has_only_its_count() -> None:
    assert Average().as_dict() == {"count": 0}


def test_values_are_folded_as_they_are_recorded() -> None:
    average = Average()
    for _ in range(100_000):
        average.add(1.0)
        assert len(average.pending) < 512


def test_threads_lose_no_value() -> None:
    averages = Averages()

    def work() -> None:
        for number in range(20_000):
            averages.add("loss", float(number))
            if number % 1000 == 0:
                averages.as_dict()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    averaged = averages.as_dict()["loss"]
    assert averaged["count"] == 80_000
    assert averaged["mean"] == pytest.approx(9999.5)


def test_code_that_interrupts_a_fold_does_not_wait() -> None:
    """Like a signal handler that records: the next fold includes its value."""
    average = Average()
    with average._folding:
        for _ in range(600):
            average.add(1.0)
    assert average.as_dict()["count"] == 600
