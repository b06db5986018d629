"""Lives of jobs, written down in a few lines: the payloads that a recorder or Orbax would have logged.

Every time here is in seconds after `BASE`, so that a test reads like its drawing:

    History().start(0).steps(range(10), at=10).end(110)
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Any

BASE = 1_700_000_000.0
"""POSIX seconds of a history's second zero."""

JOB = "job"

Payload = dict[str, Any]
Cursor = tuple["datetime.datetime | None", Any]


class History:
    """The records of one job, in the order of their writing; each method adds to them and returns the history."""

    def __init__(self, job: str = JOB) -> None:
        self.job = job
        self.payloads: list[Payload] = []

    def add(self, **keys: Any) -> History:
        """Add one entry unchanged."""
        self.payloads.append({"job_name": self.job, **keys})
        return self

    def last_moment(self) -> float:
        """Seconds after BASE of the latest thing that was recorded as such: a save counts by its start."""
        times = [value for entry in self.payloads for key, value in entry.items() if key.endswith(("_time", "_ended"))]
        return max(time for time in times if isinstance(time, float) and math.isfinite(time)) - BASE

    def start(self, at: float) -> History:
        return self.add(job_start_time=BASE + at)

    def end(self, at: float) -> History:
        return self.add(job_end_time=BASE + at)

    def step(self, number: int, at: float) -> History:
        return self.add(step_count=number, step_start_time=BASE + at)

    def step_end(self, number: int, at: float) -> History:
        return self.add(step_end_count=number, step_ended=BASE + at)

    def steps(self, numbers: Iterable[int], at: float, each: float = 10.0) -> History:
        """Steps of `each` seconds, one after the other, the first at `at`."""
        for index, number in enumerate(numbers):
            self.step(number, at + index * each)
        return self

    def init(self, first: float, last: float) -> History:
        return self._pair("tpu_init", first, last)

    def prepare(self, first: float, last: float) -> History:
        return self._pair("training_prep", first, last)

    def load(self, first: float, last: float) -> History:
        return self._pair("data_loading", first, last)

    def load_after(self, step: int, first: float, last: float) -> History:
        """A load that starts when a step ends, in one entry."""
        self.add(step_end_count=step, data_loading_start_time=BASE + first)
        return self.add(data_loading_end_time=BASE + last)

    def custom(self, first: float, last: float, kind: str = "eval") -> History:
        return self._pair("custom_badput_event", first, last, custom_badput_event_type=kind)

    def wait(self, first: float, last: float, kind: str = "slice_down") -> History:
        return self._pair("elastic_wait", first, last, elastic_wait_event_type=kind)

    def reinitialize(self, first: float, last: float) -> History:
        return self._pair("elastic_reinit", first, last)

    def save(self, step: int, first: float, last: float, directory: str = "gs://bucket/run", **more: Any) -> History:
        """A checkpoint save as Orbax logs it: the part that blocks the training."""
        return self.add(**orbax_save(step, first, last, directory), **more)

    def restore(self, step: int, first: float, last: float, directory: str = "gs://bucket/run") -> History:
        return self.add(
            event_type="restore",
            step=step,
            directory=directory,
            checkpointer_start_time=BASE + first,
            checkpointer_duration_secs=last - first,
            checkpoint_manager_start_time=BASE + first,
            checkpoint_manager_duration_secs=last - first,
        )

    def _pair(self, stem: str, first: float, last: float, **more: Any) -> History:
        self.add(**more, **{f"{stem}_start_time": BASE + first})
        return self.add(**more, **{f"{stem}_end_time": BASE + last})


def orbax_save(step: int, first: float, last: float, directory: str) -> Payload:
    """The keys of Orbax's save entry, with the values that are None off an emergency left None."""
    seconds = last - first
    return {
        "event_type": "save",
        "step": step,
        "directory": directory,
        "reached_preemption": False,
        "preemption_received_at": None,
        "synchronous": False,
        "wait_for_prev_start_time": BASE + first,
        "wait_for_prev_duration_secs": 0.0,
        "checkpointer_blocking_start_time": BASE + first,
        "checkpointer_blocking_duration_secs": seconds,
        "get_old_steps_start_time": BASE + last,
        "get_old_steps_duration_secs": 0.0,
        "checkpoint_manager_blocking_start_time": BASE + first,
        "checkpoint_manager_blocking_duration_secs": seconds,
        "time_between_consecutive_saves_sec": None,
    }


class MemoryLog:
    """A `cloud_logger` in memory, all that a calculator needs, ours or the reference's.

    Entries lie in the order of their arrival, and the cursor counts those that were read: a late entry is read
    late, and is never missed.
    """

    def __init__(self, payloads: Iterable[Payload] = ()) -> None:
        self.payloads: list[Payload] = list(payloads)
        self.entries_read = 0

    def write_cloud_logging_entry(self, entry: Payload) -> None:
        self.payloads.append(entry)

    def read_cloud_logging_entries(
        self,
        start_time: datetime.datetime | None = None,
        end_time: datetime.datetime | None = None,
        last_entry_info: Cursor | None = None,
    ) -> tuple[list[Payload], Cursor]:
        seen = last_entry_info[1] if last_entry_info and last_entry_info[1] is not None else 0
        new = self.payloads[seen:]
        self.entries_read += len(new)
        if not new:
            return [], (None, None)
        count = seen + len(new)  # More may have arrived since.
        return new, (_arrival(count), count)


def _arrival(number: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE, datetime.timezone.utc) + datetime.timedelta(microseconds=number)
