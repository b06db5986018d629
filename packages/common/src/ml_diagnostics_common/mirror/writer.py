"""The thread that mirrors what this process records, beside the one that ships it.

Recording calls never wait for it: the journal is its queue, and it is on disk. There is one thread a process, however
many logs it has. It writes an object each 30 s while the job is new or watched, else each two minutes, and whenever
there are 4 MB. What a killed process leaves is for `rest`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.environment import configured_mirror, diagnostics_directory, mirror_seconds
from ml_diagnostics_common.files import make_private_folder
from ml_diagnostics_common.guard import LOSSES, Counters, warn_once
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.journal._own_journals import flush_journals
from ml_diagnostics_common.mirror._bucket import Bucket, mirror_path
from ml_diagnostics_common.mirror._notes import notes_folder
from ml_diagnostics_common.mirror._pace import Pace
from ml_diagnostics_common.mirror._round import MirrorRound
from ml_diagnostics_common.mirror._setbacks import Setbacks, code_of
from ml_diagnostics_common.mirror._upload import OBJECT_BYTES
from ml_diagnostics_common.process_hooks import ExitOrder, LiveObjects, at_exit, at_fork
from ml_diagnostics_common.program_end import exit_deadline, preserve_interrupt
from ml_diagnostics_common.shipper._own_records import kept_from_cloud_logging
from ml_diagnostics_common.worker import Task, start

__all__ = ["Mirror", "MirrorStatistics", "finish_mirrors", "start_mirror"]

_START_SECONDS = 5.0
"""Until the first object: a user sees soon that the mirror works."""
_CHECK_SECONDS = 5.0
_LAST_PAUSE_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_JOURNAL_SECONDS = 1.0
_REQUEST_SECONDS = 30.0
_SHARE_OF_CPU = 0.25


class MirrorStatistics(NamedTuple):
    """The state and the counts of a process's mirror.

    Attributes:
        state: "idle" before the start, "mirroring", "waiting" after a failure, or "stopped".
        counts: mirrored: entries; objects, bytes, requests; refused_creates: objects that existed; rolled_up: hours;
            failed_CODE: rounds that failed, by code; and text of the journal that is not an entry, by reason.
        last_error: The last failure; empty after a success.
        lag_seconds: The time since the mirror had everything; 0.0 before the first entry.
    """

    state: str
    counts: dict[str, int]
    last_error: str
    lag_seconds: float


class Mirror:
    """Mirror the logs of this process.

    Args:
        mirror: `gs://bucket/prefix`, or a local folder.
        root: The diagnostics folder.
        seconds: The time between two objects while the job is new or watched.
        grace_period_seconds: How long the end of the process may wait for the last objects; see
            `program_end.exit_deadline`.
        request_seconds: The deadline of one request, with its retries.
        start_seconds: The time until the first object.
        backoff: How long to wait after a temporary failure.
        access_backoff: How long to wait after a failure that a person must fix.
        by: The name of this process in the ends of writers of others: next, or companion.
        clock: Return monotonic seconds.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a local folder.
    """

    def __init__(
        self,
        mirror: str,
        *,
        root: Path,
        seconds: float = 30.0,
        grace_period_seconds: float = _GRACE_SECONDS,
        request_seconds: float = _REQUEST_SECONDS,
        start_seconds: float = _START_SECONDS,
        backoff: Backoff | None = None,
        access_backoff: Backoff | None = None,
        by: str = "next",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = mirror_path(mirror)
        self._root, self._clock = root, clock
        self._grace_period_seconds = grace_period_seconds
        self._noted: set[str] = set()
        self._counters = Counters()
        self._setbacks = Setbacks(self.path, root / "journal", self._counters, backoff, access_backoff)
        self._changed = threading.Condition()
        self._thread: Task | None = None
        bucket = Bucket(self.path, deadline_seconds=request_seconds)
        self._round = MirrorRound(bucket, root, frozenset(), self._counters, clock, by=by)
        self._pace = Pace(seconds, clock)
        self._state, self._last_error = "idle", ""
        self._next_at = clock() + min(start_seconds, seconds)
        self._complete_at = clock()
        self._flushes_wanted = self._flushes_tried = self._flushes_done = 0
        self._stop_at: float | None = None

    def add(self, log_id: str) -> None:
        """Mirror a log of this process; start the thread if it does not run. Return immediately; never raise."""
        preserve_interrupt()  # The thread imports clients, perhaps while the program ends.
        with self._changed:
            self._round.folder_names |= {log_folder_name(log_id)}  # Another set: the thread iterates over it.
            self._changed.notify_all()
            if self._thread is not None:
                return
            self._state = "mirroring"
            self._thread = start(self._run, "ml-diagnostics-mirror")
            if self._thread is None:  # A later process mirrors it.
                self._state = "stopped"
                LOSSES.add("mirror_thread_refused")
                return
        _mirrors_of_this_process.add(self)

    def is_of(self, path: str, root: Path) -> bool:
        """Return True for the mirror of a folder at a path, while its thread runs or may be started."""
        return (self.path, self._root) == (path, root) and self._stop_at is None

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the mirror has all that this process has recorded so far.

        Args:
            timeout_seconds: The longest to wait.

        Returns:
            True if it has; False if not, or if it is known that it cannot in that time.
        """
        deadline = self._clock() + timeout_seconds
        written = self._write_what_is_held(timeout_seconds)
        with self._changed:
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
            self._changed.notify_all()
            while self._flushes_done < wanted:
                left = deadline - self._clock()
                is_hopeless = self._state == "stopped" or (self._state == "waiting" and self._next_at >= deadline)
                if left <= 0 or is_hopeless:
                    return False
                self._changed.wait(left)
        return written

    def close(self, timeout_seconds: float | None = None) -> bool:
        """Write the rest and the ends of this process's writers, and end the thread.

        Args:
            timeout_seconds: The longest to wait; None is the grace period.

        Returns:
            True if the mirror has everything.
        """
        seconds = self._grace_period_seconds if timeout_seconds is None else timeout_seconds
        deadline = self._clock() + seconds
        self._request_stop(deadline, seconds)
        return self._await_stop(deadline)

    def statistics(self) -> MirrorStatistics:
        """Return the state and the counts so far."""
        has_entries = bool(self._counters.as_dict().get("mirrored")) or bool(self._last_error)
        lag = self._clock() - self._complete_at if has_entries else 0.0
        return MirrorStatistics(self._state, self._counters.as_dict(), self._last_error, lag)

    def _write_what_is_held(self, timeout_seconds: float) -> bool:
        """Have the journals write what they hold in memory: the mirror is written from their files."""
        deadline = self._clock() + min(timeout_seconds, _JOURNAL_SECONDS)
        folders = [self._root / "journal" / name for name in sorted(self._round.folder_names)]
        written = [flush_journals(folder, max(0.0, deadline - self._clock())) for folder in folders]
        return all(written)

    def _request_stop(self, deadline: float, seconds: float) -> None:
        self._write_what_is_held(seconds)
        with self._changed:
            self._stop_at = deadline
            self._flushes_wanted += 1
            self._changed.notify_all()

    def _await_stop(self, deadline: float) -> bool:
        if self._thread is not None:
            self._thread.wait(deadline - self._clock())
        _mirrors_of_this_process.discard(self)
        return self._thread is not None and self._flushes_done >= self._flushes_wanted

    def _abandon(self) -> None:
        """Release what a forked child has inherited: its thread does not exist there."""
        self._changed = threading.Condition()
        self._counters.renew_lock()
        self._state = "stopped"
        self._round.release()

    # --- The thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        with kept_from_cloud_logging():
            try:
                self._run_to_the_end()
            except Exception as error:
                # A bug of ours may stop the mirror, but never the job; the journal has all entries.
                LOSSES.add(f"mirror: {type(error).__name__}")
                self._last_error = f"{type(error).__name__}: {error}"
                warn_once(
                    ("mirror", "bug"),
                    "Writing to the mirror %s stopped (%s). The job goes on; its entries are in %s, and the next "
                    "process with that folder writes them.",
                    self.path,
                    self._last_error,
                    self._root / "journal",
                )
            finally:
                self._round.release()
                self._set_state("stopped", self._last_error)

    def _run_to_the_end(self) -> None:
        while True:
            self._wait()
            is_last = self._stop_at is not None
            is_done = self._write(is_last=is_last)
            if is_last:
                if is_done or self._state == "waiting" or self._clock() >= self._deadline():
                    return
                time.sleep(_LAST_PAUSE_SECONDS)  # Another process holds a lock, or a thread is writing a line.
            elif is_done:
                self._maintain()

    def _write(self, *, is_last: bool) -> bool:
        """Write what is new; return True if the mirror has everything, or the thread has nothing else to try now."""
        wanted = self._flushes_tried = self._flushes_wanted
        try:
            is_complete = self._round.write_own(deadline=self._deadline, pause=self._rest, is_last=is_last)
        except Exception as error:
            self._failed(error)
            return False
        now = self._clock()
        self._setbacks.succeeded()
        self._pace.is_of_first_process = self._round.is_of_first_process()
        if is_complete:
            self._flushes_done = wanted
            self._complete_at = now
        # A segment that was just started is complete a second later.
        self._next_at = now + (self._pace.seconds() if is_complete else min(1.0, self._pace.seconds()))
        self._set_state("mirroring")
        return is_complete

    def _maintain(self) -> None:
        """Roll up, mirror ended writers, and check if a command watches; what fails is tried again another time."""
        try:
            self._round.maintain(deadline=self._maintenance_deadline, pause=self._rest)
            if self._pace.is_old():
                self._round.check_watch(self._pace)
                self._next_at = min(self._next_at, self._clock() + self._pace.seconds())
        except Exception as error:
            self._counters.add(f"maintenance_failed_{code_of(error)}")

    def _deadline(self) -> float:
        return math.inf if self._stop_at is None else self._stop_at

    def _maintenance_deadline(self) -> float:
        """Return when to return to what this process has recorded: at once if another thread waits for that."""
        is_wanted = self._stop_at is not None or self._flushes_wanted > self._flushes_tried
        return -math.inf if is_wanted else self._next_at

    def _failed(self, error: Exception) -> None:
        """Record a failure, and set the time of the next attempt."""
        self._next_at = self._clock() + self._setbacks.failed(error)
        self._set_state("waiting", str(error) or type(error).__name__)

    def _set_state(self, state: str, error: str = "") -> None:
        """Set the state, and wake the threads that wait for a flush."""
        with self._changed:
            self._state, self._last_error = state, error
            self._changed.notify_all()

    # --- Waiting --------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until an object is due, there is enough for one, or another thread requests one."""
        while True:
            self._note_logs()
            with self._changed:
                now = self._clock()
                is_wanted = self._state != "waiting" and self._flushes_wanted > self._flushes_tried
                if self._stop_at is not None or is_wanted or now >= self._next_at:
                    return
                self._changed.wait(min(self._next_at - now, _CHECK_SECONDS))
            if self._state != "waiting" and self._has_enough():
                return

    def _has_enough(self) -> bool:
        """Return True if there is enough for an object, or a round has to find out why that is not known."""
        try:
            return self._round.unwritten_bytes() >= OBJECT_BYTES
        except OSError:  # Such as that the program has too many files open.
            return True

    def _note_logs(self) -> None:
        """Note which logs are mirrored: if this process is killed before its first object, a later one writes it."""
        for name in self._round.folder_names - self._noted:
            self._noted.add(name)
            try:
                make_private_folder(notes_folder(self._root, name))
            except OSError:
                self._counters.add("note_not_saved")

    def _rest(self, cpu_seconds: float) -> None:
        """Wait between the objects of a backlog: the trainer has the interpreter for three quarters of the time."""
        with self._changed:
            if self._stop_at is None:
                self._changed.wait(min(1.0, cpu_seconds * (1 - _SHARE_OF_CPU) / _SHARE_OF_CPU))


