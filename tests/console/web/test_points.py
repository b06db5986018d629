"""The points, spreads and heat of metrics, against slow references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_cloud_mldiagnostics.reading import AttemptView, State
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._web import wire
from ml_diagnostics_console._web.answers import BadQueryError, NotThereError
from ml_diagnostics_console._web.companions import Companions
from ml_diagnostics_console._web.heat_view import heat
from ml_diagnostics_console._web.points_view import points
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_data import AttemptSpan, RunData
from ml_diagnostics_console._web.writers import JournalWriters

START_S = 1_763_710_310.0
SPECIAL = (math.nan, math.inf, -math.inf)


def made_run(values: Sequence[float], *, steps: Sequence[float] | None = None, every_s: float = 0.5) -> RunData:
    run = RunData("run-1", Companions(), JournalWriters(Path("nowhere")))
    run.started_s = START_S
    column = run.columns.column("loss", "0", "vm-0", "1")
    for number, value in enumerate(values):
        column.append(float(number) if steps is None else steps[number], START_S + number * every_s, value)
    return run


def asked(run: RunData, view: Any = points, **parameters: object) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    query = Query({"metric": "loss", **{name.rstrip("_"): str(value) for name, value in parameters.items()}})
    return wire.decode(view(run, query).body)


VALUES = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.integers(0, 3).map(float), st.sampled_from(SPECIAL)), min_size=1, max_size=600
)


@given(VALUES, st.integers(1, 40), st.integers(0, 600), st.integers(1, 600))
def test_an_answer_has_every_extreme_and_the_mean_of_all_values(
    values: list[float], width: int, first: int, count: int
) -> None:
    last = first + count
    header, columns = asked(made_run(values), x="step", from_=first, to=last, width=width)
    window = [(step, value) for step, value in enumerate(values) if first <= step <= last]
    assert header["points"] == len(window)
    assert header["exact"] == (len(window) <= 4 * width)
    shown = dict(zip(columns["x"].tolist(), columns["y"].tolist(), strict=True))
    assert len(shown) <= 4 * width + 2
    for step, value in shown.items():  # Only real points.
        assert value == values[int(step)] or (math.isnan(value) and math.isnan(values[int(step)]))
    finite = [value for _, value in window if math.isfinite(value)]
    if header["exact"]:
        assert {step for step, _ in window} <= set(shown)
    if finite:
        inside = [value for step, value in shown.items() if first <= step <= last and math.isfinite(value)]
        assert (min(inside), max(inside)) == (min(finite), max(finite))
        assert (header["least"], header["greatest"]) == (min(finite), max(finite))
        assert header["lo"] <= header["hi"] or math.isclose(header["lo"], header["hi"])
    else:
        assert header["least"] is None
    assert sum(count for _, _, count, _ in header["nonfinite"]) == len(window) - len(finite)
    means, lows, highs = columns["mean_y"], columns["p5"], columns["p95"]
    if len(means):
        assert bool(((lows <= means + 1e-6) | (lows == means)).all())
        assert means.min() >= min(finite) - 1e-6
        assert highs.max() <= max(finite)
        assert (np.diff(columns["mean_x"]) > 0).all()


@given(VALUES, st.integers(3, 60))
def test_the_band_is_of_all_values_of_each_bucket(values: list[float], width: int) -> None:
    _, columns = asked(made_run(values), x="step", width=width)
    count, buckets = len(values), max(1, width // 3)
    if count <= buckets:
        assert len(columns["mean_y"]) == 0
        return
    limits = np.linspace(0, count - 1, buckets + 1)
    expected = []
    for number in range(buckets):
        steps = [
            step
            for step in range(count)
            if limits[number] <= step and (step < limits[number + 1] or number == buckets - 1)
        ]
        finite = sorted(values[step] for step in steps if math.isfinite(values[step]))
        if finite:
            low, high = finite[int(0.05 * (len(finite) - 1))], finite[math.ceil(0.95 * (len(finite) - 1))]
            expected.append((math.fsum(finite) / len(finite), low, high))
    assert columns["mean_y"].tolist() == pytest.approx([mean for mean, _, _ in expected], abs=1e-6, rel=1e-9)
    assert columns["p5"].tolist() == [low for _, low, _ in expected]
    assert columns["p95"].tolist() == [high for _, _, high in expected]


def test_a_spike_of_one_value_among_a_million_is_shown_where_it_is() -> None:
    values = np.random.default_rng(0).normal(2, 0.01, 1_000_000)
    values[123_456] = 99.0
    values[777_777] = -5.0
    run = made_run([])
    column = run.columns.of("loss")[0]
    column.steps.extend(map(float, range(1_000_000)))
    column.times.extend(START_S + number * 0.5 for number in range(1_000_000))
    column.values.extend(values)
    header, columns = asked(run, x="step", width=1200)
    found = dict(zip(columns["x"].tolist(), columns["y"].tolist(), strict=True))
    assert (found[123_456.0], found[777_777.0]) == (99.0, -5.0)
    assert not header["exact"]
    assert len(columns["x"]) <= 2 * 1200 + 4
    assert len(points(run, Query({"metric": "loss"})).body) <= 80_000
    assert header["hi"] < 3  # The robust range leaves the spike out.
    assert header["greatest"] == 99.0
    assert (np.diff(columns["x"]) > 0).all()


def test_the_axis_is_steps_time_or_the_time_since_the_start() -> None:
    run = made_run([5.0, 4.0, 3.0, 2.0])
    by_time = asked(run, x="time")[1]["x"].tolist()
    assert by_time == [START_S, START_S + 0.5, START_S + 1.0, START_S + 1.5]
    header, elapsed = asked(run, x="elapsed", from_=0.5, to=1.0)
    assert elapsed["x"].tolist() == [0.0, 0.5, 1.0, 1.5]  # With the points before and after the window.
    assert header["points"] == 2
    assert asked(run, x="step")[1]["x"].tolist() == [0, 1, 2, 3]


def test_a_metric_without_steps_is_shown_over_time() -> None:
    run = made_run([1.0, 2.0], steps=[math.nan, math.nan])
    header, columns = asked(run, x="step", from_=1, to=5)
    assert header["x"] == "time"
    assert columns["x"].tolist() == [START_S, START_S + 0.5]


def test_only_what_was_appended_is_answered() -> None:
    run = made_run([float(number) for number in range(10)])
    header, columns = asked(run, x="time", after=7)
    assert columns["y"].tolist() == [7.0, 8.0, 9.0]
    assert (header["total"], header["cursor"]) == (10, 10)
    assert len(columns["mean_y"]) == 0
    assert len(asked(run, x="time", after=10)[1]["y"]) == 0
    assert len(asked(run, x="time", after=99)[1]["y"]) == 0


def test_what_does_not_follow_is_to_be_read_again() -> None:
    run = made_run([float(number) for number in range(6)], steps=[0, 1, 2, 1, 2, 3])
    for after, is_reset in ((0, True), (2, True), (3, True), (4, True), (5, False), (6, False)):
        header, columns = asked(run, x="step", after=after)
        assert header["reset"] == is_reset, after
        assert len(columns["x"]) == (0 if is_reset else 6 - after)
    assert not asked(run, x="time", after=3)[0]["reset"]
    assert asked(run, x="time", after=0, width=1)[0]["reset"]  # Six points are too many for one pixel.
    column = run.columns.of("loss")[0]
    column.append(9, START_S - 1, 9.0)  # Late.
    assert asked(run, x="time", after=6)[0]["reset"]
    header, columns = asked(run, x="elapsed", after=7)
    assert (header["reset"], header["total"], len(columns["x"])) == (False, 7, 0)
    column.append(10, START_S + 99, math.nan)
    run.version += 1
    header, columns = asked(run, x="elapsed", after=7)
    assert columns["x"].tolist() == [99.0]
    assert header["nonfinite"] == [[99.0, 99.0, 1, "NaN"]]


def test_what_is_not_finite_is_a_range_with_its_word() -> None:
    values = [1.0, math.nan, math.nan, 2.0, 3.0, math.inf, 4.0]
    header, _ = asked(made_run(values), x="step", width=1000)
    assert header["nonfinite"] == [[1.0, 2.0, 2, "NaN"], [5.0, 5.0, 1, "inf"]]


def test_attempts_are_marked_on_each_axis() -> None:
    run = made_run([float(number) for number in range(10)], steps=[0, 1, 2, 3, 4, 3, 4, 5, 6, 7])
    view = AttemptView(1, State.FAILED, "", None, None)
    run.attempts = [
        AttemptSpan(1, START_S - 20, START_S + 2.1, "x", "", view),
        AttemptSpan(2, START_S + 2.3, None, "r", "", view),
        AttemptSpan(3, START_S + 99, None, "r", "", view),
    ]
    assert asked(run, x="step")[0]["attempt_marks"] == [[0.0, 1], [3.0, 2]]
    marks = asked(run, x="elapsed")[0]["attempt_marks"]
    assert marks == [[-20.0, 1], [pytest.approx(2.3, abs=1e-6), 2], [99.0, 3]]
    header, columns = asked(run, x="step")
    assert columns["x"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert columns["y"].tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    assert (header["total"], header["points"]) == (10, 8)


def test_the_values_of_steps_that_were_done_again_are_answered_on_demand() -> None:
    steps = [0, 1, 2, 3, 4, 2, 3, 4, 3, 4, 5]
    run = made_run([float(number) for number in range(len(steps))], steps=steps)
    header, columns = asked(run, x="step")
    assert columns["y"].tolist() == [0, 1, 5, 8, 9, 10]
    assert header["replaced"] == 5
    assert asked(run, x="time")[0]["replaced"] == 0
    header, columns = asked(run, x="step", replaced=1)
    nan = math.nan
    np.testing.assert_array_equal(columns["x"], [2, 3, 4, nan, 3, 4, nan])
    np.testing.assert_array_equal(columns["y"], [2, 3, 4, nan, 6, 7, nan])
    assert columns["low"].tolist()[:3] == columns["high"].tolist()[:3] == [2, 3, 4]
    assert (header["points"], header["curves"]) == (5, 2)
    assert (header["least"], header["greatest"]) == (2.0, 7.0)
    np.testing.assert_array_equal(asked(run, x="step", replaced=1, from_=4, to=9)[1]["x"], [3, 4, nan, 3, 4, nan])
    assert len(asked(run, x="step", replaced=1, from_=5, to=9)[1]["x"]) == 0
    assert len(asked(run, x="time", replaced=1)[1]["x"]) == 0
    assert len(asked(made_run([1.0, 2.0]), x="step", replaced=1)[1]["x"]) == 0


def test_many_values_that_were_replaced_are_answered_with_mean_and_extremes_of_each_bucket() -> None:
    run = made_run([])
    column = run.columns.column("loss", "0", "vm-0", "1")
    for attempt in range(2):
        for step in range(30_000):
            value = 99.0 if (attempt, step) == (0, 12_345) else math.nan if step == 7 else float(step % 10)
            column.append(float(step), START_S + attempt * 30_000 + step, value)
    header, columns = asked(run, x="step", replaced=1, width=99)
    assert (header["points"], header["greatest"], header["least"]) == (30_000, 99.0, 0.0)
    assert len(columns["x"]) == 33 + 1
    assert columns["low"][:-1].tolist() == [0.0] * 33
    bucket = 12_345 * 33 // 30_000
    assert columns["high"][:-1].tolist() == [99.0 if number == bucket else 9.0 for number in range(33)]
    assert columns["y"][:bucket] == pytest.approx(np.full(bucket, 4.5), abs=0.05)
    assert (np.diff(columns["x"][:-1]) > 0).all()


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"metric": "none"}, NotThereError),
        ({"metric": "x" * 10_000}, NotThereError),
        ({"series": "1"}, NotThereError),
        ({"series": "-1"}, BadQueryError),
        ({"x": "host"}, BadQueryError),
        ({"width": "4001"}, BadQueryError),
        ({"hosts": "all"}, BadQueryError),
        ({"from": "2", "to": "2"}, BadQueryError),
        ({"after": "x"}, BadQueryError),
        ({"replaced": "yes"}, BadQueryError),
    ],
)
def test_a_question_that_has_no_answer_gets_a_sentence(parameters: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        points(made_run([1.0]), Query({"metric": "loss", **parameters}))
    assert 10 < len(str(caught.value)) < 160


def fleet(hosts: int, count: int = 200, odd: int | None = None) -> RunData:
    run = made_run([])
    generator = np.random.default_rng(5)
    for host in range(hosts):
        column = run.columns.column("duty_cycle", str(host), f"vm-{host}", "%")
        for number, noise in enumerate(generator.normal(0, 0.5, count)):
            shift = -18.5 if host == odd and number > 0.8 * count else 0.0
            column.append(math.nan, START_S + 60 * number + host / 7, 90 + noise + shift)
    return run


def test_the_spread_of_hosts_names_the_odd_one() -> None:
    header, columns = asked(fleet(16, odd=11), metric="duty_cycle", x="time", hosts="spread", width=900)
    assert header["odd"]["host"] == "vm-11"
    assert header["odd"]["text"].startswith("-18.")
    names = [name for name, *_ in header["columns"]]
    assert names == ["x", "min", "p10", "mean", "p90", "max", "odd_x", "odd_y"]
    for lower, upper in (("min", "p10"), ("p10", "mean"), ("mean", "p90"), ("p90", "max")):
        if {lower, upper} <= {"min", "p10", "p90", "max"}:
            assert (columns[lower] <= columns[upper]).all()
    assert columns["odd_y"][-1] < 75
    assert header["lo"] is not None
    assert columns["min"][-5:].max() < 75


def test_the_spread_of_a_flat_fleet_has_no_odd_curve() -> None:
    header, columns = asked(fleet(16), metric="duty_cycle", x="elapsed", hosts="spread", width=900)
    assert header["odd"] is None
    assert set(columns) == {"x", "min", "p10", "mean", "p90", "max"}
    assert 0 <= columns["x"].min() < 100


def test_the_heat_has_a_row_for_each_host_by_its_index() -> None:
    header, columns = asked(fleet(12, odd=10), heat, metric="duty_cycle", width=300)
    cells = columns["heat"].reshape(len(header["hosts"]), header["width"])
    assert header["hosts"] == [f"vm-{host}" for host in range(12)]
    assert header["odd"]["index"] == 10
    assert cells.dtype == np.uint8
    assert cells[10, -10:].max() < 100 < cells[9, -10:].min()
    assert (cells != 255).mean() > 0.9
    assert header["lo"] < 75 < 88 < header["hi"]
    narrow = asked(fleet(12), heat, metric="duty_cycle", width=7, from_=START_S + 6000, to=START_S + 9000)[0]
    assert (narrow["width"], narrow["from"], narrow["to"]) == (7, START_S + 6000, START_S + 9000)


def test_the_heat_of_what_is_not_finite_is_nothing() -> None:
    run = made_run([])
    for host in range(4):
        for number in range(50):
            value = math.nan if host == 2 else math.inf if host == 3 and number < 25 else 1.0
            run.columns.column("loss", str(host), "", "1").append(number, START_S + number, value)
    header, columns = asked(run, heat, width=50)
    cells = columns["heat"].reshape(4, -1)
    assert (cells[2] == 255).all()
    assert (cells[3, :24] == 255).all()
    assert (cells[0] != 255).all()
    assert header["hosts"] == ["vm-0", "1", "2", "3"]


def test_the_heat_of_hosts_that_are_alike_has_one_colour() -> None:
    run = made_run([])
    for host in range(4):
        for number in range(50):
            run.columns.column("cpu", str(host), "%", "").append(number, START_S + number, 199.0 + number % 2)
    header, columns = asked(run, heat, metric="cpu", width=50)
    assert header["odd"] is None
    assert header["hi"] - header["lo"] > 19
    assert columns["heat"].max() - columns["heat"].min() < 20
