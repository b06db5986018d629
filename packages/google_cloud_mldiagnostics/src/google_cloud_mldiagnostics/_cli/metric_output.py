"""Metrics as a table for people, and as data for programs: pure functions of series."""

from __future__ import annotations

import functools
import json
import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_common.command import formats
from ml_diagnostics_common.command.formats import format_table, shortened
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.texts import format_bytes

from google_cloud_mldiagnostics._cli.plot import limits_of
from google_cloud_mldiagnostics._entries import not_finite_text
from google_cloud_mldiagnostics._reading.metric_series import Point, Series
from google_cloud_mldiagnostics.metric_types import METRIC_UNITS

__all__ = [
    "Summary",
    "csv_lines",
    "format_number",
    "format_summaries",
    "format_values",
    "in_order",
    "json_lines",
    "metrics_as_dicts",
    "sparkline",
    "summarise",
    "summary_table",
    "values_as_dict",
]

_CSV_COLUMNS = ("metric", "time", "step", "value", "unit", "host", "process_index", "chip", "attempt", "labels")
_MOST_POINTS_SHOWN = 12
_MOST_SERIES_SHOWN = 4
_SYSTEM = ("gpu_", "hbm_", "host_", "process_", "tpu_", "vram_")
"""The starts of the names of metrics of hosts and chips."""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Summary:
    """Statistics of the values of some points.

    Attributes:
        count: The number of points.
        not_finite: The number of points without a finite value.
        mean: The mean of the finite values; None if there are none, as for minimum and maximum.
        minimum: The smallest finite value.
        maximum: The largest finite value.
        last: The last value, finite or not.
        last_step: The step of the last point.
    """

    count: int
    not_finite: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    last: float | None
    last_step: int | None


def summarise(series: Sequence[Series]) -> Summary:
    """Return statistics of the points of some series."""
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
    """Return series by metric: first metrics that every trainer has, then the user's, then the system's."""
    by_metric: dict[str, list[Series]] = {}
    for one in series:
        by_metric.setdefault(one.metric, []).append(one)
    known = {name: number for number, name in enumerate(dict.fromkeys(["loss", *METRIC_UNITS]))}

    def position(metric: str) -> tuple[bool, int, str]:
        return metric.startswith(_SYSTEM), known.get(metric, len(known)), metric

    return {metric: by_metric[metric] for metric in sorted(by_metric, key=position)}


def summary_table(
    by_metric: dict[str, list[Series]], width: int | None = None
) -> tuple[list[str], list[list[str]], str]:
    """Return a table with a row for each metric, over all processes that recorded it: headers, rows, alignment."""
    has_processes = any(len(series) > 1 for series in by_metric.values())
    headers = ["metric", "unit", "processes", "values", "mean", "min", "max", "last", "at step", "course"]
    rows = []
    for metric, series in by_metric.items():
        unit = series[0].unit
        summary = summarise(series)
        course: Sequence[float] = max(series, key=len).values
        limits = limits_of(course)
        if limits is not None and (limits.below, limits.above) != (None, None):  # As in the picture.
            course = [min(max(value, limits.low), limits.high) for value in course]
        rows.append(
            [
                shortened(metric, 50, width),
                shortened(unit, 12, width),
                str(len(series)),
                f"{summary.count:,}",
                *(_in_unit(value, unit) for value in (summary.mean, summary.minimum, summary.maximum, summary.last)),
                format_number(summary.last_step),
                " ".join(filter(None, (sparkline(course), _not_finite(summary)))),
            ]
        )
    align = "<<>>>>>>><"
    if not has_processes:
        align = align.replace(">", "", 1)
        for row in (headers, *rows):
            del row[2]
    return headers, rows, align


def format_summaries(by_metric: dict[str, list[Series]], width: int | None = None) -> list[str]:
    """Return the lines of `summary_table`."""
    headers, rows, align = summary_table(by_metric, width)
    return format_table(headers, rows, align, width=width, cut=["course", "metric"], indent="  ")