def start_mirror(log_id: str, root: Path | None = None, *, by: str = "next") -> Mirror | None:
    """Mirror a log of this process, if ML_DIAGNOSTICS_MIRROR names a mirror.

    Callers check that before they import this module: without a mirror there is no import and no thread.

    Args:
        log_id: The log's name.
        root: The diagnostics folder; None for the configured one.
        by: See `Mirror`.

    Returns:
        The mirror of this process; None without one.

    Raises:
        ConfigurationError: ML_DIAGNOSTICS_MIRROR or ML_DIAGNOSTICS_MIRROR_SECONDS is not valid.
    """
    configured = configured_mirror()
    if not configured:
        return None
    root = root or diagnostics_directory()
    path, seconds = mirror_path(configured), mirror_seconds()
    with _starting:
        mirror = next((each for each in _mirrors_of_this_process if each.is_of(path, root)), None)
        if mirror is None:
            mirror = Mirror(path, root=root, seconds=seconds, by=by)
            _kept_of_this_process.append(mirror)
        mirror.add(log_id)
    return mirror


def finish_mirrors(timeout_seconds: float) -> bool:
    """Write the rest of all that this process has recorded, and the ends of its writers, before the process ends.

    Args:
        timeout_seconds: The longest to wait.

    Returns:
        True if the mirrors have everything.
    """
    deadline = time.monotonic() + timeout_seconds
    mirrors = list(_mirrors_of_this_process)
    for mirror in mirrors:
        mirror._request_stop(deadline, timeout_seconds)
    complete = [mirror._await_stop(deadline) for mirror in mirrors]
    return all(complete)


# State of the process: its mirrors, for a fork and the exit; those of the parent are kept untouched in a child, since a
# connection belongs to the parent.
_mirrors_of_this_process: LiveObjects[Mirror] = LiveObjects()
_kept_of_this_process: list[Mirror] = []
_starting = threading.RLock()


def _start_clean_in_child() -> None:
    """Drop the parent's mirrors. What the child records is mirrored by one of its own, or by a later process."""
    global _starting
    for mirror in _mirrors_of_this_process:
        mirror._abandon()
    _mirrors_of_this_process.clear()
    _starting = threading.RLock()


def _stop_at_exit() -> None:
    for mirror in _mirrors_of_this_process:
        deadline = exit_deadline(mirror._grace_period_seconds)
        mirror._request_stop(deadline, deadline - time.monotonic())


def _wait_at_exit() -> None:
    for mirror in _mirrors_of_this_process:
        mirror._await_stop(exit_deadline(mirror._grace_period_seconds))


at_fork(_start_clean_in_child)
at_exit(_stop_at_exit, ExitOrder.MIRRORS)
at_exit(_wait_at_exit, ExitOrder.MIRRORS_END)
