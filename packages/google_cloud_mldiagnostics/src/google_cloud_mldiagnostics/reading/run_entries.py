"""What runs have recorded: in the journal of this machine, or in Cloud Logging, where each page costs a second."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ml_diagnostics_common.entry import LogEntry, parse_timestamp
from ml_diagnostics_common.exceptions import CloudLoggingError
from ml_diagnostics_common.reader import EntryReader, JournalReader, UnionReader, count_unreadable

from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.entries import LOG_ID, PROCESS, SESSION
from google_cloud_mldiagnostics.reading.run_history import COMPANION_LOG_ID
from google_cloud_mldiagnostics.reading.run_reader import run_reader

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import LoggingTransport

__all__ = ["Batches", "CloudEntries", "JournalEntries", "RunEntries", "run_id_of"]

Batches = Iterator[list[LogEntry]]

_SECOND_NS: Final = 1_000_000_000
_CLOCKS_DIFFER_NS: Final = 600 * _SECOND_NS
_BROUGHT_LATER_NS: Final = 35 * 86_400 * _SECOND_NS
"""A run that `mldiagnostics sync` brought was created there after it had ended: by as much as its entries are kept."""
_PATIENCE_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 30.0
_PAGE_SIZE: Final = 1000
_MOST_PAGES: Final = 10
_TELL_EVERY_SECONDS: Final = 5.0
_RUNS_A_QUERY: Final = 50
_OLDEST_FIRST, _NEWEST_FIRST = "timestamp asc", "timestamp desc"


class RunEntries(Protocol):
    """Yields entries in batches. Nothing is raised where they cannot be read to the end: that is noted."""

    def everything(self, run: Resource) -> Batches:
        """All entries of a run."""
        ...

    def of_metrics(self, run: Resource, names: Sequence[str]) -> Batches:
        """Those of some of a run's metrics, and perhaps others; without names, of all."""
        ...

    def overview(self, run: Resource) -> Batches:
        """Those that tell how a run is, and enough of its metrics to tell what they come to."""
        ...

    def of_processes(self, run: Resource) -> Batches:
        """Those that tell of a run's processes and profiles."""
        ...

    def signs_of_life(self, runs: Sequence[Resource]) -> Batches:
        """Those that tell which of some runs go on."""
        ...

    def endings(self, since_ns: int) -> Batches:
        """Those by which companions told how processes ended, whoever's they are."""
        ...

    def unreadable(self) -> int:
        """Return how many entries could not be decoded so far."""
        ...


