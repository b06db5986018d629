"""A run as a row of the list of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.redaction import redact, redact_text
from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._web.columns import Column, Floats
from ml_diagnostics_console._web.run_data import RunData

__all__ = ["LETTERS", "PICTURES", "primary_metric", "row_of", "spark"]

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
"""The letters of base64, with 6 bits each."""
PICTURES: Final = ("spark", "metrics", "goodput", "buckets")
"""The fields that cost more than others, or change with each value: they are made each 10 s; so is the verdict of a run
that is well."""

_SPARK_POINTS: Final = 28
_MOST_CONFIGS: Final = 60
_MOST_METRICS: Final = 24
_LONGEST_TEXT: Final = 200
_LOSSES: Final = ("loss", "train_loss", "train/loss", "training/loss", "total_loss")


def row_of(run: RunData, pictures: Mapping[str, Any], finding: str = "") -> dict[str, Any]:
    """Return the row of a run.

    Args:
        run: The run.
        pictures: The fields of `pictures_of`, which may be some seconds older.
        finding: The doctor's sentence on what is wrong; empty for the run's own sentence.
    """
    loss = _finite(column.last) if (column := primary_column(run)) is not None else None
    return {
        "id": run.id,
        "name": _bounded(redact_text(run.name)),
        "group": _bounded(redact_text(run.view.group)),
        "state": run.state,
        "reason": _bounded(redact_text(run.reason)),
        "verdict": "" if run.state == "running" else _bounded(redact_text(_verdict(run))),
        "started": run.started_s or None,
        "ended": run.ended_s,
        "beat": None if run.beat_s is None else round(run.beat_s, 1),
        "attempts": "".join(attempt.end for attempt in run.attempts),
        "step": run.step,
        "steps": run.planned_steps,
        "loss": loss,
        "hosts": run.hosts,
        "config": run.cached("row config", lambda: _configs(run.view.configs)),
        "version": run.version,
        **pictures,
        **({"verdict": _bounded(finding)} if finding else {}),
    }


def pictures_of(run: RunData, goodput: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a row that are made less often: see `PICTURES`.

    Args:
        run: The run.
        goodput: Its `goodput` and `buckets`, if they are known.
    """
    column = primary_column(run)
    known = {"goodput": None, "buckets": [], **(goodput or {})}
    pictures = {
        **known,
        "spark": spark(column.value) if column is not None else "",
        "metrics": _last_values(run),
    }
    if run.state == "running":  # It has the step, which changes each second.
        pictures["verdict"] = _verdict(run, known["goodput"])
    return pictures


def primary_metric(names: Sequence[str]) -> str | None:
    """Return the metric that shows best whether a run learns: its loss; None if it has none.

    Args:
        names: The metrics of a run.
    """
    known = {name.lower(): name for name in reversed(names)}
    for name in _LOSSES:
        if name in known:
            return known[name]
    losses = [name for name in names if "loss" in name.lower()]
    return (
        min(losses, key=lambda name: (any(word in name.lower() for word in ("eval", "val", "test")), len(name), name))
        if losses
        else None
    )


def primary_column(run: RunData) -> Column | None:
    """Return the values of the loss of a run, of its first process; None if it has none."""
    count, metric = run.primary
    if count != len(run.columns):
        metric = primary_metric(run.columns.names())
        run.primary = len(run.columns), metric
    return run.columns.first(metric) if metric is not None else None


def spark(values: Floats) -> str:
    """Return a small curve as 28 letters of 6 bits, the greatest `/`; a space where nothing finite is.

    Args:
        values: The values by time. What is far above most others, as at the start of a training, is cut.
    """
    count = len(values)
    if not count:
        return ""
    buckets = min(count, _SPARK_POINTS)
    edges = np.arange(buckets) * count // buckets
    finite = np.isfinite(values)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(np.where(finite, values, 0.0), edges)
        counts = np.add.reduceat(finite.astype(np.float64), edges)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    means[~np.isfinite(means)] = np.nan
    if np.isnan(means).all():
        return " " * buckets
    least, greatest = float(np.nanmin(means)), float(np.nanmax(means))
    ordered = np.sort(means[~np.isnan(means)])
    if len(ordered) > 4 and greatest - ordered[-2] > 3 * (ordered[-2] - least) > 0:
        greatest = float(ordered[-2])
    span = greatest - least
    if not math.isfinite(span) or span <= 0:
        levels = np.full(buckets, 31.0)
    else:
        levels = np.clip((means - least) / span, 0.0, 1.0) * 63
    return "".join(
        " " if math.isnan(mean) else LETTERS[round(float(level))] for mean, level in zip(means, levels, strict=True)
    )


def _last_values(run: RunData) -> dict[str, float | None]:
    names = run.columns.names()[:_MOST_METRICS]
    firsts = ((name, run.columns.first(name)) for name in names)
    return {_bounded(name): _finite(column.last) for name, column in firsts if column is not None}


def _configs(configs: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    user = redact(dict(list(configs.get("user", {}).items())[:_MOST_CONFIGS]))
    return {_bounded(str(key)): _bounded(str(value)) for key, value in user.items()}


def _verdict(run: RunData, goodput: float | None = None) -> str:
    """Return what is to be said of a run in one sentence."""
    step, planned = run.step, run.planned_steps
    at = "" if step is None else f"step {step:,}" + (f" of {planned:,}" if planned else "")
    if run.state == "running":
        return ", ".join(filter(None, (at, "" if goodput is None else f"{goodput:.1f} % goodput")))
    if run.state == "stuck":
        since_s = min(hang.since_ns for hang in run.hangs) / 1e9
        return f"Stuck for {format_duration(max(0.0, run.now_s - since_s))}: {run.reason}"
    if run.state == "completed":
        after = f" after {format_duration(run.ended_s - run.started_s)}" if run.ended_s is not None else ""
        return f"Completed{after}" + (f", at {at}" if at else "")
    return run.reason or at


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _bounded(text: str) -> str:
    return printable(text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "...")
