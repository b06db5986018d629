"""The thread that ships a log's journal to Cloud Logging, while the job runs and after it was killed.

Recording calls never wait for it: the journal is the queue, and it is on disk. The thread searches for a cloud, reads
new entries, sends them, and saves its position; a later process continues from there.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import NoCloudError
from ml_diagnostics_common.failures import RemoteError
from ml_diagnostics_common.guard import LOSSES, Counters, log_once, warn_once
from ml_diagnostics_common.journal._layout import log_directory
from ml_diagnostics_common.journal._own_journals import flush_journals
from ml_diagnostics_common.process_hooks import ExitOrder, LiveObjects, at_exit, at_fork, import_undisturbed
from ml_diagnostics_common.program_end import exit_deadline, preserve_interrupt
from ml_diagnostics_common.shipper._own_records import kept_from_cloud_logging
from ml_diagnostics_common.worker import Task, start

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging._transport import LoggingTransport
    from ml_diagnostics_common.shipper._delivery import Delivery

__all__ = ["Shipper", "ShipperStatistics", "find_and_connect"]

_SHORTEST_LATENCY_SECONDS = 0.02  # A check of the journal costs 20 us.
_RETRY_SECONDS = 0.05
_SHARE_OF_CPU = 0.25
_JOURNAL_SECONDS = 1.0


class ShipperStatistics(NamedTuple):
    """The state and the counts of a shipper.

    Attributes:
        state: "idle" before the start, "connecting" to a cloud, "shipping", "waiting" after a failure, "no cloud",
            or "stopped".
        counts: shipped: entries; requests; refused_by_server, cut_to_fit: entries; damaged_line, unreadable_segment:
            text that is not an entry; unreadable_writer: files that cannot be opened; offset_not_saved: batches with a
            position that could not be saved; failed_CODE: requests that failed, by code.
        last_error: The last failure; empty after a success.
    """

    state: str
    counts: dict[str, int]
    last_error: str


def find_and_connect(project: str | None = None) -> LoggingTransport:
    """Call `cloud_logging.connect`, which loads Google's clients, and is itself loaded for this call only."""
    from ml_diagnostics_common.cloud_logging import connect

    return connect(project)


