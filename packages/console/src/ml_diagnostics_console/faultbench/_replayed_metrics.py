"""Faults of hardware that this machine does not have, replayed: metrics in the form of a recorder, beside a real job.

The job itself is real and healthy. So these runs count apart: they prove that a rule reads what is recorded, not that
the fault is found in nature.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ml_diagnostics_console.faultbench._plans import Plan

__all__ = ["METRIC_KINDS", "add_metrics"]

_LOG: Final = "ml_diagnostics_metric"
_FIRST_SEQUENCE: Final = 100_000_000_000
_CHIPS: Final = 4
_ONSET: Final = 0.3
"""The share of the job's time after which the culprit's values change."""
_BAD: Final = 2
"""The number of the chip, or of the link, that has the fault."""


class _Series(NamedTuple):
    metric: str
    good: float
    bad: float
    unit: str
    interval_seconds: float
    details: str
    """The function below that returns what is beside the values."""


METRIC_KINDS: Final = {
    "replayed_ici": _Series("tpu_ici_link_health", 0.0, 10.0, "1", 1.0, "links"),
    "replayed_thermal": _Series("tpu_throttle_score", 0.0, 4.0, "1", 10.0, "chips"),
    "replayed_hbm": _Series("gpu_xid_errors", 0.0, 1.0, "1", 1.0, "codes"),
}
_UNCORRECTABLE: Final = 48
"""The Xid of an uncorrectable error of the memory."""


def add_metrics(plan: Plan, diagnostics: Path) -> None:
    """Add the metrics of a replayed fault to the records of the healthy job that the plan has run."""
    series = METRIC_KINDS[plan.kind]
    for index, (header, first_ns, last_ns) in _processes(diagnostics).items():
        header["writer"] += "-replayed"
        lines = [json.dumps(header)]
        moments = _moments(first_ns, last_ns, series.interval_seconds)
        for number, (time_ns, share) in enumerate(moments):
            is_bad = index == plan.culprit and share >= _ONSET
            payload = {
                **_values(series, is_bad=is_bad),
                "unit": series.unit,
                "hostname": header["labels"]["host"],
                "process_index": str(index),
            }
            entry = {"t": time_ns, "s": _FIRST_SEQUENCE + number, "p": payload, "r": {"namespace": series.metric}}
            lines.append(json.dumps(entry))
        (diagnostics / "journal" / _LOG / f"{header['writer']}.0.jsonl").write_text("\n".join(lines))


def _values(series: _Series, *, is_bad: bool) -> dict[str, Any]:
    values = [series.good] * _CHIPS
    if is_bad:
        values[_BAD] = series.bad
    numbers = range(_CHIPS)
    beside: dict[str, dict[str, Any]] = {
        "links": {
            "links": [f"tray1.chip{number}.ici0.int" for number in numbers],
            "trays": [1] * _CHIPS,
            "chips": list(numbers),
            "ports": ["ici0.int"] * _CHIPS,
        },
        "chips": {"accelerator_labels": [f"tpu{number}" for number in numbers]},
        "codes": {
            "accelerator_labels": [f"gpu{number}" for number in numbers],
            "codes": [[_UNCORRECTABLE] if value else [] for value in values],
        },
    }
    return {"values": values, **beside[series.details]}


def _moments(first_ns: int, last_ns: int, interval_seconds: float) -> Iterator[tuple[int, float]]:
    """Yield times from the first to the last entry, each with the share of the time that has passed."""
    step_ns = round(interval_seconds * 1e9)
    for time_ns in range(first_ns, last_ns, step_ns):
        yield time_ns, (time_ns - first_ns) / max(1, last_ns - first_ns)


def _processes(diagnostics: Path) -> dict[int, tuple[dict[str, Any], int, int]]:
    """Return by index the header of a writer of each process, and the times of its first and last entry."""
    found: dict[int, tuple[dict[str, Any], int, int]] = {}
    for path in sorted((diagnostics / "journal" / _LOG).glob("*.jsonl")):
        header, *entries = map(json.loads, filter(None, path.read_text().split("\n")))
        times = [entry["t"] for entry in entries]
        if times:
            index = int(header["labels"]["process_index"])
            known = found.get(index)
            first_ns, last_ns = min(times), max(times)
            if known is not None:
                header, first_ns, last_ns = known[0], min(first_ns, known[1]), max(last_ns, known[2])
            found[index] = header, first_ns, last_ns
    return found
