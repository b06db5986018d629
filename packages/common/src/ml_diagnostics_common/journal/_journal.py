"""The journal: every entry goes to an append-only file with one `os.write`, before anything else is done with it.

Appended entries outlive the process, whatever ends it. `_layout` has the format, `reader` reads it, `shipper` sends it
to Cloud Logging.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from ml_diagnostics_common import clock
from ml_diagnostics_common.files import is_network_filesystem
from ml_diagnostics_common.guard import Counters, warn_once
from ml_diagnostics_common.journal._cap import JournalCap
from ml_diagnostics_common.journal._layout import FIRST_SEQUENCE, Header, encode_own_fields, log_directory
from ml_diagnostics_common.journal._own_journals import add_journal, new_writer
from ml_diagnostics_common.journal._segment_file import HeldLines, SegmentFile
from ml_diagnostics_common.payload import encode_payload
from ml_diagnostics_common.worker import Task, Worker, start

__all__ = ["Journal", "JournalStatistics"]

_HELD_BYTES = 8 * 2**20
_WRITE_BYTES = 2**20
_RETRY_EVERY_NS = 1_000_000_000
_CHECK_EVERY_NS = 5_000_000_000
_SETTING_BACK_NS = 1_000_000_000
_NEVER = ""  # No stamp is smaller: every append takes the slow path.
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_REASONS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "file_too_large",
    errno.EROFS: "read_only",
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
    errno.ENOENT: "no_folder",
    errno.ENOTDIR: "no_folder",
}

_write = os.write


class _JournalIsFullError(OSError):
    """The journal has reached its cap, and nothing in it may be dropped."""


class JournalStatistics(NamedTuple):
    """Counts of the entries of one writer: accepted == written + held + sum of dropped."""

    accepted: int
    written: int
    held: int
    dropped: dict[str, int]
    """The number of dropped entries by reason."""


class Journal:
    """Append a process's entries to a log.

    Appending never raises because of the disk and never waits for another thread's I/O. While the file cannot be
    written to, entries are held in memory (8 MiB) and retried at most once a second; entries beyond that are dropped,
    counted, and reported in the journal itself as soon as it can be written to. Safe to use from threads, in signal
    handlers and in forked children, each of which is a writer of its own.
    """

    def __init__(
        self,
        log_id: str,
        *,
        root: Path,
        labels: Mapping[str, str],
        resource: Mapping[str, Any] | None = None,
        shippable: bool = True,
        project: str = "",
        mirrored: bool = True,
        segment_bytes: int = 64 * 2**20,
        clock_ns: Callable[[], int] = clock.now_ns,
        queued: bool | None = None,
        cap: JournalCap | None = None,
        about_pid: int | None = None,
    ) -> None:
        """Open no file yet: the first entry does.

        Args:
            log_id: The log's name.
            root: The diagnostics folder.
            labels: Labels of every entry.
            resource: Cloud Logging's monitored resource.
            shippable: False keeps the entries out of Cloud Logging.
            project: The only project that they may be sent to; empty for any that is found.
            mirrored: False keeps the entries out of a mirror, too: they stay on this machine.
            segment_bytes: A segment that is larger than this is followed by the next.
            clock_ns: Return the time of an entry, in ns since 1970.
            queued: True if a thread writes to the disk, not the caller; None: on a network filesystem only.
            cap: The limit of the whole journal; None for the default.
            about_pid: The process that the entries describe, for the label `pid`; None for the writing process.
        """
        self.log_id = log_id
        self.folder = log_directory(root, log_id)
        # Converted to JSON's types once: a value that JSON does not have must not fail at each entry.
        self._labels = {str(key): str(value) for key, value in labels.items()}
        self._resource = json.loads(encode_payload(resource or {}))
        self._shippable = shippable
        self._project = str(project)
        self._mirrored = mirrored
        self._segment_bytes = segment_bytes
        self._clock_ns = clock_ns
        self._queued = queued
        self._root = root
        self._cap = cap or JournalCap(root)
        self._about_pid = about_pid
        # Its thread, once started, waits for the exit, where Python 3.12 and later start no other. It refers to the
        # journal only while lines are to be written, and ends when the journal is deleted.
        self._queue = Worker("ml-diagnostics-journal")
        weakref.finalize(self, self._queue.stop).atexit = False
        self._start_writer()
        add_journal(self)

    def _start_writer(self) -> None:
        """Become a new writer: at construction, and in a forked child, which inherits the settings only."""
        if "pid" in self._labels:
            self._labels["pid"] = str(os.getpid() if self._about_pid is None else self._about_pid)
        self.writer = new_writer()
        self._file = SegmentFile(
            self.folder,
            Header(
                self.log_id,
                self.writer,
                self._labels,
                self._resource,
                ship=self._shippable,
                project=self._project,
                mirror=self._mirrored,
            ),
        )
        self._descriptor = -1
        # Bytes appended to the segment; slightly less if threads appended at the same time.
        self._segment_size = 0
        # Appends with a stamp in this range take the fast path. The range ends in five seconds: then an append checks
        # that the file still exists. It starts one second ago, for threads that overtake each other, and for a clock
        # that is set back. Text like the stamps (19 digits until 2286), so that nothing is converted.
        self._fast_from = self._fast_until = _NEVER
        self._sequence = itertools.count(FIRST_SEQUENCE)  # next() is atomic.
        self._held = HeldLines(_HELD_BYTES)
        self._writing = Lock()  # Held by the thread on the slow path; others never wait for it.
        self._failure: str | None = None
        self._retry_at_ns = 0
        self._dropped = Counters()
        self._reported_drops: dict[str, int] = {}
        self._written_at_last_check = self._written_at_open = 0
        self._sync_task: Task | None = None
        self._is_write_queued = False  # A `_write_queued` that has not started writes every line that is held now.

    def append_text(self, now: str, payload_json: str, timestamp: str | None = None) -> None:
        """Append an entry with a payload that is JSON already: the hot path.

        Args:
            now: The time of the call in ns since 1970, as digits.
            payload_json: A JSON object in one line; the text that `encode_own_fields` returns may follow it.
            timestamp: The entry's time, as digits, if it is not the time of the call.
        """
        line = f'\n{{"t":{timestamp or now},"s":{next(self._sequence)},"p":{payload_json}}}'.encode()
        if self._fast_from <= now < self._fast_until:
            size = len(line)
            try:
                if _write(self._descriptor, line) == size:
                    self._segment_size += size  # Without a call, so that threads seldom undo each other's additions.
                    if self._segment_size > self._segment_bytes:
                        self._rotate(now)
                    return
            except OSError:
                pass  # The slow path retries, and finds the reason.
            self._fast_until = _NEVER
        self._append_slowly(now, line)

    def append(
        self,
        payload: Mapping[str, Any],
        *,
        severity: str | None = None,
        resource_labels: Mapping[str, str] | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Append an entry.

        Args:
            payload: Any values; those that JSON does not have are written as text.
            severity: A severity of Cloud Logging; None for the log's own, INFO.
            resource_labels: Labels of the monitored resource that differ from those of all entries. They are not sent
                if the journal has no resource.
            timestamp_ns: The entry's time in ns since 1970; None for the time of this call.
        """
        text = encode_payload(payload) + encode_own_fields(severity, resource_labels)
        self.append_text(str(self._clock_ns()), text, None if timestamp_ns is None else str(timestamp_ns))

    def statistics(self) -> JournalStatistics:
        """Return the counts so far; exact while no thread is in the middle of an append."""
        # The repr, "count(100000000042)", is the only access to a counter that neither advances it nor is deprecated.
        accepted = int(repr(self._sequence)[len("count(") : -1]) - FIRST_SEQUENCE
        dropped = self._dropped.as_dict()
        held = len(self._held)
        return JournalStatistics(accepted, accepted - held - sum(dropped.values()), held, dropped)

    def recheck_file(self) -> None:
        """Have the next append check first that its file exists: before an entry that must not be lost."""
        self._fast_until = _NEVER

    def sync(self, timeout_seconds: float = 1.0) -> bool:
        """Have the operating system write the appended entries to the disk itself, against a loss of power.

        Args:
            timeout_seconds: How long to wait for it; it continues afterwards.

        Returns:
            True if they are on the disk.
        """
        deadline = time.monotonic() + timeout_seconds
        self.flush(timeout_seconds)
        if self._sync_task is not None and not self._sync_task.wait(deadline - time.monotonic()):
            return False  # The previous sync still waits for the disk: more threads would not help.
        if self._descriptor < 0:
            return False
        task = self._sync_task = start(self._file.sync, "ml-diagnostics-sync")
        return task is not None and task.wait(deadline - time.monotonic()) and task.error is None

    def flush(self, timeout_seconds: float = 1.0) -> bool:
        """Write what is held, if the file can be written to; return True if nothing is held any more."""
        if not self._held:
            return True
        if self._is_queued():
            if self._wake_thread():
                self._queue.drain(timeout_seconds)
        else:
            self._retry_at_ns = 0
            self._write_slowly(self._clock_ns())
        return not self._held

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Write what is held, and check once more that the file exists: lost entries are counted in a new file.

        Entries may still follow; the file is closed when the journal is deleted. Not here: another thread may be in the
        middle of a write to its descriptor.
        """
        self.flush(timeout_seconds)
        if self._descriptor >= 0 and not self._held and not self._is_queued() and self._writing.acquire(blocking=False):
            try:
                self._try_to_write(self._clock_ns())
            finally:
                self._writing.release()

    def warn_losses(self) -> None:
        """Log a warning of the entries that this process could not write, at its end."""
        held = len(self._held)
        unreported = sum(self._dropped.as_dict().values()) - sum(self._reported_drops.values())
        if held + unreported > 0:
            warn_once(
                ("journal", self.log_id, self.writer, "lost"),
                "This process ends, and %d of its entries are lost: the journal %s cannot be written to (%s).",
                held + unreported,
                self.folder,
                self._failure or "it was not done in time",
            )

    # The slow path: the first entry, one every five seconds, and all while the file cannot be written to.

    def _append_slowly(self, now: str, line: bytes) -> None:
        self._hold(line)
        if self._is_queued():
            self._wake_thread()
        else:
            self._write_slowly(int(now))

    def _hold(self, line: bytes) -> None:
        if not self._held.add(line):
            self._dropped.add(self._failure or "queue_full")

    def _write_slowly(self, now_ns: int) -> None:
        """Write what is held, unless another thread does.

        Lines are held before the lock is tried, and checked for again after it is released: a thread that does not get
        the lock leaves its line to the thread that has it.
        """
        while self._held and self._writing.acquire(blocking=False):
            try:
                if not self._may_retry(now_ns) or not self._try_to_write(now_ns):
                    return
            finally:
                self._writing.release()

    def _may_retry(self, now_ns: int) -> bool:
        # Also if the clock was set back: else there would be no retry for as long.
        return self._failure is None or not self._retry_at_ns - _RETRY_EVERY_NS <= now_ns < self._retry_at_ns

    def _try_to_write(self, now_ns: int) -> bool:
        try:
            self._check_file()
            try:
                self._write_held()
            except OSError as error:
                # On a full disk another file does not help; if this one is too large or broken it may.
                if error.errno in _DISK_IS_FULL or self._segment_size == 0:
                    raise
                self._open_next_segment()
                self._write_held()
            self._report_drops()
        except OSError as error:
            self._note_failure(error, now_ns)
            return False
        self._failure = None
        if not self._queued:
            self._fast_from = str(now_ns - _SETTING_BACK_NS)
            self._fast_until = str(now_ns + _CHECK_EVERY_NS)
        return True

    def _check_file(self) -> None:
        if self._cap.exceeded:
            self._cap.check_soon()
            raise _JournalIsFullError(errno.EDQUOT, "it has reached the limit of its size, and nothing may be dropped")
        if not self._is_file_in_place():
            self._open_next_segment()

    def _is_file_in_place(self) -> bool:
        """Check the file, and count the entries that another program removed.

        Entries since the last check may be in a deleted file, or in another program's. A deleted file may have been
        read before; a file that was moved or truncated is not found by readers that start later.
        """
        state = self._file.state()
        written = self.statistics().written
        if state in ("file_deleted", "descriptor_taken"):
            self._count_lost(state, written - self._written_at_last_check)
        elif state in ("file_moved", "file_truncated"):
            left = self._file.count_entries() if state == "file_truncated" else 0
            self._count_lost(state, written - self._written_at_open - left)
            warn_once(
                ("journal", self.log_id, state),
                "Another program %s a file of the journal %s while this process wrote to it: its entries are lost to "
                "readers, and counted as %s. The job goes on in a new file. Exclude the folder from log rotation.",
                "moved" if state == "file_moved" else "truncated",
                self.folder,
                state,
            )
        self._written_at_last_check = self.statistics().written
        return state == "open"

    def _count_lost(self, reason: str, count: int) -> None:
        if count > 0:
            self._dropped.add(reason, count)

    def _open_next_segment(self) -> None:
        self._file.open_next()
        self._descriptor = self._file.descriptor
        self._segment_size = 0
        self._written_at_open = self.statistics().written
        self._cap.check_soon()

    def _rotate(self, now: str) -> None:
        if self._writing.acquire(blocking=False):
            try:
                if self._segment_size > self._segment_bytes:  # Not if another thread has just done it.
                    self._is_file_in_place()
                    self._open_next_segment()
            except OSError:
                self._segment_size = 0  # It continues in this one, and retries after as many bytes.
            finally:
                self._writing.release()
            self._write_slowly(int(now))

    def _write_held(self) -> None:
        while lines := self._held.first(_WRITE_BYTES):
            written = _write(self._descriptor, lines)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            self._segment_size += written
            self._held.remove(written)  # A line that was written in part is written again, whole.

    def _report_drops(self) -> None:
        """Append an entry with the number of entries that were dropped."""
        dropped = self._dropped.as_dict()
        lost = {
            reason: count - self._reported_drops.get(reason, 0)
            for reason, count in dropped.items()
            if count > self._reported_drops.get(reason, 0)
        }
        if not lost:
            return
        job = {"job_name": self._labels["job"]} if "job" in self._labels else {}
        sequence = next(self._sequence)
        # The name distinguishes a report that is read twice from two equal reports.
        report = encode_payload({**job, "lost_entries": lost, "lost_by": f"{self.writer}.{sequence}"})
        self._hold(f'\n{{"t":{self._clock_ns()},"s":{sequence},"p":{report}}}'.encode())
        self._reported_drops = dropped
        self._write_held()

    def _note_failure(self, error: OSError, now_ns: int) -> None:
        full = isinstance(error, _JournalIsFullError)
        reason = "journal_full" if full else _REASONS.get(error.errno or 0, "io_error")
        self._failure = reason
        self._retry_at_ns = now_ns + _RETRY_EVERY_NS
        self._fast_until = _NEVER
        warn_once(
            ("journal", self.log_id, reason),
            "The journal %s cannot be written to: %s. The job goes on. Entries are kept in memory (8 MiB) until it "
            "can; more than that is dropped and counted. Free space, or set ML_DIAGNOSTICS_DIR to another folder.",
            self.folder,
            error,
        )

    # On a network filesystem a write may take seconds, or for ever: a thread does all of them. Where there can be no
    # thread the lines are held, and counted at the exit.

    def _is_queued(self) -> bool:
        if self._queued is None:
            self._queued = is_network_filesystem(self._root)
            if self._queued:
                warn_once(
                    ("network", str(self._root)),
                    "The journal %s is on a network filesystem, so a thread writes it: recording does not wait for the "
                    "network, and a process that is killed loses what was not written yet. Set ML_DIAGNOSTICS_DIR to "
                    "a local folder to avoid that.",
                    self.folder,
                )
        return self._queued

    def _wake_thread(self) -> bool:
        """Have the thread write what is held; return False if no thread can run any more: the interpreter exits."""
        if self._is_write_queued:
            return True
        is_put = False
        try:
            self._is_write_queued = True  # Before `put`: the thread may clear it at once.
            is_put = self._queue.put(self._write_queued)
        finally:  # Also if a signal handler raises.
            if not is_put:
                self._is_write_queued = False
        return is_put

    def _write_queued(self) -> None:
        self._is_write_queued = False  # First: a line that is held from here on needs another write.
        self._write_slowly(self._clock_ns())
        while self._held:
            time.sleep(_RETRY_EVERY_NS / 1e9)
            self._write_slowly(self._clock_ns())

    def start_clean_in_child(self) -> None:
        """Become a new writer in a forked child, without the lines that the parent holds."""
        try:
            self._file.close()
        except OSError:
            pass
        self._cap.start_clean_in_child()
        self._start_writer()
