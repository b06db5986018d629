"""A folder of trace files, or a prefix of Cloud Storage: the newest dump of each process."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.exceptions import ConfigurationError, StorageError
from ml_diagnostics_common.file_lock import try_lock, unlock
from ml_diagnostics_common.locations import in_bucket

from cloud_tpu_diagnostics import trace_file
from cloud_tpu_diagnostics.grouping import ProcessDump, main_thread
from cloud_tpu_diagnostics.headlines import HEADER_START
from cloud_tpu_diagnostics.stacks.ended_processes import with_endings
from cloud_tpu_diagnostics.traces import Dump, parse_dumps

__all__ = ["TraceFileName", "newest_of", "parse_name", "read_trace_files"]

_NAME: Final = re.compile(r"stack_trace_\d{4}(?:_\d\d){5}_(?P<host>[^\x00-\x1f]+)_(?P<pid>\d{1,10})(?:-\d+)?\.txt")
_MOST_BYTES: Final = 4 << 20
"""Of a file's end: more than one dump, whatever its size."""
_INTERVAL: Final = re.compile(
    re.escape(HEADER_START) + r"([0-9.]+) seconds|Timeout \((\d{1,9}):(\d\d):(\d\d(?:\.\d+)?)\)!"
)


class TraceFileName(NamedTuple):
    """What a trace file's name says."""

    host: str
    pid: int


def parse_name(name: str) -> TraceFileName | None:
    """Reads `stack_trace_2026_11_21_15_04_05_host-17_4711.txt`; None for another name."""
    match = _NAME.fullmatch(name)
    return None if match is None else TraceFileName(match["host"], int(match["pid"]))


def newest_of(dumps: Sequence[Dump]) -> Dump | None:
    """The newest dump that has the main thread; the newest of all if none has; None if there is none.

    A dump is written from the newest thread to the main thread, so one that is being written, or was torn, has no main
    thread yet. To one that was cut at 100 threads belongs the stack of the main thread that stands alone after it.
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
    """How often such dumps are made, as the dump itself says."""
    found = _INTERVAL.search(dump.text)
    if found is None:
        return None
    try:
        seconds = float(found[1] or int(found[2]) * 3600 + int(found[3]) * 60 + float(found[4]))
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def read_trace_files(path: str, notes: list[str]) -> list[ProcessDump]:
    """Return the newest dump of each file, and how processes of this host ended; files without a dump are passed over.

    Args:
        path: A file, a folder, or gs://bucket/prefix.
        notes: Is told what could not be read.

    Raises:
        ConfigurationError: There is no such file or folder, or the path cannot be one.
        StorageError: It cannot be read.
    """
    files = _read_cloud(path) if in_bucket(path) else _read_local(path, notes)
    found: list[ProcessDump] = []
    over: set[ProcessDump] = set()
    for name, data, time_ns, is_locked in files:
        dumps = parse_dumps(data)
        newest = newest_of(dumps)
        if newest is None:
            continue
        known = parse_name(re.split(r"[/\\]", name)[-1]) or TraceFileName(" ".join(Path(name).stem.splitlines()), 0)
        is_here = known.host == trace_file.host_in_names()
        host = identity().host if is_here else known.host
        dump = ProcessDump(
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
        found.append(dump)
        # A process holds a lock on its file, which others see whatever container they are in.
        if is_here and is_locked is False:
            over.add(dump)
    return with_endings(found, over.__contains__, notes=notes)


def _read_cloud(path: str) -> Iterator[tuple[str, bytes, int, bool | None]]:
    """Objects have no time at which their last dump was written: 0."""
    from ml_diagnostics_common import storage

    for name in storage.list_prefix(path):
        yield name, storage.read(name)[-_MOST_BYTES:], 0, None


def _read_local(path: str, notes: list[str]) -> Iterator[tuple[str, bytes, int, bool | None]]:
    place = Path(path).expanduser()
    if not place.exists():
        raise ConfigurationError(f"{path} is not there: give a file, a folder of trace files, or gs://bucket/prefix")
    names = [place] if not place.is_dir() else sorted(name for name in place.rglob("*") if not name.is_symlink())
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
            if name is place:
                raise StorageError(f"cannot read {name}: {error.strerror}; give this user the permission") from error
            notes.append(f"{name} could not be read: {error.strerror}")
            continue
        yield str(name), data, status.st_mtime_ns, is_locked


def _is_locked(descriptor: int) -> bool | None:
    """Return True if a process inside of its block holds the file; None if the file system does not know."""
    try:
        if not try_lock(descriptor):
            return True
    except OSError:
        return None
    unlock(descriptor)
    return False
