"""The thread that uploads profiles and checks them: nothing else waits for a network."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from typing import TypeAlias

from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.worker import Worker, wait_until

__all__ = ["Deliveries", "Job", "deliveries_of_this_process", "start_afresh"]

Job: TypeAlias = Callable[[], "float | None"]
"""Does some work, and returns in how many seconds to call it again; None when it is done."""


class Deliveries:
    """Runs jobs in one thread, each when it is due. The thread ends when there is nothing to do.

    Attributes:
        is_ending: True while the process ends: a job that fails now is given up.
    """

    def __init__(self) -> None:
        self._worker = Worker("mldiagnostics-profiles", self._do_next, idle_seconds=0.0)
        self._jobs: list[tuple[float, int, bool, Job]] = []  # A heap, of the thread that works.
        self._awaited: dict[int, None] = {}
        self._numbers = itertools.count()
        self._deadline = math.inf
        self._given_up = 0
        self.is_ending = False

    def add(self, job: Job, *, is_awaited: bool, delay_seconds: float = 0.0) -> None:
        """Add a job.

        Args:
            job: What to do.
            is_awaited: True if the end of the process waits for it, within a time.
            delay_seconds: How long not to do it yet.
        """
        number = next(self._numbers)
        if is_awaited:
            self._awaited[number] = None
        entry = (time.monotonic() + delay_seconds, number, is_awaited, job)
        if not self._worker.put(lambda: heapq.heappush(self._jobs, entry)):
            heapq.heappush(self._jobs, entry)  # There are no more threads: `wait` does it.

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until every awaited job is done; return False if that takes longer, or one was given up."""
        deadline = time.monotonic() + timeout_seconds
        return self.wait_until_idle(lambda: deadline - time.monotonic()) and not self._given_up

    def wait_until_idle(self, seconds_left: Callable[[], float]) -> bool:
        """Wait until no job is awaited, for a time that may become shorter; return False if that was not enough."""
        if self._awaited and not self._worker.start():  # The interpreter exits, and starts no more threads.
            self._work_here(time.monotonic() + seconds_left())
        return wait_until(self.is_idle, seconds_left)

    def is_idle(self) -> bool:
        """Return True if no job is awaited."""
        return not self._awaited

    def end(self) -> None:
        """Do what is awaited now, although it is not due, and then no more: the process ends."""
        self.is_ending = True
        if not self._worker.put(self._hasten):
            self._hasten()

    def give_up(self) -> None:
        """Count a job that is not tried again."""
        self._given_up += 1

    def seconds_left(self) -> float:
        """Return how long a job may take: without limit in the thread."""
        return max(1.0, self._deadline - time.monotonic())

    def _work_here(self, deadline: float) -> None:
        self._deadline = deadline
        try:
            while self._awaited and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(self._worker.attempt(self._do_next) or 0.0, left))
        finally:
            self._deadline = math.inf

    def _hasten(self) -> None:
        now = time.monotonic()
        self._jobs = [(now if job[2] else job[0], *job[1:]) for job in self._jobs]
        heapq.heapify(self._jobs)

    def _do_next(self) -> float | None:
        """Do the job that is due, if there is one; return in how many seconds there is another."""
        if not self._jobs:
            return None
        pause_seconds = self._jobs[0][0] - time.monotonic()
        if pause_seconds > 0:
            return pause_seconds
        _, number, is_awaited, job = heapq.heappop(self._jobs)
        again_seconds = self._worker.attempt(job)
        if again_seconds is not None:
            heapq.heappush(self._jobs, (time.monotonic() + again_seconds, number, is_awaited, job))
        else:
            self._awaited.pop(number, None)
        return 0.0


# State of the process.
_deliveries = Deliveries()


def deliveries_of_this_process() -> Deliveries:
    """Return the one of this process; a forked child has its own."""
    return _deliveries


def start_afresh() -> None:
    """Forget all jobs: they are the parent's."""
    global _deliveries
    _deliveries = Deliveries()


at_fork(start_afresh)
