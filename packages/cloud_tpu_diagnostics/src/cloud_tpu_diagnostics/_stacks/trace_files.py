"""Trace files in a folder or in Cloud Storage: the newest dump of each process, and the end of one that is gone."""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.entry import LogEntry, ProcessEndings
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.files import check_scheme, in_bucket, try_lock, unlock
from ml_diagnostics_common.log_source import LogSource, notes_of
from ml_diagnostics_common.processes import process_started_ns

from cloud_tpu_diagnostics._collect import trace_file
from cloud_tpu_diagnostics._dumps.grouping import ProcessDump, main_thread
from cloud_tpu_diagnostics._dumps.parser import Dump, parse_dumps
from cloud_tpu_diagnostics._dumps.text import HEADER_START
from cloud_tpu_diagnostics.entries import LOG_ID

__all__ = [
    "TraceFileName",
    "dumps_of_processes",
    "interval_seconds",
    "newest_of",
    "parse_name",
    "read_trace_files",
    "with_endings",
]

_NAME: Final = re.compile(r"stack_trace_\d{4}(?:_\d\d){5}_(?P<host>[^\x00-\x1f]+)_(?P<pid>\d{1,10})(?:-\d+)?\.txt")
_MOST_BYTES: Final = 4 << 20
"""The part at the end of a file that is read: more than one dump of any size."""
_SLACK_NS: Final = 5_000_000_000
"""The largest difference of the kernel's clock (whole seconds), times of files, and times of entries."""
_INTERVAL: Final = re.compile(
    re.escape(HEADER_START) + r"([0-9.]+) seconds|Timeout \((\d{1,9}):(\d\d):(\d\d(?:\.\d+)?)\)!"
)


class TraceFileName(NamedTuple):
    """The process that a trace file is named after."""

    host: str
    pid: int


def parse_name(name: str) -> TraceFileName | None:
    """Parse `stack_trace_2026_11_21_15_04_05_host-17_4711.txt`; return None for another name."""
    match = _NAME.fullmatch(name)
    return None if match is None else TraceFileName(match["host"], int(match["pid"]))


def newest_of(dumps: Sequence[Dump]) -> Dump | None:
    """Return the newest dump that has the main thread; the newest of all if none has it; None if there is none.

    A dump is written from the newest thread to the main thread, so an incomplete one has no main thread yet. After a
    dump that was cut at 100 threads, the stack of the main thread follows alone.
    """
    joined: list[Dump] = []
    for dump in dumps:
        is_alone = len(dump.threads) == 1 and not dump.threads[0].thread and not dump.headline
        if is_alone and joined and joined[-1].is_cut and joined[-1].threads[-1].thread:
            joined[-1] = joined[-1]._replace(threads=joined[-1].threads + dump.threads)
        else:
            joined.append(dump)
    if not joined:
        return None
    if joined[-1].trigger.is_last:  # Complete or not.
        return joined[-1]
    return next((dump for dump in reversed(joined) if main_thread(dump.threads) is not None), joined[-1])


def interval_seconds(dump: Dump) -> float | None:
    """Return the interval of periodic dumps that a dump states; None if it states none."""
    found = _INTERVAL.search(dump.text)
    if found is None:
        return None
    try:
        seconds = float(found[1] or int(found[2]) * 3600 + int(found[3]) * 60 + float(found[4]))
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def read_trace_files(path: str, notes: list[str]) -> list[ProcessDump]:
    """Return the newest dump of each file, with the ends of processes of this host; files without a dump are skipped.

    Args:
        path: A file, a folder, or gs://bucket/prefix.
        notes: Gets what could not be read.

    Raises:
        NotFoundError: There is no such file or folder.
        ConfigurationError: The path is not valid.
        StorageError: It cannot be read.
    """
    check_scheme(path)
    files = _read_cloud(path) if in_bucket(path) else _read_local(path, notes)
    found: list[ProcessDump] = []
    over: set[ProcessDump] = set()
    for name, data, time_ns, is_locked in files:
        dump = _newest_dump(name, data, time_ns)
        if dump is None:
            continue
        found.append(dump)
        # A process holds a lock on its file, which is visible from other containers.
        if dump.host == identity().host and is_locked is False:
            over.add(dump)
    return with_endings(found, over.__contains__, notes=notes)


def dumps_of_processes(pids: Collection[int], folder: Path | None = None) -> dict[Path, ProcessDump]:
    """Return the newest dumps of processes of this host in a folder of trace files, by file.

    Files of other users, and those that cannot be read, are skipped: everybody may write to the usual folder.

    Args:
        pids: The ids of the processes.
        folder: The folder; None for the usual one.
    """
    try:
        paths = sorted((folder or trace_file.FOLDER).iterdir())
    except OSError:
        return {}
    found: dict[Path, ProcessDump] = {}
    for path in paths:
        known = parse_name(path.name)
        if known is None or known.pid not in pids or known.host != trace_file.host_in_names() or not _is_own(path):
            continue
        for name, data, time_ns, _ in _read_local(str(path), []):
            dump = _newest_dump(name, data, time_ns)
            if dump is not None:
                found[path] = dump
    return found


