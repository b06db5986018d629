"""A report of a job's time since a moment: as text, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ml_diagnostics_common.command.formats import shortened
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.texts import format_clock, format_percent

from ml_goodput_measurement._cli.buckets import BUCKET_NAMES
from ml_goodput_measurement._cli.report import bucket_table, format_ns, share_as_dict
from ml_goodput_measurement._ledger import Window
from ml_goodput_measurement._query.job_state import JobState
from ml_goodput_measurement.partition import Bucket

__all__ = ["format_window", "window_as_dict"]

_SECOND = 1e9


def format_window(state: JobState, window: Window, width: int | None, bill: Sequence[str] = ()) -> str:
    """Format the time of a job since a moment.

    Args:
        state: The state of the job.
        window: The time since that moment.
        width: The columns of the terminal; None if there is no limit.
        bill: Lines on what the time costs.
    """
    lines = [
        f"{shortened(state.job_name, 100, width)}: {format_percent(window.goodput_percent, 2)} goodput since "
        f"{format_clock(window.start_ns)}",
        "",
        f"  wall time    {format_ns(window.wall_ns)}, to {format_clock(window.end_ns)} ({state.state})",
        f"  disruptions  {window.disruptions}",
    ]
    if window.last_step:
        lines.append(f"  last step    {window.last_step}")
    notes = [f"Note: {note}" for note in state.notes]
    sections = [lines, bill, bucket_table(window, width), notes]
    return "\n\n".join("\n".join(section) for section in sections if section)


def window_as_dict(state: JobState, window: Window) -> dict[str, Any]:
    """Return the time of a job since a moment, in the types of JSON: see `report.as_dict`."""
    return {
        "job_name": state.job_name,
        "start": format_timestamp(window.start_ns),
        "end": format_timestamp(window.end_ns),
        "running": state.running,
        "state": state.state,
        "wall_seconds": window.wall_ns / _SECOND,
        "goodput_percent": window.goodput_percent,
        "last_step": window.last_step,
        "disruptions": window.disruptions,
        "estimated_seconds": window.estimated_ns / _SECOND,
        "data_loading_async_seconds": window.data_loading_async_ns / _SECOND,
        "buckets": {bucket.value: share_as_dict(window, bucket, window.buckets[bucket]) for bucket in BUCKET_NAMES},
        "custom_events": {label: share_as_dict(window, Bucket.CUSTOM, ns) for label, ns in window.custom.items()},
        "notes": list(state.notes),
    }
