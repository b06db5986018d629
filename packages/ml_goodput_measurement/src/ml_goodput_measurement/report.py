"""A job's report as text for people, and as JSON for programs: pure functions of a `JobReport`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption, JobReport

__all__ = [
    "BUCKET_NAMES",
    "as_dict",
    "format_clock",
    "format_count",
    "format_duration",
    "format_json",
    "format_text",
    "one_line",
    "rows",
]

BUCKET_NAMES = {
    Bucket.PRODUCTIVE: "productive",
    Bucket.WASTED_PROGRESS: "wasted progress",
    Bucket.INFRASTRUCTURE_RECOVERY: "infrastructure recovery",
    Bucket.TPU_INITIALIZATION: "device initialization",
    Bucket.TRAINING_PREP: "training preparation",
    Bucket.DATA_LOADING_SYNC: "data loading",
    Bucket.PROGRAM_STARTUP: "program startup",
    Bucket.CHECKPOINT_RESTORE: "checkpoint restore",
    Bucket.CHECKPOINT_SAVE: "checkpoint save",
    Bucket.ELASTIC_SLICE_DOWN: "elastic: slice down",
    Bucket.ELASTIC_SCALE_UP: "elastic: scale up",
    Bucket.ELASTIC_REINITIALIZATION: "elastic: reinitialization",
    Bucket.CUSTOM: "custom events",
    Bucket.EXCLUDED: "excluded",
    Bucket.IN_FLIGHT: "step in flight",
    Bucket.UNKNOWN: "unknown",
}
"""What people call the buckets, in the order of their rows: first what was good, last what is not known."""

_SECOND = 1_000_000_000
_UNITS = (("d", 86_400 * _SECOND), ("h", 3_600 * _SECOND), ("min", 60 * _SECOND))


def rows(report: JobReport) -> list[tuple[Bucket, str, int]]:
    """Returns (bucket, name, nanoseconds) of what took time; a row for each type of custom event."""
    table: list[tuple[Bucket, str, int]] = []
    for bucket, name in BUCKET_NAMES.items():
        if bucket is Bucket.CUSTOM:
            labels = sorted(label for label, ns in report.custom.items() if ns)
            table += [(bucket, f"custom: {one_line(label.lower(), 40)}", report.custom[label]) for label in labels]
        elif report.buckets[bucket]:
            table.append((bucket, name, report.buckets[bucket]))
    return table


def format_duration(duration_ns: int) -> str:
    """Returns a duration in the two units that matter: 37 ms, 41.2 s, 3 min 20 s, 5 h 12 min, 12 d 3 h."""
    for smaller, (unit, unit_ns) in enumerate(_UNITS, start=1):
        if duration_ns >= unit_ns:
            name, part_ns = _UNITS[smaller] if smaller < len(_UNITS) else ("s", _SECOND)
            whole, part = divmod(round(duration_ns / part_ns), unit_ns // part_ns)
            return f"{whole} {unit} {part} {name}"
    if duration_ns >= 10 * _SECOND:
        return f"{duration_ns / _SECOND:.1f} s"
    if duration_ns >= _SECOND:
        return f"{duration_ns / _SECOND:.2f} s"
    milliseconds = duration_ns / 1e6
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def one_line(name: str, length: int) -> str:
    """Returns a name as one line of printable characters, cut to a length: people may have called it anything."""
    text = "".join(character if character.isprintable() else " " for character in name[: length + 1])
    return text if len(text) <= length else text[: length - 3] + "..."


def format_clock(time_ns: int) -> str:
    """Returns a moment to the second, in UTC: 2026-11-21 05:36:43Z."""
    return f"{_moment(time_ns):%Y-%m-%d %H:%M:%S}Z"


def format_count(number: int, noun: str) -> str:
    """Returns a number with its noun: 1 step, 2 steps."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_text(report: JobReport) -> str:
    """Returns the report as a page of text, without a line that has nothing to say."""
    sections = [_headline(report), _bucket_table(report), _disruptions(report), _attempts(report), _notes(report)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _headline(report: JobReport) -> list[str]:
    state = "still running" if report.running else "ended"
    lines = [
        f"{one_line(report.job_name, 100)}: {report.goodput_percent:.2f} % goodput",
        "",
        f"  wall time    {format_duration(report.wall_ns)}, from {format_clock(report.start_ns)} "
        f"to {format_clock(report.end_ns)} ({state})",
    ]
    if report.steps_kept:
        lines.append(f"  last step    {report.last_step}, {report.steps_kept} steps kept")
    checkpoint_step = report.attempts[-1].last_checkpoint_step if report.running else None
    if checkpoint_step is not None:
        lines.append(f"  checkpoint   of step {checkpoint_step}, the last begun or saved")
    if report.ideal_step_seconds is not None:
        lines.append(f"  ideal step   {format_duration(round(report.ideal_step_seconds * _SECOND))}")
    return lines


def _bucket_table(report: JobReport) -> list[str]:
    # A second column in larger units helps only where the seconds are too many to read.
    long = report.wall_ns >= 120 * _SECOND
    cells = [("", "seconds", "percent", "")]
    for _, name, ns in [*rows(report), (None, "total", report.wall_ns)]:
        share = f"{100 * ns / report.wall_ns:.2f}" if report.wall_ns else "-"
        cells.append((name, f"{ns / _SECOND:,.3f}", share, format_duration(ns) if long else ""))
    lines = list(_columns(cells, align="<>>>"))
    lines.insert(-1, "  " + "-" * (max(map(len, lines)) - 2))
    if report.estimated_ns:
        lines += ["", f"  estimated: {format_duration(report.estimated_ns)} of steps whose end was not recorded"]
    if report.data_loading_async_ns:
        lines += [
            "",
            f"  beside the steps, not in the sum: {format_duration(report.data_loading_async_ns)} of data loading",
        ]
    return lines


def _disruptions(report: JobReport) -> list[str]:
    return [line for disruption in report.disruptions for line in _disruption(report, disruption)]


def _disruption(report: JobReport, disruption: Disruption) -> list[str]:
    cut_short = report.attempts[disruption.attempt - 1]
    ended, last = ("ended", "after") if cut_short.ended is AttemptEnd.JOB_END else ("was last heard of", "in")
    reached = "" if cut_short.last_step is None else f" {last} step {cut_short.last_step}"
    lost = f" ({format_count(disruption.steps_lost, 'step')})" if disruption.steps_lost else ""
    resumed = ", no step since" if disruption.resumed_step is None else f" from step {disruption.resumed_step}"
    failed = disruption.failed_attempts and f", after {format_count(disruption.failed_attempts, 'failed attempt')}"
    return [
        f"Disruption {disruption.number} cost {format_duration(disruption.cost_ns)}: "
        f"{format_duration(disruption.wasted_ns)} wasted{lost}, "
        f"{format_duration(disruption.recovery_ns)} recovery, {format_duration(disruption.restart_ns)} restart",
        f"  attempt {disruption.attempt} {ended} at {format_clock(disruption.last_event_ns)}{reached}; "
        f"resumed at {format_clock(disruption.resumed_ns)}{resumed}{failed or ''}",
    ]


def _attempts(report: JobReport) -> list[str]:
    if len(report.attempts) < 2:
        return []
    cells: list[tuple[str, ...]] = [("attempt", "began", "lasted", "steps", "kept", "lost", "how it ended")]
    cells += [_attempt(attempt) for attempt in report.attempts]
    return list(_columns(cells, align="><>>>><"))


def _attempt(attempt: AttemptSummary) -> tuple[str, ...]:
    steps = "none" if attempt.first_step is None else f"{attempt.first_step} to {attempt.last_step}"
    return (
        str(attempt.number),
        format_clock(attempt.start_ns),
        format_duration(attempt.end_ns - attempt.start_ns),
        steps,
        str(attempt.steps_kept),
        str(attempt.steps_lost),
        attempt.ended.value,
    )


def _notes(report: JobReport) -> list[str]:
    return [f"Note: {note}" for note in report.notes]


def _columns(cells: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    """Yields the lines of a table whose columns are as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        parts = (f"{cell:{side}{width}}" for cell, side, width in zip(line, align, widths, strict=True))
        yield ("  " + "   ".join(parts)).rstrip()


def _moment(time_ns: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ns // _SECOND, datetime.timezone.utc)


def format_json(report: JobReport) -> str:
    """Returns the report as a JSON object, indented; see `as_dict`."""
    return json.dumps(as_dict(report), indent=2) + "\n"


def as_dict(report: JobReport) -> dict[str, Any]:
    """Returns all of the report but its timeline, in the types of JSON.

    Times are RFC 3339 in UTC, durations float seconds. Every bucket is there, whether it took time or not, so that a
    program need not ask: by the name that `BadputType` has for it, or PRODUCTIVE, IN_FLIGHT_STEP, EXCLUDED or UNKNOWN.
    An attempt has only those that took time; its `custom_seconds`, by type, are those of CUSTOM_BADPUT_EVENTS.
    """
    return {
        "job_name": report.job_name,
        "start": _rfc3339(report.start_ns),
        "end": _rfc3339(report.end_ns),
        "running": report.running,
        "wall_seconds": report.wall_ns / _SECOND,
        "goodput_percent": report.goodput_percent,
        "last_step": report.last_step,
        "steps_kept": report.steps_kept,
        "ideal_step_seconds": report.ideal_step_seconds,
        "estimated_seconds": report.estimated_ns / _SECOND,
        "data_loading_async_seconds": report.data_loading_async_ns / _SECOND,
        "buckets": _shares(((bucket.value, report.buckets[bucket]) for bucket in BUCKET_NAMES), report.wall_ns),
        "custom_events": _shares(report.custom.items(), report.wall_ns),
        "disruptions": [_disruption_dict(disruption) for disruption in report.disruptions],
        "attempts": [_attempt_dict(attempt) for attempt in report.attempts],
        "notes": list(report.notes),
    }


def _shares(durations: Iterable[tuple[str, int]], wall_ns: int) -> dict[str, dict[str, float]]:
    return {
        name: {"seconds": ns / _SECOND, "percent": 100 * ns / wall_ns if wall_ns else 0.0} for name, ns in durations
    }


def _disruption_dict(disruption: Disruption) -> dict[str, Any]:
    return {
        "number": disruption.number,
        "attempt": disruption.attempt,
        "last_event": _rfc3339(disruption.last_event_ns),
        "resumed": _rfc3339(disruption.resumed_ns),
        "resumed_step": disruption.resumed_step,
        "failed_attempts": disruption.failed_attempts,
        "steps_lost": disruption.steps_lost,
        "cost_seconds": disruption.cost_ns / _SECOND,
        "wasted_seconds": disruption.wasted_ns / _SECOND,
        "recovery_seconds": disruption.recovery_ns / _SECOND,
        "restart_seconds": disruption.restart_ns / _SECOND,
    }


def _attempt_dict(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "start": _rfc3339(attempt.start_ns),
        "end": _rfc3339(attempt.end_ns),
        "ended": attempt.ended.value,
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "steps_kept": attempt.steps_kept,
        "steps_lost": attempt.steps_lost,
        "last_checkpoint_step": attempt.last_checkpoint_step,
        "bucket_seconds": {bucket.value: ns / _SECOND for bucket, ns in attempt.buckets.items() if ns},
        "custom_seconds": {label: ns / _SECOND for label, ns in attempt.custom.items() if ns},
    }


def _rfc3339(time_ns: int) -> str:
    return f"{_moment(time_ns):%Y-%m-%dT%H:%M:%S}.{time_ns % _SECOND:09d}Z"
