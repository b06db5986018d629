"""Which jobs a journal holds, from the headers of its segments alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ml_diagnostics_common.journal.layout import Header, Segment, list_segments, read_header

__all__ = ["jobs_by_log"]


def jobs_by_log(root: Path) -> dict[str, set[str]]:
    """Returns the names of the jobs in each log of the journal in a diagnostics folder.

    All segments of a writer have the same labels, so one header a writer is read. Files that are none of ours, or
    that cannot be opened, are passed over; a missing folder holds no job.
    """
    logs: dict[str, set[str]] = {}
    for folder in sorted((root / "journal").glob("*/")):
        known: set[str] = set()  # writers
        for segment in list_segments(folder):
            header = None if segment.writer in known else _header(segment)
            if header is not None:
                known.add(segment.writer)
                if job := header.labels.get("job"):
                    logs.setdefault(header.log_id, set()).add(job)
    return logs


def _header(segment: Segment) -> Header | None:
    with contextlib.suppress(OSError):
        return read_header(segment)
    return None
