"""A summary as JSON: that of `xprofiler summary --format json` and of the summary page's /summary.json."""

from __future__ import annotations

import dataclasses

import msgspec

from xprofiler.summary.summary import Summary, step_times

__all__ = ["as_json"]


def as_json(summary: Summary) -> bytes:
    """Returns the summary's fields, with the step times in short and the idle share, encoded."""
    times = step_times(summary.steps)
    return msgspec.json.encode(
        {
            **msgspec.to_builtins(summary),
            "idle_percent": summary.idle_percent,
            "step_times": None if times is None else dataclasses.asdict(times),
        }
    )
