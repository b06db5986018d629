"""The deviation of steps from the ideal one: the contract's formulas, for steps of any length."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement import goodput, goodput_utils
from ml_goodput_measurement.exceptions import ConfigurationError, NoGoodputError

from .accounts import calculator_of
from .histories import BASE, History, MemoryLog


def job(seconds: list[float]) -> History:
    """A job with steps of these lengths; a last step shows the end of the one before it."""
    history, now = History().start(0), 0.0
    for step, length in enumerate(seconds):
        history.step(step, now)
        now += length
    return history.step(len(seconds), now)


def subject(history: History, tmp_path: Path) -> goodput.GoodputCalculator:
    return calculator_of(MemoryLog(history.payloads), history.last_moment(), tmp_path)


def test_each_step_deviates_from_the_mean_of_the_normal_ones(tmp_path: Path) -> None:
    calculator = subject(job([10.0, 12.0, 11.0, 50.0, 9.0, 11.0]), tmp_path)
    ideal = statistics.fmean([10.0, 12.0, 11.0, 9.0, 11.0])
    deviations = calculator.get_step_deviation()
    assert deviations == pytest.approx(
        {step: abs(length - ideal) for step, length in enumerate([10.0, 12.0, 11.0, 50.0, 9.0, 11.0])}
    )
    details = calculator.get_job_goodput_details()
    assert details["ideal_step_time"] == pytest.approx(ideal)
    assert dict(details["step_time_deviation"]) == deviations


def test_steps_below_a_second_deviate_as_well(tmp_path: Path) -> None:
    assert subject(job([0.5, 0.5, 0.7, 0.5]), tmp_path).get_step_deviation() == pytest.approx(
        {0: 0, 1: 0, 2: 0.2, 3: 0}, abs=1e-6
    )


def test_a_configured_ideal_is_taken(tmp_path: Path) -> None:
    calculator = subject(job([10.0, 12.0]), tmp_path)
    assert calculator.get_step_deviation(11.5) == {0: 1.5, 1: 0.5}
    assert calculator.get_step_deviation(configured_ideal_step_time=10) == {0: 0, 1: 2}
    with pytest.raises(ConfigurationError):
        calculator.get_step_deviation(-1)


def test_a_job_without_a_complete_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoGoodputError, match="No step times available and no previous step deviations found") as caught:
        subject(History().start(0).step(0, 10), tmp_path).get_step_deviation()
    assert isinstance(caught.value, ValueError)


def test_repeated_steps_count_with_their_last_time(tmp_path: Path) -> None:
    history = History().start(0).steps(range(6), at=0).start(100).steps(range(3, 9), at=100, each=20)
    assert subject(history, tmp_path).get_step_deviation(10) == {0: 0, 1: 0, 2: 0, 3: 10, 4: 10, 5: 10, 6: 10, 7: 10}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=60), st.sampled_from([1, 100]), st.integers(1, 40))
def test_a_growing_job_has_the_ideal_of_the_plain_formula(lengths: list[float], repetitions: int, part: int) -> None:
    lengths = [length * (1 + turn / 1000) for turn in range(repetitions) for length in lengths]
    log = MemoryLog()
    calculator = calculator_of(log, 1e9, Path("unused"))
    payloads = job(lengths).payloads
    for offset in range(0, len(payloads), part * repetitions):
        log.payloads += payloads[offset : offset + part * repetitions]
        calculator.get_job_goodput()
    deviations = calculator.get_step_deviation(1e-9)
    times = [deviations[step] for step in range(len(lengths))]
    assert times == pytest.approx(lengths, abs=2e-6)
    calculator.get_job_goodput()
    ideal = calculator.get_job_goodput_details()["ideal_step_time"]
    assert ideal == pytest.approx(goodput_utils.compute_ideal_step_time(times), abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 2500), st.integers(0, 3))
def test_the_snapshot_watches_the_latest_steps_as_the_public_function_does(count: int, slow: int) -> None:
    lengths = [1.0 + (step % 7) / 10 + (slow if step > count - 50 else 0) for step in range(count)]
    calculator = calculator_of(MemoryLog(job(lengths).payloads), 1e9, Path("unused"))
    deviation = calculator.snapshot(deviation=True).deviation
    assert deviation is not None
    expected = goodput_utils.compute_step_deviation_from_baseline(calculator.get_step_deviation())
    assert deviation.from_baseline_seconds == pytest.approx(expected)


def test_the_snapshot_yields_the_steps_since_a_moment(tmp_path: Path) -> None:
    history = History().start(0).steps(range(6), at=0).start(100).steps(range(3, 9), at=100, each=20)
    calculator = subject(history, tmp_path)
    deviation = calculator.snapshot(deviation=True, configured_ideal_step_time=10).deviation
    assert deviation is not None
    every = list(deviation.steps_since(-1))
    assert [(step, late) for step, _, late in every] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 10),
        (4, 10),
        (5, 10),
        (6, 10),
        (7, 10),
    ]
    assert [start_ns for _, start_ns, _ in every][4] == round((BASE + 120) * 1e9)
    assert [step for step, _, _ in deviation.steps_since(every[5].start_ns)] == [6, 7]
    assert list(deviation.steps_since(every[-1].start_ns)) == []


def test_without_steps_the_snapshot_has_none(tmp_path: Path) -> None:
    deviation = subject(History().start(0).init(1, 5), tmp_path).snapshot(deviation=True).deviation
    assert deviation is not None
    assert deviation.from_baseline_seconds is None
    assert list(deviation.steps_since(-1)) == []
