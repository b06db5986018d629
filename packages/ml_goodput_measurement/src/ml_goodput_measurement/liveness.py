"""Whether the process that records a job still runs, as far as this machine can tell."""

from __future__ import annotations

import enum
import os
import time
from pathlib import Path

from ml_diagnostics_common.child_process import process_started_ns, start_mark
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.journal.newest import is_open, writer_start_ns
from ml_diagnostics_common.reader import JournalReader

from ml_goodput_measurement._ledger.writers import Writer

__all__ = ["Liveness", "ProcessState"]

_COMPANION_LOG = "tpu.googleapis.com/runtime_monitor"
"""Where the companion of cloud-tpu-diagnostics records how a process ended; the libraries meet in the journal."""
_SLACK_NS = 5 * 10**9
"""Between the kernel's clock, in whole seconds, and times of entries."""
_READ_AGAIN_SECONDS = 10.0


class ProcessState(enum.Enum):
    """What is known of a process."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


class Liveness:
    """Answers for the processes of one job.

    Args:
        root: The diagnostics folder, where companions record how processes ended.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._companions = JournalReader(_COMPANION_LOG, root=root)
        self._companions_read_at = -float("inf")
        self._endings: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._running: tuple[Writer, str] | None = None
        """A writer that was found running, and its process's start mark: checking it again costs one small file."""

    def state(self, writer: Writer) -> ProcessState:
        """Return whether a writer's process runs: asks the system if it is of this host, else its companion."""
        if not (writer.host and writer.pid.isdecimal() and len(writer.pid) < 10):
            return ProcessState.UNKNOWN
        if writer.host == identity().host and os.name != "nt":  # os.kill, which asks for it, would be Ctrl-C there.
            return self._state_here(writer, int(writer.pid))
        return ProcessState.UNKNOWN if self.ending(writer) is None else ProcessState.GONE

    def ending(self, writer: Writer) -> str | None:
        """Return how a writer's process ended by the word of its companion, None where it recorded nothing."""
        if time.monotonic() - self._companions_read_at > _READ_AGAIN_SECONDS:
            self._read_companions()
            self._companions_read_at = time.monotonic()
        earliest_ns = writer_start_ns(writer.name) - _SLACK_NS
        endings = self._endings.get((writer.host, writer.pid), ())
        return next((message for time_ns, message in endings if time_ns >= earliest_ns), None)

    def _state_here(self, writer: Writer, pid: int) -> ProcessState:
        if self._running is not None and self._running[0] == writer and start_mark(pid) == self._running[1]:
            return ProcessState.RUNNING
        self._running = None
        started_ns = process_started_ns(pid)
        if started_ns is None:
            # A process of another container of this pod has the host's name, and no pid here.
            return ProcessState.RUNNING if is_open(self._root, writer.name) else ProcessState.GONE
        writer_ns = writer_start_ns(writer.name)
        is_later = writer_ns > 0 and started_ns > writer_ns + _SLACK_NS
        # Where the machine's clock was set forward since, a process seems to have started later than it did.
        if is_later and not _has_open(pid, writer.name):
            return ProcessState.RUNNING if is_open(self._root, writer.name) else ProcessState.GONE
        mark = start_mark(pid)
        if mark:
            self._running = writer, mark
        return ProcessState.RUNNING

    def _read_companions(self) -> None:
        for batch in self._companions.read_new():
            for entry in batch:
                payload, labels = entry.payload, entry.context.labels
                if payload.get("kind") == "job_ended" and not payload.get("goes_on"):
                    message = str(payload.get("message") or payload.get("how") or "it ended")
                    process = labels.get("host", ""), labels.get("pid", "")
                    self._endings.setdefault(process, []).append((entry.timestamp_ns, message))


def _has_open(pid: int, writer: str) -> bool:
    """Return True if a process has a segment of a writer open, as its recorder has."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        return any(file.readlink().name.startswith(f"{writer}.") for file in folder.iterdir())
    except OSError:
        return False
