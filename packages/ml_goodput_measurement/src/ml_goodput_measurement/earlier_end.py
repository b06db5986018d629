"""A job that recorded its end and starts again: legal, but mostly a name that was used twice, so it is reported."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.journal.layout import Segment
from ml_diagnostics_common.journal.newest import last_payloads, newest_writers
from ml_diagnostics_common.steady_clock import now_ns

from ml_goodput_measurement.moments import seconds_of

__all__ = ["warn_if_ended_before"]

_WRITERS_READ = 16
"""Each attempt is a writer, and so is each other job of the log: an end before all of these is not found."""

_BORDERS = ("step_start_time", "job_start_time", "job_end_time")
"""Whichever of these was recorded last says whether the job had ended; saves and data loads say nothing about it."""

_CUT_SHORT = {"process_outcome", "job_end_exception"}
"""Either of these shows that the trainer did not reach the end of the job."""


def warn_if_ended_before(folder: Path, job_name: str, own_writer: str) -> None:
    """Log one WARNING if the last thing that earlier writers recorded of a job is its end.

    Reads the ends of a few files, so call it in a thread.

    Args:
        folder: The log's folder in the journal.
        job_name: The job.
        own_writer: The writer that continues the job; its own entries are not earlier ones.
    """
    earlier = [segment for segment in newest_writers(folder, _WRITERS_READ) if segment.writer != own_writer]
    borders = [border for segment in earlier for border in _last_border(segment, job_name)]
    ended_seconds, is_end = max(borders, default=(0.0, False))
    if is_end:
        warn_once(
            ("ended before", str(folder), job_name),
            "continuing job %r, which ended %s ago; use another name for another job",
            job_name[:200],
            _duration(max(0.0, now_ns() / 1e9 - ended_seconds)),
        )


def _last_border(segment: Segment, job_name: str) -> list[tuple[float, bool]]:
    """Return the time of a writer's last border, and whether it is a job end; nothing if the tail has none."""
    with contextlib.suppress(OSError):
        for payload in last_payloads(segment):
            key = next((key for key in _BORDERS if key in payload), None)
            if key is not None and payload.get("job_name") == job_name:
                seconds = seconds_of(payload[key])
                # An attempt that failed, or whose end the exit of the process recorded, is likely to be restarted.
                is_end = key == "job_end_time" and not _CUT_SHORT & payload.keys()
                return [] if seconds is None else [(seconds, is_end)]
    return []


def _duration(seconds: float) -> str:
    for unit, unit_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"
