"""Snapshots of a job, as exporters are given them."""

from typing import Any

from ml_goodput_measurement.goodput_utils import BadputType
from ml_goodput_measurement.snapshot import Cumulative, Deviation, RollingWindow, SliceEfficiency, Snapshot

BADPUT_SECONDS = {
    BadputType.TPU_INITIALIZATION: 10.0,
    BadputType.TRAINING_PREP: 20.0,
    BadputType.PROGRAM_STARTUP: 30.0,
    BadputType.DATA_LOADING_SYNC: 5.0,
    BadputType.DATA_LOADING_ASYNC: 77.0,
    BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME: 7.0,
    BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME: 8.0,
    BadputType.WASTED_PROGRESS_FROM_DISRUPTION: 9.0,
    BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION: 11.0,
    BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 12.0, "SDC CHECK": 13.0},
    BadputType.OTHER: 0.0,
}
BADPUT_PERCENT = {
    BadputType.TPU_INITIALIZATION: 1.0,
    BadputType.DATA_LOADING_ASYNC: 7.0,
    BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 2.0},
}
SLICES = SliceEfficiency(stepping=0.5, available=0.75)


def cumulative(**changes: Any) -> Any:
    values = {
        "goodput_seconds": 875.0,
        "goodput_percent": 87.5,
        "badput_seconds": BADPUT_SECONDS,
        "badput_percent": {},
        "max_productive_step": 41,
        "total_elapsed_seconds": 1000.0,
        "disruptions": 2,
        "ideal_step_seconds": 1.25,
        "slice_efficiency": SLICES,
    }
    return Cumulative(**{**values, **changes})


def window(seconds: int = 3600, **changes: Any) -> Any:
    values = {"goodput_percent": 90.0, "badput_percent": BADPUT_PERCENT, "slice_efficiency": SLICES}
    return RollingWindow(seconds, **{**values, **changes})


def deviation(from_baseline_seconds: float = 0.25) -> Any:
    return Deviation(from_baseline_seconds, lambda _since: iter(()))


def snapshot(time_ns: int = 0, **parts: Any) -> Any:
    """A snapshot with those parts; with all where none is named."""
    parts = parts or {"cumulative": cumulative(), "deviation": deviation(), "windows": (window(),)}
    return Snapshot("run-1", time_ns, **parts)


def with_events(count: Any) -> Any:
    """A cumulative part with so many types of custom events, of 1, 2, 3, ... seconds."""
    events = {f"EVENT_{number:04}": float(number) for number in range(1, count + 1)}
    return cumulative(badput_seconds={BadputType.CUSTOM_BADPUT_EVENTS: events})
