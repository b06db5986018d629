"""How processes ended, as the companions of `cloud_tpu_diagnostics` record it.

A companion outlives the process that it watches, and writes an entry of kind `job_ended` with the host and pid of that
process. The libraries do not import each other: they share this log.
"""

from __future__ import annotations

from collections.abc import Iterable

from ml_diagnostics_common.entry import LogEntry

__all__ = ["COMPANION_LOG_ID", "ProcessEndings"]

COMPANION_LOG_ID = "tpu.googleapis.com/runtime_monitor"


class ProcessEndings:
    """The entries on the ends of processes, by host and pid."""

    def __init__(self) -> None:
        self._by_process: dict[tuple[str, str], list[LogEntry]] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the companions' log, in any order; those of other kinds are skipped."""
        for entry in entries:
            if entry.payload.get("kind") == "job_ended":
                labels = entry.context.labels
                self._by_process.setdefault((labels.get("host", ""), labels.get("pid", "")), []).append(entry)

    def after(self, host: str, pid: int | str, time_ns: int, *, with_blocks: bool = False) -> list[LogEntry]:
        """Return the ends of a process since some time, the oldest first: process ids are used again.

        Args:
            host: The process's host.
            pid: Its id there.
            time_ns: Not before this time, in ns since 1970.
            with_blocks: Include ends of blocks of `diagnose()` in a process that continued.
        """
        entries = self._by_process.get((host, str(pid)), ())
        found = [entry for entry in entries if entry.timestamp_ns >= time_ns]
        if not with_blocks:
            found = [entry for entry in found if not entry.payload.get("goes_on")]
        return sorted(found, key=lambda entry: entry.timestamp_ns)