def format_values(by_metric: dict[str, list[Series]], width: int | None = None) -> list[str]:
    """Return the lines of tables with the last values of each series."""
    lines: list[str] = []
    for metric, series in by_metric.items():
        for one in series[:_MOST_SERIES_SHOWN]:
            process = f", {one.host} (process {one.process_index})" if len(series) > 1 else ""
            shown = one.ends(_MOST_POINTS_SHOWN)
            rows = [(format_number(point.step), _shown_time(point), _shown(point, one.unit)) for point in shown]
            more = len(one) - len(shown)
            gap = [f"  ... {more:,} before them; --format csv or json has all"] if more else []
            title = f"{shortened(metric, 50, width)} ({shortened(one.unit, 12, width)}){shortened(process, 80, width)}"
            lines += ["", title, "", *gap, *format_table(("step", "time", "value"), rows, "><>", indent="  ")]
        if len(series) > _MOST_SERIES_SHOWN:
            lines += ["", f"... {len(series) - _MOST_SERIES_SHOWN} more processes; --format csv or json has all"]
    return lines


def metrics_as_dicts(by_metric: dict[str, list[Series]]) -> list[dict[str, Any]]:
    """Return each series with its statistics, in the types of JSON."""
    return [_series_as_dict(one) for series in by_metric.values() for one in series]


def json_lines(run_id: str, by_metric: dict[str, list[Series]]) -> Iterator[str]:
    """Yield the lines of a JSON object with all points; values that are not finite are NaN, Infinity or -Infinity."""
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


def values_as_dict(run_id: str, by_metric: dict[str, list[Series]]) -> dict[str, Any]:
    """Return the object of `json_lines`."""
    found: dict[str, Any] = json.loads("".join(json_lines(run_id, by_metric)))
    return found


def csv_lines(by_metric: dict[str, list[Series]]) -> Iterator[str]:
    """Yield the lines of a CSV file: one for each value, so that a point with a value for each chip has several."""
    return formats.csv_lines(_CSV_COLUMNS, _csv_rows(by_metric))


def _csv_rows(by_metric: dict[str, list[Series]]) -> Iterator[Sequence[object]]:
    for one in (one for series in by_metric.values() for one in series):
        for point in one:
            labels = json.dumps(_plain(point.labels), ensure_ascii=False, sort_keys=True) if point.labels else ""
            step = "" if point.step is None else point.step
            for index, value in enumerate(point.values):
                chip = _chip(one, index) if len(point.values) > 1 or one.chips else ""
                yield (
                    *(one.metric, _time(point), step, _json_number(value), one.unit),
                    *(one.host, one.process_index, chip, point.attempt, labels),
                )


def format_number(number: float | None) -> str:
    """Format a number with six digits, and whole numbers in full; a dash if it is not known."""
    if number is None:
        return "-"
    if math.isfinite(number) and number == int(number) and abs(number) < 1e9:
        return f"{int(number):,}"
    return f"{number:.6g}"


def sparkline(values: Sequence[float], length: int = 24) -> str:
    """Return the course of values as a line of bars; empty if standard output cannot print it."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2 or not _can_print(_BARS):
        return ""
    parts = [finite[len(finite) * at // length : len(finite) * (at + 1) // length] for at in range(length)]
    means = [sum(value / len(part) for value in part) for part in parts if part] if len(finite) >= length else finite
    low, high = min(means), max(means)
    if low == high:
        return _BARS[0] * len(means)
    # Halved: the difference of two values of a job that diverges may be more than a float can hold.
    share = [(mean / 2 - low / 2) / (high / 2 - low / 2) for mean in means]
    return "".join(_BARS[min(len(_BARS) - 1, int(part * len(_BARS)))] for part in share)


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _in_unit(value: float | None, unit: str) -> str:
    if value is not None and math.isfinite(value) and unit in ("bytes", "bytes/s"):
        return format_bytes(round(value)) + unit.removeprefix("bytes")
    return format_number(value)


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
    """Return a value in the types of JSON, the same from the journal and from Cloud Logging, which has floats only."""
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
    """Format RFC 3339 without the fraction; many points have the same second."""
    return format_timestamp(seconds * 1_000_000_000)[:19]


def _shown_time(point: Point) -> str:
    text = _time(point)
    return f"{text[:10]} {text[11:23]}Z"