class JournalEntries:
    """The journal of this machine, which is read in no time: all of a run is everything that is ever asked for.

    Args:
        root: The diagnostics folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readers: list[EntryReader] = []

    def everything(self, run: Resource) -> Batches:
        """See `RunEntries`."""
        return self.reader(run).read_new()

    def reader(self, run: Resource) -> EntryReader:
        """Reads all entries of a run."""
        self._readers.append(run_reader(run_id_of(run), root=self._root))
        return self._readers[-1]

    overview = everything
    of_processes = everything

    def of_metrics(self, run: Resource, names: Sequence[str]) -> Batches:
        """See `RunEntries`."""
        return self.everything(run)

    def signs_of_life(self, runs: Sequence[Resource]) -> Batches:
        """See `RunEntries`; the endings are among them."""
        entries = itertools.chain.from_iterable(map(self.everything, runs))
        return itertools.chain(entries, self.endings(0)) if runs else entries

    def endings(self, since_ns: int) -> Batches:
        """See `RunEntries`."""
        self._readers.append(JournalReader(COMPANION_LOG_ID, root=self._root))
        return self._readers[-1].read_new()

    def unreadable(self) -> int:
        """See `RunEntries`."""
        return sum(count_unreadable(reader.skipped) for reader in self._readers)


class CloudEntries:
    """Cloud Logging, and beside it the journal, which may have what was not shipped yet.

    Args:
        transport: Cloud Logging.
        root: The diagnostics folder.
        notes: Is told what could not be read.
    """

    def __init__(self, transport: LoggingTransport, root: Path, notes: Callable[[str], None]) -> None:
        self._transport = transport
        self._root = root
        self._notes = notes
        self._journal = JournalEntries(root)
        self._readers: list[EntryReader] = []
        self._unreadable: set[int] = set()
        """A number for each entry of a page that cannot be decoded: pages of several queries may have it."""

    def everything(self, run: Resource) -> Batches:
        """See `RunEntries`."""
        reader = run_reader(run_id_of(run), root=self._root, transport=self._transport, since_ns=_since_ns(run))
        self._readers.append(reader)
        return self._noted(reader.read_new())

    def of_metrics(self, run: Resource, names: Sequence[str]) -> Batches:
        """See `RunEntries`."""
        if not names:
            return self.everything(run)
        pages = self._pages(f"{self._selection([run])} AND ({_namespaces(*names)})", _since_ns(run))
        return UnionReader([self._journal.reader(run), _Listing(pages)]).read_new()

    def overview(self, run: Resource) -> Batches:
        """See `RunEntries`."""
        yield from self.of_processes(run)
        others = f"NOT ({_namespaces(PROCESS, SESSION)})"
        newest = self._pages(f"{self._selection([run])} AND {others}", _since_ns(run), _NEWEST_FIRST)
        yield from itertools.islice(newest, _MOST_PAGES)
        if next(newest, None):
            values = _MOST_PAGES * _PAGE_SIZE
            self._notes(f"the metrics are of the newest {values:,} values; `mldiagnostics metrics` reads all")

    def of_processes(self, run: Resource) -> Batches:
        """See `RunEntries`: all that is said, and the newest of what is said over and over."""
        said = "jsonPayload.phase!=ACTIVE OR jsonPayload.address:* OR jsonPayload.reason:*"
        told = f"{_namespaces(SESSION)} OR ({_namespaces(PROCESS)} AND ({said}))"
        yield from self._pages(f"{self._selection([run])} AND ({told})", _since_ns(run))
        yield from self.signs_of_life([run])

    def signs_of_life(self, runs: Sequence[Resource]) -> Batches:
        """See `RunEntries`: a job of many hosts sends so many that only the newest are read."""
        for first in range(0, len(runs), _RUNS_A_QUERY):
            some = runs[first : first + _RUNS_A_QUERY]
            since_ns = min(_since_ns(run) for run in some)
            selection = f"{self._selection(some)} AND {_namespaces(PROCESS)}"
            yield from itertools.islice(self._pages(selection, since_ns, _NEWEST_FIRST), _MOST_PAGES)

    def endings(self, since_ns: int) -> Batches:
        """See `RunEntries`."""
        yield from self._journal.endings(since_ns)
        yield from self._pages(f'{self._log(COMPANION_LOG_ID)} AND jsonPayload.kind="job_ended"', since_ns)

    def unreadable(self) -> int:
        """See `RunEntries`."""
        of_readers = sum(count_unreadable(reader.skipped) for reader in self._readers)
        return self._journal.unreadable() + of_readers + len(self._unreadable)

    def _selection(self, runs: Sequence[Resource]) -> str:
        """The filter for all entries of some runs."""
        ids = " OR ".join(f"resource.labels.node_id={_quoted(run_id_of(run))}" for run in runs)
        return f"{self._log(LOG_ID)} AND ({ids})"

    def _log(self, log_id: str) -> str:
        from ml_diagnostics_common.cloud_logging import full_log_name

        return f"logName={_quoted(full_log_name(self._transport.project, log_id))}"

    def _pages(self, selection: str, since_ns: int, order_by: str = _OLDEST_FIRST) -> Batches:
        """What a filter selects, a page at a time."""
        from ml_diagnostics_common.cloud_logging.filters import entries_filter

        after_ns, until_ns = max(0, since_ns - _CLOCKS_DIFFER_NS), time.time_ns() + _CLOCKS_DIFFER_NS
        filter_ = entries_filter(selection, after_ns=after_ns, until_ns=until_ns)
        return self._noted(self._read(filter_, order_by))

    def _read(self, filter_: str, order_by: str) -> Batches:
        from ml_diagnostics_common.backoff import Backoff, Retries
        from ml_diagnostics_common.cloud_logging import Page, pages

        def request(token: str) -> Page:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            retries = Retries(Backoff(longest_seconds=16.0), seconds_left=lambda: deadline - time.monotonic())
            return retries(
                lambda: self._transport.list_page(
                    filter_,
                    order_by=order_by,
                    page_size=_PAGE_SIZE,
                    page_token=token,
                    timeout_seconds=_REQUEST_SECONDS,
                )
            )

        for page in pages(request):
            self._unreadable.update(page.unreadable)
            yield page.entries

    def _noted(self, batches: Batches) -> Batches:
        """The batches, until Cloud Logging fails: then what is known counts. Says how far it is, if it takes long."""
        count, told_at = 0, time.monotonic()
        try:
            for batch in batches:
                count += len(batch)
                if time.monotonic() - told_at > _TELL_EVERY_SECONDS:
                    told_at = time.monotonic()
                    self._notes(f"{count:,} entries read")
                yield batch
        except CloudLoggingError as error:
            self._notes(f"Cloud Logging could not be read to the end: {error}")


class _Listing:
    """Batches as an `EntryReader` that is read once."""

    skipped: Mapping[str, int] = {}

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def read_new(self) -> Batches:
        """See `EntryReader`."""
        return self._batches

    def position(self) -> dict[str, Any]:
        """See `EntryReader`; nobody goes on from it."""
        return {}


def run_id_of(run: Resource) -> str:
    """The id in a run's name, which is all of it or the last part."""
    return str(run.get("name", "")).rpartition("/")[2]


def _since_ns(run: Resource) -> int:
    """When the first entries of a run may have been recorded, in ns since 1970."""
    try:
        return max(0, parse_timestamp(str(run.get("createTime", ""))) - _BROUGHT_LATER_NS)
    except ValueError:
        return 0


def _namespaces(*names: str) -> str:
    return " OR ".join(f"resource.labels.namespace={_quoted(name)}" for name in names)


def _quoted(text: str) -> str:
    from ml_diagnostics_common.cloud_logging.filters import quoted

    return quoted(text)