def _is_own(path: Path) -> bool:
    """Return True for a file of this user."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == getattr(os, "getuid", lambda: 0)()


def _newest_dump(name: str, data: bytes, time_ns: int) -> ProcessDump | None:
    """Return the newest dump of a file; None if it has none."""
    dumps = parse_dumps(data)
    newest = newest_of(dumps)
    if newest is None:
        return None
    known = parse_name(re.split(r"[/\\]", name)[-1]) or TraceFileName(" ".join(Path(name).stem.splitlines()), 0)
    host = identity().host if known.host == trace_file.host_in_names() else known.host
    return ProcessDump(
        process=host,
        host=host,
        process_index=None,
        pid=known.pid,
        step=newest.step,
        phase=None,
        time_ns=time_ns,
        threads=newest.threads,
        headline=newest.headline,
        interval_seconds=next(filter(None, map(interval_seconds, reversed(dumps))), None),
    )


def _read_cloud(path: str) -> Iterator[tuple[str, bytes, int, bool | None]]:
    """Yield objects with the time 0: when the last dump was written is not known."""
    from ml_diagnostics_common import storage

    for name in storage.list_prefix(path):
        yield name, storage.read(name)[-_MOST_BYTES:], 0, None


def _read_local(path: str, notes: list[str]) -> Iterator[tuple[str, bytes, int, bool | None]]:
    root = Path(path).expanduser()
    if not root.exists():
        raise NotFoundError(f"{path} does not exist: give a file, a folder of trace files, or gs://bucket/prefix")
    names = [root] if not root.is_dir() else sorted(name for name in root.rglob("*") if not name.is_symlink())
    for name in names:
        try:
            # Without O_NONBLOCK, to open a named pipe would wait for its writer.
            with os.fdopen(os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    continue
                file.seek(max(0, status.st_size - _MOST_BYTES))
                data = file.read(_MOST_BYTES)
                is_locked = _is_locked(file.fileno())
        except IsADirectoryError:
            continue
        except OSError as error:
            if name is root:
                raise StorageError(f"cannot read {name}: {error.strerror}; give this user the permission") from error
            notes.append(f"{name} could not be read: {error.strerror}")
            continue
        yield str(name), data, status.st_mtime_ns, is_locked


def _is_locked(descriptor: int) -> bool | None:
    """Return True if a process inside its block holds the file; None if the file system has no locks."""
    try:
        if not try_lock(descriptor):
            return True
    except OSError:
        return None
    unlock(descriptor)
    return False


def _is_gone(dump: ProcessDump) -> bool:
    """Return True if the process was one of this host and is gone, or its id is that of a later one."""
    if dump.host != identity().host or dump.pid <= 0:
        return False
    started_ns = process_started_ns(dump.pid)
    return started_ns is None or started_ns > dump.time_ns + _SLACK_NS


def with_endings(
    dumps: Sequence[ProcessDump],
    is_over: Callable[[ProcessDump], bool] = _is_gone,
    *,
    endings: ProcessEndings | None = None,
    notes: list[str] | None = None,
) -> list[ProcessDump]:
    """Return the dumps, those of processes that are gone with their end.

    Args:
        dumps: The newest of each process.
        is_over: Returns True if a process without a known end writes no more stacks.
        endings: The ends of processes; None reads the journal if a process is over.
        notes: Gets what could not be read then.
    """
    over = {(dump.host, dump.pid) for dump in dumps if not dump.ended and is_over(dump)}
    if not over:
        return list(dumps)
    known = _read_endings([] if notes is None else notes) if endings is None else endings
    return [
        _with_ending(dump, known.after(dump.host, dump.pid, dump.time_ns - _SLACK_NS, with_blocks=True))
        if (dump.host, dump.pid) in over
        else dump
        for dump in dumps
    ]


def _read_endings(notes: list[str]) -> ProcessEndings:
    endings, source = ProcessEndings(), LogSource(LOG_ID)
    for entries in source.read_new():
        endings.add(entries)
    notes += notes_of([source])
    return endings


def _with_ending(dump: ProcessDump, later: Sequence[LogEntry]) -> ProcessDump:
    if later:
        payload = later[0].payload
        ended = str(payload.get("message") or payload.get("how") or "exit reason unknown")
        return dump._replace(ended=ended, has_ended_well=payload.get("how") == "clean")
    last = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(dump.time_ns / 1e9))
    if _is_gone(dump):
        return dump._replace(ended=f"gone: process {dump.pid} exited without recording its end; last event at {last}")
    return dump._replace(ended=f"process {dump.pid} has left diagnose(); last event at {last}")
