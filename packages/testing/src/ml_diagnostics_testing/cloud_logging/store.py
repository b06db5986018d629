"""The entries of a Cloud Logging: one store, whichever way they come and go.

Requests are those of REST, as JSON objects: https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries
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

from ml_diagnostics_testing.cloud_logging.entries import Entry, camel_case, make_entry, refuse_unknown
from ml_diagnostics_testing.cloud_logging.filters import Filter, compile_filter, conjunction, fold
from ml_diagnostics_testing.http_server import ApiError

MAX_REQUEST_BYTES = 10 * 1024 * 1024
_MAX_PAGE_BYTES = 3_000_000  # under the 4 MiB that a plain gRPC channel takes
_DEFAULT_PAGE_SIZE = 50
_INVALID_ARGUMENT = 3  # google.rpc.Code
_NS = 1_000_000_000
_DAY_NS = 86_400 * _NS

_WRITE_FIELDS = frozenset(["logName", "resource", "labels", "entries", "partialSuccess", "dryRun"])
_LIST_FIELDS = frozenset(["resourceNames", "projectIds", "filter", "orderBy", "pageSize", "pageToken"])
_Key = tuple[int, str, str]


@dataclass(frozen=True)
class Page:
    """One page of a listing; the token is empty when it is the last."""

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
        """Walk the entries of a filter's span of time, from behind a key on."""
        first = bisect_left(self.keys, (query.earliest_ns, "", ""))
        last = bisect_left(self.keys, (query.latest_ns + 1, "", ""))
        if after is not None and descending:
            last = min(last, bisect_left(self.keys, after))
        elif after is not None:
            first = max(first, bisect_right(self.keys, after))
        indices = range(last - 1, first - 1, -1) if descending else range(first, last)
        return map(self.entries.__getitem__, indices)


class EntryStore:
    """Keeps entries sorted, refuses what the API refuses, and answers listings.

    Args:
        clock: Returns the time in seconds since the epoch.
        max_page_size: The largest pageSize that a listing may ask for.
        scan_limit: How many entries one listing looks at before it answers with what it has, maybe nothing, and a
            token, as the real service does under load; None looks at all.
        retention_seconds: Entries older than this, or more than a day in the future, are accepted and never listed,
            as the real service does; None keeps all.

    Attributes:
        duplicates: How many entries were dropped because their log had one of the same timestamp and insertId.
        delay_seconds: How long from an entry's arrival until it is listed.
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
        self._delayed: list[tuple[float, int, Entry]] = []  # a heap by the time of appearance
        self._numbers = itertools.count(1)

    def write(self, request: Mapping[str, Any], now_ns: int) -> int:
        """Do `entries:write`.

        Args:
            request: The request.
            now_ns: The server's (maybe skewed) time, for the times that it assigns.

        Returns:
            How many entries the request had.

        Raises:
            ApiError: An entry is refused. Without partialSuccess nothing was written; with it the rest was, and the
                details say which entries were not, and why.
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
        """Store checked entries; those that the store has already are dropped and counted."""
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
        """Do `entries:list`. Entries of one timestamp are in the order of their insertIds, or in its reverse."""
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
        """Keep what is written from now on, and passes a filter, out of listings until `release`."""
        with self._lock:
            self._hold = compile_filter(filter_)

    def release(self) -> int:
        """Let all entries that are held or delayed appear; return how many they are."""
        with self._lock:
            entries = [*self._held, *(entry for _, _, entry in self._delayed)]
            self._hold, self._held, self._delayed = None, [], []
            for entry in entries:
                self._index(entry)
            return len(entries)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._logs.clear()
            self._seen.clear()
            self._held.clear()
            self._delayed.clear()

    def _appear(self) -> None:
        """Let the delayed entries appear whose time has come."""
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
        """Fill a page; return it and, if there is more, the key from behind which the next page goes on."""
        found: list[Entry] = []
        room, matches = _MAX_PAGE_BYTES, conjunction(query.tests_within)
        last: _Key | None = None
        for scanned, entry in enumerate(candidates):
            if scanned == self._scan_limit:
                return found, last
            if matches(entry):
                if len(found) == size or room < 0:
                    return found, found[-1].key
                found.append(entry)
                room -= len(entry.json)
            last = entry.key
        return found, None

    def _page_size(self, size: Any) -> int:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= self._max_page_size:
            raise ApiError(400, f"page_size is {size}; it must be between 0 and {self._max_page_size}")
        return size or _DEFAULT_PAGE_SIZE


def _expect(request: Mapping[str, Any], name: str, kind: type) -> Any:
    value = request.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ApiError(400, f"{name} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def _parents(request: Mapping[str, Any]) -> set[str]:
    """Name the projects, folders, ... whose logs are asked for; a view counts as its project."""
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
        raise ApiError(400, f"order_by is {order_by!r}; it must be 'timestamp asc' or 'timestamp desc'")
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
        raise ApiError(400, f"page_token {token!r} was not given by this server") from None
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
