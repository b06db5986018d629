"""Mirror the rest of ended writers' journals.

A process that is killed leaves up to one pace of entries, and no end. They are written by the first of these that can:
the job's companion, which sees its end; the next process with the same diagnostics folder; a command of the user.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ml_diagnostics_common.exceptions import ConfigurationError, StorageError
from ml_diagnostics_common.failures import classify
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import (
    Segment,
    host_name,
    is_open,
    list_segments,
)
from ml_diagnostics_common.mirror._bucket import Bucket, mirror_path
from ml_diagnostics_common.mirror._notes import journal_folders, notes_folder, read_note
from ml_diagnostics_common.mirror._upload import Upload
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName, parse_name, segments_path, shown_log_id
from ml_diagnostics_common.mirror.rollup import roll_up_ended
from ml_diagnostics_common.shipper._outbox import Owner, WriterName, owner
from ml_diagnostics_common.storage._google import split_path

__all__ = ["EndedWriters", "PushedWriter", "lifecycle", "push"]

_IDLE_SECONDS = 60.0
"""A process of another host, or container, that has written nothing for so long and has its file not open is gone."""
_ENDED_SECONDS = 300.0
_SEGMENT_DAYS = 30
_EVENT_DAYS = 400


class PushedWriter(NamedTuple):
    """One writer, and the part of it that was written.

    Attributes:
        log: The log's name, or that of its folder if it is too long to be known from that.
        writer: The writer.
        entries: The number of entries.
        has_ended: True if the mirror has all of it, and its end.
    """

    log: str
    writer: str
    entries: int
    has_ended: bool


class EndedWriters:
    """Writes what the writers of ended processes have left.

    Args:
        bucket: The mirror.
        root: The diagnostics folder.
        by: The process that does it: next, companion or command.
        counters: Counts objects, entries and bytes.
        folder_names: Logs to mirror, besides those that a process with this folder has mirrored before. None for all.
        ended_pids: Processes of this host that have ended, whether or not their parents have noticed.
        on_left_out: Called with a writer that is left out, and the error if it cannot be read; else None: another
            process writes it.
        clock: Return monotonic seconds.
    """

    def __init__(
        self,
        bucket: Bucket,
        root: Path,
        *,
        by: str,
        counters: Counters | None = None,
        folder_names: Collection[str] | None = (),
        ended_pids: Collection[int] = (),
        on_left_out: Callable[[str, OSError | None], None] = lambda writer, error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket, self._root, self._by = bucket, root, by
        self._counters = counters if counters is not None else Counters()
        self._folder_names, self._ended_pids = folder_names, ended_pids
        self._on_left_out, self._clock = on_left_out, clock
        self._may_be_incomplete = False
        """True after a list that failed, and may succeed later."""

    def run(
        self,
        *,
        deadline: Callable[[], float] = lambda: math.inf,
        pause: Callable[[float], None] = lambda cpu_seconds: None,
    ) -> Iterator[PushedWriter]:
        """Write what is left, writer by writer; yield those of which something was to be done.

        Args:
            deadline: Return when to stop, in monotonic seconds.
            pause: Called after each object with the CPU seconds that it took.

        Raises:
            StorageError: The mirror refuses it, or failed. A later run goes on.
            CredentialsError: The credentials were not accepted.
        """
        for folder in journal_folders(self._root):
            by_writer: dict[str, list[Segment]] = {}
            for segment in list_segments(folder):
                by_writer.setdefault(segment.writer, []).append(segment)
            due = {writer: segments for writer, segments in by_writer.items() if self._is_due(folder.name, segments)}
            names: dict[str, list[SegmentName]] | None = None
            for writer, segments in sorted(due.items(), key=self._ended_first):
                if self._clock() >= deadline():
                    return
                upload = self._claim(folder.name, writer)
                if upload is None:
                    continue
                try:
                    if not self._is_due(folder.name, segments):
                        continue  # Another process has done it meanwhile.
                    if names is None:
                        names = self._list(upload.paths)
                    pushed = self._push(upload, segments, names.get(writer, []), deadline, pause)
                except StorageError:
                    raise  # Also of a bucket that does not exist, which is an OSError, too.
                except OSError as error:
                    self._note_unreadable(writer, error)
                    continue
                finally:
                    upload.release()
                if pushed is not None:
                    yield pushed

    def _ended_first(self, each: tuple[str, list[Segment]]) -> tuple[bool, str]:
        name = WriterName.parse(each[0])
        return name is None or name.pid not in self._ended_pids, each[0]

    def _claim(self, folder_name: str, writer: str) -> Upload | None:
        try:
            upload = Upload.claim(self._bucket, self._root, folder_name, writer, self._counters)
        except OSError as error:
            self._note_unreadable(writer, error)
            return None
        if upload is None:
            self._on_left_out(writer, None)
        return upload

    def _note_unreadable(self, writer: str, error: OSError) -> None:
        self._counters.add("unreadable_writer")
        self._on_left_out(writer, error)

    def _is_due(self, folder_name: str, segments: list[Segment]) -> bool:
        """Return True if a writer's process has ended, or a user asks, and the mirror may lack something."""
        writer = segments[0].writer
        note = read_note(self._root, folder_name, writer, self._bucket.path)
        last = segments[-1]
        is_whole = note is not None and note.has_ended and note.position >= (last.number, last.size)
        if is_whole and note is not None and note.is_rolled_up:
            return False
        if note is None and not self._is_mirrored(folder_name, writer):
            return False
        owned_by = self._owner(writer)
        if self._by == "command":
            return owned_by is not Owner.US
        return owned_by is Owner.GONE or (owned_by is Owner.UNKNOWN and self._is_idle(last, _IDLE_SECONDS))

    def _is_mirrored(self, folder_name: str, writer: str) -> bool:
        """Return True if a writer of which nothing was mirrored yet is to be."""
        is_chosen = self._folder_names is None or folder_name in self._folder_names
        return is_chosen or self._is_of_ended_process(writer) or notes_folder(self._root, folder_name).is_dir()

    def _owner(self, writer: str) -> Owner:
        owned_by = owner(writer)
        return Owner.GONE if owned_by is Owner.ALIVE and self._is_of_ended_process(writer) else owned_by

    def _is_idle(self, segment: Segment, seconds: float) -> bool:
        try:
            age = time.time() - Path(segment.path).stat().st_mtime
        except OSError:
            return False
        return age >= seconds and not is_open(self._root, segment.writer)

    def _list(self, paths: LogPaths) -> dict[str, list[SegmentName]]:
        """Return the objects of a log by writer; none if this process may only create objects."""
        by_writer: dict[str, list[SegmentName]] = {}
        try:
            found = self._bucket.list_paths(f"{paths.folder}day=")
        except StorageError as error:
            self._counters.add("not_listed")
            self._may_be_incomplete = not classify(error).access
            return by_writer
        self._may_be_incomplete = False
        for path in found:
            name = parse_name(path)
            if isinstance(name, SegmentName):
                by_writer.setdefault(name.writer, []).append(name)
        return by_writer

    def _push(
        self,
        upload: Upload,
        segments: list[Segment],
        names: list[SegmentName],
        deadline: Callable[[], float],
        pause: Callable[[float], None],
    ) -> PushedWriter | None:
        has_ended = self._has_ended(upload.writer, segments[-1])
        upload.recover(names)
        names, entries = list(names), 0
        start = time.thread_time()
        while written := upload.write_next(segments, ended=has_ended):
            names.append(written.name)
            entries += written.entries
            pause(time.thread_time() - start)
            if self._clock() >= deadline():
                return PushedWriter(shown_log_id(upload.paths.folder_name), upload.writer, entries, has_ended=False)
            start = time.thread_time()
        had_ended = upload.note.has_ended
        if has_ended:
            upload.write_end(self._by)
            if self._clock() < deadline() and not self._may_be_incomplete:
                start = time.thread_time()
                self._roll_up(upload, names)
                pause(time.thread_time() - start)  # There may be hundreds of writers.
        if had_ended and not entries:
            return None
        return PushedWriter(shown_log_id(upload.paths.folder_name), upload.writer, entries, has_ended)

    def _has_ended(self, writer: str, last: Segment) -> bool:
        """Return True if no process can write under this name any more: only then its end is written."""
        owned_by = self._owner(writer)
        if owned_by is Owner.UNKNOWN:
            return self._is_idle(last, _ENDED_SECONDS if self._by == "command" else _IDLE_SECONDS)
        # Of a process in another container, with the same host name, the pid means nothing here.
        return owned_by is Owner.GONE and (self._is_of_ended_process(writer) or not is_open(self._root, writer))

    def _is_of_ended_process(self, writer: str) -> bool:
        name = WriterName.parse(writer)
        return name is not None and name.host == host_name() and name.pid in self._ended_pids

    def _roll_up(self, upload: Upload, names: list[SegmentName]) -> None:
        """Roll up the objects of a writer at its end, also of one that wrote that itself: it had no time for more."""
        try:
            self._counters.add("rolled_up", roll_up_ended(self._bucket, upload.paths, names))
        except StorageError as error:
            self._counters.add("not_rolled_up")
            if not classify(error).access:
                return
            # With the permission to create alone, the compactor does it.
        upload.note_rolled_up()


