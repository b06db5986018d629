"""The metrics of a run as a table, CSV and JSON: every value, and no others."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from google_cloud_mldiagnostics._cli.metric_output import (
    csv_lines,
    format_number,
    format_summaries,
    format_values,
    in_order,
    json_lines,
    metrics_as_dicts,
    sparkline,
    summarise,
)
from google_cloud_mldiagnostics._reading.metric_series import MetricSeries, Series
from ml_diagnostics_common.entry import LogEntry

from .sample_entries import entry, metric


def series_of(*entries: LogEntry) -> dict[str, list[Series]]:
    series = MetricSeries()
    series.add(entries)
    return in_order(series)


def rows(by_metric: dict[str, list[Series]]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(csv_lines(by_metric)))))


def test_a_summary_is_of_all_finite_values_and_counts_the_others() -> None:
    entries = [metric("loss", step, value, step=step) for step, value in enumerate([4.0, math.nan, 1.0, 1.0])]
    (loss,) = series_of(*entries)["loss"]
    summary = summarise([loss])
    assert (summary.count, summary.not_finite, summary.mean, summary.minimum, summary.maximum) == (4, 1, 2.0, 1.0, 4.0)
    assert (summary.last, summary.last_step) == (1.0, 3)


def test_a_metric_without_a_finite_value_has_no_mean() -> None:
    summary = summarise(series_of(metric("loss", 0, math.inf))["loss"])
    assert (summary.count, summary.not_finite, summary.mean, summary.maximum) == (1, 1, None, None)
    assert "(1 not finite)" in "\n".join(format_summaries(series_of(metric("loss", 0, math.inf))))


def test_metrics_of_the_model_are_first_and_those_of_the_system_last() -> None:
    names = ["host_cpu_utilization", "zeta", "step_time", "loss", "alpha", "learning_rate"]
    assert list(series_of(*(metric(name, 0, 1.0) for name in names))) == [
        "loss",
        "learning_rate",
        "step_time",
        "alpha",
        "zeta",
        "host_cpu_utilization",
    ]


def test_csv_has_a_line_for_each_value_of_each_chip() -> None:
    payload = {"values": [10.0, 20.5], "unit": "%", "accelerator_labels": ["h-tpu0", "h-tpu1"], "hostname": "h"}
    by_metric = series_of(entry("tpu_duty_cycle", 0, payload), metric("loss", 1, 0.25, step=7))
    loss, first, second = rows(by_metric)
    assert (loss["metric"], loss["step"], loss["value"], loss["chip"]) == ("loss", "7", "0.25", "")
    assert loss["time"] == "2025-11-21T07:31:51.000000000Z"
    assert (first["value"], first["chip"], first["unit"], first["host"]) == ("10", "h-tpu0", "%", "h")
    assert (second["value"], second["chip"], second["step"]) == ("20.5", "h-tpu1", "")


def test_csv_and_json_have_values_that_are_not_finite_as_texts_that_programs_read() -> None:
    by_metric = series_of(*(metric("loss", at, value) for at, value in enumerate([math.nan, math.inf, -math.inf])))
    assert [row["value"] for row in rows(by_metric)] == ["NaN", "Infinity", "-Infinity"]
    encoded = "".join(json_lines("run-1", by_metric))
    assert [point["value"] for point in json.loads(encoded)["metrics"][0]["points"]] == ["NaN", "Infinity", "-Infinity"]
    assert [float(row["value"]) for row in rows(by_metric)][1:] == [math.inf, -math.inf]


def test_csv_keeps_every_bit_of_a_value_and_any_name() -> None:
    name, value = 'a,"b"\nc', 0.1 + 0.2
    (row,) = rows(series_of(metric(name, 0, value)))
    assert (row["metric"], float(row["value"])) == (name, value)


def test_csv_has_no_formula_and_numbers_stay_numbers() -> None:
    payload = {"values": [-1.5], "unit": "@u", "hostname": "=HYPERLINK(0)", "process_index": "-1"}
    (row,) = rows(series_of(entry("+loss", 0, payload)))
    assert (row["metric"], row["unit"], row["host"]) == ("'+loss", "'@u", "'=HYPERLINK(0)")
    assert (row["value"], row["process_index"]) == ("-1.5", "-1")


def test_labels_of_the_user_are_kept() -> None:
    labelled = entry("loss", 0, {"values": [1.0], "unit": "1", "split": "eval"})
    assert json.loads(rows(series_of(labelled))[0]["labels"]) == {"split": "eval"}
    assert json.loads("".join(json_lines("run-1", series_of(labelled))))["metrics"][0]["points"][0]["labels"] == {
        "split": "eval"
    }


def test_processes_have_their_own_points_and_share_one_row() -> None:
    entries = [metric("loss", 0, 1.0), entry("loss", 1, {"values": [3.0], "hostname": "host-1", "process_index": "1"})]
    by_metric = series_of(*entries)
    assert format_summaries(by_metric)[2].split()[:5] == ["loss", "1", "2", "2", "2"]
    assert [(one["host"], one["mean"]) for one in metrics_as_dicts(by_metric)] == [
        ("host-0", 1),
        ("host-1", 3),
    ]


def test_names_and_units_are_cut_on_a_terminal_only() -> None:
    name, unit = "validation/" + "a_long_name_of_a_dataset_" * 4 + "loss", "tokens_per_second"
    by_metric = series_of(*(entry(name, at, {"values": [1.0], "unit": unit}) for at in range(2)))
    for lines, on_terminal in (
        (format_summaries(by_metric), format_summaries(by_metric, 120)),
        (format_values(by_metric), format_values(by_metric, 120)),
    ):
        assert name in "\n".join(lines)
        assert unit in "\n".join(lines)
        assert name not in "\n".join(on_terminal)
        assert unit not in "\n".join(on_terminal)


def test_the_last_values_are_shown_of_metrics_that_are_named() -> None:
    by_metric = series_of(*(metric("loss", step, 100.0 - step, step=step) for step in range(40)))
    lines = format_values(by_metric)
    assert "28 before them" in "\n".join(lines)
    assert lines[-1].split() == ["39", "2025-11-21", "07:32:29.000Z", "61"]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(3, "3"), (12_345.0, "12,345"), (0.123456789, "0.123457"), (1e-9, "1e-09"), (None, "-"), (math.nan, "nan")],
)
def test_numbers_are_short(number: float | None, shown: str) -> None:
    assert format_number(number) == shown


def test_the_course_of_values_is_drawn_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([1.0]) == ""
    assert len(sparkline(list(range(10_000)))) == 24
    assert sparkline([0, math.nan, 7]) == "▁█"
    assert sparkline([-1.7e308, 0.0, 1.7e308]) == "▁▅█"
    assert len(sparkline([1.7e308, -1.7e308] * 50)) == 24
