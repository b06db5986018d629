"""The thread that measures this host for a run, and the locks by which one process of each host does so."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ml_diagnostics_common.clock import now_ns
from ml_diagnostics_common.descriptors import Descriptor
from ml_diagnostics_common.files import open_lock_file, try_lock, unlock
from ml_diagnostics_common.guard import LOSSES, guarded_as, report_loss, warn_once
from ml_diagnostics_common.process_hooks import LiveObjects, at_fork
from ml_diagnostics_common.worker import Interval, Task, Worker, start

from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
from google_cloud_mldiagnostics._system_metrics import Collect, Reading, gpu, payload_of, tpu
from google_cloud_mldiagnostics._system_metrics.disks import DiskMeter, folders_of_job
from google_cloud_mldiagnostics._system_metrics.gpu_health import GpuHealth
from google_cloud_mldiagnostics._system_metrics.host import HostMeter, ProcessMeter

__all__ = ["Bounded", "Claims", "SystemMetrics"]


class Claims:
    """The locks of one process. The kernel releases them when it ends, and the next process that asks continues.

    A forked child has them open, too, and may outlive its parent. It closes its copies, which releases no lock.

    Args:
        folder: The folder of the lock files: the same for all processes of the run on this host.
        host: The host's name: the folder may be shared with other hosts.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder = folder
        self._host = host
        self._held: dict[str, Descriptor] = {}
        _claims_of_this_process.add(self)

    def hold(self, what: str) -> bool:
        """Return True if this process measures `what`. Without locks all processes do: twice is not wrong."""
        held = self._held.get(what)
        if held is not None and held.number() is not None:
            return True
        name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self._host}.{what}")[:200]
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = open_lock_file(self._folder / f"{name}.lock")
        except OSError:
            return True
        descriptor = Descriptor(number)
        try:
            is_ours = try_lock(number)
        except OSError:
            descriptor.close()
            return True
        if is_ours:
            self._held[what] = descriptor
        else:
            descriptor.close()
        return is_ours

    def forget(self) -> None:
        """Close the copies in a forked child."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            descriptor.close()

    def release(self) -> None:
        """Release all locks."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            number = descriptor.number()
            if number is not None:
                unlock(number)
            descriptor.close()


_claims_of_this_process: LiveObjects[Claims] = LiveObjects()


def _forget_in_child() -> None:
    for claims in _claims_of_this_process:
        claims.forget()


at_fork(_forget_in_child)


_SHORTEST_INTERVAL_SECONDS: Final = 0.1
_LONGEST_INTERVAL_SECONDS: Final = 86_400.0
_SHORTEST_LAST_SECONDS: Final = 1.0
"""A shorter last interval at the end of a run is not representative."""


