"""A job's report as text for people, and as JSON for programs: pure functions of a `JobReport`."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption, JobReport

__all__ = [
    "BUCKET_NAMES",
    "as_dict",
    "continuation_notes",
    "format_clock",
    "format_count",
    "format_duration",
    "format_json",
    "format_text",
    "one_line",
    "percent",
    "rows",
]

_Item = TypeVar("_Item")

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
    Bucket.IN_FLIGHT: "step in flight",
    Bucket.UNKNOWN: "unknown",
    Bucket.EXCLUDED: "excluded",
}
"""What people call the buckets, in the order of their rows: first what was good, last what does not count."""

_SECOND = 1_000_000_000
_SHOWN, _BLOCK = 12, 6
"""A page has so many attempts and disruptions at most, and so many attempts side by side."""
_PARTS: dict[str, Callable[[Disruption], int]] = {
    "cost": lambda disruption: disruption.cost_ns,
    "infrastructure": lambda disruption: disruption.infrastructure_ns,
    "init": lambda disruption: disruption.init_ns,
    "restore": lambda disruption: disruption.restore_ns,
    "data loading": lambda disruption: disruption.data_loading_ns,
    "startup": lambda disruption: disruption.startup_ns,
    "recompute": lambda disruption: disruption.recompute_ns,
}
_UNITS = (("d", 86_400 * _SECOND), ("h", 3_600 * _SECOND), ("min", 60 * _SECOND))


def rows(report: JobReport) -> list[tuple[Bucket, str, int]]:
    """Returns (bucket, name, nanoseconds) of what took time; a row for each type of custom event."""
    return [(bucket, name, _spent(report, bucket, label)) for bucket, label, name in _kinds(report)]


def percent(report: JobReport, bucket: Bucket, duration_ns: int) -> float | None:
    """Returns the share of a duration in a job's time that counts; None for excluded time, and where none counts."""
    if bucket is Bucket.EXCLUDED or not report.counted_ns:
        return None
    return 100 * duration_ns / report.counted_ns


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
    sections = [
        _headline(report),
        _bucket_table(report),
        _disruption_table(report),
        _disruption_stories(report),
        _attempt_table(report),
        *_attempt_buckets(report),
        _notes(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def continuation_notes(attempts: Sequence[AttemptSummary]) -> list[str]:
    """Return a note if the job was started again after it had recorded its end: often a name used for two jobs."""
    continued = [
        (before, after)
        for before, after in itertools.pairwise(attempts)
        if before.ended is AttemptEnd.JOB_END and not before.exception and after.start_ns >= before.end_ns
    ]
    if not continued:
        return []
    before, after = continued[0]
    more = f" (so did {format_count(len(continued) - 1, 'later attempt')})" if len(continued) > 1 else ""
    pause = format_duration(after.start_ns - before.end_ns)
    return [
        f"attempt {after.number} continued this job {pause} after attempt {before.number} had recorded its end{more}; "
        "the time between them counts as lost. If it was another job, give that one another name"
    ]


def _headline(report: JobReport) -> list[str]:
    state = _state(report)
    lines = [
        f"{one_line(report.job_name, 100)}: {report.goodput_percent:.2f} % goodput",
        "",
        f"  wall time    {format_duration(report.wall_ns)}, from {format_clock(report.start_ns)} "
        f"to {format_clock(report.end_ns)} ({state})",
    ]
    excluded_ns = report.buckets[Bucket.EXCLUDED]
    if excluded_ns:
        lines.append(f"  excluded     {format_duration(excluded_ns)} of it; the percentages are of the rest")
    if report.steps_kept:
        lines.append(f"  last step    {report.last_step}, {report.steps_kept} steps kept")
    checkpoint_step = report.attempts[-1].last_checkpoint_step if report.running else None
    if checkpoint_step is not None:
        lines.append(f"  checkpoint   of step {checkpoint_step}, the last begun or saved")
    if report.ideal_step_seconds is not None:
        lines.append(f"  ideal step   {format_duration(round(report.ideal_step_seconds * _SECOND))}")
    return lines


def _state(report: JobReport) -> str:
    """Return how the job is: what its last attempt ended with, or that it has not."""
    last = report.attempts[-1]
    if report.running:
        return "still running"
    if last.ended is AttemptEnd.EXITED:
        return "ended: the process exited without recording the job's end"
    if last.ended is AttemptEnd.FAILED:
        return f"failed: {one_line(last.exception, 80)}"
    if last.ended is AttemptEnd.LOST:
        return f"no events since {format_clock(report.end_ns)} (process gone)"
    return "ended"


def _bucket_table(report: JobReport) -> list[str]:
    # A second column in larger units helps only where the seconds are too many to read.
    long = report.wall_ns >= 120 * _SECOND
    counted = [row for row in rows(report) if row[0] is not Bucket.EXCLUDED]
    below = [(Bucket.UNKNOWN, "total", report.counted_ns)]
    if report.buckets[Bucket.EXCLUDED]:
        below.append((Bucket.EXCLUDED, "excluded", report.buckets[Bucket.EXCLUDED]))
    cells = [("", "seconds", "percent", "")]
    for bucket, name, ns in [*counted, *below]:
        share = percent(report, bucket, ns)
        share_text = "-" if share is None else f"{share:.2f}"
        cells.append((name, f"{ns / _SECOND:,.3f}", share_text, format_duration(ns) if long else ""))
    lines = _ruled(cells, align="<>>>", below=len(below))
    if report.estimated_ns:
        lines += ["", f"  estimated: {format_duration(report.estimated_ns)} of steps whose end was not recorded"]
    if report.data_loading_async_ns:
        lines += [
            "",
            f"  beside the steps, not in the sum: {format_duration(report.data_loading_async_ns)} of data loading",
        ]
    return lines


def _disruption_table(report: JobReport) -> list[str]:
    """Tells what each disruption cost, and in which parts; a column for each part that any of them has."""
    if not report.disruptions:
        return []
    cost_ns = sum(disruption.cost_ns for disruption in report.disruptions)
    in_all = " in all" if len(report.disruptions) > 1 else ""
    parts = {name: part for name, part in _PARTS.items() if name == "cost" or any(map(part, report.disruptions))}
    cells = [("disruption", *parts, "steps lost")]
    for disruption in _first_and_last(report.disruptions):
        costs = [_duration_cell(part(disruption)) for part in parts.values()]
        cells.append((str(disruption.number), *costs, str(disruption.steps_lost)))
    lines = _with_gap(_columns(cells, align=">" * len(cells[0])), len(report.disruptions), "disruption")
    headline = f"{format_count(len(report.disruptions), 'disruption')} cost {format_duration(cost_ns)}{in_all}"
    return [headline, "", *lines]


def _disruption_stories(report: JobReport) -> list[str]:
    width = len(str(len(report.disruptions)))
    return [
        f"  {disruption.number:{width}}: {_disruption_story(report, disruption)}"
        for disruption in _first_and_last(report.disruptions)
    ]


def _disruption_story(report: JobReport, disruption: Disruption) -> str:
    cut_short = report.attempts[disruption.attempt - 1]
    ended = {
        AttemptEnd.JOB_END: "ended",
        AttemptEnd.EXITED: "exited",
        AttemptEnd.FAILED: f"failed ({one_line(cut_short.exception, 80)})",
    }.get(cut_short.ended, "had its last event")
    in_flight = disruption.step_in_flight
    reached = f"after step {cut_short.last_step}" if in_flight is None else f"with step {in_flight} in flight"
    resumed = ", no step since" if disruption.resumed_step is None else f" from step {disruption.resumed_step}"
    failed = disruption.failed_attempts and f", after {format_count(disruption.failed_attempts, 'failed attempt')}"
    return (
        f"attempt {disruption.attempt} {ended} at {format_clock(disruption.last_event_ns)} "
        f"{reached}; resumed at {format_clock(disruption.resumed_ns)}{resumed}{failed or ''}"
    )


def _attempt_table(report: JobReport) -> list[str]:
    if len(report.attempts) < 2:
        return []
    cells: list[tuple[str, ...]] = [("attempt", "began", "lasted", "steps", "kept", "lost", "outcome")]
    cells += [_attempt(attempt) for attempt in _first_and_last(report.attempts)]
    return _with_gap(_columns(cells, align="><>>>><"), len(report.attempts), "attempt")


def _attempt(attempt: AttemptSummary) -> tuple[str, ...]:
    steps = "none" if attempt.first_step is None else f"{attempt.first_step} to {attempt.last_step}"
    return (
        str(attempt.number),
        format_clock(attempt.start_ns),
        format_duration(attempt.end_ns - attempt.start_ns),
        steps,
        str(attempt.steps_kept),
        str(attempt.steps_lost),
        f"{attempt.ended.value}: {one_line(attempt.exception, 40)}" if attempt.exception else attempt.ended.value,
    )


def _attempt_buckets(report: JobReport) -> Iterator[list[str]]:
    """Yields tables of attempts against buckets, a few attempts side by side in each."""
    shown = _first_and_last(report.attempts) if len(report.attempts) > 1 else []
    for begin in range(0, len(shown), _BLOCK):
        block = shown[begin : begin + _BLOCK]
        cells = [("attempt", *(str(attempt.number) for attempt in block))]
        for bucket, label, name in _kinds(report):
            spent = [_spent(attempt, bucket, label) for attempt in block]
            if any(spent):
                cells.append((one_line(name, 32), *map(_duration_cell, spent)))
        cells.append(("in all", *(format_duration(sum(attempt.buckets.values())) for attempt in block)))
        yield _ruled(cells, align="<" + ">" * len(block), below=1)


def _kinds(report: JobReport) -> Iterator[tuple[Bucket, str, str]]:
    """Yields (bucket, label, name) of what took time, in the order of the rows; only custom events have a label."""
    for bucket, name in BUCKET_NAMES.items():
        if bucket is Bucket.CUSTOM:
            for label in sorted(label for label, ns in report.custom.items() if ns):
                yield bucket, label, f"custom: {one_line(label.lower(), 40)}"
        elif report.buckets[bucket]:
            yield bucket, "", name


def _spent(life: JobReport | AttemptSummary, bucket: Bucket, label: str) -> int:
    return life.custom.get(label, 0) if bucket is Bucket.CUSTOM else life.buckets.get(bucket, 0)


def _duration_cell(duration_ns: int) -> str:
    return format_duration(duration_ns) if duration_ns else "-"


def _notes(report: JobReport) -> list[str]:
    return [f"Note: {note}" for note in report.notes]


def _columns(cells: Sequence[Sequence[str]], align: str) -> list[str]:
    """Returns the lines of a table whose columns are as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        parts = (f"{cell:{side}{width}}" for cell, side, width in zip(line, align, widths, strict=True))
        lines.append(("  " + "   ".join(parts)).rstrip())
    return lines


def _ruled(cells: Sequence[Sequence[str]], align: str, below: int) -> list[str]:
    """Returns the lines of a table with a rule above its last rows."""
    lines = _columns(cells, align)
    lines.insert(-below, "  " + "-" * (max(map(len, lines)) - 2))
    return lines


def _first_and_last(items: Sequence[_Item]) -> Sequence[_Item]:
    """Returns the items, or the first and the last few where they are too many for a page."""
    return items if len(items) <= _SHOWN else [*items[: _SHOWN // 2], *items[-_SHOWN // 2 :]]


def _with_gap(lines: list[str], count: int, noun: str) -> list[str]:
    """Says in a table, of which the first line is the heading, how many rows `_first_and_last` left out."""
    if count > _SHOWN:
        more = format_count(count - _SHOWN, f"more {noun}")
        lines.insert(1 + _SHOWN // 2, f"  ... {more}; --format json has all")
    return lines


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
    Percentages are of the time that counts, without what is excluded; where there is no such share they are None.
    """
    return {
        "job_name": report.job_name,
        "start": _rfc3339(report.start_ns),
        "end": _rfc3339(report.end_ns),
        "running": report.running,
        "state": _state(report),
        "wall_seconds": report.wall_ns / _SECOND,
        "excluded_seconds": report.buckets[Bucket.EXCLUDED] / _SECOND,
        "goodput_percent": report.goodput_percent,
        "last_step": report.last_step,
        "steps_kept": report.steps_kept,
        "ideal_step_seconds": report.ideal_step_seconds,
        "estimated_seconds": report.estimated_ns / _SECOND,
        "data_loading_async_seconds": report.data_loading_async_ns / _SECOND,
        "buckets": {bucket.value: _share(report, bucket, report.buckets[bucket]) for bucket in BUCKET_NAMES},
        "custom_events": {label: _share(report, Bucket.CUSTOM, ns) for label, ns in report.custom.items()},
        "disruptions": [_disruption_dict(disruption) for disruption in report.disruptions],
        "attempts": [_attempt_dict(attempt) for attempt in report.attempts],
        "notes": list(report.notes),
    }


def _share(report: JobReport, bucket: Bucket, duration_ns: int) -> dict[str, float | None]:
    return {"seconds": duration_ns / _SECOND, "percent": percent(report, bucket, duration_ns)}


def _disruption_dict(disruption: Disruption) -> dict[str, Any]:
    return {
        "number": disruption.number,
        "attempt": disruption.attempt,
        "last_event": _rfc3339(disruption.last_event_ns),
        "step_in_flight": disruption.step_in_flight,
        "resumed": _rfc3339(disruption.resumed_ns),
        "resumed_step": disruption.resumed_step,
        "failed_attempts": disruption.failed_attempts,
        "steps_lost": disruption.steps_lost,
        **{f"{name.replace(' ', '_')}_seconds": part(disruption) / _SECOND for name, part in _PARTS.items()},
    }


def _attempt_dict(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "start": _rfc3339(attempt.start_ns),
        "end": _rfc3339(attempt.end_ns),
        "ended": attempt.ended.value,
        "exception": attempt.exception or None,
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
