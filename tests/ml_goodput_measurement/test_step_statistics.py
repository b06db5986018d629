"""Statistics of step times: the documented formulas, for steps of any length, at a cost independent of the job."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement.goodput import compute_ideal_step_time, get_extra_time_from_anomalous_steps
from ml_goodput_measurement.goodput_utils import (
    MonitoringWindowType,
    compute_percentile,
    compute_step_deviation_from_baseline,
    get_anomalous_and_normal_step_times,
)

CUMULATIVE, INTERVAL = MonitoringWindowType.CUMULATIVE, MonitoringWindowType.INTERVAL


@pytest.mark.parametrize(
    ("values", "percentile", "expected"),
    [
        ([], 50, 0.0),
        ([7], 90, 7.0),
        ([1, 2, 3, 4], 90, 3.7),
        ([3, 1, 2], 50, 2.0),
        ([1, 2], 0, 1.0),
        ([1, 2], 100, 2.0),
        ((value for value in (1, 2, 3)), 25, 1.5),
    ],
)
def test_percentiles_are_interpolated(values: Any, percentile: float, expected: float) -> None:
    assert compute_percentile(values, percentile) == pytest.approx(expected)


def test_percentiles_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    numbers = random.Random(1)
    for _ in range(100):
        values = [numbers.uniform(-1, 9) for _ in range(numbers.randint(1, 30))]
        percentile = numbers.uniform(0, 100)
        assert compute_percentile(values, percentile) == pytest.approx(float(numpy.percentile(values, percentile)))


@pytest.mark.parametrize("percentile", [-1, 101, float("nan")])
def test_a_percentile_that_is_none_is_refused(percentile: float) -> None:
    with pytest.raises(ConfigurationError, match=r"percentile is .*; give a number from 0 to 100"):
        compute_percentile([1.0], percentile)


@pytest.mark.parametrize(
    ("times", "ideal"),
    [
        ([], None),
        ([1.0, 2, 3, 4, 100], 2.5),
        ([0.5, 0.5, 0.6], 0.5),  # MAD 0: nothing above the median is usual.
        ([0.001, 0.002, 0.003, 5.0], 0.002),
        ([2.0, 0.0, -3.0, float("nan"), float("inf")], 2.0),
        ([0.0], None),
    ],
)
def test_the_ideal_step_time_is_the_mean_of_the_usual_ones(times: list[float], ideal: float | None) -> None:
    expected = None if ideal is None else pytest.approx(ideal)
    assert compute_ideal_step_time(times) == expected
    assert compute_ideal_step_time(tuple(times)) == expected
    assert compute_ideal_step_time(dict(enumerate(times))) == expected


def test_anomalous_steps_stand_apart_in_their_order() -> None:
    times = [100.0, 1.0, 4.0, 2.0, 50.0, 3.0, 3.0]
    assert get_anomalous_and_normal_step_times(times) == ([100.0, 50.0], [1.0, 4.0, 2.0, 3.0, 3.0])
    assert get_anomalous_and_normal_step_times(dict(enumerate(times))) == ([100.0, 50.0], [1.0, 4.0, 2.0, 3.0, 3.0])
    assert get_anomalous_and_normal_step_times([]) == ([], [])
    assert get_anomalous_and_normal_step_times([0.5, 0.5, 0.6]) == ([0.6], [0.5, 0.5])


def test_extra_time_is_what_anomalous_steps_took_beyond_usual_ones() -> None:
    assert get_extra_time_from_anomalous_steps([1.0, 2, 3, 4, 100]) == pytest.approx(97.5)
    assert get_extra_time_from_anomalous_steps({1: 0.5, 2: 0.5, 3: 0.6}) == pytest.approx(0.1)
    assert get_extra_time_from_anomalous_steps([2.0, 2.0]) == 0.0
    assert get_extra_time_from_anomalous_steps([]) == 0.0


def deviations(count: int) -> dict[int, float]:
    numbers = random.Random(count)
    return {step: numbers.uniform(-1, 5) for step in range(count)}


def expected(values: list[float], mode: MonitoringWindowType) -> float:
    """The formulas as they are documented, over everything."""
    if len(values) < 100:
        return statistics.fmean(abs(value) for value in values) if values else 0.0
    spike = compute_percentile(values[-100:], 90)
    if mode is INTERVAL or len(values) < 1100:
        return spike
    return spike - statistics.median(values[-1100:-100])


@pytest.mark.parametrize("mode", MonitoringWindowType)
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 1099, 1100, 1500])
def test_deviation_from_the_baseline_is_as_documented(count: int, mode: MonitoringWindowType) -> None:
    found = deviations(count)
    values = list(found.values())
    wanted = pytest.approx(expected(values, mode))
    assert compute_step_deviation_from_baseline(found, mode) == wanted
    assert compute_step_deviation_from_baseline(values, mode) == wanted
    assert compute_step_deviation_from_baseline(found, mode.value) == wanted
    assert compute_step_deviation_from_baseline(_Forwards(found), mode) == wanted


def test_the_baseline_is_left_out_of_account_until_it_is_whole() -> None:
    found = [1.0] * 5 + [3.0] * 4
    assert compute_step_deviation_from_baseline(found, CUMULATIVE, 4, 5) == 2.0
    assert compute_step_deviation_from_baseline(found, CUMULATIVE, 4, 6) == 3.0
    assert compute_step_deviation_from_baseline(found, INTERVAL, 4, 5) == 3.0
    assert compute_step_deviation_from_baseline([-1.0, 3.0], CUMULATIVE, 4, 5) == 2.0
    assert compute_step_deviation_from_baseline([1.0, 2.0, 3.0], CUMULATIVE, 3, 5, spike_percentile=50) == 2.0


def test_only_the_two_windows_are_read() -> None:
    found = _Counting(deviations(10_000))
    compute_step_deviation_from_baseline(found)
    assert found.reads == 1100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sometimes",), "Unsupported MonitoringWindowType mode: sometimes"),
        ((CUMULATIVE, 0), "recent_window_size is 0; give a number of steps"),
        ((CUMULATIVE, 5, -1), "baseline_window_size is -1; give a number of steps"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_step_deviation_from_baseline({1: 1.0}, *arguments)


class _Forwards(Mapping[int, float]):
    """A mapping that cannot be reversed."""

    def __init__(self, numbers: Mapping[int, float]) -> None:
        self._numbers = numbers

    def __getitem__(self, step: int) -> float:
        return self._numbers[step]

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class _Counting(_Forwards):
    """A mapping that can be reversed, counts what is taken, and cannot be gone through from the front."""

    reads = 0

    def __getitem__(self, step: int) -> float:
        self.reads += 1
        return super().__getitem__(step)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all steps were gone through")

    def __reversed__(self) -> Iterator[int]:
        return reversed(list(self._numbers))
