"""The work of the mirror's thread, without the thread: one process's writers, their hours, and ended writers."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from pathlib import Path

from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_diagnostics_common.failures import classify
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Segment, list_segments
from ml_diagnostics_common.journal._own_journals import own_writers
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._hours import Hours
from ml_diagnostics_common.mirror._pace import Pace
from ml_diagnostics_common.mirror._upload import Upload
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName
from ml_diagnostics_common.mirror.rest import EndedWriters
from ml_diagnostics_common.mirror.rollup import NS_PER_HOUR, roll_up

__all__ = ["MirrorRound"]

_ENDED_EVERY_SECONDS = 600.0
_LAST_WAIT_SECONDS = 0.05
_MOST_HELD = 64


class MirrorRound:
    """Mirrors the writers of this process in some logs.

    Args:
        bucket: The mirror.
        root: The diagnostics folder.
        folder_names: The logs; others may be added later.
        counters: Counts objects, entries, bytes and requests.
        clock: Return monotonic seconds.
        by: The name of this process in the ends of writers that it completes: next, or companion.
    """

    def __init__(
        self,
        bucket: Bucket,
        root: Path,
        folder_names: Set[str],
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
        *,
        by: str = "next",
    ) -> None:
        self._bucket, self._root, self.folder_names = bucket, root, folder_names
        self._counters, self._clock, self._by = counters, clock, by
        self._uploads: dict[tuple[str, str], Upload] = {}
        self._hours: dict[Upload, Hours] = {}
        self._due: list[tuple[LogPaths, list[SegmentName]]] = []
        self._may_roll_up = self._may_watch = True
        self._ended_due = clock()

    def write_own(
        self,
        *,
        deadline: Callable[[], float],
        pause: Callable[[float], None] = lambda cpu_seconds: None,
        is_last: bool = False,
    ) -> bool:
        """Write what this process has recorded, and the mirror does not have.

        Args:
            deadline: Return when to stop, in monotonic seconds.
            pause: Called after each object but the first with the CPU seconds that it took.
            is_last: True if the process ends: a writer that is complete is marked as ended.

        Returns:
            True if the mirror has everything that was recorded before.

        Raises:
            StorageError: The mirror refuses it, or failed; the next round writes the same.
            OSError: The journal cannot be read; all other writers were tried.
        """
        is_complete = True
        failure: OSError | None = None
        for folder_name in sorted(self.folder_names):
            for writer, segments in self._own_segments(folder_name).items():
                try:
                    upload = self._claim(folder_name, writer)
                    if upload is None or not upload.hold():
                        is_complete = False
                        continue
                    is_complete = self._write(upload, segments, deadline, pause, is_last=is_last) and is_complete
                    if len(self._uploads) > _MOST_HELD:  # A notebook may have thousands of recorders.
                        upload.release()
                except StorageError:
                    raise
                except OSError as error:
                    self._counters.add("unreadable_writer")
                    failure = error
        if failure is not None:
            raise failure
        return is_complete

    def _own_segments(self, folder_name: str) -> dict[str, list[Segment]]:
        by_writer: dict[str, list[Segment]] = {}
        for segment in list_segments(self._root / "journal" / folder_name, own_writers()):
            by_writer.setdefault(segment.writer, []).append(segment)
        return by_writer

    def _claim(self, folder_name: str, writer: str) -> Upload | None:
        upload = self._uploads.get((folder_name, writer))
        if upload is None:
            upload = Upload.claim(self._bucket, self._root, folder_name, writer, self._counters)
            if upload is not None:
                self._uploads[folder_name, writer] = upload
                self._hours[upload] = Hours()
                upload.save_start()
        return upload

    def _write(
        self,
        upload: Upload,
        segments: list[Segment],
        deadline: Callable[[], float],
        pause: Callable[[float], None],
        *,
        is_last: bool,
    ) -> bool:
        count = 0
        while True:
            if self._clock() >= deadline():
                return False
            start = time.thread_time()
            written = upload.write_next(segments, ended=False)
            if written is not None:
                count += 1
                closed = self._hours[upload].add(written)
                if closed:
                    self._due.append((upload.paths, closed))
                if count > 1:
                    pause(time.thread_time() - start)
            elif upload.settling and is_last:
                time.sleep(_LAST_WAIT_SECONDS)
            else:
                break
        is_complete = not upload.unwritten_bytes(upload.segments() if is_last else segments)
        if is_last and is_complete and not upload.note.has_ended:
            upload.write_end("self")
        return is_complete

    def maintain(self, *, deadline: Callable[[], float], pause: Callable[[float], None]) -> None:
        """Roll up hours that are over, and, now and then, write what ended writers have left.

        Args:
            deadline: Return when to stop, in monotonic seconds.
            pause: Called after each object with the CPU seconds that it took.

        Raises:
            StorageError: The mirror failed.
        """
        while self._due and self._clock() < deadline():
            paths, names = self._due.pop()
            if self._may_roll_up:
                self._roll_up(paths, names)
        if self._clock() >= self._ended_due:
            self._ended_due = self._clock() + _ENDED_EVERY_SECONDS
            ended = EndedWriters(
                self._bucket, self._root, by=self._by, counters=self._counters, folder_names=self.folder_names
            )
            for _ in ended.run(deadline=deadline, pause=pause):
                pass
            if self._clock() >= deadline():
                self._ended_due = self._clock()  # There may be more: after what this process has recorded meanwhile.

    def _roll_up(self, paths: LogPaths, names: list[SegmentName]) -> None:
        try:
            self._counters.add("rolled_up", roll_up(self._bucket, paths, names) is not None)
        except StorageError as error:
            self._counters.add("not_rolled_up")
            # With the permission to create alone, which is recommended for untrusted jobs, the compactor does it.
            self._may_roll_up = not classify(error).access

    def unwritten_bytes(self) -> int:
        """Return how much of the journal is not in the mirror, in bytes; raises OSError."""
        return sum(
            upload.unwritten_bytes(segments)
            for folder_name in sorted(self.folder_names)
            for writer, segments in self._own_segments(folder_name).items()
            if (upload := self._uploads.get((folder_name, writer))) is not None
        )

    def is_of_first_process(self) -> bool:
        """Return False if all writers are of another process of the job than the first."""
        return not self._uploads or any(upload.is_of_first_process for upload in self._uploads.values())

    def check_watch(self, pace: Pace) -> None:
        """Check if a command watches one of the writers that have written in the last hour."""
        if not self._may_watch:
            return
        watched_ns = time.time_ns() - NS_PER_HOUR
        for upload in list(self._uploads.values()):
            if upload.note.written_ns < watched_ns:
                continue
            path = upload.paths.watch(upload.writer)
            try:
                self._counters.add("requests")
                _, generation = self._bucket.storage.read_with_generation(path, first_bytes=1)
            except ObjectNotFoundError:
                continue
            except StorageError as error:
                self._may_watch = not classify(error).access
                return
            pace.note_watch(path, generation)

    def release(self) -> None:
        """Leave all writers to other processes."""
        for upload in self._uploads.values():
            upload.release()
        self._uploads.clear()
        self._hours.clear()
