"""A synthetic job, as payloads: a data load and a start for every step, saves, rollbacks and custom events.

A save every 500 steps, eight rollbacks to the last save, and as many custom events as asked for. Steps last about a
second. 1e6 steps are 3.0 million payloads.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any

JOB = "job"
LOG = "goodput_job"
BASE = 1_700_000_000.0

_SAVE_EVERY = 500
_ROLLBACKS = 8

Payload = dict[str, Any]


class Training:
    """A job that continues: `payloads(until)` starts at the end of the last call."""

    def __init__(self, steps: int, custom_events: int = 0) -> None:
        """Plan the rollbacks, evenly over `steps`, and the custom events."""
        self._rng = random.Random(steps)
        self._rollbacks = [steps * (number + 1) // (_ROLLBACKS + 1) for number in range(_ROLLBACKS)]
        self._custom_every = steps // custom_events if custom_events else 0
        self.step = 0
        self.at = BASE
        self._started = False

    def payloads(self, until: int) -> Iterator[Payload]:
        """Yield the payloads up to the start of step `until`."""
        if not self._started:
            self._started = True
            yield from self._start()
        while self.step < until:
            if self._rollbacks and self.step == self._rollbacks[0]:
                self._rollbacks.pop(0)
                self.step -= self.step % _SAVE_EVERY
                self.at += 120.0
                yield from self._start()
            yield from self._one_step()

    def _start(self) -> Iterator[Payload]:
        yield {"job_name": JOB, "job_start_time": self.at}
        yield {"job_name": JOB, "tpu_init_start_time": self.at + 1.0}
        yield {"job_name": JOB, "tpu_init_end_time": self.at + 20.0}
        yield {"job_name": JOB, "training_prep_start_time": self.at + 20.0}
        yield {"job_name": JOB, "training_prep_end_time": self.at + 30.0}
        self.at += 30.0

    def _one_step(self) -> Iterator[Payload]:
        yield {"job_name": JOB, "data_loading_start_time": self.at}
        yield {"job_name": JOB, "data_loading_end_time": self.at + 0.01}
        self.at += 0.01
        yield {"job_name": JOB, "step_count": self.step, "step_start_time": self.at}
        self.at += self._rng.uniform(0.95, 1.05)
        if self.step and self.step % _SAVE_EVERY == 0:
            yield save(self.step, self.at)
            self.at += 2.0
        if self._custom_every and self.step % self._custom_every == 1:
            kind = "eval"
            yield {"job_name": JOB, "custom_badput_event_type": kind, "custom_badput_event_start_time": self.at}
            self.at += 1.0
            yield {"job_name": JOB, "custom_badput_event_type": kind, "custom_badput_event_end_time": self.at}
        self.step += 1


def save(step: int, at: float) -> Payload:
    """Return a save as Orbax logs it, which blocks for 1.5 s."""
    return {
        "job_name": JOB,
        "event_type": "save",
        "step": step,
        "directory": "gs://bucket/checkpoints",
        "reached_preemption": False,
        "preemption_received_at": None,
        "synchronous": False,
        "wait_for_prev_start_time": at,
        "wait_for_prev_duration_secs": 0.1,
        "checkpointer_blocking_start_time": at + 0.1,
        "checkpointer_blocking_duration_secs": 1.4,
        "get_old_steps_start_time": at,
        "get_old_steps_duration_secs": 0.0,
        "checkpoint_manager_blocking_start_time": at,
        "checkpoint_manager_blocking_duration_secs": 1.5,
    }


class MemoryLog:
    """A `cloud_logger` in memory, for both: entries by arrival, the cursor counts those that were read."""

    def __init__(self) -> None:
        self.payloads: list[Payload] = []

    def read_cloud_logging_entries(
        self, start_time: Any = None, end_time: Any = None, last_entry_info: Any = None
    ) -> tuple[list[Payload], tuple[Any, Any]]:
        seen = int(last_entry_info[1]) if last_entry_info and last_entry_info[1] is not None else 0
        new = self.payloads[seen:] if seen else self.payloads  # A copy of millions would count as a query's memory.
        if not new:
            return [], (None, None)
        arrived = datetime.datetime.fromtimestamp(BASE, datetime.timezone.utc)
        return new, (arrived + datetime.timedelta(microseconds=len(self.payloads)), str(len(self.payloads)))
