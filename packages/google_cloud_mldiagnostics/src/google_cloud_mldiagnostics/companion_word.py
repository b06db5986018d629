"""What the companion of `cloud_tpu_diagnostics` told of processes that ended without a word of their own.

The libraries meet in the journal: an entry of kind `job_ended` in the companion's log, of the process's host and pid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.entry import LogEntry, parse_timestamp
from ml_diagnostics_common.reader import JournalReader

__all__ = ["how_it_ended"]

_LOG_ID: Final = "tpu.googleapis.com/runtime_monitor"


def how_it_ended(attempt: Mapping[str, Any], root: Path) -> tuple[str, str] | None:
    """Returns the phase and the reason of an attempt, by what the companion told of its processes.

    Reads all of the companion's log: for a thread of our own.

    Args:
        attempt: As a run's folder has it.
        root: The diagnostics folder.

    Returns:
        COMPLETED where all that is told ended well; None where nothing is told.
    """
    ours = {
        (str(process.get("hostname")), str(process.get("pid"))): _ns(process.get("startTime"))
        for process in attempt.get("processes") or ()
    }
    endings = [
        entry.payload
        for batch in JournalReader(_LOG_ID, root=root).read_new()
        for entry in batch
        if _is_ending(entry) and ours.get(_process_of(entry), entry.timestamp_ns + 1) <= entry.timestamp_ns
    ]
    return _verdict(endings) if endings else None


def _is_ending(entry: LogEntry) -> bool:
    return entry.payload.get("kind") == "job_ended" and not entry.payload.get("goes_on")


def _process_of(entry: LogEntry) -> tuple[str, str]:
    labels = entry.context.labels
    return labels.get("host", ""), labels.get("pid", "")


def _verdict(endings: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    for ending in endings:
        if ending.get("how") != "clean":
            return "FAILED", str(ending.get("message") or ending.get("how") or "")
    return "COMPLETED", ""


def _ns(text: object) -> int:
    try:
        return parse_timestamp(str(text))
    except ValueError:
        return 0
