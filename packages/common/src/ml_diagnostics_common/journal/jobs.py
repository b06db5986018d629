"""The jobs in a journal, from the headers of its segments alone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ml_diagnostics_common.journal.layout import Header, Segment, list_segments, read_header
from ml_diagnostics_common.journal.newest import newest_writers, writer_start_ns

__all__ = ["ProcessStart", "jobs_by_log", "newest_job", "processes_of_job"]


class ProcessStart(NamedTuple):
    """A process that wrote to a journal, and when it started to write, in ns since 1970."""

    host: str
    pid: str
    started_ns: int


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


def newest_job(root: Path, *, except_logs: Collection[str] = ()) -> tuple[str, str] | None:
    """Return the log and the name of the job whose recorder started last; None if the journal has no job.

    Args:
        root: The diagnostics folder.
        except_logs: Logs to pass over.
    """
    folders = (root / "journal").glob("*/")
    newest = [segment for folder in folders for segment in newest_writers(folder, 1)]
    for segment in sorted(newest, key=lambda segment: writer_start_ns(segment.writer), reverse=True):
        header = _header(segment)
        if header is not None and header.log_id not in except_logs and (job := header.labels.get("job")):
            return header.log_id, job
    return None


def processes_of_job(root: Path, job: str) -> set[ProcessStart]:
    """Return the processes that recorded something of a job, under its name or as its run, from headers alone.

    Args:
        root: The diagnostics folder.
        job: The value of a label `job` or `run`.
    """
    found, known = set(), set()
    for folder in (root / "journal").glob("*/"):
        for segment in list_segments(folder):
            header = None if segment.writer in known else _header(segment)
            if header is None:
                continue
            known.add(segment.writer)
            labels = header.labels
            if job in (labels.get("job"), labels.get("run")):
                host, pid = labels.get("host", ""), labels.get("pid", "")
                found.add(ProcessStart(host, pid, writer_start_ns(segment.writer)))
    return found


def _header(segment: Segment) -> Header | None:
    with contextlib.suppress(OSError):
        return read_header(segment)
    return None
