"""Query the public calculator by each of its methods, and check that the answers agree."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement import goodput
from ml_goodput_measurement.partition import Bucket, JobReport

from .histories import BASE, History, MemoryLog

SECOND_NS = 10**9

PRODUCTIVE = Bucket.PRODUCTIVE
WASTED = Bucket.WASTED_PROGRESS
RECOVERY = Bucket.INFRASTRUCTURE_RECOVERY
INIT = Bucket.TPU_INITIALIZATION
PREP = Bucket.TRAINING_PREP
LOAD = Bucket.DATA_LOADING_SYNC
STARTUP = Bucket.PROGRAM_STARTUP
SAVE = Bucket.CHECKPOINT_SAVE
RESTORE = Bucket.CHECKPOINT_RESTORE
CUSTOM = Bucket.CUSTOM
SLICE_DOWN = Bucket.ELASTIC_SLICE_DOWN
SCALE_UP = Bucket.ELASTIC_SCALE_UP
REINIT = Bucket.ELASTIC_REINITIALIZATION
IN_FLIGHT = Bucket.IN_FLIGHT
UNKNOWN = Bucket.UNKNOWN


@dataclass(frozen=True)
class Account:
    """The account of a job's time."""

    report: JobReport
    seconds: dict[Bucket, float]
    """Only the buckets that have any."""
    details: dict[str, Any]

    @property
    def disruptions(self) -> int:
        return len(self.report.disruptions)

    @property
    def last_step(self) -> int:
        return self.report.last_step


def calculator_of(log: MemoryLog, now: float, cache_dir: Path) -> goodput.GoodputCalculator:
    """Return a calculator of the histories' job with its clock at `now` (seconds after BASE)."""
    return goodput.GoodputCalculator(
        "job", "goodput_job", cloud_logger=log, cache_dir=str(cache_dir), _clock_ns=lambda: moment_ns(now)
    )


def account_of(history: History, now: float | None = None) -> Account:
    """Return the account of a history at `now` (by default its last event), after checking that all answers agree."""
    if now is None:
        now = history.last_moment()
    with tempfile.TemporaryDirectory() as cache_dir:
        calculator = calculator_of(MemoryLog(history.payloads), now, Path(cache_dir))
        percent, breakdown, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
        details = dict(calculator.get_job_goodput_details())
        report = calculator.report()

    check_partition(report)
    assert percent == report.goodput_percent
    assert last_step == details["max_productive_step"] == report.last_step
    assert details["total_elapsed_time"] == report.wall_ns / SECOND_NS
    assert details["disruption_count"] == len(report.disruptions)
    assert flat(details["goodput_time"])["TOTAL"] == report.buckets[PRODUCTIVE] / SECOND_NS
    assert flat(details["badput_time"]) == pytest.approx(public_seconds(report), abs=1e-9)
    shares = {name: 100 * value * SECOND_NS / report.wall_ns for name, value in public_seconds(report).items()}
    assert flat(breakdown) == pytest.approx(shares, abs=1e-9)
    seconds = {bucket: ns / SECOND_NS for bucket, ns in report.buckets.items() if ns}
    return Account(report, seconds, details)


def flat(breakdown: Any) -> dict[str, float]:
    """Return a public breakdown by name, with a line for each type of custom event."""
    lines: dict[str, float] = {}
    for badput, value in breakdown.items():
        if isinstance(value, dict):
            lines |= {f"{badput.name}.{kind}": kind_value for kind, kind_value in value.items()}
        else:
            lines[badput.name] = value
    return lines


def public_seconds(report: JobReport) -> dict[str, float]:
    """Return the seconds of a report by the names of the public breakdown, without elastic ones that are zero."""
    ns = {bucket.value: report.buckets[bucket] for bucket in Bucket}
    ns["OTHER"] = ns.pop("UNKNOWN") + ns.pop("IN_FLIGHT_STEP")
    ns["DATA_LOADING_ASYNC"] = report.data_loading_async_ns
    for name in ("PRODUCTIVE", "EXCLUDED", "CUSTOM_BADPUT_EVENTS"):
        del ns[name]
    ns |= {f"CUSTOM_BADPUT_EVENTS.{kind}": custom_ns for kind, custom_ns in report.custom.items()}
    return {name: value / SECOND_NS for name, value in ns.items() if value or "ELASTIC" not in name}


def check_partition(report: JobReport) -> None:
    """Check that every moment of the wall time is in exactly one bucket, to the nanosecond."""
    assert sum(report.buckets.values()) == report.wall_ns
    assert sum(report.custom.values()) == report.buckets[CUSTOM]

    at = report.start_ns
    summed = dict.fromkeys(Bucket, 0)
    for piece in report.timeline:
        assert piece.start_ns == at < piece.end_ns
        at = piece.end_ns
        summed[piece.bucket] += piece.end_ns - piece.start_ns
    assert at == report.end_ns
    assert summed == dict(report.buckets)
    assert report.estimated_ns == sum(piece.end_ns - piece.start_ns for piece in report.timeline if piece.estimated)

    for bucket in Bucket:
        assert report.buckets[bucket] == sum(attempt.buckets.get(bucket, 0) for attempt in report.attempts)


def moment_ns(at: float) -> int:
    """Return seconds after BASE as in the ledger: nanoseconds, rounded to the microsecond."""
    return round((BASE + at) * 1e6) * 1000
