"""Median, deviation and ideal step time of a growing set equal those of `statistics` exactly."""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_goodput_measurement._ledger.step_times import StepTimes, median_of

SECOND = 1_000_000_000

durations = st.integers(0, 50) | st.integers(0, 3600 * SECOND)


def deviation_of(values: list[int]) -> float:
    median = statistics.median(values)
    return statistics.median(abs(value - median) for value in values)


def ideal_of(values: list[int]) -> float:
    limit = statistics.median(values) + 3 * deviation_of(values)
    return statistics.mean([value for value in values if value <= limit])


def check(made: StepTimes, values: list[int]) -> None:
    assert len(made) == len(values)
    if not values:
        assert made.median_ns() is made.median_absolute_deviation_ns() is made.ideal_ns() is None
        return
    assert made.median_ns() == statistics.median(values)
    assert made.median_absolute_deviation_ns() == deviation_of(values)
    assert made.ideal_ns() == pytest.approx(ideal_of(values), rel=1e-12)


# In a few values, blocks of four show to hypothesis what blocks of a thousand show in a long job.
block_sizes = pytest.mark.parametrize("block_size", [4, 1000], ids=["tiny blocks", "real blocks"])
same_settings = settings(max_examples=200, deadline=None)


@block_sizes
@same_settings
@given(st.lists(durations, max_size=60))
def test_the_results_of_a_set_are_those_of_statistics(block_size: int, values: list[int]) -> None:
    check(StepTimes([values], block_size=block_size), values)


@block_sizes
@same_settings
@given(st.lists(durations, max_size=30), st.lists(st.tuples(st.booleans(), durations), max_size=60), st.data())
def test_adding_and_removing_keep_the_results_exact(
    block_size: int, first: list[int], changes: list[tuple[bool, int]], data: st.DataObject
) -> None:
    made, values = StepTimes([first], block_size=block_size), list(first)
    for adds, value in changes:
        if adds or not values:
            made.add(value)
            values.append(value)
        else:
            gone = values.pop(data.draw(st.integers(0, len(values) - 1)))
            made.remove(gone)
    check(made, values)


@block_sizes
@same_settings
@given(st.lists(durations, max_size=40), st.lists(durations, max_size=20))
def test_a_set_goes_on_after_it_was_saved_and_restored(block_size: int, before: list[int], after: list[int]) -> None:
    parts, blocks = StepTimes([before], block_size=block_size).to_parts()
    restored = StepTimes.of_column(array("d", b"".join(parts)), blocks, block_size=block_size)
    check(restored, before)
    for value in after:
        restored.add(value)
    check(restored, before + after)
    for value in before:
        restored.remove(value)
    check(restored, after)


@block_sizes
@pytest.mark.parametrize("count", [999, 1000, 1001, 2001, 5000])
def test_the_results_are_exact_on_both_sides_of_a_block(block_size: int, count: int) -> None:
    draw = random.Random(count)
    values = [int(draw.lognormvariate(0, 0.4) * SECOND) for _ in range(count)]
    made = StepTimes(block_size=block_size)
    for value in values[: count // 2]:
        made.add(value)
    check(made, values[: count // 2])
    for value in values[count // 2 :]:
        made.add(value)
    check(made, values)
    for value in values[:-1]:
        made.remove(value)
    check(made, values[-1:])
    made.remove(values[-1])
    check(made, [])
    made.add(SECOND)
    check(made, [SECOND])


@block_sizes
def test_one_slow_step_does_not_change_the_ideal_step_time(block_size: int) -> None:
    parts = [[SECOND, SECOND, SECOND + 2], [SECOND - 2, 100 * SECOND]]
    assert StepTimes(parts, block_size=block_size).ideal_ns() == SECOND


@block_sizes
@same_settings
@given(st.lists(durations, min_size=1, max_size=80))
def test_the_median_of_a_few_is_rounded_down(block_size: int, values: list[int]) -> None:
    assert median_of(values, sample_size=block_size) == int(statistics.median(values))


SHAPES: dict[str, Callable[[random.Random], int]] = {
    "all equal": lambda _: SECOND,
    "two values": lambda draw: draw.choice([SECOND, 3 * SECOND]),
    "spread": lambda draw: draw.randrange(10**12),
    "log-normal": lambda draw: int(draw.lognormvariate(0, 1) * SECOND),
}


@block_sizes
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [10_000, 10_001, 10_002, 25_000])
def test_the_median_of_many_is_exact_without_sorting_all(block_size: int, shape: str, count: int) -> None:
    draw = random.Random(count)
    values = [SHAPES[shape](draw) for _ in range(count)]
    assert median_of(values, sample_size=block_size) == int(statistics.median(values))
    assert median_of(sorted(values), sample_size=block_size) == int(statistics.median(values))


@block_sizes
def test_the_median_of_many_is_exact_where_a_sample_misleads(block_size: int) -> None:
    """Every 25th of 25,000 values is taken as a sample: here all of them are the smallest."""
    values = [0 if index % 25 == 0 else 10**9 + index for index in range(25_000)]
    assert median_of(values, sample_size=block_size) == int(statistics.median(values))
