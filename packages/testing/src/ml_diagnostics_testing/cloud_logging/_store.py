"""The entries of the loopback Cloud Logging, for both REST and gRPC.

Requests have the form of REST's JSON: https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries
"""

import base64
import hashlib
import heapq
import itertools
import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_diagnostics_testing.cloud_logging._entries import Entry, camel_case, make_entry, refuse_unknown
from ml_diagnostics_testing.cloud_logging._filters import Filter, compile_filter, conjunction, fold
from ml_diagnostics_testing.http_server import ApiError

MAX_REQUEST_BYTES = 10 * 1024 * 1024
_MAX_PAGE_BYTES = 3_000_000  # below the default limit of gRPC clients, 4 MiB
_DEFAULT_PAGE_SIZE = 50
_INVALID_ARGUMENT = 3  # google.rpc.Code
_NS = 1_000_000_000
_DAY_NS = 86_400 * _NS

_WRITE_FIELDS = frozenset(["logName", "resource", "labels", "entries", "partialSuccess", "dryRun"])
_LIST_FIELDS = frozenset(["resourceNames", "projectIds", "filter", "orderBy", "pageSize", "pageToken"])
_Key = tuple[int, str, str]


@dataclass(frozen=True)
class Page:
    """One page of a listing; the token of the last page is empty."""

    entries: list[Entry]
    next_page_token: str


@dataclass
class _Log:
    """One log's entries, sorted by key."""

    parent: str
    keys: list[_Key] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        index = len(self.keys)
        if self.keys and entry.key < self.keys[-1]:
            index = bisect_left(self.keys, entry.key)
        self.keys.insert(index, entry.key)
        self.entries.insert(index, entry)

    def between(self, query: Filter, after: _Key | None, *, descending: bool) -> Iterator[Entry]:
        """Iterate over the entries in a filter's time span that follow a key."""
        first = bisect_left(self.keys, (query.earliest_ns, "", ""))
        last = bisect_left(self.keys, (query.latest_ns + 1, "", ""))
        if after is not None and descending:
            last = min(last, bisect_left(self.keys, after))
        elif after is not None:
            first = max(first, bisect_right(self.keys, after))
        indices = range(last - 1, first - 1, -1) if descending else range(first, last)
        return map(self.entries.__getitem__, indices)


