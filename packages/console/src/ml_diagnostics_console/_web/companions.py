"""Entries of the companions of all processes: ends, hangs, progress and signs of life, read once for all runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from cloud_tpu_diagnostics.entries import HANG_SUSPECTED, JOB_ENDED, LEFT_BLOCK, STEP_SUMMARY
from google_cloud_mldiagnostics.reading import natural_number, number
from ml_diagnostics_common.entry import LogEntry, ProcessEndings

__all__ = ["Companions", "Hang"]

_SECOND_NS: Final = 1_000_000_000
_MOST_HANGS: Final = 64

Key = tuple[str, int]
"""Host and pid."""


class Hang(NamedTuple):
    """A process that was taken for stuck.

    Attributes:
        host: Its host.
        time_ns: When that was recorded, in ns since 1970.
        since_ns: When it made progress last.
        step: Its step; None if it is not known.
        phase: The phase of the step.
        frame: The frame of its main thread; empty if it is not known.
    """

    host: str
    time_ns: int
    since_ns: int
    step: int | None
    phase: str
    frame: str


class Companions:
    """The entries of companions, by host and pid.

    Attributes:
        endings: The ends of processes.
        touched: The processes that got entries since this was cleared.
    """

    def __init__(self) -> None:
        self.endings = ProcessEndings()
        self.touched: set[Key] = set()
        self._hangs: dict[Key, list[Hang]] = {}
        self._signs_ns: dict[Key, int] = {}
        self._progress: dict[Key, tuple[int, int]] = {}  # The time of the last summary of steps, and the last step.

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the companions' log, in any order."""
        for entry in entries:
            labels, payload = entry.context.labels, entry.payload
            key = (str(labels.get("host") or ""), natural_number(labels.get("pid")) or 0)
            self.touched.add(key)
            kind = payload.get("kind")
            if kind in (JOB_ENDED, LEFT_BLOCK):
                self.endings.add((entry,))
                continue
            if entry.timestamp_ns > self._signs_ns.get(key, 0):
                self._signs_ns[key] = entry.timestamp_ns
            if kind == HANG_SUSPECTED:
                self._add_hang(key, entry.timestamp_ns, payload)
            elif kind == STEP_SUMMARY and payload.get("count"):
                last = natural_number(payload.get("last_step"))
                self._progress[key] = max(self._progress.get(key, (0, 0)), (entry.timestamp_ns, last or 0))

    def _add_hang(self, key: Key, time_ns: int, payload: dict[str, Any]) -> None:
        stuck_seconds = number(payload.get("stuck_seconds")) or 0.0
        hang = Hang(
            key[0],
            time_ns,
            time_ns - int(min(max(stuck_seconds, 0.0), 1e9) * _SECOND_NS),
            natural_number(payload.get("step")),
            str(payload.get("phase") or ""),
            str(payload.get("stuck_frame") or ""),
        )
        hangs = self._hangs.setdefault(key, [])
        hangs.append(hang)
        hangs.sort(key=lambda each: each.time_ns)
        del hangs[:-_MOST_HANGS]

    def hang(self, host: str, pid: int, since_ns: int, until_ns: int, progress_ns: int = 0) -> Hang | None:
        """Return the last hang of a process if it has made no progress after it.

        Args:
            host: The process's host.
            pid: Its id there.
            since_ns: Its start; another process may have had the id before, in ns since 1970.
            until_ns: Its end, or now.
            progress_ns: The time of its last value of a metric with a step.
        """
        hangs = [hang for hang in self._hangs.get((host, pid), ()) if since_ns <= hang.time_ns <= until_ns]
        if not hangs:
            return None
        last = hangs[-1]
        summary_ns, last_step = self._progress.get((host, pid), (0, 0))
        is_over = progress_ns > last.time_ns or (
            # A summary of the steps before the hang is written after it, too.
            summary_ns > last.time_ns and (last.step is None or last_step > last.step)
        )
        return None if is_over else last

    def hangs(self, host: str, pid: int) -> list[Hang]:
        """Return all kept hangs of the processes that had an id, by time."""
        return list(self._hangs.get((host, pid), ()))

    def last_sign_ns(self, host: str, pid: int) -> int:
        """Return the time of the last entry of its companion but its end; 0 if there is none."""
        return self._signs_ns.get((host, pid), 0)
