"""A summary as JSON: that of `xprofiler summary --format json` and of the summary page's /summary.json."""

from __future__ import annotations

import dataclasses

import msgspec

from xprofiler.summary.summary import Summary, step_times
from xprofiler.summary.text import headline

__all__ = ["as_json"]


def as_json(summary: Summary) -> bytes:
    """Return the summary's fields, encoded, with its headline, the step times in short and the idle share."""
    times = step_times(summary.steps)
    return msgspec.json.encode(
        {
            **msgspec.to_builtins(summary),
            "headline": headline(summary),
            "idle_percent": summary.idle_percent,
            "step_times": None if times is None else dataclasses.asdict(times),
        }
    )
