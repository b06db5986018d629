"""Metrics as a table for people, and as JSON and CSV for programs: pure functions of series."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_common.csv_cells import safe_cell
from ml_diagnostics_common.entry import format_timestamp

from google_cloud_mldiagnostics.cli.text import columns, format_bytes, format_number, one_line, sparkline
from google_cloud_mldiagnostics.finite import not_finite_text
from google_cloud_mldiagnostics.metric_types import METRIC_UNITS
from google_cloud_mldiagnostics.reading.metric_series import Point, Series
from google_cloud_mldiagnostics.reading.plot import limits_of

__all__ = ["Summary", "csv_lines", "format_summaries", "format_values", "in_order", "metrics_as_dict", "summarise"]

_CSV_COLUMNS = ("metric", "time", "step", "value", "unit", "host", "process_index", "chip", "attempt", "labels")
_MOST_POINTS_SHOWN = 12
_MOST_SERIES_SHOWN = 4
_SYSTEM = ("gpu_", "hbm_", "host_", "process_", "tpu_", "vram_")
"""How the names of what is measured of hosts and chips begin."""


@dataclass(frozen=True)
class Summary:
    """What all values of some points come to.

    Attributes:
        count: How many points there are.
        not_finite: How many of them have no finite value.
        mean: Of the finite ones, as minimum and maximum; None where there are none.
        minimum: The smallest.
        maximum: The largest.
        last: The last one, finite or not.
        last_step: The step that it is of.
    """

    count: int
    not_finite: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    last: float | None
    last_step: int | None


def summarise(points: Iterable[Point]) -> Summary:
    """Returns what some points come to."""
    known = list(points)
    finite = [point.value for point in known if math.isfinite(point.value)]
    last = max(known, key=lambda point: point.timestamp_ns, default=None)
    return Summary(
        count=len(known),
        not_finite=len(known) - len(finite),
        mean=math.fsum(value / len(finite) for value in finite) if finite else None,
        minimum=min(finite, default=None),
        maximum=max(finite, default=None),
        last=None if last is None else last.value,
        last_step=None if last is None else last.step,
    )


def in_order(series: Iterable[Series]) -> dict[str, list[Series]]:
    """Returns series by metric: first those that every trainer has, then the user's, then the system's."""
    by_metric: dict[str, list[Series]] = {}
    for one in series:
        by_metric.setdefault(one.metric, []).append(one)
    known = {name: number for number, name in enumerate(dict.fromkeys(["loss", *METRIC_UNITS]))}

    def place(metric: str) -> tuple[bool, int, str]:
        return metric.startswith(_SYSTEM), known.get(metric, len(known)), metric

    return {metric: by_metric[metric] for metric in sorted(by_metric, key=place)}


def format_summaries(by_metric: dict[str, list[Series]]) -> list[str]:
    """Returns the lines of a table with a row a metric, over all processes that recorded it."""
    processes = any(len(series) > 1 for series in by_metric.values())
    heads = ("values", "mean", "min", "max", "last", "at step", "course")
    cells: list[tuple[str, ...]] = [("metric", "unit", *(("processes",) if processes else ()), *heads)]
    for metric, series in by_metric.items():
        unit = series[0].unit
        summary = summarise(point for one in series for point in one.points)
        course = [point.value for point in max(series, key=lambda one: len(one.points)).points]
        limits = limits_of(course)
        if limits is not None:  # As in the picture.
            course = [min(max(value, limits.low), limits.high) for value in course]
        cells.append(
            (
                one_line(metric, 50),
                one_line(unit, 12),
                *((str(len(series)),) if processes else ()),
                f"{summary.count:,}",
                *(_in_unit(value, unit) for value in (summary.mean, summary.minimum, summary.maximum, summary.last)),
                format_number(summary.last_step),
                " ".join(filter(None, (sparkline(course), _not_finite(summary)))),
            )
        )
    return columns(cells, "<<>>>>>>><" if processes else "<<>>>>>><")


def format_values(by_metric: dict[str, list[Series]]) -> list[str]:
    """Returns the lines of tables with the last values of each series."""
    lines: list[str] = []
    for metric, series in by_metric.items():
        for one in series[:_MOST_SERIES_SHOWN]:
            who = f", {one.host} (process {one.process_index})" if len(series) > 1 else ""
            cells = [("step", "time", "value")]
            shown = one.points[-_MOST_POINTS_SHOWN:]
            for point in shown:
                cells.append((format_number(point.step), _shown_time(point), _shown(point, one.unit)))
            more = len(one.points) - len(shown)
            gap = [f"  ... {more:,} before them; --format csv or json has all"] if more else []
            title = f"{one_line(metric, 50)} ({one_line(one.unit, 12)}){one_line(who, 80)}"
            lines += ["", title, "", *gap, *columns(cells, "><>")]
        if len(series) > _MOST_SERIES_SHOWN:
            lines += ["", f"... {len(series) - _MOST_SERIES_SHOWN} more processes; --format csv or json has all"]
    return lines


def metrics_as_dict(run_id: str, by_metric: dict[str, list[Series]], *, with_points: bool = True) -> dict[str, Any]:
    """Returns series in the types of JSON; what is not finite is the text NaN, Infinity or -Infinity."""
    return {
        "run": run_id,
        "metrics": [
            {
                "metric": one.metric,
                "unit": one.unit,
                "host": one.host,
                "process_index": one.process_index,
                **_summary_as_dict(summarise(one.points)),
                **({"points": [_point_as_dict(point) for point in one.points]} if with_points else {}),
            }
            for series in by_metric.values()
            for one in series
        ],
    }


def csv_lines(by_metric: dict[str, list[Series]]) -> Iterator[str]:
    """Yields the lines of a CSV file: one a value, so that a point with a value a chip has several."""
    yield _csv_line(_CSV_COLUMNS)
    for series in by_metric.values():
        for one in series:
            for point in one.points:
                labels = json.dumps(_plain(point.labels), ensure_ascii=False, sort_keys=True) if point.labels else ""
                step = "" if point.step is None else point.step
                for index, value in enumerate(point.values):
                    chip = _chip(one, index) if len(point.values) > 1 or one.chips else ""
                    yield _csv_line(
                        (
                            one.metric,
                            _time(point),
                            step,
                            _json_number(value),
                            one.unit,
                            one.host,
                            one.process_index,
                            chip,
                            point.attempt,
                            labels,
                        )
                    )


def _in_unit(value: float | None, unit: str) -> str:
    if value is not None and math.isfinite(value) and unit in ("bytes", "bytes/s"):
        return format_bytes(round(value)) + unit.removeprefix("bytes")
    return format_number(value)


def _csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(map(safe_cell, cells))
    return line.getvalue()


def _chip(series: Series, index: int) -> str:
    return series.chips[index] if index < len(series.chips) else str(index)


def _summary_as_dict(summary: Summary) -> dict[str, Any]:
    return {
        "count": summary.count,
        "not_finite": summary.not_finite,
        "mean": summary.mean,
        "min": summary.minimum,
        "max": summary.maximum,
        "last": None if summary.last is None else _json_number(summary.last),
        "last_step": summary.last_step,
    }


def _point_as_dict(point: Point) -> dict[str, Any]:
    told: dict[str, Any] = {"time": _time(point), "step": point.step, "value": _json_number(point.value)}
    if len(point.values) > 1:
        told["values"] = [_json_number(value) for value in point.values]
    if point.attempt:
        told["attempt"] = point.attempt
    if point.labels:
        told["labels"] = _plain(point.labels)
    return told


def _json_number(value: float) -> float | int | str:
    if math.isfinite(value):
        return int(value) if value == int(value) and abs(value) < 2**53 else value
    return not_finite_text(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it, the same from the journal and from Cloud Logging, which has floats only."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _json_number(value) if isinstance(value, float) else value


def _shown(point: Point, unit: str) -> str:
    mean = _in_unit(point.value, unit)
    if len(point.values) == 1:
        return mean
    return f"{mean} (of {', '.join(_in_unit(value, unit) for value in point.values[:8])})"


def _not_finite(summary: Summary) -> str:
    return f"({summary.not_finite} not finite)" if summary.not_finite else ""


def _time(point: Point) -> str:
    return format_timestamp(point.timestamp_ns)


def _shown_time(point: Point) -> str:
    """To the millisecond."""
    text = _time(point)
    return f"{text[:10]} {text[11:23]}Z"