class Shipper:
    """Ship one log.

    Args:
        log_id: The log's id.
        root: The diagnostics folder.
        connect: Find a cloud and return a transport; called in the thread. It raises if there is none.
        batch_entries: Entries in a request; of a backlog, five times as many.
        max_latency_seconds: How often the journal is read.
        grace_period_seconds: How long the end of the process may wait until all entries are shipped; see
            `program_end.exit_deadline`.
        request_seconds: The deadline of one request.
        backoff: How long to wait after a temporary failure.
        access_backoff: How long to wait after a failure that a person must fix.
        search_interval_seconds: How often to search for a cloud.
        search_seconds: How long to search for a cloud.
        announces_path: True to log the journal's path if there is no cloud.
    """

    def __init__(
        self,
        log_id: str,
        *,
        root: Path,
        connect: Callable[[], LoggingTransport] = find_and_connect,
        batch_entries: int = 100,
        max_latency_seconds: float = 2.0,
        grace_period_seconds: float = 5.0,
        request_seconds: float = 30.0,
        backoff: Backoff | None = None,
        access_backoff: Backoff | None = None,
        search_interval_seconds: float = 60.0,
        search_seconds: float = 600.0,
        announces_path: bool = True,
    ) -> None:
        self._log_id, self._root, self._connect = log_id, root, connect
        self._batch_entries = batch_entries
        self._max_latency_seconds = max(max_latency_seconds, _SHORTEST_LATENCY_SECONDS)
        self._grace_period_seconds = grace_period_seconds
        self._request_seconds = request_seconds
        self._backoff = backoff or Backoff(first_seconds=1.0, longest_seconds=60.0)
        self._access_backoff = access_backoff or Backoff(first_seconds=60.0, longest_seconds=600.0)
        self._search_interval_seconds, self._search_seconds = search_interval_seconds, search_seconds
        self._announces_path = announces_path
        self._reset()

    def _reset(self) -> None:
        """Set the state of a shipper that has not started: at construction, and in a forked child."""
        self._counters = Counters()
        self._changed = threading.Condition()
        self._thread: Task | None = None
        self._delivery: Delivery | None = None
        self._transport: LoggingTransport | None = None
        self._state = "idle"
        self._last_error = ""
        self._wait_until = 0.0
        self._flushes_wanted = 0
        self._flushes_tried = 0
        self._flushes_done = 0
        self._last_try_due = False
        self._stop_at: float | None = None

    def start(self) -> None:
        """Start the thread, unless it runs. Return immediately; never raise."""
        preserve_interrupt()  # The thread imports clients, perhaps while the program ends.
        with self._changed:
            if self._thread is not None:
                return
            self._state, self._stop_at = "connecting", None
            self._thread = start(self._run, "ml-diagnostics-shipper")
            if self._thread is None:  # A later process ships it.
                self._state = "stopped"
                LOSSES.add("shipper_thread_refused")
                return
        _shippers_of_this_process.add(self)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all entries that this process has journalled so far are in Cloud Logging.

        Args:
            timeout_seconds: The longest to wait.

        Returns:
            True if they are; False if not, or if it is known that they cannot be in that time. They are shipped later
            then.
        """
        deadline = time.monotonic() + timeout_seconds
        written = self._write_what_is_held(timeout_seconds)
        with self._changed:
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
            self._changed.notify_all()
            while self._flushes_done < wanted:
                left = deadline - time.monotonic()
                if left <= 0 or not self._can_deliver(deadline):
                    return False
                self._changed.wait(left)
        return written

    def close(self, timeout_seconds: float | None = None) -> bool:
        """Ship the remaining entries, within a time, and end the thread.

        Args:
            timeout_seconds: The longest to wait; None is the grace period.

        Returns:
            True if all entries are in Cloud Logging.
        """
        seconds = self._grace_period_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + seconds
        written = self._write_what_is_held(seconds)
        self._request_stop(deadline)
        return self._await_stop(deadline) and written

    def _write_what_is_held(self, timeout_seconds: float) -> bool:
        """Have the journals write what they hold in memory: entries are shipped from their files."""
        folder = log_directory(self._root, self._log_id)
        return flush_journals(folder, min(timeout_seconds, _JOURNAL_SECONDS))

    def _request_stop(self, deadline: float) -> None:
        with self._changed:
            self._stop_at = deadline
            self._flushes_wanted += 1
            self._changed.notify_all()

    def _await_stop(self, deadline: float) -> bool:
        if self._thread is not None:
            self._thread.wait(deadline - time.monotonic())
        _shippers_of_this_process.discard(self)
        return self._thread is not None and self._flushes_done >= self._flushes_wanted

    def statistics(self) -> ShipperStatistics:
        """Return the state and the counts so far."""
        return ShipperStatistics(self._state, self._counters.as_dict(), self._last_error)

    def _can_deliver(self, deadline: float) -> bool:
        if self._state == "waiting":
            return self._wait_until < deadline
        return self._thread is not None and self._state in ("connecting", "shipping") and not self._last_error

    # --- The thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        with kept_from_cloud_logging():
            self._run_to_the_end()

    def _run_to_the_end(self) -> None:
        try:
            import_undisturbed("ml_diagnostics_common.shipper._delivery")
            delivery = self._find_cloud()
            while delivery is not None and not self._is_over():
                self._wait(self._ship(delivery))
            self._close_connections()
        except Exception as error:
            # A bug of ours may stop shipping, but never the job; the journal has all entries.
            LOSSES.add(f"shipper: {type(error).__name__}")
            self._last_error = f"{type(error).__name__}: {error}"
            warn_once(
                ("shipper", "bug"),
                "Shipping to Cloud Logging stopped (%s). The job goes on; its entries are in %s, and the next process "
                "that records to this log ships them.",
                self._last_error,
                log_directory(self._root, self._log_id),
            )
        if self._state != "no cloud":
            self._set_state(state="stopped", error=self._last_error)

    def _find_cloud(self) -> Delivery | None:
        """Search for a cloud, every minute for ten minutes; None if there is none, or the shipper is to end."""
        give_up_at = time.monotonic() + self._search_seconds
        while not self._is_over():
            try:
                transport = self._connect()
            except Exception as error:
                self._explain_no_cloud(error)
                if time.monotonic() + self._search_interval_seconds > give_up_at:
                    self._set_state(state="no cloud", error=str(error))
                    return None
                self._set_state(state="connecting", error=str(error))
                self._wait(self._search_interval_seconds)
                if self._stop_at is not None:
                    return None
                continue
            self._transport = transport
            self._delivery = self._make_delivery(transport)
            self._set_state(state="shipping")
            return self._delivery
        return None

    def _make_delivery(self, transport: LoggingTransport) -> Delivery:
        from ml_diagnostics_common.shipper._delivery import Delivery

        return Delivery(
            self._root,
            self._log_id,
            transport,
            self._counters,
            batch_entries=self._batch_entries,
            request_seconds=self._request_seconds,
        )

    def _close_connections(self) -> None:
        if self._delivery is not None:
            self._delivery.close()
        if self._transport is not None:
            self._transport.close()

    def _ship(self, delivery: Delivery) -> float:
        """Ship once, and return the seconds until the next round."""
        wanted = self._flushes_tried = self._flushes_wanted
        try:
            done = delivery.run_round(deadline=lambda: self._stop_at or math.inf, pause=self._rest)
        except Exception as error:
            return self._failed(error)
        if done.drained:
            self._flushes_done = wanted
        self._backoff.succeeded()
        self._access_backoff.succeeded()
        self._set_state(state="shipping")
        impatient = done.more or self._flushes_done < wanted
        return _RETRY_SECONDS if impatient else self._max_latency_seconds

    def _failed(self, error: Exception) -> float:
        """Record a failure, and return the seconds until the next attempt."""
        failure = error if isinstance(error, RemoteError) else None
        self._counters.add(f"failed_{failure.code if failure else type(error).__name__}")
        is_temporary = failure is not None and failure.is_temporary
        if not is_temporary:
            self._explain_failure(error)
        asked = failure.retry_after_seconds if failure else None
        wait = (self._backoff if is_temporary else self._access_backoff).failed(asked)
        self._last_try_due = asked is None and self._stop_at is None
        self._wait_until = time.monotonic() + wait
        self._set_state(state="waiting", error=str(error) or type(error).__name__)
        return wait

    def _set_state(self, *, state: str, error: str = "") -> None:
        """Set the state, and wake the threads that wait for a flush."""
        with self._changed:
            self._state, self._last_error = state, error
            self._changed.notify_all()

    def _explain_no_cloud(self, error: Exception) -> None:
        if isinstance(error, NoCloudError):
            if self._announces_path:
                text = f"Recording to {self._root / 'journal'}; no Google Cloud is set up on this machine."
                log_once(logging.INFO, text, "%s", text)
            return
        warn_once(
            ("shipper", "no cloud", str(self._root)),
            "Nothing is sent to Cloud Logging: %s. Recording goes on, to %s. A cloud is searched for every minute for "
            "ten minutes; what was recorded before it is found is sent too.",
            str(error).rstrip("."),
            log_directory(self._root, self._log_id),
        )

    def _explain_failure(self, error: Exception) -> None:
        failure = error if isinstance(error, RemoteError) else None
        todo = ""
        if failure is not None and failure.access and self._transport is not None:
            todo = (
                f" {self._transport.principal or 'The account of this process'} needs the role roles/logging.logWriter "
                f"in project {self._transport.project}, where the Cloud Logging API must be enabled."
            )
        warn_once(
            ("shipper", self._log_id, failure.code if failure else type(error).__name__),
            "Entries of log %s cannot be sent to Cloud Logging: %s.%s The job goes on. They are kept in %s and tried "
            "again, every ten minutes in the end.",
            self._log_id,
            str(error).rstrip("."),
            todo,
            log_directory(self._root, self._log_id),
        )

    # --- Waiting --------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Return True to end: after `close`, once all entries are shipped, or no more can be in the remaining time."""
        with self._changed:
            if self._stop_at is None:
                return False
            hopeless = self._state == "waiting" and not self._last_try_due and self._wait_until >= self._stop_at
            return hopeless or self._flushes_done >= self._flushes_wanted or time.monotonic() >= self._stop_at

    def _wait(self, seconds: float) -> None:
        """Wait for the next round, or until another thread requests one."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (self._is_over() or self._is_wanted()):
                left = min(deadline, self._stop_at or math.inf) - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _is_wanted(self) -> bool:
        """Return True if a round should start now. After a failure only the end cuts the wait short, and once."""
        if self._state == "shipping":
            return self._flushes_wanted > self._flushes_tried
        if self._stop_at is None:
            return False
        return self._last_try_due or self._state == "connecting"

    def _rest(self, cpu_seconds: float) -> None:
        """Wait between the batches of a backlog: the trainer has the interpreter for three quarters of the time."""
        with self._changed:
            if self._stop_at is None:
                self._changed.wait(min(1.0, cpu_seconds * (1 - _SHARE_OF_CPU) / _SHARE_OF_CPU))

    # --- Fork and exit --------------------------------------------------------------------------------

    def _start_clean_in_child(self) -> None:
        """Drop the parent's thread, locks and connections. `start` starts a shipper of the child's own.

        Until then the child's entries are shipped by its parent, or by a later process.
        """
        if self._delivery is not None:
            self._delivery.close()
        if self._transport is not None:
            # A connection belongs to the parent, and a call that closes one of gRPC may hang.
            _connections_of_the_parent.append(self._transport)
        self._reset()


# State of the process: the running shippers, for a fork and the exit; and the parent's connections, kept untouched.
_shippers_of_this_process: LiveObjects[Shipper] = LiveObjects()
_connections_of_the_parent: list[object] = []


def _start_clean_in_child() -> None:
    for shipper in _shippers_of_this_process:
        shipper._start_clean_in_child()
    _shippers_of_this_process.clear()


def _close_at_exit() -> None:
    now = time.monotonic()
    deadlines = {shipper: exit_deadline(shipper._grace_period_seconds) for shipper in _shippers_of_this_process}
    # The journals close after the shippers: too late for the lines that they hold.
    for shipper, deadline in deadlines.items():
        shipper._write_what_is_held(min(deadline, now + _JOURNAL_SECONDS) - time.monotonic())
    for shipper, deadline in deadlines.items():
        shipper._request_stop(deadline)
    for shipper, deadline in deadlines.items():
        shipper._await_stop(deadline)


at_fork(_start_clean_in_child)
at_exit(_close_at_exit, ExitOrder.SHIPPERS)
