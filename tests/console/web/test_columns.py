"""Extremes and columns against slow references."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from array import array

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ml_diagnostics_console._web.columns import Column, RunColumns
from ml_diagnostics_console._web.extremes import extremes

VALUES = st.lists(
    st.one_of(st.integers(-5, 5).map(float), st.floats(width=32), st.just(math.nan), st.just(math.inf)), max_size=700
)


def slow_extremes(values: list[float], edges: list[int]) -> list[int]:
    """Return the first row of the least and of the greatest finite value between each edge and the next."""
    rows = set()
    for start, end in itertools.pairwise(edges):
        finite = [row for row in range(start, end) if math.isfinite(values[row])]
        if finite:
            rows |= {min(finite, key=lambda row: values[row]), min(finite, key=lambda row: -values[row])}
    return sorted(rows)


@given(VALUES, st.data())
def test_extremes_are_those_of_a_slow_search(values: list[float], data: st.DataObject) -> None:
    edges = sorted(data.draw(st.lists(st.integers(0, len(values)), min_size=2, max_size=12)))
    found = extremes(np.array(values), np.array(edges, np.int64)).tolist()
    assert found == slow_extremes(values, edges)


def test_of_a_long_column_the_one_value_is_found_that_stands_out() -> None:
    values = np.zeros(200_000)
    values[[1, 77_777, 199_999]] = (5.0, -3.0, 7.0)
    values[1000:2000] = np.nan
    edges = np.linspace(0, 200_000, 101).astype(np.int64)
    assert {1, 77_777, 199_999} <= set(extremes(values, edges).tolist())
    assert extremes(values, edges).tolist() == slow_extremes(values.tolist(), edges.tolist())


def test_nothing_is_found_in_nothing() -> None:
    assert extremes(np.empty(0), np.array([0, 0])).tolist() == []
    assert extremes(np.full(100, np.nan), np.array([0, 50, 100])).tolist() == []


STEPS = st.one_of(st.integers(0, 12).map(float), st.just(math.nan))


@given(st.lists(st.lists(st.tuples(STEPS, st.integers(0, 30).map(float)), max_size=12), max_size=8))
@example([[(1.0, 1.0), (2.0, 2.0)], [(2.0, 3.0)], [(3.0, 4.0)]])
@example([[(float(step), float(step)) for step in range(200)], [(float(step), 300.0) for step in range(150, 250)]])
def test_of_a_step_that_was_done_again_the_last_value_counts(parts: list[list[tuple[float, float]]]) -> None:
    column = Column("loss", "0")
    points: list[tuple[float, float, float]] = []
    for part in parts:
        for step, time_s in part:
            value = float(len(points))
            column.append(step, time_s, value)
            points.append((step, time_s, value))
        ordered = sorted(points, key=lambda point: point[1])
        assert column.time.tolist() == [point[1] for point in ordered]
        assert column.value.tolist() == [point[2] for point in ordered]
        last = {step: value for step, _, value in ordered if not math.isnan(step)}
        curve = column.by_step()
        steps, values = curve.positions(), curve.values()
        assert steps.tolist() == sorted(last)
        assert values.tolist() == [last[step] for step in sorted(last)]
        low, high = 3.0, 8.0
        first, end = curve.rows(low, high)
        assert curve.positions(first, end).tolist() == [step for step in sorted(last) if low <= step <= high]
        assert curve.values(first, end).tolist() == values[first:end].tolist()
        if column.has_steps:
            replaced = [row for first, end in column.replaced() for row in range(first, end)]
            kept = set(values.tolist())
            assert replaced == [row for row, point in enumerate(ordered) if point[2] not in kept]
    assert len(column) == len(points)
    assert column.has_steps == (bool(points) and not any(math.isnan(step) for step, _, _ in points))


def test_a_view_stays_as_it_is_while_the_column_grows() -> None:
    column = Column("loss", "0")
    for number in range(100):
        column.append(number, number, number)
    before = column.value
    for number in range(100, 100_000):
        column.append(number, number, number)
    assert column.value.tolist() == list(range(100_000))
    assert before.tolist() == list(range(100))


def test_a_column_takes_20_bytes_a_point_and_nothing_more_by_step() -> None:
    column = Column("loss", "0")
    count = 300_000
    for data in (column.times, column.values):
        data.extend(array("d", range(count + count // 2)))
    column.steps.extend(array("d", [*range(count), *range(count // 2, count)]))
    assert sum(one.nbytes for one in column.arrays) == 20 * len(column)
    tracemalloc.start()
    try:
        curve = column.by_step()
        rows = curve.rows(-math.inf, math.inf)
        assert (rows, len(curve)) == ((0, count), count)
        assert curve.positions()[-1] == count - 1
        assert tracemalloc.get_traced_memory()[0] < count / 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_late", [False, True])
def test_steps_of_two_writers_in_turn_are_in_order(*, is_late: bool) -> None:
    """Each second row belongs elsewhere: their order is kept as numbers of rows."""
    column = Column("loss", "0")
    for number in range(1000):
        column.append(number // 2 if number % 2 else 500 + number // 2, float(number), float(number))
        if is_late and number == 500:
            assert len(column.by_step()) == 501
    curve = column.by_step()
    assert curve.positions().tolist() == list(range(1000))
    assert curve.rows(10.0, 20.5) == (10, 21)
    assert curve.values(499, 501).tolist() == [999.0, 0.0]
    assert column.replaced() == []
    column.append(3, 2000.0, -1.0)
    assert column.by_step().values(3, 4).tolist() == [-1.0]
    assert column.replaced() == [(7, 8)]


def test_columns_are_in_the_order_of_processes() -> None:
    columns = RunColumns()
    for process in ("10", "2", "host-b", "0"):
        columns.column("loss", process, f"vm-{process}", "1").append(0, 0, 1.0)
    columns.column("accuracy", "0", "vm-0", "1")
    assert [column.process for column in columns.of("loss")] == ["0", "2", "10", "host-b"]
    first = columns.first("loss")
    assert first is not None
    assert (first.process, first.host, first.last, first.last_step) == ("0", "vm-0", 1.0, 0)
    assert columns.names() == ["accuracy", "loss"]
    assert (columns.points("loss"), columns.points("accuracy"), columns.points("none")) == (4, 0, 0)
    assert columns.of("none") == []
    assert columns.first("none") is None


@pytest.mark.parametrize("step", [math.nan, math.inf])
def test_a_step_that_is_not_a_number_is_no_last_step(step: float) -> None:
    column = Column("loss", "0")
    column.append(step, 0.0, 1.0)
    assert column.last_step is None
    column.settle()
    assert (column.last_step, column.last) == (None, 1.0)


@pytest.mark.parametrize("steps", [[0, 2**31 - 1], [0, 2**31], [-(2**31) + 1, 5], [0, 2**53], [0.5, 1.0], [0, 2**62]])
def test_steps_of_any_size_are_kept(steps: list[float]) -> None:
    column = Column("loss", "0")
    for part in (steps, [math.nan], [7]):
        for step in part:
            column.append(step, len(column), 1.0)
        column.settle()
    assert column.step.tolist()[:2] == steps
    assert math.isnan(column.step[2])
    assert (column.step[3], column.last_step, column.has_steps) == (7.0, 7, False)
