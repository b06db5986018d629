"""A job's report as text for people, and as data for programs: pure functions of a `JobReport`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_diagnostics_common.command.formats import first_and_last, format_table, shortened, with_gap
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.texts import format_clock, format_count, format_duration, format_percent, one_line

from ml_goodput_measurement._cli.buckets import BUCKET_NAMES, TimeByBucket
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption, Inference, JobReport

__all__ = [
    "ROW_FIELDS",
    "as_dict",
    "bucket_table",
    "format_ns",
    "format_text",
    "headline",
    "percent",
    "rows",
    "rows_as_dicts",
    "share_as_dict",
]

ROW_FIELDS = ("bucket", "name", "seconds", "percent")
"""The columns of CSV."""

_SECOND = 1_000_000_000
_BLOCK = 6
"""The most attempts side by side."""
_NAME_WIDTH, _DURATION_WIDTH = 25, 13
"""The columns of a bucket's name and of a duration in a table of attempts, with the space before each."""
_PARTS: dict[str, Callable[[Disruption], int]] = {
    "cost": lambda disruption: disruption.cost_ns,
    "infrastructure": lambda disruption: disruption.infrastructure_ns,
    "init": lambda disruption: disruption.init_ns,
    "restore": lambda disruption: disruption.restore_ns,
    "data loading": lambda disruption: disruption.data_loading_ns,
    "startup": lambda disruption: disruption.startup_ns,
    "recompute": lambda disruption: disruption.recompute_ns,
}


def rows(report: TimeByBucket) -> list[tuple[Bucket, str, int]]:
    """Return (bucket, name, nanoseconds) of each bucket that took time, and of each type of custom event."""
    return [(bucket, name, _spent(report, bucket, label)) for bucket, label, name in _kinds(report)]


def percent(report: TimeByBucket, bucket: Bucket, duration_ns: int) -> float | None:
    """Return the share of a duration in a job's counted time; None for excluded time, and if no time counts."""
    if bucket is Bucket.EXCLUDED or not report.counted_ns:
        return None
    return 100 * duration_ns / report.counted_ns


def share_as_dict(report: TimeByBucket, bucket: Bucket, duration_ns: int) -> dict[str, float | None]:
    """Return a duration in seconds, and in percent of the counted time."""
    return {"seconds": duration_ns / _SECOND, "percent": percent(report, bucket, duration_ns)}


def rows_as_dicts(report: TimeByBucket) -> list[dict[str, Any]]:
    """Return a row for each bucket and each type of custom event that took time, in the types of JSON."""
    return [
        {"bucket": bucket.value, "name": name, **share_as_dict(report, bucket, duration_ns)}
        for bucket, name, duration_ns in rows(report)
    ]


def format_ns(duration_ns: int) -> str:
    """Format a duration in nanoseconds."""
    return format_duration(duration_ns / _SECOND)


