"""Send a log's entries from the journal to Cloud Logging: the work of the shipper's thread, without the thread.

One process at a time ships a writer's entries. A process ships its own writers, and adopts those of processes that have
ended, or that no process has claimed for a while: the next process of a job ships what the last one left.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_diagnostics_common.cloud_logging._filters import full_log_name
from ml_diagnostics_common.cloud_logging._transport import (
    CUT_KEY,
    NEVER_TOO_LARGE_BYTES,
    BatchWriter,
    LoggingTransport,
    TransportError,
    cut_to_fit,
)
from ml_diagnostics_common.entry import EntryContext, encode_cloud
from ml_diagnostics_common.guard import Counters, warn_once
from ml_diagnostics_common.journal._layout import (
    Header,
    Segment,
    list_segments,
    log_directory,
    read_header,
    shipped_offset_path,
    shipped_position,
)
from ml_diagnostics_common.shipper._outbox import Batch, Outbox, OutboxLock, Owner, owner

__all__ = ["Delivery", "Round"]

_MOST_BYTES = 4 << 20
_CATCHING_UP = 5
_UNCLAIMED_SECONDS = 10.0
_LIST_AGAIN_SECONDS = 10.0
_SET_ASIDE_SECONDS = 60.0
_COARSEST_CLOCK_NS = 2_000_000_000
_MOST_HELD = 64
_MOST_ADOPTED_BATCHES = 10


def _never() -> float:
    return math.inf


class Round(NamedTuple):
    """The result of one round.

    Attributes:
        drained: True if everything that this process had written at the start of the round was accepted.
        more: True if other processes left more than one round sends.
    """

    drained: bool
    more: bool = False


class _Claim:
    """A writer that this process has locked."""

    def __init__(self, lock: OutboxLock, outbox: Outbox) -> None:
        self.lock = lock
        self.outbox = outbox


class Delivery:
    """Send the unsent entries of one log.

    Args:
        root: The diagnostics folder.
        log_id: The log's id.
        transport: The connection to Cloud Logging.
        counters: Counts shipped entries, requests, and unshipped entries by reason.
        batch_entries: The entries of a request; five times as many while there is a backlog.
        request_seconds: The deadline of one request.
        clock: Return monotonic seconds.
    """

    def __init__(
        self,
        root: Path,
        log_id: str,
        transport: LoggingTransport,
        counters: Counters,
        *,
        batch_entries: int = 100,
        request_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._log_id = root, log_id
        self._folder = log_directory(root, log_id)
        self._transport = transport
        self._counters = counters
        self._batch_entries = batch_entries
        self._request_seconds = request_seconds
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._first_seen: dict[str, float] = {}
        self._finished: dict[str, int] = {}
        self._segments: dict[str, list[Segment]] = {}
        self._owners: dict[str, Owner] = {}
        self._unfinished: list[str] = []
        self._listed_at = -1e9
        self._folder_changed_ns = -1
        self._batches = BatchWriter()
        self._set_aside_until: dict[str, float] = {}
        self._is_of_project: dict[str, bool] = {}

    def run_round(
        self, *, deadline: Callable[[], float] = _never, pause: Callable[[float], None] | None = None
    ) -> Round:
        """Send all entries of this process, and some of those that each of the others left.

        Args:
            deadline: Return when to stop, in monotonic seconds; called between requests.
            pause: Called between the requests of a backlog with the CPU seconds that the last one took.

        Raises:
            TransportError: A request failed. No entry is lost: the next round sends the same batch again.
            OSError: Files of this process cannot be read; those of all others were tried.
        """
        self._list()
        drained, more = True, False
        own_failure: OSError | None = None
        for writer in list(self._unfinished):
            owned_by = self._owner(writer)
            if self._clock() < self._set_aside_until.get(writer, -math.inf):
                continue
            try:
                claim = self._claim(writer, owned_by)
                if claim is None:
                    drained = drained and not (owned_by is Owner.US and self._is_behind(writer))
                    continue
                done = self._send_all(claim, owned_by, deadline, pause)
            except OSError as error:
                self._set_aside(writer, owned_by)
                if owned_by is Owner.US:
                    own_failure = error
                continue
            if self._clock() >= deadline():
                return Round(drained=False)
            if owned_by is Owner.US:
                drained = drained and done
            elif not done:
                more = True
            elif owned_by is not Owner.ALIVE:
                self._finish(writer)
        if own_failure is not None:
            raise own_failure
        return Round(drained, more)

    def close(self) -> None:
        """Release all writers."""
        for claim in self._claims.values():
            claim.lock.abandon()
        self._claims.clear()

    # --- Writers --------------------------------------------------------------------------------------

    def _list(self) -> None:
        """List the folder if it has changed, and periodically; otherwise read only the sizes of known files."""
        with contextlib.suppress(OSError):
            changed_ns = self._folder.stat().st_mtime_ns
            due = self._clock() - self._listed_at >= _LIST_AGAIN_SECONDS
            if changed_ns != self._folder_changed_ns or due:
                # A file created in the same tick of the file system's clock would not change the time.
                is_sure = time.time_ns() - changed_ns > _COARSEST_CLOCK_NS
                self._folder_changed_ns, self._listed_at = changed_ns if is_sure else -1, self._clock()
                self._segments = {}
                for segment in list_segments(self._folder):
                    self._segments.setdefault(segment.writer, []).append(segment)
                unfinished = [
                    writer
                    for writer in self._segments
                    if self._finished.get(writer) != self._size(writer) and self._is_of_our_project(writer)
                ]
                self._unfinished = sorted(unfinished, key=self._own_first)
                for writer in self._claims.keys() - self._segments.keys():
                    self._claims.pop(writer).lock.abandon()
                return
        for writer in self._claims:
            self._segments[writer] = [_with_current_size(segment) for segment in self._segments.get(writer, [])]

    def _own_first(self, writer: str) -> tuple[bool, str]:
        return self._owner(writer) is not Owner.US, writer

    def _owner(self, writer: str) -> Owner:
        """Return the owner of a writer. It can change only while the process lives."""
        known = self._owners.get(writer)
        if known is None or known is Owner.ALIVE:
            known = self._owners[writer] = owner(writer)
        return known

    def _is_of_our_project(self, writer: str) -> bool:
        """Return False if its entries are for another project. All segments of a writer are for the same."""
        known = self._is_of_project.get(writer)
        if known is None:
            try:
                headers = map(read_header, self._segments[writer])  # The first may be damaged.
                header = next((header for header in headers if header is not None), None)
            except OSError:
                return True  # Claiming it fails for the same reason, and is counted.
            if header is None:
                return True
            known = self._is_of_project[writer] = header.project in ("", self._transport.project)
        return known

    def _size(self, writer: str) -> int:
        return sum(segment.size for segment in self._segments[writer])

    def _is_behind(self, writer: str) -> bool:
        """Return True if another process ships this writer, and has not shipped all of it."""
        last = _with_current_size(self._segments[writer][-1])
        return shipped_position(self._root, self._log_id, writer) < (last.number, last.size)

    def _claim(self, writer: str, owned_by: Owner) -> _Claim | None:
        """Return the writer's claim, if this process has it or may take it now."""
        claim = self._claims.get(writer)
        if claim is not None:
            return claim
        seen = self._first_seen.setdefault(writer, self._clock())
        unclaimed = self._clock() - seen >= _UNCLAIMED_SECONDS
        if owned_by not in (Owner.US, Owner.GONE) and not unclaimed:
            return None
        if len(self._claims) >= _MOST_HELD and owned_by is not Owner.US:
            return None
        path = shipped_offset_path(self._root, self._log_id, writer).with_suffix(".lock")
        lock = OutboxLock.take(path)
        if lock is None:
            self._first_seen[writer] = self._clock()
            return None
        claim = _Claim(lock, Outbox(self._root, self._log_id, writer, self._counters, self._clock))
        self._claims[writer] = claim
        return claim

    def _set_aside(self, writer: str, owned_by: Owner) -> None:
        """Release a writer with unreadable files; one of another process for a minute. The others must not wait."""
        self._counters.add("unreadable_writer")
        if claim := self._claims.pop(writer, None):
            claim.lock.abandon()
        if owned_by is not Owner.US:
            self._set_aside_until[writer] = self._clock() + _SET_ASIDE_SECONDS

    def _finish(self, writer: str) -> None:
        """Release a writer that is unlikely to write again; it is claimed again if its files grow."""
        self._finished[writer] = self._size(writer)
        self._unfinished.remove(writer)
        self._claims.pop(writer).lock.abandon()

    # --- Sending --------------------------------------------------------------------------------------

    def _send_all(
        self, claim: _Claim, owned_by: Owner, deadline: Callable[[], float], pause: Callable[[float], None] | None
    ) -> bool:
        """Send a writer's entries; the batches of a backlog are larger, with pauses between them.

        Returns:
            True if all were sent.
        """
        outbox, sent = claim.outbox, 0
        while owned_by is Owner.US or sent < _MOST_ADOPTED_BATCHES:
            batch = outbox.next_batch(
                self._segments[outbox.writer],
                most_entries=self._batch_entries * (_CATCHING_UP if sent else 1),
                most_bytes=_MOST_BYTES,
                ended=owned_by is Owner.GONE,
            )
            if batch is None:
                return not outbox.settling
            if self._clock() >= deadline():
                return False
            start = time.thread_time()
            try:
                refused = self._send(batch, deadline) if batch.entries else []
            except TransportError as error:
                if error.refuses_entries:
                    outbox.read_again()  # If the entries are refused, not the log, later ones show it.
                raise
            outbox.acknowledge(batch)
            self._count(batch, refused)
            sent += bool(batch.entries)
            if pause is not None and sent > 1:
                pause(time.thread_time() - start)
        return False

    def _send(self, batch: Batch, deadline: Callable[[], float]) -> list[str]:
        """Send a batch; return the reasons of refusals. Raise the first failure: the next round sends all again."""

        def give_up(error: TransportError) -> None:
            raise error

        return self._batches.write(self._encode(batch), lambda part: self._write(part, deadline), before_retry=give_up)

    def _count(self, batch: Batch, refused: list[str]) -> None:
        if batch.entries:
            self._counters.add("shipped", len(batch.entries) - len(refused))
        if refused:
            self._counters.add("refused_by_server", len(refused))
            warn_once(
                ("shipper", self._log_id, "refused"),
                "Cloud Logging does not accept an entry of log %s, and never will: %s. The journal in %s keeps it; "
                "further ones are counted, not logged.",
                self._log_id,
                refused[0],
                self._folder,
            )

    def _write(self, part: Sequence[Mapping[str, Any]], deadline: Callable[[], float]) -> None:
        seconds = min(self._request_seconds, max(0.1, deadline() - self._clock()))
        self._counters.add("requests")
        self._transport.write(part, timeout_seconds=seconds)

    def _encode(self, batch: Batch) -> list[dict[str, Any]]:
        context = _cloud_context(batch.header, self._transport.project, self._log_id)
        encoded = []
        for entry, line_bytes in zip(batch.entries, batch.line_bytes, strict=True):
            entry.context = context
            if not batch.header.resource:
                entry.own_resource_labels = None  # The resource `global` has only the project's.
            if line_bytes > NEVER_TOO_LARGE_BYTES and CUT_KEY not in entry.payload and cut_to_fit(entry):
                self._counters.add("cut_to_fit")
            encoded.append(encode_cloud(entry))
        return encoded


def _cloud_context(header: Header, project: str, log_id: str) -> EntryContext:
    """Return the journal's header for Cloud Logging, which needs a resource, its project, and a full name."""
    resource: Mapping[str, Any] = header.resource or {"type": "global", "labels": {}}
    labels = resource.get("labels") or {}
    if not labels.get("project_id"):
        resource = {**resource, "labels": {**labels, "project_id": project}}
    log_name = full_log_name(project, log_id)
    return EntryContext(log_id, log_name, resource, header.labels, header.severity, header.writer)


def _with_current_size(segment: Segment) -> Segment:
    try:
        return segment._replace(size=Path(segment.path).stat().st_size)
    except OSError:
        return segment
