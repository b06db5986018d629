"""A summary as JSON, for `xprofiler summary --format json` and the page's /summary.json."""

from __future__ import annotations

import dataclasses

import msgspec

from xprofiler.summary.summary import Summary, step_times
from xprofiler.summary.text import headline

__all__ = ["as_json"]


def as_json(summary: Summary) -> bytes:
    """Return the summary as JSON, with its headline, statistics of step times, and the idle share."""
    times = step_times(summary.steps)
    return msgspec.json.encode(
        {
            **msgspec.to_builtins(summary),
            "headline": headline(summary),
            "idle_percent": summary.idle_percent,
            "step_times": None if times is None else dataclasses.asdict(times),
        }
    )
