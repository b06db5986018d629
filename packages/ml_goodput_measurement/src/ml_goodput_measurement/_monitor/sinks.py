"""One exporter among others: its failures do not affect the others, and its hangs delay them by a minute at most."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.worker import Worker

from ml_goodput_measurement._monitor.settings import Upload
from ml_goodput_measurement.snapshot import Snapshot

__all__ = ["Exporter", "Sink"]

Exporter: TypeAlias = Callable[[Snapshot], None]
"""A function of a snapshot. It may have `flush(timeout_seconds)` and `close()`, which are called at the end."""

_log = job_logger("ml_diagnostics.goodput")

_FIRST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 600.0
_STUCK_AFTER_SECONDS = 60.0
_MOST_WAITING = 4 * len(Upload)
"""More than the last point of each upload, if they are stopped one after the other, the end, and the waits."""


class Sink:
    """Calls one exporter, in a thread of its own, and waits for a while after a failure.

    Args:
        name: Its name in the log.
        make: Creates the exporter when it is first needed; retried like an export if it fails.
        wants: The parts of a snapshot that are exported.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Exporter],
        wants: Collection[Upload],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._make, self._wants, self._clock = name, make, wants, clock
        self._exporter: Any = None
        self._backoff = Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS)
        self._not_before = -float("inf")
        self._logged: set[str] = set()
        self._busy_since = 0.0
        self._worker = Worker("goodput-export", limit=_MOST_WAITING)

    def is_busy(self) -> bool:
        """Return True while an export is under way."""
        return self._worker.pending_count() > 0

    def is_stuck(self) -> bool:
        """Return True if an export has been under way for so long that waiting for it is pointless."""
        if not self.is_busy() or self._clock() - self._busy_since < _STUCK_AFTER_SECONDS:
            return False
        self._log_once("stuck", "has not returned for %.0f s; it gets no snapshots until it does", self._age())
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until no export is under way; return False after the timeout."""
        return self._worker.drain(timeout_seconds)

    def offer(self, snapshot: Snapshot, *, is_last: bool = False) -> None:
        """Start to export a snapshot, unless an earlier one is under way or the exporter has just failed.

        Args:
            snapshot: Only the parts that this sink wants are exported, if there are any.
            is_last: True if it is the last one: it is exported also shortly after a failure, and after the export that
                is under way.
        """
        wanted = self._part(snapshot)
        if wanted is None or (self._clock() < self._not_before and not is_last):
            return
        self._start(lambda: self._export(wanted), waits=is_last)

    def finish(self, deadline: float) -> None:
        """Start to flush and close the exporter, if there is one by then, after the export that is under way.

        Args:
            deadline: The end of the time for flushing, in seconds of `time.monotonic`.
        """

        def flush_and_close() -> None:
            if hasattr(self._exporter, "flush"):
                self._exporter.flush(max(0.0, deadline - time.monotonic()))
            if hasattr(self._exporter, "close"):
                self._exporter.close()

        self._start(flush_and_close, waits=True)

    def _part(self, snapshot: Snapshot) -> Snapshot | None:
        cumulative = snapshot.cumulative if Upload.CUMULATIVE in self._wants else None
        windows = snapshot.windows if Upload.WINDOWS in self._wants else ()
        deviation = snapshot.deviation if Upload.DEVIATION in self._wants else None
        if not (cumulative or windows or deviation):
            return None
        return dataclasses.replace(snapshot, cumulative=cumulative, windows=windows, deviation=deviation)

    def _export(self, snapshot: Snapshot) -> None:
        if self._exporter is None:
            self._exporter = self._make()
        self._exporter(snapshot)
        self._worked()

    def _start(self, action: Callable[[], None], *, waits: bool) -> None:
        if not self.is_busy():
            self._busy_since = self._clock()
        elif not waits:
            return
        if not self._worker.put(lambda: self._run(action)):
            self._failed(RuntimeError("too many exports wait, or no thread could be started"))

    def _run(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # Also SystemExit: nothing that an exporter does ends the others.
            self._failed(error)

    def _worked(self) -> None:
        if self._backoff.failures:
            _log.info("%s works again", self._name)
        self._backoff.succeeded()
        self._not_before = -float("inf")

    def _failed(self, error: BaseException) -> None:
        wait_seconds = self._backoff.failed()
        self._not_before = self._clock() + wait_seconds
        self._log_once(
            type(error).__name__,
            "failed (%s: %.500s). Next try in %.0f s, and less often while it fails; the job and the other uploads "
            "continue. Further failures of this kind are not logged",
            type(error).__name__,
            error,
            wait_seconds,
        )

    def _log_once(self, kind: str, message: str, *args: object) -> None:
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("%s " + message, self._name, *args)

    def _age(self) -> float:
        return self._clock() - self._busy_since