def format_text(report: JobReport, width: int | None = None, bill: Sequence[str] = ()) -> str:
    """Format the report as a page of text, without empty parts.

    Args:
        report: The report.
        width: The columns of the terminal; None if there is no limit.
        bill: Lines on what the time costs.
    """
    sections = [
        headline(report, width),
        bill,
        _bucket_table(report, width),
        _inferred_table(report, width),
        _disruption_table(report, width),
        _disruption_stories(report, width),
        _attempt_table(report, width),
        *_attempt_buckets(report, width),
        _notes(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def headline(report: JobReport, width: int | None) -> list[str]:
    """Return the lines above the tables: goodput, wall time and state, steps."""
    state = _state(report, width)
    lines = [
        f"{shortened(report.job_name, 100, width)}: {format_percent(report.goodput_percent, 2)} goodput",
        "",
        f"  wall time    {format_ns(report.wall_ns)}, from {format_clock(report.start_ns)} "
        f"to {format_clock(report.end_ns)} ({state})",
    ]
    excluded_ns = report.buckets[Bucket.EXCLUDED]
    if excluded_ns:
        lines.append(f"  excluded     {format_ns(excluded_ns)} of it; the percentages are of the rest")
    if report.steps_kept:
        lines.append(f"  last step    {report.last_step}, {format_count(report.steps_kept, 'step')} kept")
    checkpoint_step = report.attempts[-1].last_checkpoint_step if report.running else None
    if checkpoint_step is not None:
        lines.append(f"  checkpoint   of step {checkpoint_step}, the last that was started or saved")
    if report.ideal_step_seconds is not None:
        lines.append(f"  ideal step   {format_ns(round(report.ideal_step_seconds * _SECOND))}")
    return lines


def _state(report: JobReport, width: int | None = None) -> str:
    """Return the state of the job: running, or the outcome of its last attempt."""
    last = report.attempts[-1]
    if report.running:
        return "still running"
    if last.ended is AttemptEnd.EXITED and _has_inferred_steps(report):
        return "ended"  # A program that records nothing has no other end.
    if last.ended is AttemptEnd.EXITED:
        return "ended: the process exited without recording the job's end"
    if last.ended is AttemptEnd.FAILED:
        return f"failed: {shortened(last.exception, 80, width)}"
    if last.ended is AttemptEnd.LOST:
        return f"no events since {format_clock(report.end_ns)} (process gone)"
    return "ended"


def _bucket_table(report: JobReport, width: int | None) -> list[str]:
    lines = bucket_table(report, width)
    if report.estimated_ns:
        lines += ["", f"  estimated: {format_ns(report.estimated_ns)} of steps whose end was not recorded"]
    if report.data_loading_async_ns:
        lines += [
            "",
            f"  in parallel to steps, not in the sum: {format_ns(report.data_loading_async_ns)} of data loading",
        ]
    return lines


def bucket_table(report: TimeByBucket, width: int | None) -> list[str]:
    """Return the lines of a table of the buckets that took time.

    Args:
        report: The time.
        width: The columns of the terminal; None if there is no limit.
    """
    # A second column in larger units helps only if there are too many seconds to read.
    long = report.wall_ns >= 120 * _SECOND
    counted = [row for row in rows(report) if row[0] is not Bucket.EXCLUDED]
    below = [(Bucket.UNKNOWN, "total", report.counted_ns)]
    if report.buckets[Bucket.EXCLUDED]:
        below.append((Bucket.EXCLUDED, "excluded", report.buckets[Bucket.EXCLUDED]))
    cells: list[tuple[str, ...]] = []
    for bucket, name, ns in [*counted, *below]:
        share = percent(report, bucket, ns)
        share_text = "-" if share is None else f"{share:.2f}"
        cells.append(
            (
                shortened(name, 48, width),
                f"{ns / _SECOND:,.3f}",
                share_text,
                format_ns(ns) if long else "",
            )
        )
    if not long:
        cells = [row[:3] for row in cells]
    headers = ("bucket", "seconds", "percent", "duration")[: len(cells[0])]
    cut = [header for header in ("duration", "bucket") if header in headers]
    lines = format_table(headers, cells, "<>>>"[: len(headers)], width=width, cut=cut, indent="  ")
    return _with_totals(lines, len(below))


def _inferred_table(report: JobReport, width: int | None) -> list[str]:
    """Return a table of the kinds of time that the program did not record itself, and how sure each is."""
    if not report.inferred:
        return []
    headers = ("inferred", "certainty", "from")
    cells = [(_inferred_name(each), each.certainty, one_line(each.source)) for each in report.inferred]
    return format_table(headers, cells, "<<<", width=width, cut=["from"], indent="  ")


def _inferred_name(inference: Inference) -> str:
    if inference.bucket is Bucket.CUSTOM:
        return f"custom: {one_line(inference.label.lower())}"
    return "steps" if inference.bucket is Bucket.PRODUCTIVE else BUCKET_NAMES[inference.bucket]


def _has_inferred_steps(report: JobReport) -> bool:
    return any(each.bucket is Bucket.PRODUCTIVE for each in report.inferred)


def _disruption_table(report: JobReport, width: int | None) -> list[str]:
    """Return a table with the cost of each disruption, and a column for each part that any of them has.

    A narrow terminal shows only the parts that cost most.
    """
    if not report.disruptions:
        return []
    cost_ns = sum(disruption.cost_ns for disruption in report.disruptions)
    in_all = " in all" if len(report.disruptions) > 1 else ""
    parts = {name: part for name, part in _PARTS.items() if name == "cost" or any(map(part, report.disruptions))}
    cut = sorted(list(parts)[1:], key=lambda name: sum(map(parts[name], report.disruptions)))
    headers = ("disruption", *parts, "steps lost")
    cells = []
    for disruption in first_and_last(report.disruptions):
        costs = [_duration_cell(part(disruption)) for part in parts.values()]
        cells.append((str(disruption.number), *costs, str(disruption.steps_lost)))
    lines = format_table(headers, cells, ">" * len(headers), width=width, cut=cut, indent="  ")
    lines = with_gap(lines, len(report.disruptions), "disruption")
    headline = f"{format_count(len(report.disruptions), 'disruption')} cost {format_ns(cost_ns)}{in_all}"
    return [headline, "", *lines]


def _disruption_stories(report: JobReport, width: int | None) -> list[str]:
    digits = len(str(len(report.disruptions)))
    return [
        f"  {disruption.number:{digits}}: {_disruption_story(report, disruption, width)}"
        for disruption in first_and_last(report.disruptions)
    ]


def _disruption_story(report: JobReport, disruption: Disruption, width: int | None) -> str:
    cut_short = report.attempts[disruption.attempt - 1]
    ended = {
        AttemptEnd.JOB_END: "ended",
        AttemptEnd.EXITED: "exited",
        AttemptEnd.FAILED: f"failed ({shortened(cut_short.exception, 80, width)})",
    }.get(cut_short.ended, "had its last event")
    in_flight = disruption.step_in_flight
    reached = f"after step {cut_short.last_step}" if in_flight is None else f"with step {in_flight} in flight"
    resumed = ", no step since" if disruption.resumed_step is None else f" from step {disruption.resumed_step}"
    failed = disruption.failed_attempts and f", after {format_count(disruption.failed_attempts, 'failed attempt')}"
    return (
        f"attempt {disruption.attempt} {ended} at {format_clock(disruption.last_event_ns)} "
        f"{reached}; resumed at {format_clock(disruption.resumed_ns)}{resumed}{failed or ''}"
    )


def _attempt_table(report: JobReport, width: int | None) -> list[str]:
    if len(report.attempts) < 2:
        return []
    headers = ("attempt", "started", "lasted", "steps", "kept", "lost", "outcome")
    cells = [_attempt(attempt, width) for attempt in first_and_last(report.attempts)]
    cut = ["kept", "lost", "lasted", "steps", "outcome"]
    lines = format_table(headers, cells, "><>>>><", width=width, cut=cut, indent="  ")
    return with_gap(lines, len(report.attempts), "attempt")


def _attempt(attempt: AttemptSummary, width: int | None) -> tuple[str, ...]:
    steps = "none" if attempt.first_step is None else f"{attempt.first_step} to {attempt.last_step}"
    return (
        str(attempt.number),
        format_clock(attempt.start_ns),
        format_ns(attempt.end_ns - attempt.start_ns),
        steps,
        str(attempt.steps_kept),
        str(attempt.steps_lost),
        f"{attempt.ended.value}: {shortened(attempt.exception, 40, width)}"
        if attempt.exception
        else attempt.ended.value,
    )


def _attempt_buckets(report: JobReport, width: int | None) -> Iterator[list[str]]:
    """Yield tables of attempts against buckets, a few attempts side by side in each."""
    shown = first_and_last(report.attempts) if len(report.attempts) > 1 else []
    length = _BLOCK if width is None else max(1, min(_BLOCK, (width - _NAME_WIDTH) // _DURATION_WIDTH))
    for first in range(0, len(shown), length):
        block = shown[first : first + length]
        headers = ("attempt", *(str(attempt.number) for attempt in block))
        cells = []
        for bucket, label, name in _kinds(report):
            spent = [_spent(attempt, bucket, label) for attempt in block]
            if any(spent):
                cells.append((shortened(name, 32, width), *map(_duration_cell, spent)))
        cells.append(("in all", *(format_ns(sum(attempt.buckets.values())) for attempt in block)))
        lines = format_table(headers, cells, "<" + ">" * len(block), width=width, cut=["attempt"], indent="  ")
        yield _with_totals(lines, 1)


def _kinds(report: TimeByBucket) -> Iterator[tuple[Bucket, str, str]]:
    """Yield (bucket, label, name) of all that took time, in the order of the rows; only custom events have a label."""
    for bucket, name in BUCKET_NAMES.items():
        if bucket is Bucket.CUSTOM:
            for label in sorted(label for label, ns in report.custom.items() if ns):
                yield bucket, label, f"custom: {one_line(label.lower())}"
        elif report.buckets[bucket]:
            yield bucket, "", name


def _spent(life: TimeByBucket | AttemptSummary, bucket: Bucket, label: str) -> int:
    return life.custom.get(label, 0) if bucket is Bucket.CUSTOM else life.buckets.get(bucket, 0)


def _duration_cell(duration_ns: int) -> str:
    return format_ns(duration_ns) if duration_ns else "-"


def _notes(report: JobReport) -> list[str]:
    return [f"Note: {note}" for note in report.notes]


def _with_totals(lines: list[str], count: int) -> list[str]:
    """Insert a line above the last rows of a table."""
    lines.insert(-count, lines[1])
    return lines


def as_dict(report: JobReport) -> dict[str, Any]:
    """Return all of the report but its timeline, in the types of JSON.

    Times are RFC 3339 in UTC, durations float seconds. Every bucket is included, with or without time, by its name in
    `BadputType`, or PRODUCTIVE, IN_FLIGHT_STEP, EXCLUDED or UNKNOWN. An attempt has only buckets with time; its
    `custom_seconds`, by type, are those of CUSTOM_BADPUT_EVENTS. Percentages are of the counted time, without excluded
    time; None if there is no such share.
    """
    return {
        "job_name": report.job_name,
        "start": format_timestamp(report.start_ns),
        "end": format_timestamp(report.end_ns),
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
        "buckets": {bucket.value: share_as_dict(report, bucket, report.buckets[bucket]) for bucket in BUCKET_NAMES},
        "custom_events": {label: share_as_dict(report, Bucket.CUSTOM, ns) for label, ns in report.custom.items()},
        "inferred": [
            {
                "name": _inferred_name(each),
                "bucket": each.bucket.value,
                "certainty": each.certainty,
                "from": each.source,
            }
            for each in report.inferred
        ],
        "disruptions": [_disruption_dict(disruption) for disruption in report.disruptions],
        "attempts": [_attempt_dict(attempt) for attempt in report.attempts],
        "notes": list(report.notes),
    }


def _disruption_dict(disruption: Disruption) -> dict[str, Any]:
    return {
        "number": disruption.number,
        "attempt": disruption.attempt,
        "last_event": format_timestamp(disruption.last_event_ns),
        "step_in_flight": disruption.step_in_flight,
        "resumed": format_timestamp(disruption.resumed_ns),
        "resumed_step": disruption.resumed_step,
        "failed_attempts": disruption.failed_attempts,
        "steps_lost": disruption.steps_lost,
        **{f"{name.replace(' ', '_')}_seconds": part(disruption) / _SECOND for name, part in _PARTS.items()},
    }


def _attempt_dict(attempt: AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "start": format_timestamp(attempt.start_ns),
        "end": format_timestamp(attempt.end_ns),
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
