"""The limit of the journal's size, and what may be dropped when it is reached."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_diagnostics_common.files import read_state
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.journal._layout import Segment, list_segments, read_header, read_reader_positions
from ml_diagnostics_common.worker import start

__all__ = ["JournalCap"]

_LIMIT_BYTES = 10 * 2**30
_SHARE_OF_DISK = 0.2
_IDLE_SECONDS = 24 * 3600.0


class JournalCap:
    """Keep the folder `journal`, with all logs, below 10 GiB and a fifth of its disk.

    It drops the oldest segments that were shipped, or are in the mirror; of a log that nothing ships or mirrors, those
    that every reader with a saved position has read. Where that is not enough it is `exceeded`, and new entries are
    refused rather than old ones lost. The segment that a writer may still be writing is kept.
    """

    def __init__(self, root: Path, limit_bytes: int | None = None, clock: Callable[[], float] = time.time) -> None:
        """Measure nothing yet.

        Args:
            root: the diagnostics folder.
            limit_bytes: None for 10 GiB or a fifth of the disk, whichever is less.
            clock: seconds since 1970.
        """
        self.exceeded = False
        self.limit_bytes = limit_bytes
        self._root = root
        self._clock = clock
        self._checking = threading.Lock()

    def start_clean_in_child(self) -> None:
        """Start clean in a forked child, where the thread that checks does not exist, and its result may be old."""
        self.exceeded = False
        self._checking = threading.Lock()

    def check_soon(self) -> None:
        """Check in a thread, unless one does."""
        if not self._checking.locked():
            start(self.check, "ml-diagnostics-journal-cap")

    def check(self) -> None:
        """Measure, and drop what may be dropped if the limit is exceeded."""
        if not self._checking.acquire(blocking=False):
            return
        try:
            limit = self.limit_bytes if self.limit_bytes is not None else _usual_limit(self._root)
            logs = {folder: list_segments(folder) for folder in _subfolders(self._root / "journal")}
            total = sum(segment.size for segments in logs.values() for segment in segments)
            if total > limit:
                total -= self._drop(logs, total - limit)
            self.exceeded = total > limit
        except OSError:
            LOSSES.add("journal_cap_unreadable")
        finally:
            self._checking.release()

    def _drop(self, logs: Mapping[Path, list[Segment]], bytes_to_free: int) -> int:
        """Remove the oldest of the droppable segments until enough is free; return the bytes freed."""
        candidates = []
        for folder, segments in logs.items():
            for segment in self._droppable(folder, segments):
                with contextlib.suppress(OSError):
                    candidates.append((Path(segment.path).stat().st_mtime, segment))
        freed = 0
        for _, segment in sorted(candidates):
            if freed >= bytes_to_free:
                break
            with contextlib.suppress(OSError):
                Path(segment.path).unlink()
                freed += segment.size
        return freed

    def _droppable(self, folder: Path, segments: list[Segment]) -> list[Segment]:
        progress = _Progress.of(self._root, folder.name)
        newest = {segment.writer: segment.number for segment in segments}  # The list is in order.
        droppable = []
        for segment in segments:
            with contextlib.suppress(OSError):  # Gone since it was listed, or unreadable: no reason to keep the others.
                ended = segment.number < newest[segment.writer] or self._is_idle(segment)
                if ended and progress.is_past(segment):
                    droppable.append(segment)
        return droppable

    def _is_idle(self, segment: Segment) -> bool:
        """Return True if its writer has written nothing for a day; a writer that lives notices, and opens another."""
        try:
            return self._clock() - Path(segment.path).stat().st_mtime > _IDLE_SECONDS
        except OSError:
            return False


class _Progress(NamedTuple):
    """The positions of a log's shippers, mirrors and readers."""

    shipped: dict[str, dict[str, Any]]
    """The position of each writer: {"segment": n, "offset": bytes}; empty if nothing ships this log."""
    mirrored: dict[str, dict[str, Any]]
    """The same, of the mirror."""
    readers: list[dict[str, Any]]

    @classmethod
    def of(cls, root: Path, log_folder_name: str) -> _Progress:
        shipped, mirrored = (_positions(root / "state" / kind / log_folder_name) for kind in ("shipper", "mirror"))
        return cls(shipped, mirrored, read_reader_positions(root / "state" / "readers" / log_folder_name))

    def is_past(self, segment: Segment) -> bool:
        header = read_header(segment)
        remote = [
            *([self.shipped] if self.shipped and (header is None or header.ship) else []),
            *([self.mirrored] if self.mirrored and (header is None or header.mirror) else []),
        ]
        if remote:
            return any(_has_sent(positions.get(segment.writer, {}), segment) for positions in remote)
        job = None if header is None else header.labels.get("job")
        readers = [position for position in self.readers if position.get("job") in (None, job)]
        return bool(readers) and all(_has_read(position, segment) for position in readers)


def _positions(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the saved position of each writer in a folder of `state`."""
    states = {file.name.removesuffix(".json"): read_state(file) for file in folder.glob("*.json")}
    return {writer: state for writer, state in states.items() if state is not None}


def _has_sent(position: Mapping[str, Any], segment: Segment) -> bool:
    return (_integer(position.get("segment")), _integer(position.get("offset"))) >= (segment.number, segment.size)


def _has_read(position: Mapping[str, Any], segment: Segment) -> bool:
    writers = position.get("writers")
    offsets = writers.get(segment.writer) if isinstance(writers, dict) else None
    return isinstance(offsets, dict) and _integer(offsets.get(str(segment.number))) >= segment.size


def _integer(value: object) -> int:
    return value if isinstance(value, int) else -1


def _usual_limit(root: Path) -> int:
    if not hasattr(os, "statvfs"):
        return _LIMIT_BYTES
    disk = os.statvfs(root)
    return min(_LIMIT_BYTES, int(disk.f_blocks * disk.f_frsize * _SHARE_OF_DISK))


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [Path(file.path) for file in os.scandir(folder) if file.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
