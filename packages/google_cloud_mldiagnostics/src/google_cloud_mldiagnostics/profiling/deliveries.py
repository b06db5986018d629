"""The thread that brings profiles to where they belong, and looks after them: nobody waits for a network but it."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.worker import start

from google_cloud_mldiagnostics.per_process import PerProcess

__all__ = ["Deliveries", "Job", "deliveries_of_this_process"]

Job: TypeAlias = Callable[[], "float | None"]
"""Does some work, and returns in how many seconds it shall be called again; None when it is done."""


class Deliveries:
    """Runs jobs in one thread, each when it is due. The thread ends when there is nothing to do.

    Attributes:
        is_ending: Whether the process ends: a job that fails now is given up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Held for a few instructions, never while a job runs.
        self._changed = threading.Event()
        self._jobs: list[tuple[float, int, bool, Job]] = []
        self._awaited = 0
        self._all_delivered = threading.Event()
        self._all_delivered.set()
        self._is_running = False
        self._deadline = math.inf
        self._given_up = 0
        self.is_ending = False
        self._numbers = itertools.count()

    def add(self, job: Job, *, is_awaited: bool, delay_seconds: float = 0.0) -> None:
        """Adds a job.

        Args:
            job: What to do.
            is_awaited: Whether the end of the process waits for it, within a time.
            delay_seconds: How long not to do it yet.
        """
        with self._lock:
            if is_awaited:
                self._awaited += 1
                self._all_delivered.clear()
            self._push(job, is_awaited, delay_seconds)
            must_start, self._is_running = not self._is_running, True
        self._changed.set()
        if must_start and start(self._work, "mldiagnostics-deliveries") is None:
            with self._lock:
                self._is_running = False  # The interpreter ends: `wait` does it, or what is staged stays there.

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until every awaited job is done; False if that takes longer, or one was given up."""
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            must_work = self._awaited > 0 and not self._is_running
            self._is_running = self._is_running or must_work
        if must_work:  # The interpreter ends, and starts no more threads.
            self._deadline = deadline
            try:
                self._work()
            finally:
                self._deadline = math.inf
        return self._all_delivered.wait(max(0.0, deadline - time.monotonic())) and not self._given_up

    def is_idle(self) -> bool:
        """Whether no job is awaited."""
        return self._all_delivered.is_set()

    def end(self) -> None:
        """Says that the process ends: what is awaited is tried now, though it is not due, and then no more."""
        now = time.monotonic()
        with self._lock:
            self.is_ending = True
            self._jobs = [(now if job[2] else job[0], *job[1:]) for job in self._jobs]
            heapq.heapify(self._jobs)
        self._changed.set()

    def give_up(self) -> None:
        """Counts a job that is not tried again."""
        self._given_up += 1

    def seconds_left(self) -> float:
        """How long a job may take: without end in the thread."""
        return max(1.0, self._deadline - time.monotonic())

    def _push(self, job: Job, is_awaited: bool, delay_seconds: float) -> None:
        heapq.heappush(self._jobs, (time.monotonic() + delay_seconds, next(self._numbers), is_awaited, job))

    def _work(self) -> None:
        while True:
            self._changed.clear()
            now = time.monotonic()
            with self._lock:
                is_in_caller = self._deadline < math.inf
                if not self._jobs or now >= self._deadline or (is_in_caller and not self._awaited):
                    self._is_running = False
                    return
                pause = self._jobs[0][0] - now
                due = heapq.heappop(self._jobs) if pause <= 0 else None
            if due is None:
                self._changed.wait(min(pause, self._deadline - now))
            else:
                self._do(due[3], due[2])

    def _do(self, job: Job, is_awaited: bool) -> None:
        try:
            again = job()
        except Exception as error:  # Of a job that has no better answer to it.
            LOSSES.add(f"profile: {type(error).__name__}")
            warn_once(
                ("profile job", type(job), type(error)),
                "A profile could not be looked after (%s: %s). The job goes on; further losses of this kind are "
                "counted, not logged.",
                type(error).__name__,
                error,
            )
            again = None
        with self._lock:
            if again is not None:
                self._push(job, is_awaited, again)
            elif is_awaited:
                self._awaited -= 1
                if not self._awaited:
                    self._all_delivered.set()


_deliveries = PerProcess(Deliveries)


def deliveries_of_this_process() -> Deliveries:
    """Returns the one of this process; a forked child has its own."""
    return _deliveries.get()