class EntryStore:
    """Store entries in order, reject invalid requests, and answer listings.

    Args:
        clock: Returns the time in seconds since the epoch.
        max_page_size: The largest pageSize that a listing may request.
        scan_limit: How many entries a listing scans before it answers with the matches so far, possibly none, and a
            token, as the real service does under load; None scans all.
        retention_seconds: Entries older than this, or more than a day in the future, are accepted but never listed,
            as by the real service; None keeps all entries.

    Attributes:
        duplicates: How many entries were dropped because their log had one with the same timestamp and insertId.
        delay_seconds: The time from an entry's arrival until listings include it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_page_size: int,
        scan_limit: int | None,
        retention_seconds: float | None,
    ) -> None:
        self._clock = clock
        self.duplicates = 0
        self.delay_seconds = 0.0
        self._max_page_size = max_page_size
        self._scan_limit = scan_limit
        self._retention_ns = None if retention_seconds is None else int(retention_seconds * _NS)
        self._lock = threading.RLock()
        self._logs: dict[str, _Log] = {}
        self._seen: set[_Key] = set()
        self._hold: Filter | None = None
        self._held: list[Entry] = []
        self._delayed: list[tuple[float, int, Entry]] = []  # a heap ordered by time of appearance
        self._numbers = itertools.count(1)

    def write(self, request: Mapping[str, Any], now_ns: int) -> int:
        """Handle `entries:write`.

        Args:
            request: The request.
            now_ns: The server's time with its `Skew`, for the times that the server assigns.

        Returns:
            The number of entries in the request.

        Raises:
            ApiError: An entry is invalid. Without partialSuccess nothing was written; with it the others were, and
                the details list the invalid entries with their errors.
        """
        request = camel_case(request)
        refuse_unknown(request, _WRITE_FIELDS, "the request")
        candidates = _expect(request, "entries", list)
        for name, kind in (("logName", str), ("resource", dict), ("labels", dict)):
            _expect(request, name, kind)
        entries, errors = [], {}
        for index, candidate in enumerate(candidates):
            new_insert_id = f"server-{next(self._numbers):012}"
            try:
                entries.append(make_entry(candidate, request, now_ns, new_insert_id, offset_ns=index))
            except ApiError as error:
                errors[index] = error
        if (not errors or request.get("partialSuccess")) and not request.get("dryRun"):
            self.add(entries, now_ns)
        if errors and entries and request.get("partialSuccess"):
            raise _partial_error(errors)
        if errors:
            raise next(iter(errors.values()))
        return len(entries)

    def add(self, entries: Iterable[Entry], now_ns: int) -> None:
        """Store validated entries; drop and count duplicates."""
        with self._lock:
            for entry in sorted(entries, key=lambda entry: entry.key):
                if entry.key in self._seen:
                    self.duplicates += 1
                    continue
                self._seen.add(entry.key)
                if self._retention_ns is not None and not (
                    now_ns - self._retention_ns <= entry.timestamp_ns <= now_ns + _DAY_NS
                ):
                    continue
                if self._hold is not None and self._hold.matches(entry):
                    self._held.append(entry)
                elif self.delay_seconds:
                    appears = self._clock() + self.delay_seconds
                    heapq.heappush(self._delayed, (appears, next(self._numbers), entry))
                else:
                    self._index(entry)

    def list_page(self, request: Mapping[str, Any]) -> Page:
        """Handle `entries:list`. Entries with the same timestamp are ordered by insertId, in reverse if descending."""
        request = camel_case(request)
        refuse_unknown(request, _LIST_FIELDS, "the request")
        query = compile_filter(_expect(request, "filter", str))
        parents = _parents(request)
        descending = _descending(_expect(request, "orderBy", str))
        size = self._page_size(request.get("pageSize") or 0)
        fingerprint = _fingerprint(request, parents)
        token = _expect(request, "pageToken", str)
        after = _read_token(token, fingerprint) if token else None
        with self._lock:
            self._appear()
            found, resume = self._page(self._candidates(query, parents, after, descending), query, size)
        return Page(found, _write_token(resume, fingerprint) if resume else "")

    def select(self, filter_: str) -> list[Entry]:
        """Return the listable entries that pass a filter, oldest first."""
        query = compile_filter(filter_)
        with self._lock:
            self._appear()
            candidates = self._candidates(query, None, None, descending=False)
            return list(filter(conjunction(query.tests_within), candidates))

    def hold(self, filter_: str) -> None:
        """Hide entries that pass a filter and are written from now on, until `release`."""
        with self._lock:
            self._hold = compile_filter(filter_)

    def release(self) -> int:
        """Show all held and delayed entries, and stop holding; return their number."""
        with self._lock:
            entries = [*self._held, *(entry for _, _, entry in self._delayed)]
            self._hold, self._held, self._delayed = None, [], []
            for entry in entries:
                self._index(entry)
            return len(entries)

    def clear(self) -> None:
        """Delete all entries."""
        with self._lock:
            self._logs.clear()
            self._seen.clear()
            self._held.clear()
            self._delayed.clear()

    def _appear(self) -> None:
        """Show the delayed entries that are due."""
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            self._index(heapq.heappop(self._delayed)[2])

    def _index(self, entry: Entry) -> None:
        log = self._logs.get(entry.log_name)
        if log is None:
            log = self._logs[entry.log_name] = _Log(entry.log_name.partition("/logs/")[0])
        log.add(entry)

    def _candidates(
        self, query: Filter, parents: set[str] | None, after: _Key | None, descending: bool
    ) -> Iterator[Entry]:
        walks = [
            log.between(query, after, descending=descending)
            for name, log in self._logs.items()
            if (parents is None or log.parent in parents) and (query.log_names is None or fold(name) in query.log_names)
        ]
        if len(walks) == 1:
            return walks[0]
        return heapq.merge(*walks, key=lambda entry: entry.key, reverse=descending)

    def _page(self, candidates: Iterator[Entry], query: Filter, size: int) -> tuple[list[Entry], _Key | None]:
        """Return a page and, if more entries follow, the key after which the next page starts."""
        found: list[Entry] = []
        bytes_left, matches = _MAX_PAGE_BYTES, conjunction(query.tests_within)
        last: _Key | None = None
        for scanned, entry in enumerate(candidates):
            if scanned == self._scan_limit:
                return found, last
            if matches(entry):
                if len(found) == size or bytes_left < 0:
                    return found, found[-1].key
                found.append(entry)
                bytes_left -= len(entry.json)
            last = entry.key
        return found, None

    def _page_size(self, size: Any) -> int:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= self._max_page_size:
            raise ApiError(400, f"expected a page_size between 0 and {self._max_page_size}, got {size}")
        return size or _DEFAULT_PAGE_SIZE


def _expect(request: Mapping[str, Any], name: str, kind: type) -> Any:
    value = request.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ApiError(400, f"{name} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def _parents(request: Mapping[str, Any]) -> set[str]:
    """Return the names of the projects, folders, ... in a request; a view counts as its project."""
    names = _expect(request, "resourceNames", list)
    names = [*names, *(f"projects/{project}" for project in _expect(request, "projectIds", list))]
    if not names:
        raise ApiError(400, "resource_names is empty; name one at least, such as projects/PROJECT")
    for name in names:
        if not isinstance(name, str) or name.count("/") < 1:
            raise ApiError(400, f"{name!r} is not the name of a resource such as projects/PROJECT")
    return {"/".join(name.split("/")[:2]) for name in names}


def _descending(order_by: str) -> bool:
    words = order_by.split()
    if words not in ([], ["timestamp"], ["timestamp", "asc"], ["timestamp", "desc"]):
        raise ApiError(400, f"expected an order_by of 'timestamp asc' or 'timestamp desc', got {order_by!r}")
    return words[1:] == ["desc"]


def _fingerprint(request: Mapping[str, Any], parents: set[str]) -> str:
    what = [request.get("filter") or "", request.get("orderBy") or "", sorted(parents)]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _write_token(key: _Key, fingerprint: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([fingerprint, *key]).encode()).decode()


def _read_token(token: str, fingerprint: str) -> _Key:
    try:
        asked, timestamp_ns, insert_id, log_name = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError):
        raise ApiError(400, f"page_token {token!r} was not issued by this server") from None
    if asked != fingerprint:
        raise ApiError(400, "page_token doesn't match arguments from the request")
    return int(timestamp_ns), str(insert_id), str(log_name)


def _partial_error(errors: Mapping[int, ApiError]) -> ApiError:
    details = {
        "@type": "type.googleapis.com/google.logging.v2.WriteLogEntriesPartialErrors",
        "logEntryErrors": {
            str(index): {"code": _INVALID_ARGUMENT, "message": error.message} for index, error in errors.items()
        },
    }
    return ApiError(400, next(iter(errors.values())).message, details=[details])
