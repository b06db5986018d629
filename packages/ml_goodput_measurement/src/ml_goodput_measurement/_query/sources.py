"""The sources of a job's entries, opened here alone: the journal, a mirror and Cloud Logging; and their jobs.

Every reader of a job, and every command, opens its log here: another source of entries is added to the union here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ml_diagnostics_common.environment import configured_mirror, diagnostics_directory
from ml_diagnostics_common.journal import (
    jobs_by_log,
    list_segments,
    log_directory,
    newest_writers,
    read_header,
    writer_start_ns,
)
from ml_diagnostics_common.log_source import Cloud, LogSource

__all__ = [
    "LOGS_OF_OTHERS",
    "Sources",
    "job_labels",
    "labels_of_processes",
    "last_written_ns",
    "logs_of_jobs",
    "mirror_lags",
    "mirrored_jobs",
    "open_source",
]

LOGS_OF_OTHERS = ("ml_diagnostics_metric", "tpu.googleapis.com/runtime_monitor")
"""Logs of our other libraries, which have the same job names and no goodput."""

_NEWEST_WRITERS = 50


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources that are read beside the journal.

    Attributes:
        mirror: `gs://bucket/prefix`, or a folder; empty for none. The default is `ML_DIAGNOSTICS_MIRROR`.
        asks_cloud: False to ask Cloud Logging for nothing.
        always_asks_cloud: True to ask it also if the mirror is complete.
    """

    mirror: str = field(default_factory=configured_mirror)
    asks_cloud: bool = True
    always_asks_cloud: bool = False


def open_source(
    log_id: str,
    *,
    cloud: Cloud | None = None,
    job_name: str | None = None,
    start_ns: int | None = None,
    sources: Sources | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> LogSource:
    """Return the source of a log's entries: the union of the journal and, if there are any, a mirror and Cloud Logging.

    Args:
        log_id: The log.
        cloud: Cloud Logging; None asks it for nothing.
        job_name: Cloud Logging sends only entries of this job, and the mirror is complete if it is for this job.
        start_ns: Cloud Logging sends nothing of this time or older, in ns since 1970.
        sources: The mirror, and when Cloud Logging is asked; None for the configured mirror.
        clock_ns: The clock.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a folder.
    """
    sources = sources or Sources()
    return LogSource(
        log_id,
        cloud=cloud if sources.asks_cloud else None,
        job_name=job_name,
        start_ns=start_ns,
        mirror=sources.mirror,
        always_asks_cloud=sources.always_asks_cloud,
        clock_ns=clock_ns,
    )


def logs_of_jobs(root: Path | None = None) -> dict[str, set[str]]:
    """Return the names of the jobs in each log that may have goodput.

    Args:
        root: The diagnostics folder; None for the configured one.
    """
    return _with_goodput(jobs_by_log(root or diagnostics_directory()))


def mirrored_jobs(mirror: str, *, since_ns: int = 0) -> dict[str, set[str]]:
    """Return the names of the jobs in each log of a mirror that may have goodput: see `jobs_in_mirror`."""
    from ml_diagnostics_common.mirror.contents import jobs_in_mirror

    return _with_goodput(jobs_in_mirror(mirror, since_ns=since_ns))


def _with_goodput(logs: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the logs that may have goodput, and their jobs: a recorder accepts no blank name."""
    return {
        log: named
        for log, jobs in logs.items()
        if log not in LOGS_OF_OTHERS and (named := {job for job in jobs if job.strip()})
    }


def mirror_lags(mirror: str, now_ns: int, root: Path | None = None) -> dict[str, float]:
    """Return how many seconds the mirror of each log on this machine is behind, by notes here: no request is sent.

    That is the time since the last object of a process with newer entries, or since its start.

    Args:
        mirror: The mirror.
        now_ns: The time, in ns since 1970.
        root: The diagnostics folder; None for the configured one.
    """
    from ml_diagnostics_common.mirror.status import status

    lags: dict[str, float] = {}
    for writer in status(root or diagnostics_directory(), mirror):
        since_ns = writer.written_ns or writer_start_ns(writer.writer)
        behind = max(0, now_ns - since_ns) / 1e9 if writer.behind_bytes and since_ns else 0.0
        lags[writer.log] = max(behind, lags.get(writer.log, 0.0))
    return lags


def last_written_ns(log_id: str, root: Path | None = None) -> int:
    """Return when a log was last written to, in ns since 1970; 0 if it is not on this machine."""
    newest = 0
    for segment in list_segments(log_directory(root or diagnostics_directory(), log_id)):
        with contextlib.suppress(OSError):
            newest = max(newest, os.stat(segment.path).st_mtime_ns)  # noqa: PTH116 - a path as text
    return newest


def job_labels(log_id: str, job_name: str, root: Path | None = None) -> Mapping[str, str]:
    """Return the labels of the newest process that recorded a job here, such as team and chips; empty without one."""
    return next(labels_of_processes(log_id, job_name, root), {})


def labels_of_processes(log_id: str, job_name: str, root: Path | None = None) -> Iterator[Mapping[str, str]]:
    """Yield the labels of the last processes that recorded a job here, the newest first."""
    folder = log_directory(root or diagnostics_directory(), log_id)
    for segment in newest_writers(folder, _NEWEST_WRITERS):
        with contextlib.suppress(OSError):
            header = read_header(segment)
            if header is not None and header.labels.get("job") == job_name:
                yield header.labels
