"""One exporter among others: it may fail or hang as it likes, and costs the others nothing."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from ml_diagnostics_common import background
from ml_diagnostics_common.backoff import Backoff

from ml_goodput_measurement.monitor.settings import Upload
from ml_goodput_measurement.snapshot import Snapshot

__all__ = ["Exporter", "Sink"]

Exporter: TypeAlias = Callable[[Snapshot], None]
"""Takes a snapshot somewhere. It may have `flush(timeout_seconds)` and `close()`, which are called at the end."""

_log = logging.getLogger("ml_diagnostics.goodput")

_FIRST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 600.0
_STUCK_AFTER_SECONDS = 300.0


class Sink:
    """Calls one exporter, in a thread of its own, and leaves it alone for a while after a failure.

    Args:
        name: What logs call it.
        make: Makes the exporter, when it is first needed; where it fails, it is tried again like an export.
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
        self._told: set[str] = set()
        self._task: background.Task | None = None
        self._busy_since = 0.0

    def is_busy(self) -> bool:
        """Whether an export is under way."""
        return self._task is not None and not self._task.wait(0)

    def is_stuck(self) -> bool:
        """Whether an export has been under way for so long that nobody waits for it any more."""
        if not self.is_busy() or self._clock() - self._busy_since < _STUCK_AFTER_SECONDS:
            return False
        self._tell("stuck", "has not come back for %.0f s; nothing more is given to it until it does", self._age())
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """True if no export is under way any more, within that time."""
        return self._task is None or self._task.wait(timeout_seconds)

    def offer(self, snapshot: Snapshot, *, is_last: bool = False) -> None:
        """Begins to export a snapshot, unless an earlier one is under way or the exporter has just failed.

        Args:
            snapshot: Only those of its parts that this sink wants are exported, if there are any.
            is_last: Whether there will be no other chance, so that it is tried also shortly after a failure.
        """
        wanted = self._part(snapshot)
        if wanted is None or self.is_busy() or (self._clock() < self._not_before and not is_last):
            return
        self._begin(lambda exporter: exporter(wanted))

    def finish(self, timeout_seconds: float) -> None:
        """Begins to flush and close the exporter, if there is one and it is not busy."""
        if self._exporter is None or self.is_busy():
            return

        def flush_and_close(exporter: Any) -> None:
            if hasattr(exporter, "flush"):
                exporter.flush(timeout_seconds)
            if hasattr(exporter, "close"):
                exporter.close()

        self._begin(flush_and_close)

    def _part(self, snapshot: Snapshot) -> Snapshot | None:
        cumulative = snapshot.cumulative if Upload.CUMULATIVE in self._wants else None
        windows = snapshot.windows if Upload.WINDOWS in self._wants else ()
        deviation = snapshot.deviation if Upload.DEVIATION in self._wants else None
        if not (cumulative or windows or deviation):
            return None
        return dataclasses.replace(snapshot, cumulative=cumulative, windows=windows, deviation=deviation)

    def _begin(self, action: Callable[[Exporter], None]) -> None:
        self._busy_since = self._clock()
        self._task = background.start(lambda: self._run(action))
        if self._task is None:
            self._failed(RuntimeError("no thread could be started"))

    def _run(self, action: Callable[[Exporter], None]) -> None:
        try:
            if self._exporter is None:
                self._exporter = self._make()
            action(self._exporter)
        except BaseException as error:  # Also SystemExit: nothing that an exporter does ends the others.
            self._failed(error)
        else:
            self._worked()

    def _worked(self) -> None:
        if self._backoff.failures:
            _log.info("%s works again", self._name)
        self._backoff.succeeded()
        self._not_before = -float("inf")

    def _failed(self, error: BaseException) -> None:
        wait_seconds = self._backoff.failed()
        self._not_before = self._clock() + wait_seconds
        self._tell(
            type(error).__name__,
            "failed (%s: %.500s). It is tried again in %.0f s, and ever more seldom while it fails; the job and the "
            "other uploads go on. Further failures of this kind are not logged",
            type(error).__name__,
            error,
            wait_seconds,
        )

    def _tell(self, kind: str, message: str, *args: object) -> None:
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s " + message, self._name, *args)

    def _age(self) -> float:
        return self._clock() - self._busy_since
