"""The thread that measures this host for a run: every few seconds, for as long as the run goes on."""

from __future__ import annotations

import _thread
import math
import os
import time
from collections.abc import Sequence
from typing import Final

from ml_diagnostics_common.guard import guarded_as, report_loss
from ml_diagnostics_common.steady_clock import now_ns
from ml_diagnostics_common.worker import Task, start

from google_cloud_mldiagnostics.active_run import ActiveRun
from google_cloud_mldiagnostics.system_metrics import gpu, tpu
from google_cloud_mldiagnostics.system_metrics.bounded import Bounded
from google_cloud_mldiagnostics.system_metrics.claims import Claims
from google_cloud_mldiagnostics.system_metrics.host import HostMeter, ProcessMeter
from google_cloud_mldiagnostics.system_metrics.readings import Collect, Reading, payload_of

__all__ = ["SystemMetrics", "next_due"]

_SHORTEST_INTERVAL_SECONDS: Final = 0.1
_LONGEST_INTERVAL_SECONDS: Final = 86_400.0
_SHORTEST_LAST_SECONDS: Final = 1.0
"""What the host did in less than this at the end of a run says little of it."""


class SystemMetrics:
    """Measures the host that this process is on, and its chips, and writes what it finds to the run's log.

    Nobody waits for the thread: neither who starts it, nor, for longer than it says, who stops it. A source that fails
    or hangs costs its own metrics, and no other's.

    Args:
        run: What is measured is written to its log.
        interval_seconds: From one collection to the next, however long they take.
        host: What is asked, and asked once more at the end; by default about this process and the host.
        chips: What is asked for as long as the run goes on; by default about TPU chips and GPUs.
    """

    def __init__(
        self,
        run: ActiveRun,
        interval_seconds: float = 10.0,
        *,
        host: Sequence[Collect] | None = None,
        chips: Sequence[Collect] | None = None,
    ) -> None:
        self._run = run
        self._interval_seconds = min(max(interval_seconds, _SHORTEST_INTERVAL_SECONDS), _LONGEST_INTERVAL_SECONDS)
        self._claims = Claims(run.folder / "locks", run.host)
        self._host = self._host_sources() if host is None else host
        self._chips = self._chip_sources() if chips is None else chips
        # A bare lock, since a signal handler that stops us may interrupt who stops us already.
        self._goes_on = _thread.allocate_lock()
        self._goes_on.acquire()
        self._task: Task | None = None

    @guarded_as("measure the host")
    def start(self) -> None:
        """Starts the thread; in a forked child, and when it was started already, nothing."""
        if self._task is None and os.getpid() == self._run.pid:
            self._task = start(self._measure_until_stopped, "mldiagnostics-system-metrics")

    @guarded_as("stop measuring the host")
    def stop(self, timeout_seconds: float = 1.0) -> bool:
        """Ends the thread, which measures the host once more, so that a run of any length has its figures.

        Args:
            timeout_seconds: How long to wait for it.

        Returns:
            Whether it has ended by then. If not, a source hangs, and it ends with that or with the process.
        """
        if self._task is None or os.getpid() != self._run.pid:
            return True
        try:
            self._goes_on.release()
        except RuntimeError:  # It was stopped already.
            pass
        return self._task.wait(timeout_seconds)

    def _measure_until_stopped(self) -> None:
        measured = due = time.monotonic()
        while True:
            self._collect([*self._host, *self._chips])
            measured = time.monotonic()
            due = next_due(due, measured, self._interval_seconds)
            if self._goes_on.acquire(timeout=max(0.0, due - measured)):
                break
        self._goes_on.release()  # For who stops us a second time.
        if time.monotonic() - measured > min(_SHORTEST_LAST_SECONDS, self._interval_seconds):
            self._collect(self._host)  # Not the chips: their runtime may be shutting down.
        self._claims.release()

    def _host_sources(self) -> list[Collect]:
        host = HostMeter()
        return [ProcessMeter().collect, lambda: host.collect() if self._claims.hold("host") else []]

    def _chip_sources(self) -> list[Collect]:
        sources = []
        if gpu.may_have_gpu():
            sources.append(Bounded("the NVIDIA driver", gpu.GpuMeter(self._claims.hold).collect).collect)
        if tpu.may_have_tpu():
            sources.append(Bounded("libtpu", self._collect_tpu).collect)
        return sources

    def _collect_tpu(self) -> list[Reading]:
        return tpu.collect_tpu() if tpu.runtime_is_up() and self._claims.hold("tpu") else []

    def _collect(self, sources: Sequence[Collect]) -> None:
        """One collection: all entries bear the same time."""
        moment_ns = now_ns()
        readings: list[Reading] = []
        for source in sources:
            try:
                readings += source()
            except Exception as error:
                report_loss("SystemMetrics", error, "measure the host")
        for reading in readings:
            payload = payload_of(reading, self._run.host, self._run.process_index)
            self._run.log.write(reading.name, payload, timestamp_ns=moment_ns)
            self._run.log.averages.add(reading.name, reading.mean)


def next_due(due: float, now: float, interval: float) -> float:
    """When to measure next: a whole number of intervals after the first time, so that no delay adds up.

    Args:
        due: When it was due the last time, in seconds.
        now: What time it is.
        interval: Seconds. Those that have passed meanwhile are left out.
    """
    return due + interval * max(1, math.floor((now - due) / interval) + 1)
