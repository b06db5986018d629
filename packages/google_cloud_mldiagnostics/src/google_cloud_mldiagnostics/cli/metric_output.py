"""Metrics as a table for people, and as JSON and CSV for programs: pure functions of series."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
from array import array
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

__all__ = [
    "Summary",
    "csv_lines",
    "format_summaries",
    "format_values",
    "in_order",
    "json_lines",
    "metrics_as_dicts",
    "summarise",
]

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


def summarise(series: Sequence[Series]) -> Summary:
    """Return what the points of some series come to."""
    finite = array("d", (value for one in series for value in one.values if math.isfinite(value)))
    count = sum(map(len, series))
    ends = [point for one in series for point in one.ends(1)]
    last = max(ends, key=lambda point: point.timestamp_ns, default=None)
    return Summary(
        count=count,
        not_finite=count - len(finite),
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
        summary = summarise(series)
        course: Sequence[float] = max(series, key=len).values
        limits = limits_of(course)
        if limits is not None and (limits.below, limits.above) != (None, None):  # As in the picture.
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
            shown = one.ends(_MOST_POINTS_SHOWN)
            for point in shown:
                cells.append((format_number(point.step), _shown_time(point), _shown(point, one.unit)))
            more = len(one) - len(shown)
            gap = [f"  ... {more:,} before them; --format csv or json has all"] if more else []
            title = f"{one_line(metric, 50)} ({one_line(one.unit, 12)}){one_line(who, 80)}"
            lines += ["", title, "", *gap, *columns(cells, "><>")]
        if len(series) > _MOST_SERIES_SHOWN:
            lines += ["", f"... {len(series) - _MOST_SERIES_SHOWN} more processes; --format csv or json has all"]
    return lines


def metrics_as_dicts(by_metric: dict[str, list[Series]]) -> list[dict[str, Any]]:
    """Return what each series is and comes to, in the types of JSON."""
    return [_series_as_dict(one) for series in by_metric.values() for one in series]


def json_lines(run_id: str, by_metric: dict[str, list[Series]]) -> Iterator[str]:
    """Yield the lines of a JSON object with all points; what is not finite is the text NaN, Infinity or -Infinity."""
    yield f'{{"run": {json.dumps(run_id)}, "metrics": ['
    separator = ""
    for one in (one for series in by_metric.values() for one in series):
        yield f'{separator}\n{json.dumps(_series_as_dict(one))[:-1]}, "points": ['
        separator = ""
        for point in one:
            yield f"{separator}\n{_point_as_json(point)}"
            separator = ","
        yield "]}"
        separator = ","
    yield "]}\n"


def csv_lines(by_metric: dict[str, list[Series]]) -> Iterator[str]:
    """Yields the lines of a CSV file: one a value, so that a point with a value a chip has several."""
    yield _csv_line(_CSV_COLUMNS)
    for series in by_metric.values():
        for one in series:
            for point in one:
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


def _series_as_dict(series: Series) -> dict[str, Any]:
    summary = summarise([series])
    return {
        "metric": series.metric,
        "unit": series.unit,
        "host": series.host,
        "process_index": series.process_index,
        "count": summary.count,
        "not_finite": summary.not_finite,
        "mean": summary.mean,
        "min": summary.minimum,
        "max": summary.maximum,
        "last": None if summary.last is None else _json_number(summary.last),
        "last_step": summary.last_step,
    }


def _point_as_json(point: Point) -> str:
    step = "null" if point.step is None else point.step
    value = repr(point.value) if math.isfinite(point.value) else f'"{not_finite_text(point.value)}"'
    line = f'{{"time": "{_time(point)}", "step": {step}, "value": {value}'
    if len(point.values) > 1:
        line += f', "values": {json.dumps([_json_number(value) for value in point.values])}'
    if point.attempt:
        line += f', "attempt": {_quoted(point.attempt)}'
    if point.labels:
        line += f', "labels": {json.dumps(_plain(point.labels))}'
    return line + "}"


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
    seconds, fraction = divmod(point.timestamp_ns, 1_000_000_000)
    return f"{_second(seconds)}.{fraction:09d}Z"


@functools.lru_cache(maxsize=16)
def _quoted(text: str) -> str:
    return json.dumps(text)


@functools.lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """RFC 3339 without the fraction; many points are of one second."""
    return format_timestamp(seconds * 1_000_000_000)[:19]


def _shown_time(point: Point) -> str:
    """To the millisecond."""
    text = _time(point)
    return f"{text[:10]} {text[11:23]}Z"
