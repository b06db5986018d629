"""The time of the event in a payload."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ml_goodput_measurement._record.arguments import in_utc

__all__ = ["get_timestamp_from_log_entry"]

# Whole keys, not the word "time": Orbax's time_between_consecutive_saves_sec is a duration.
# Of the keys of one Orbax entry the first that stands here counts: when the whole operation started.
_TIME_KEYS = (
    "step_start_time",
    "step_ended",
    "data_loading_start_time",
    "data_loading_end_time",
    "job_start_time",
    "job_end_time",
    "tpu_init_start_time",
    "tpu_init_end_time",
    "training_prep_start_time",
    "training_prep_end_time",
    "custom_badput_event_start_time",
    "custom_badput_event_end_time",
    "checkpoint_progress_started",
    "elastic_slice_counts_timestamp",
    "elastic_wait_start_time",
    "elastic_wait_end_time",
    "elastic_reinit_start_time",
    "elastic_reinit_end_time",
    "checkpoint_manager_blocking_start_time",
    "checkpoint_manager_start_time",
    "wait_for_prev_start_time",
    "checkpointer_blocking_start_time",
    "checkpointer_start_time",
    "broadcast_start_time",
    "get_old_steps_start_time",
)


def get_timestamp_from_log_entry(entry: Mapping[str, Any] | None) -> datetime.datetime | None:
    """Return the time of the event in a log entry's payload.

    Args:
        entry: A payload as recorders and Orbax write it.

    Returns:
        The time in UTC; None for an unknown event, and for a missing or invalid time.
    """
    if not isinstance(entry, Mapping):
        return None
    for key in _TIME_KEYS:
        if key in entry:
            with suppress(TypeError, ValueError, OverflowError, OSError):  # None, text, NaN, a year of no calendar.
                return in_utc(entry[key])
    return None
