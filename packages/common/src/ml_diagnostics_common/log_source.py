"""The source of log entries: the journal of this machine, a mirror, and Cloud Logging if there is one.

A `LogSource` reads one log: the union of its readers, each entry once by its insertId. A library states the name of its
log and which entries it needs, and makes its own objects of them. While Cloud Logging fails, only the journal's entries
are yielded, `notes_of` reports that, and nothing is requested for a minute.

Entries are selected by labels of their monitored resource: of other writers not even the journal is read. A `Query`
narrows what Cloud Logging sends, where a page of 1000 entries takes about a second; the journal, which is read in no
time, yields all that the labels select.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common._log_cloud import PATIENCE_SECONDS, Cloud, CloudPart
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import NoCloudError
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.reader import EntryReader, JournalReader, Take, UnionReader
from ml_diagnostics_common.texts import format_count

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import PageReader
    from ml_diagnostics_common.mirror.part import MirrorPart

__all__ = ["INCOMPLETE", "PATIENCE_SECONDS", "Cloud", "LogSource", "Query", "notes_of"]

_logger = job_logger("ml_diagnostics")

INCOMPLETE = "incomplete: "
"""The start of each note of `notes_of` on entries that no source has, as far as the mirror shows that."""
_UNREADABLE = ("torn", "foreign", "endless_line", "undecodable_entry")


class Query(NamedTuple):
    """A part of a log, in Cloud Logging.

    Attributes:
        condition: In Cloud Logging's filter language.
        newest_pages: Read only so many pages of 1000 entries, the newest; 0 reads all.
        note_if_cut: The note for the user if there are more pages than that.
    """

    condition: str
    newest_pages: int = 0
    note_if_cut: str = ""


class LogSource:
    """Read one log, or a selection of it: new entries since the last read or since a position.

    Args:
        log_id: The log's name.
        root: The diagnostics folder; None for the configured one.
        cloud: Cloud Logging; None reads the journal alone.
        job_name: Cloud Logging sends only entries with this job in their payload; the journal yields those of all jobs.
        resource_labels: Only writers with one of the values of each of these labels in their monitored resource.
        queries: Cloud Logging sends only what one of these selects, at any severity. Such a source is read once.
        start_ns: Cloud Logging sends nothing of this time or older, in ns since 1970; None is all that it keeps.
        mirror: `gs://bucket/prefix`, or a folder, whose entries are read, too; empty for none. Cloud Logging is asked
            only if these are not complete.
        always_asks_cloud: True to ask Cloud Logging in any case, for entries of writers without a mirror.
        clock_ns: The clock by which a writer of the mirror is silent.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a folder.
    """

    def __init__(
        self,
        log_id: str,
        *,
        root: Path | None = None,
        cloud: Cloud | None = None,
        job_name: str | None = None,
        resource_labels: Mapping[str, Set[str]] | None = None,
        queries: Sequence[Query] = (),
        start_ns: int | None = None,
        mirror: str = "",
        always_asks_cloud: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Create a source that has read nothing, and has not searched for a cloud."""
        self._log_id, self._root, self._cloud = log_id, root or diagnostics_directory(), cloud
        self._job_name, self._resource_labels = job_name, resource_labels
        self._queries, self._start_ns = queries, start_ns
        self._mirror, self._always_asks_cloud, self._clock_ns = mirror, always_asks_cloud, clock_ns
        self.resume({})

    def resume(self, position: Mapping[str, Any]) -> None:
        """Continue from the position of an earlier source of the same log and project."""
        self._journal = JournalReader(
            self._log_id, root=self._root, position=position.get("journal"), resource_labels=self._resource_labels
        )
        self._pages: PageReader | None = None
        self._cut_notes: list[str] = []
        self._parts: list[CloudPart] = []
        self._readers: dict[str, EntryReader] = {"journal": self._journal}
        """The readers by the name of their position."""
        self.mirror: MirrorPart | None = None
        if self._mirror:
            from ml_diagnostics_common.mirror.part import MirrorPart

            self.mirror = self._readers["mirror"] = MirrorPart(
                self._mirror,
                self._log_id,
                job_name=self._job_name,
                resource_labels=self._resource_labels,
                position=position.get("mirror") or {},
                clock_ns=self._clock_ns,
            )
        if self._cloud is not None:
            queries: Sequence[Query | None] = self._queries or [None]
            for number, query in enumerate(queries):
                name = f"cloud_{number}" if number else "cloud"
                part = CloudPart(self._cloud, functools.partial(self._new_reader, query), position.get(name) or {})
                self._parts.append(part)
                self._readers[name] = part
        self._union = UnionReader(list(self._readers.values()), position=position.get("union"))

    def _new_reader(self, query: Query | None, position: Mapping[str, Any]) -> EntryReader:
        """Return a reader of a query, or of the log, in Cloud Logging."""
        from ml_diagnostics_common.cloud_logging import CloudLoggingReader, QueryReader, query_filter

        assert self._cloud is not None
        self._pages = self._pages or self._cloud.page_reader()
        if query is None:
            return CloudLoggingReader(
                self._pages,
                self._log_id,
                job_name=self._job_name,
                resource_labels=self._resource_labels,
                start_time_ns=self._start_ns,
                position=position,
            )
        filter_ = query_filter(
            self._cloud.project, self._log_id, query.condition, self._resource_labels, after_ns=self._start_ns
        )
        on_cut = functools.partial(self._cut_notes.append, query.note_if_cut) if query.note_if_cut else None
        return QueryReader(self._pages, filter_, newest_pages=query.newest_pages, on_cut=on_cut)

    def read_new(self, *, local_only: bool = False, take: Take | None = None) -> Iterator[list[LogEntry]]:
        """Yield entries that were not yielded before, merged by time. If Cloud Logging fails, the others'.

        With a mirror, those that only Cloud Logging has come after the others.

        Args:
            local_only: True to read the journal alone: to search for no cloud, and to send no request.
            take: See `JournalReader.read_new`. Not called if the source has a cloud or a mirror: all entries are
                yielded, since each one has to be compared with those of the other readers.

        Raises:
            NewerFormatError: The mirror was written by a newer version.
        """
        if self.mirror is not None:
            return self._read_with_mirror(self.mirror, local_only=local_only)
        if self._cloud is None:
            return self._journal.read_new(take)
        self._request_cloud(is_wanted=not local_only)
        # Also while no cloud is found: the union remembers what a cloud that is found later must not repeat.
        return self._union.read_new()

    def _read_with_mirror(self, mirror: MirrorPart, *, local_only: bool) -> Iterator[list[LogEntry]]:
        """Yield what the journal and the mirror have; then what Cloud Logging has, if something is missing."""
        mirror.is_requested = not local_only
        self._request_cloud(is_wanted=False)
        yield from self._union.read_new()
        if (
            local_only
            or (self.is_complete() and not self._always_asks_cloud)
            or not self._request_cloud(is_wanted=True)
        ):
            return
        mirror.is_requested = False
        yield from self._union.read_new()

    def _request_cloud(self, *, is_wanted: bool) -> bool:
        """Have the next read of the union request pages of Cloud Logging, or not; return True if it will."""
        is_requested = is_wanted and self._cloud is not None and self._cloud.is_found()
        if is_requested and self._cloud is not None and not self._cloud.is_paused():
            self._cloud.failure = None
        for part in self._parts:
            part.is_requested = is_requested
        return is_requested

    def is_complete(self) -> bool:
        """Return True if the mirror shows that all of its writers' entries were read; False without a mirror."""
        return self.mirror is not None and self.mirror.is_complete(self._union.covers, self._journal.writers())

    def mirror_lag_seconds(self) -> float | None:
        """Return how far the mirror is behind; None without one, and if it has nothing of the job."""
        return None if self.mirror is None else self.mirror.lag_seconds(self._union.covers, self._journal.writers())

    def position(self) -> dict[str, Any]:
        """Return the position behind the yielded entries, as JSON: that of each reader, by name, and of their union."""
        union = self._union.position()
        positions = zip(self._readers, union.pop("readers"), strict=True)
        return {**dict(positions), "union": union}

    def save_position(self, name: str, *, job: str | None = None) -> None:
        """Let the journal drop what was read; see `JournalReader.save_position`. A failure is logged."""
        try:
            self._journal.save_position(name, job=job)
        except OSError as error:
            _logger.warning("the position of %s in the journal could not be saved: %s", name, error)

    @property
    def skipped(self) -> Mapping[str, int]:
        """Counts by reason of what was read and not yielded."""
        readers = (self._journal, self.mirror, self._pages)
        return sum((Counter(reader.skipped) for reader in readers if reader is not None), Counter[str]())

    def cloud_notes(self) -> list[str]:
        """Return sentences on what of Cloud Logging could not be read."""
        failure = self._cloud.failure if self._cloud is not None else None
        return [
            *([] if failure is None else [f"Cloud Logging could not be read to the end: {failure}"]),
            *self._cut_notes,
        ]

    def mirror_notes(self) -> list[str]:
        """Return sentences on what is missing in the mirror; those on entries that no source has after `INCOMPLETE`."""
        if self.mirror is None:
            return []
        read = self._union.covers, self._journal.writers()
        return [*(f"{INCOMPLETE}{note}" for note in self.mirror.incomplete(*read)), *self.mirror.lacks(*read)]

    def searched(self) -> str:
        """Return where entries are read from, for a user that found none."""
        journal = f"the journal in {self._root}"
        if self.mirror is not None:
            journal = f"{journal}, {self.mirror.searched()}"
        if self._cloud is None:
            return f"{journal}; not Cloud Logging, because ML_DIAGNOSTICS_BACKEND is local"
        if isinstance(self._cloud.absence, NoCloudError):
            # Its message lists all that was tried, which hides the rest of an error from a user without a cloud.
            reason = "this machine has no Google Cloud project and no credentials"
            return f"{journal}; not Cloud Logging, because {reason} (ML_DIAGNOSTICS_BACKEND=cloud lists what was tried)"
        if self._cloud.absence is not None:
            return f"{journal}; not Cloud Logging, because {self._cloud.absence}"
        return f"{journal}, and Cloud Logging"


def notes_of(sources: Iterable[LogSource]) -> list[str]:
    """Return sentences for the user on what could not be read of some logs, each once."""
    sources = list(sources)
    skipped: Counter[str] = Counter()
    for source in sources:
        skipped.update(source.skipped)
    entries = sum(skipped[reason] for reason in _UNREADABLE)
    files = skipped["foreign_segment"] + skipped["unreadable_segment"]
    damaged = skipped["damaged_header"]
    notes = [note for source in sources for note in (*source.cloud_notes(), *source.mirror_notes())]
    if entries:
        notes.append(f"{format_count(entries, 'entry', 'entries')} could not be read")
    if files:
        notes.append(f"{format_count(files, 'file')} of the journal could not be read")
    if damaged:
        notes.append(
            f"{format_count(damaged, 'file')} of the journal with a damaged header: labels of entries may be missing"
        )
    return list(dict.fromkeys(notes))
