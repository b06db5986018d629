"""A collector that may not come back: it is asked in a thread of its own, for which nobody waits long."""

from __future__ import annotations

from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.worker import Task, start

from google_cloud_mldiagnostics.system_metrics.readings import Collect, Reading

__all__ = ["Bounded"]


class Bounded:
    """Asks a collector, and gives up on it for now if it does not answer in time.

    While it has not come back it is not asked again: a driver or a library that hangs costs one thread that waits.

    Args:
        source: What is asked, for the log: libtpu.
        collect: Asks it.
        timeout_seconds: How long one collection waits for it.
    """

    def __init__(self, source: str, collect: Collect, timeout_seconds: float = 2.0) -> None:
        self._source = source
        self._ask = collect
        self._timeout_seconds = timeout_seconds
        self._task: Task | None = None

    def collect(self) -> list[Reading]:
        """What the collector says; nothing while it hangs. What it raises is raised here."""
        if self._task is not None and not self._task.wait(0):
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
                "%s has not answered for %g s: its metrics are missing from the run until it does. The job goes on.",
                self._source,
                self._timeout_seconds,
            )
            return []
        [answer] = answers
        if isinstance(answer, Exception):
            raise answer
        return answer
