"""Series of a run's metrics, from entries of ours and of the public package."""

from __future__ import annotations

import math
import random
import tracemalloc
from typing import Any

import pytest
from google_cloud_mldiagnostics._cli.metric_output import json_lines
from google_cloud_mldiagnostics._reading.metric_series import MetricSeries, Point, Series
from ml_diagnostics_common.entry import EntryContext, LogEntry

RESOURCE = {"type": "generic_node", "labels": {"namespace": "mlrun_losses", "node_id": "run"}}


def entry(
    metric: str, time: int, payload: dict[str, Any], *, host: str = "a", index: str = "0", attempt: str = "1"
) -> LogEntry:
    context = EntryContext("", "", RESOURCE, {"host": host, "process_index": index, "attempt": attempt}, writer=host)
    return LogEntry(time, time, payload, context, own_resource_labels={"namespace": metric})


def test_a_metric_is_a_series_over_steps_and_time() -> None:
    series = MetricSeries()
    series.add(
        entry("loss", step * 10, {"values": [1.0 / step], "step_index": step, "unit": "1"}) for step in (1, 2, 4)
    )
    [loss] = series.of("loss")
    assert series.names() == ["loss"]
    assert (loss.metric, loss.host, loss.process_index, loss.unit, loss.has_steps) == ("loss", "a", "0", "1", True)
    assert [(point.timestamp_ns, point.step, point.value) for point in loss.points] == [
        (10, 1, 1.0),
        (20, 2, 0.5),
        (40, 4, 0.25),
    ]


def test_the_order_of_entries_does_not_matter() -> None:
    entries = [entry("loss", time, {"values": [float(time)], "step_index": time}) for time in range(100)]
    expected = MetricSeries()
    expected.add(entries)
    random.Random(7).shuffle(entries)
    shuffled = MetricSeries()
    for one in entries:
        shuffled.add([one])
    assert shuffled.of("loss")[0].points == expected.of("loss")[0].points
    assert shuffled.of("loss")[0].by_step() == expected.of("loss")[0].by_step()


def test_of_a_step_that_was_done_again_the_last_one_counts() -> None:
    series = MetricSeries()
    for time, attempt, step in [(1, "1", 1), (2, "1", 2), (3, "1", 3), (4, "2", 2), (5, "2", 3)]:
        series.add([entry("loss", time, {"values": [float(time)], "step_index": step}, attempt=attempt)])
    [loss] = series
    assert [(point.step, point.value, point.attempt) for point in loss.by_step()] == [
        (1, 1.0, "1"),
        (2, 4.0, "2"),
        (3, 5.0, "2"),
    ]
    assert len(loss.points) == 5


def test_each_process_has_a_series_and_they_are_in_order() -> None:
    series = MetricSeries()
    for index in (10, 2, 0):
        series.add([entry("cpu", 1, {"values": [1.0], "hostname": f"h{index}", "process_index": str(index)})])
    assert [(one.host, one.process_index) for one in series.of("cpu")] == [("h0", "0"), ("h2", "2"), ("h10", "10")]


def test_chips_keep_their_values_and_the_point_has_their_mean() -> None:
    series = MetricSeries()
    chips = ["a-tpu0", "a-tpu1"]
    series.add([entry("tpu_duty_cycle", 1, {"values": [10.0, 30.0], "unit": "%", "accelerator_labels": chips})])
    [duty] = series
    assert duty.chips == ("a-tpu0", "a-tpu1")
    assert (duty.points[0].values, duty.points[0].value, duty.points[0].labels) == ((10.0, 30.0), 20.0, {})


def test_values_that_are_not_finite_are_read_back() -> None:
    series = MetricSeries()
    series.add(
        [entry("loss", 1, {"values": ["NaN"], "not_finite": True}), entry("loss", 2, {"values": ["-Infinity", 1.0]})]
    )
    first, second = series.of("loss")[0].points
    assert math.isnan(first.value)
    assert (second.values, second.value) == ((-math.inf, 1.0), 1.0)


def test_labels_of_the_user_are_kept() -> None:
    series = MetricSeries()
    series.add([entry("loss", 1, {"values": [1.0], "step_index": 1, "unit": "1", "split": "test"})])
    assert series.of("loss")[0].points[0].labels == {"split": "test"}


@pytest.mark.parametrize(("step", "read"), [(7, 7), (7.0, 7), ("7", 7), (1.5, None), ("a", None), (None, None)])
def test_steps_of_the_public_package_are_read(step: Any, read: int | None) -> None:
    series = MetricSeries()
    series.add([entry("loss", 1, {"values": [1.0], "step_index": step})])
    assert series.of("loss")[0].points[0].step == read


def test_entries_other_than_metrics_are_skipped() -> None:
    series = MetricSeries()
    series.add(
        [
            entry("mlrun_configs", 1, {"values": [1.0]}),
            entry("", 1, {"values": [1.0]}),
            entry("loss", 1, {"message": "hello"}),
            entry("loss", 1, {"values": ["a"]}),
            entry("loss", 1, {"values": []}),
            entry("loss", 1, {"values": None}),
        ]
    )
    assert list(series) == []


def test_a_point_takes_tens_of_bytes_of_memory() -> None:
    context = EntryContext("log", "", {}, {"host": "a", "process_index": "0", "attempt": "1"}, "INFO", "w")
    entries = (
        LogEntry(
            step,
            step,
            {"values": [step / 2], "step_index": step, "unit": "1"},
            context,
            own_resource_labels={"namespace": "loss"},
        )
        for step in range(50_000)
    )
    series = MetricSeries()
    tracemalloc.start()
    try:
        series.add(entries)
        (loss,) = series.of("loss")
        consumed = sum(map(len, json_lines("run-1", {"loss": [loss]})))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(loss) == 50_000
    assert consumed > 50 * len(loss)
    assert peak < 80 * len(loss)


def test_columns_hold_integers_of_more_than_64_bits_in_any_order() -> None:
    one = Series("loss", "a", "0")
    points = [
        Point(3, 3, 0.3, (0.3,), "1", {}),
        Point(10**20, 2**70, 0.4, (0.4,), "2", {"split": "test"}),
        Point(1, None, 2.0, (1.0, 3.0), "1", {}),
        Point(2, -5, math.inf, (math.inf,), "1", {}),
    ]
    for point in points:
        one.add(point)
    assert one.points == sorted(points, key=lambda point: point.timestamp_ns)
    assert one.ends(1) == [points[1]]
    assert not one.has_steps
    assert list(one.values) == [2.0, math.inf, 0.3, 0.4]
    one.add(Point(10**21, 2**71, 0.5, (0.5,), "2", {}))
    assert [point.timestamp_ns for point in one.points] == [1, 2, 3, 10**20, 10**21]
    fresh = Series("loss", "a", "0")
    fresh.add(points[0])
    assert len(fresh.points) == 1
    fresh.add(points[1])
    assert fresh.points == points[:2], "the first that needs more than 64 bits"
