"""The jobs and the newest writers in a journal, from names, headers and the ends of a few segments.

A reader of a whole log merges all writers and needs msgspec. A trainer that only needs what was recorded before it
started, or a command that lists jobs, uses this module: its cost does not grow with the journal's size.
"""

from __future__ import annotations

import contextlib
import glob
import heapq
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ml_diagnostics_common.files import is_held, read_at
from ml_diagnostics_common.journal._layout import (
    SEGMENT_SUFFIX,
    Header,
    Segment,
    list_segments,
    opened_segment,
    read_header,
    segment_name,
)

__all__ = [
    "ProcessStart",
    "is_open",
    "jobs_by_log",
    "last_payloads",
    "newest_job",
    "newest_writers",
    "processes_of_job",
    "processes_that_ended",
    "writer_start_ns",
]


class ProcessStart(NamedTuple):
    """A process that wrote to a journal, and when it started to write, in ns since 1970."""

    host: str
    pid: str
    started_ns: int


def jobs_by_log(root: Path) -> dict[str, set[str]]:
    """Return the names of the jobs in each log of the journal in a diagnostics folder.

    All segments of a writer have the same labels, so one header a writer is read. Other files, and files
    and folders that cannot be opened, such as those of another user, are skipped; a missing folder has no jobs.
    """
    logs: dict[str, set[str]] = {}
    for folder in sorted((root / "journal").glob("*/")):
        known: set[str] = set()  # writers
        for segment in _segments(folder):
            header = None if segment.writer in known else _header(segment)
            if header is not None:
                known.add(segment.writer)
                if job := header.labels.get("job"):
                    logs.setdefault(header.log_id, set()).add(job)
    return logs


def newest_job(root: Path, *, except_logs: Collection[str] = ()) -> tuple[str, str] | None:
    """Return the log and the name of the job with the recorder that started last; None if the journal has no job.

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
        for segment in _segments(folder):
            header = None if segment.writer in known else _header(segment)
            if header is None:
                continue
            known.add(segment.writer)
            labels = header.labels
            if job in (labels.get("job"), labels.get("run")):
                host, pid = labels.get("host", ""), labels.get("pid", "")
                found.add(ProcessStart(host, pid, writer_start_ns(segment.writer)))
    return found


def processes_that_ended(
    root: Path, job: str, since_ns: int, *, except_logs: Collection[str] = ()
) -> set[ProcessStart]:
    """Return the processes of a job that wrote after a moment, and have closed all that they wrote.

    Args:
        root: The diagnostics folder.
        job: The value of a label `job` or `run`.
        since_ns: The moment, in ns since 1970.
        except_logs: Logs to pass over, such as one that another process writes in the name of these.
    """
    started_ns: dict[tuple[str, str], int] = {}
    open_ones = set()
    for folder in (root / "journal").glob("*/"):
        last = {segment.writer: segment for segment in _segments(folder)}
        for segment in last.values():
            header = _header(segment) if _written_ns(segment) >= since_ns else None
            if header is None or header.log_id in except_logs:
                continue
            labels = header.labels
            if job in (labels.get("job"), labels.get("run")):
                process = labels.get("host", ""), labels.get("pid", "")
                start_ns = writer_start_ns(segment.writer)
                started_ns[process] = min(started_ns.get(process, start_ns), start_ns)
                if _is_open(segment.path):
                    open_ones.add(process)
    return {ProcessStart(*process, start_ns) for process, start_ns in started_ns.items() if process not in open_ones}


def _written_ns(segment: Segment) -> int:
    with contextlib.suppress(OSError):
        return os.stat(segment.path).st_mtime_ns  # noqa: PTH116 - as the names of segments are
    return 0


def _segments(folder: Path) -> list[Segment]:
    with contextlib.suppress(OSError):
        return list_segments(folder)
    return []


def _header(segment: Segment) -> Header | None:
    with contextlib.suppress(OSError):
        return read_header(segment)
    return None


_TAIL_BYTES = 64 * 2**10


def writer_start_ns(writer: str) -> int:
    """Return when a writer started, in ns since 1970, from its name (`_own_journals.new_writer`); 0 if it has none."""
    parts = writer.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) < 20 else 0


def is_open(root: Path, writer: str) -> bool:
    """Return True if a process has a writer's last segment open, in this container or another on the same disk.

    False where the writer has no segment here, or the file system has no locks.

    Args:
        root: The diagnostics folder.
        writer: The writer's name.
    """
    numbers = {}
    for path in (root / "journal").glob(f"*/{glob.escape(writer)}.*{SEGMENT_SUFFIX}"):
        digits = path.name.removesuffix(SEGMENT_SUFFIX).rpartition(".")[2]
        if digits.isdecimal():
            numbers[int(digits)] = path
    return bool(numbers) and _is_open(str(numbers[max(numbers)]))


def _is_open(path: str) -> bool:
    try:
        with opened_segment(path) as descriptor:
            return is_held(descriptor)
    except OSError:
        return False


def newest_writers(folder: Path, most: int) -> list[Segment]:
    """Return the last segment of each of the writers that started last, the newest first.

    Reads file names only, so the sizes are 0. A missing folder has no writers.

    Args:
        folder: The log's folder.
        most: How many writers at most.
    """
    last: dict[str, tuple[int, str]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - names alone, of a folder that may have thousands
            writer, _, digits = name.removesuffix(SEGMENT_SUFFIX).rpartition(".")
            if name.endswith(SEGMENT_SUFFIX) and writer and digits.isdecimal():
                last[writer] = max(last.get(writer, (-1, "")), (int(digits), name))
    writers = heapq.nlargest(most, last, key=writer_start_ns)
    return [Segment(writer, last[writer][0], str(folder / last[writer][1]), 0) for writer in writers]


def last_payloads(segment: Segment, tail_bytes: int = _TAIL_BYTES) -> Iterator[dict[str, Any]]:
    """Yield the payloads in the last bytes of a writer, the last one first; lines that are not entries are skipped.

    Args:
        segment: The writer's last; the one before it is read too if this one is shorter than `tail_bytes`.
        tail_bytes: How much of each is read.

    Raises:
        OSError: The segment cannot be read.
    """
    lines, is_all = _last_lines(segment.path, tail_bytes)
    if is_all and segment.number:  # A new segment has only a header.
        with contextlib.suppress(OSError):
            before = Path(segment.path).with_name(segment_name(segment.writer, segment.number - 1))
            lines = _last_lines(str(before), tail_bytes)[0] + lines
    for line in reversed(lines):
        try:
            payload = json.loads(line)["p"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(payload, dict):
            yield payload


def _last_lines(path: str, tail_bytes: int) -> tuple[list[bytes], bool]:
    """Return the last lines without the header, or the line that was cut, and whether they are all."""
    with opened_segment(path) as descriptor:
        offset = max(0, os.fstat(descriptor).st_size - tail_bytes)
        return read_at(descriptor, tail_bytes, offset).split(b"\n")[1:], offset == 0