class SystemMetrics:
    """Measure the host of this process, and its chips, and write the readings to the run's log.

    If a source fails or hangs, only its own metrics are missing.

    Args:
        run: The run; its log receives the readings.
        interval_seconds: The time from one collection to the next, however long they take.
        host: Sources that are read once more at the end; by default of this process and the host.
        chips: Sources that are not read at the end; by default of TPU chips and GPUs.
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
        self._worker = Worker("mldiagnostics-system-metrics", self._measure)
        self._interval: Interval | None = None
        self._measured = 0.0
        self._is_started = False

    @guarded_as("measure the host")
    def start(self) -> None:
        """Start the thread; in a forked child, and when it was started already, do nothing."""
        if os.getpid() == self._run.pid and not self._is_started:
            self._is_started = self._worker.start()

    @guarded_as("stop measuring the host")
    def stop(self, timeout_seconds: float = 1.0) -> bool:
        """End the thread, which measures the host once more, so that a run of any length has its metrics.

        Args:
            timeout_seconds: The longest wait for it.

        Returns:
            True if the thread has ended. If not, a source hangs, and the thread ends after it or with the process.
        """
        if not self._is_started or os.getpid() != self._run.pid:
            return True
        self._worker.put(self._finish)
        return self._worker.wait(timeout_seconds)

    def _measure(self) -> float | None:
        """Collect if it is due; return in how many seconds it is due again."""
        now = time.monotonic()
        if self._interval is None:
            self._interval = Interval(self._interval_seconds, now)
        if now >= self._interval.due:
            self._collect([*self._host, *self._chips])
            self._measured = time.monotonic()
            self._interval.advance(self._measured)
        return self._interval.due - time.monotonic()

    def _finish(self) -> None:
        if time.monotonic() - self._measured > min(_SHORTEST_LAST_SECONDS, self._interval_seconds):
            self._collect(self._host)  # Not the chips: their runtime may be shutting down.
        self._claims.release()
        self._worker.stop()

    def _host_sources(self) -> list[Collect]:
        host = HostMeter()
        disks = DiskMeter(lambda: folders_of_job(self._run.run.configs, self._run.run.gcs_path))

        def collect() -> list[Reading]:
            return [*host.collect(), *disks.collect()] if self._claims.hold("host") else []

        return [ProcessMeter().collect, collect]

    def _chip_sources(self) -> list[Collect]:
        sources: list[Collect] = []
        if gpu.may_have_gpu():
            meter = gpu.GpuMeter(self._claims.hold)
            sources += _with_details("the NVIDIA driver", meter.collect, GpuHealth(meter.gpus).collect)
        if tpu.may_have_tpu():
            details = tpu.TpuDetails()
            sources += _with_details(
                "libtpu", lambda: self._collect_tpu(tpu.collect_tpu), lambda: self._collect_tpu(details.collect)
            )
        return sources

    def _collect_tpu(self, collect: Collect) -> list[Reading]:
        return collect() if tpu.runtime_is_up() and self._claims.hold("tpu") else []

    def _collect(self, sources: Sequence[Collect]) -> None:
        """Collect once, with the same time in all entries."""
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
            if not reading.is_detail:
                self._run.log.averages.add(reading.name, reading.mean)


def _with_details(source: str, collect: Collect, details: Collect) -> list[Collect]:
    """Return two collectors of a source, so that a detail that hangs costs no other metric.

    Only one thread waits for a source that hangs.
    """
    first, second = Bounded(source, collect), Bounded(f"{source} (details)", details)
    return [first.collect, lambda: [] if first.is_hanging else second.collect()]


class Bounded:
    """Call a collector in a thread, and return nothing if that takes too long.

    The collector is not called again before it returns, so a driver or library that hangs blocks only one thread.

    Args:
        source: The name of the source, for the log: libtpu.
        collect: Read the source.
        timeout_seconds: The longest wait of one collection.
    """

    def __init__(self, source: str, collect: Collect, timeout_seconds: float = 2.0) -> None:
        self._source = source
        self._ask = collect
        self._timeout_seconds = timeout_seconds
        self._task: Task | None = None

    @property
    def is_hanging(self) -> bool:
        """True while the collector has not returned."""
        return self._task is not None and not self._task.wait(0)

    def collect(self) -> list[Reading]:
        """Return the collector's readings; none while it hangs. An Exception of the collector is raised here."""
        if self.is_hanging:
            LOSSES.add(f"system_metrics: {self._source} does not answer")
            return []
        answers: list[list[Reading] | Exception] = []

        def ask() -> None:
            try:
                answers.append(self._ask())
            except Exception as error:
                answers.append(error)

        self._task = start(ask, "mldiagnostics-system-metrics")
        if self._task is None:
            return []
        if not self._task.wait(self._timeout_seconds):
            LOSSES.add(f"system_metrics: {self._source} does not answer")
            warn_once(
                ("system metrics hang", self._source),
                "%s has not answered for %g s: its metrics are missing from the run until it does. The job continues.",
                self._source,
                self._timeout_seconds,
            )
            return []
        [answer] = answers
        if isinstance(answer, Exception):
            raise answer
        return answer
