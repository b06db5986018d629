"""Advice has a range for every number, and predictions are as right as they state."""

from __future__ import annotations

import dataclasses
import math

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement.advice import JobHistory, advise, what_if

from benchmarks.advice import judge, near_share

from .simulated import JOB, SHORT_JOB, history_of_run


@pytest.fixture(scope="module")
def history() -> JobHistory:
    return history_of_run(JOB.run(noise_seed=1, is_recorded=True))


@pytest.fixture(scope="module")
def without_failures() -> JobHistory:
    found = history_of_run(SHORT_JOB.run(noise_seed=1, is_recorded=True))
    assert found.failures == 0
    return found


def test_the_advised_interval_is_in_its_range_and_in_whole_steps(history: JobHistory) -> None:
    advice = advise(history)
    low, high = advice.interval_seconds
    assert advice.recommended_seconds is not None
    assert advice.recommended_steps is not None
    assert low <= advice.recommended_seconds <= high
    assert advice.recommended_seconds == advice.recommended_steps * history.period_seconds
    assert advice.worst_regret_points is not None
    assert 0 < advice.worst_regret_points < 1
    assert advice.now_regret_points is not None
    assert advice.now_regret_points[0] < advice.now_regret_points[1]
    assert advice.lever_points is not None
    assert 0 < advice.lever_points[0] < advice.lever_points[1]
    assert [method.name.split()[0] for method in advice.methods] == ["Young", "Daly", "availability-optimal,"]


def test_without_failures_only_the_least_interval_is_known(without_failures: JobHistory) -> None:
    advice = advise(without_failures)
    assert advice.interval_seconds[0] > 0
    assert math.isinf(advice.interval_seconds[1])
    assert advice.has_few_failures
    assert advice.recommended_seconds is advice.worst_regret_points is advice.now_regret_points is None
    assert advice.lever_points is None
    assert advice.methods == ()


@pytest.mark.parametrize("failures", [1, 2])
def test_with_one_or_two_failures_there_is_a_range_and_no_recommendation(history: JobHistory, failures: int) -> None:
    advice = advise(dataclasses.replace(history, failures=failures))
    low, high = advice.interval_seconds
    assert low < high < math.inf
    assert advice.recommended_seconds is None
    assert advice.now_regret_points is not None


@pytest.mark.parametrize(
    ("arguments", "floor"),
    [
        ({"background_seconds": 2000.0}, 2000.0),
        ({"detection_seconds": 3000.0}, 3000.0),
        ({"background_seconds": 2000.0, "detection_seconds": 100.0}, 2000.0),
    ],
)
def test_no_interval_is_advised_below_the_background_part_or_the_detection(
    history: JobHistory, arguments: dict[str, float], floor: float
) -> None:
    advice = advise(history, **arguments)
    assert advice.recommended_seconds is not None
    assert floor <= advice.recommended_seconds < floor + history.period_seconds
    assert advice.interval_seconds[0] >= floor


def test_a_recorded_background_part_is_a_floor(history: JobHistory) -> None:
    advice = advise(dataclasses.replace(history, background_seconds=2000.0))
    assert advice.recommended_seconds is not None
    assert advice.recommended_seconds >= 2000.0


def test_a_job_without_saves_needs_their_cost(history: JobHistory) -> None:
    without = dataclasses.replace(history, saves=0, save_seconds=None, interval_steps=None)
    with pytest.raises(ConfigurationError, match="--save 5s"):
        advise(without)
    advice = advise(without, save_seconds=14.0)
    assert advice.interval_seconds == pytest.approx(advise(history).interval_seconds, rel=1e-6)
    assert advice.now_seconds is None
    with pytest.raises(ConfigurationError, match="--interval 10m"):
        what_if(without, save_seconds=5.0)


def test_a_prediction_is_in_its_range_and_always_the_same(history: JobHistory) -> None:
    found = what_if(history, interval_seconds=455.0)
    assert found == what_if(history, interval_seconds=455.0)
    assert found.same_failures[0] <= found.percent <= found.same_failures[1]
    assert found.same_failures[0] < found.same_failures[1]
    same, other = (high - low for low, high in (found.same_failures, found.other_failures))
    assert 0 < same < other


def test_shorter_restarts_and_saves_are_worth_something(history: JobHistory) -> None:
    now = what_if(history).percent
    assert what_if(history, restart_seconds=history.restart_seconds / 4).percent > now + 1
    assert what_if(history, save_seconds=1.0).percent > now
    assert what_if(history, background_seconds=600.0).percent < now


def test_the_restart_of_a_job_without_one_cannot_be_changed(without_failures: JobHistory) -> None:
    with pytest.raises(ConfigurationError, match="was not restarted"):
        what_if(without_failures, restart_seconds=5.0)


def test_a_job_without_failures_is_predicted_with_a_range(without_failures: JobHistory) -> None:
    # Twice the interval halves the saves; the job may also fail before it is done.
    found = what_if(without_failures, interval_seconds=2 * 40 * 9.0)
    assert found.same_failures[0] <= found.percent <= found.same_failures[1]
    assert found.percent > without_failures.goodput_percent


def test_saves_at_each_step_make_no_progress_impossible(history: JobHistory) -> None:
    found = what_if(history, interval_seconds=1.0, save_seconds=1000.0)
    assert 0 <= found.percent < 5


def test_an_interval_longer_than_the_job_is_predicted(history: JobHistory) -> None:
    found = what_if(history, interval_seconds=30 * 3600.0)
    assert found.percent < history.goodput_percent / 2


def test_ranges_of_short_jobs_hold_what_happens() -> None:
    """The full judgement, of 40 jobs, is a benchmark: `python -m benchmarks advice`."""
    found = judge(12, 2, 9)
    assert sum(found.covered) >= 0.7 * len(found.covered)
    assert sum(found.other_covered) >= 0.7 * len(found.other_covered)
    assert max(found.ours) < 2


def test_predictions_of_jobs_with_many_failures_are_within_2_points() -> None:
    found = judge(6, 16, 40)
    near, floor = near_share(found.errors), near_share(found.floor)
    assert near >= 0.85
    assert near >= floor - 0.1
    assert sum(found.seconds) / len(found.seconds) < 0.5
