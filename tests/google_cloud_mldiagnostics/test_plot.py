"""The picture of a run's curves shows the recorded values."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import pytest
from google_cloud_mldiagnostics._cli.metric_output import in_order
from google_cloud_mldiagnostics._cli.plot import curve_of, limits_of, plot_metrics
from google_cloud_mldiagnostics._reading.metric_series import MetricSeries, Series
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.entry import LogEntry

from ..pictures import texts_by_color
from .sample_entries import entry, metric


def series_of(*entries: LogEntry) -> dict[str, list[Series]]:
    series = MetricSeries()
    series.add(entries)
    return in_order(series)


def test_few_points_are_drawn_as_they_are() -> None:
    curve = curve_of([(0, [1.0]), (1, [2.0]), (2, [4.0, 8.0])])
    assert (curve.x, curve.mean, curve.low, curve.high) == ([0, 1, 2], [1, 2, 6], [1, 2, 4], [1, 2, 8])


def test_of_many_points_none_is_lost_in_the_band() -> None:
    points = [(float(x), [math.sin(x / 500) + (3.0 if x == 7_777 else 0.0)]) for x in range(20_000)]
    curve = curve_of(points, bins=100)
    assert len(curve.x) <= 100
    assert max(curve.high) == max(value for _, (value,) in points)
    assert curve.x == sorted(curve.x)
    assert all(low <= mean <= high for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True))


def test_values_that_are_not_finite_are_not_points_of_the_line() -> None:
    curve = curve_of([(0, [1.0]), (1, [math.nan]), (2, [math.inf, 5.0])])
    assert (curve.x, curve.mean) == ([0, 2], [1.0, 5.0])


def test_one_step_that_took_a_hundred_times_as_long_does_not_flatten_the_others() -> None:
    limits = limits_of([12.0] + [0.1 + 0.001 * (step % 7) for step in range(100)])
    assert limits is not None
    assert (limits.above, limits.below) == (12.0, None)
    assert limits.high < 0.2


def test_a_loss_that_falls_is_shown_from_its_beginning() -> None:
    limits = limits_of([10 * math.exp(-step / 60) for step in range(500)])
    assert limits is not None
    assert (limits.high, limits.above) == (10.0, None)


def test_a_spike_among_equal_values_is_shown() -> None:
    limits = limits_of([0.0] * 100 + [5.0])
    assert limits is not None
    assert (limits.low, limits.high, limits.above) == (0.0, 5.0, None)


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_values_without_a_finite_one_have_no_limits(values: list[float]) -> None:
    assert limits_of(values) is None


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60))
def test_limits_hold_the_shown_values_and_count_the_others(values: list[float]) -> None:
    limits = limits_of(values)
    assert limits is not None
    assert limits.low <= limits.high
    assert max(values) in (limits.high, limits.above)
    assert min(values) in (limits.low, limits.below)


def test_a_picture_is_drawn_of_every_kind_of_series(tmp_path: Path) -> None:
    entries = [metric("loss", step, 2.0 / (step + 1), step=step) for step in range(50)]
    entries += [
        metric("loss", 60 + step, 2.0 / (step + 1), step=step) for step in range(40, 80)
    ]  # Steps that were repeated.
    entries += [metric("$x_{1}$ 実験", at, math.nan if at == 3 else at) for at in range(9)]
    entries += [
        entry("tpu_duty_cycle", at, {"values": [50.0, 60.0], "hostname": f"h{host}", "process_index": str(host)})
        for at in range(9)
        for host in range(20)
    ]
    entries += [metric("one", 0, 1.0), metric("never finite", 0, math.inf, step=1), metric("big", 0, 1e300, step=1)]
    plot_metrics("run-1", series_of(*entries), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_suffix_selects_the_image_format(name: str, start: bytes, tmp_path: Path) -> None:
    plot_metrics("run-1", series_of(metric("loss", 0, 1.0)), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_metrics_beyond_the_limit_are_left_out_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # Text as text.
    series = series_of(*(metric(f"m{number}", 0, 1.0) for number in range(100)))
    plot_metrics("run-1", series, tmp_path / "a.svg", most_panels=2)
    picture = (tmp_path / "a.svg").read_text()
    assert "98 more metrics are not drawn" in picture
    assert [name in picture for name in (">m0<", ">m1<", ">m2<")] == [True, True, False]


def test_outliers_and_values_that_are_not_finite_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    entries = [metric("step_time", step, 0.1 + step % 7 / 1000, step=step) for step in range(1, 100)]
    entries += [metric("step_time", 0, 12.0, step=0), metric("step_time", 100, math.nan, step=100)]
    plot_metrics("run-1", series_of(*entries), tmp_path / "a.svg")
    assert "12 at step 0; 1 not finite" in (tmp_path / "a.svg").read_text()


def test_in_the_dark_every_text_and_the_background_change(tmp_path: Path) -> None:
    entries = [metric("loss", 0, value, step=step) for step, value in enumerate((3.0, math.inf, 1.0))]
    series = series_of(*entries, metric("loss", 0, 1.0, step=4, host="host-1", pid=7))
    for name, dark in (("light.svg", False), ("dark.svg", True)):
        plot_metrics("run-1", series, tmp_path / name, dark=dark)
    light, dark_texts = texts_by_color(tmp_path / "light.svg"), texts_by_color(tmp_path / "dark.svg")
    assert sorted(map(sorted, light.values())) == sorted(map(sorted, dark_texts.values()))
    assert not light.keys() & dark_texts.keys()
    assert "fill: #0d1117" in (tmp_path / "dark.svg").read_text()