def push(
    root: Path,
    mirror: str,
    *,
    by: str = "command",
    ended_pids: Collection[int] = (),
    on_left_out: Callable[[str, OSError | None], None] = lambda writer, error: None,
    seconds: float = math.inf,
    deadline_seconds: float = 60.0,
) -> Iterator[PushedWriter]:
    """Write to a mirror what a journal has and the mirror does not have; yield each writer that was not complete.

    Args:
        root: The diagnostics folder.
        mirror: `gs://bucket/prefix`, or a local folder.
        by: `command` for what a user asks for: every writer of every log but those of this process. `companion`: those
            of processes that have ended, in logs that were mirrored before.
        ended_pids: Processes of this host that have ended, even if they still await their parents.
        on_left_out: See `EndedWriters`.
        seconds: How long to go on.
        deadline_seconds: The deadline of one call to Cloud Storage.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a local folder.
        StorageError: The mirror refuses it, or failed. A later call goes on.
        CredentialsError: The credentials were not accepted.
        MissingExtraError: A `gs://` path needs the extra `gcs`.
    """
    give_up_at = time.monotonic() + seconds
    bucket = Bucket(mirror, deadline_seconds=deadline_seconds)
    folder_names = None if by == "command" else ()
    writers = EndedWriters(
        bucket, root, by=by, folder_names=folder_names, ended_pids=ended_pids, on_left_out=on_left_out
    )
    yield from writers.run(deadline=lambda: give_up_at)


def lifecycle(mirror: str) -> dict[str, Any]:
    """Return the lifecycle rules of a mirror's bucket, as `gcloud storage buckets update --lifecycle-file` takes them.

    Segments are deleted after 30 days, which must be compacted before; compacted events after 400 days; rows never.

    Args:
        mirror: `gs://bucket/prefix`.

    Raises:
        ConfigurationError: It is not in a bucket.
    """
    path = mirror_path(mirror)
    if not in_bucket(path):
        raise ConfigurationError(
            f"{mirror} is not in a bucket: only buckets have lifecycle rules; delete old days by hand"
        )
    segments = split_path(segments_path(path))[1]
    events = f"{segments.removesuffix('segments/')}events/"
    rules = [(segments, _SEGMENT_DAYS), (events, _EVENT_DAYS)]
    return {
        "rule": [
            {"action": {"type": "Delete"}, "condition": {"age": days, "matchesPrefix": [prefix]}}
            for prefix, days in rules
        ]
    }
