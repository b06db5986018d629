"""A mirror as a part of a `LogSource`: what it lacks is noted, and a failure of it ends nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import CredentialsError, MissingExtraError, StorageError
from ml_diagnostics_common.mirror._completeness import Covers, MirroredWriter, is_complete, lag_seconds, missing
from ml_diagnostics_common.mirror.names import SegmentName, parse_name
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.segments import NewerFormatError
from ml_diagnostics_common.texts import format_duration

__all__ = ["MirrorPart"]

_PAUSE_SECONDS = 60.0
_LATE_SECONDS = 300.0


class MirrorPart:
    """An `EntryReader` of a mirror that yields nothing while the mirror fails, or is not requested.

    Args:
        mirror: `gs://bucket/prefix`, or a local folder.
        log_id: The log.
        job_name: The job of which completeness is judged; None for all of the log.
        resource_labels: See `MirrorReader`.
        position: The position of an earlier part.
        clock_ns: The clock.

    Attributes:
        is_requested: False to yield nothing.
        failure: The error of the last read, if it failed.
    """

    def __init__(
        self,
        mirror: str,
        log_id: str,
        *,
        job_name: str | None,
        resource_labels: Mapping[str, Set[str]] | None,
        position: Mapping[str, Any],
        clock_ns: Callable[[], int],
    ) -> None:
        """Read nothing yet.

        Raises:
            ConfigurationError: The mirror is neither in a bucket nor a local folder.
        """
        self.is_requested = True
        self.failure: Exception | None = None
        self._mirror, self._job_name, self._clock_ns = mirror, job_name, clock_ns
        self._reader = MirrorReader(log_id, mirror=mirror, position=position, resource_labels=resource_labels)
        self._paused_until = 0.0
        self._was_read = False

    def read_new(self) -> Iterator[list[LogEntry]]:
        """See `EntryReader`.

        Raises:
            NewerFormatError: The mirror was written by a newer version.
        """
        if not self.is_requested or time.monotonic() < self._paused_until:
            return
        try:
            yield from self._reader.read_new()
        except NewerFormatError:
            raise
        except (StorageError, CredentialsError, MissingExtraError) as error:
            self.failure = error
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
        else:
            self.failure, self._was_read = None, True

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        return self._reader.position()

    @property
    def skipped(self) -> Mapping[str, int]:
        """Counts by reason of what was read and not yielded."""
        return self._reader.skipped

    def is_complete(self, covers: Covers, journal: Collection[str]) -> bool:
        """Return True if nothing of the writers in the mirror is missing; False if there are none.

        Args:
            covers: Return True for entries that were read, from any source.
            journal: The writers in the journal of this machine, which has all of their entries.
        """
        was_read = self._was_read and self.failure is None
        return was_read and is_complete(self._writers(), self._clock_ns(), covers, journal)

    def incomplete(self, covers: Covers, journal: Collection[str]) -> list[str]:
        """Return sentences on what is missing in the union of the sources; the arguments are those of `is_complete`."""
        notes = [] if self.failure is None else [f"the mirror could not be read to the end: {self.failure}"]
        notes += [f"{path} is damaged" for path, is_filled in self._damaged(covers) if not is_filled]
        return [*notes, *missing(self._writers(), self._clock_ns(), covers, journal)]

    def lacks(self, covers: Covers, journal: Collection[str]) -> list[str]:
        """Return sentences on what only the mirror lacks; the arguments are those of `is_complete`."""
        notes = [
            f"{path} is damaged; its entries were read from the journal"
            for path, is_filled in self._damaged(covers)
            if is_filled
        ]
        seconds = self.lag_seconds(covers, journal) or 0.0
        if seconds >= _LATE_SECONDS:
            notes.append(f"the mirror is {format_duration(seconds)} behind")
        return notes

    def lag_seconds(self, covers: Covers, journal: Collection[str]) -> float | None:
        """Return how far the mirror is behind, as `_completeness.lag_seconds`; None if it has nothing of the job."""
        return lag_seconds(self._writers(), self._clock_ns(), covers, journal)

    def ask_to_hurry(self) -> int:
        """Ask the writers that run to write more often: see `MirrorReader.ask_to_hurry`."""
        return self._reader.ask_to_hurry(self._clock_ns(), job=self._job_name) if self.failure is None else 0

    def searched(self) -> str:
        """Return where entries are read from."""
        return f"the mirror {self._mirror}"

    def _writers(self) -> list[MirroredWriter]:
        return [
            writer
            for writer in self._reader.writers()
            if self._job_name is None or writer.labels.get("job") == self._job_name
        ]

    def _damaged(self, covers: Covers) -> Iterator[tuple[str, bool]]:
        for path in self._reader.damaged:
            name = parse_name(path)
            yield path, isinstance(name, SegmentName) and covers(name.writer, name.first, name.last)
