"""GoodputCache: the entries of a job in a file, for programs that read them themselves.

`GoodputCalculator` does not need it: it saves what it made of the entries, not the entries.

    {cache_dir}/{job}_timeline.jsonl       a payload a line
    {cache_dir}/{job}_metadata.json        {"last_entry_timestamp": ISO 8601, "last_entry_id": text}
    {gcs_path}/goodput_cache/...           copies of both, written by `sync_to_gcs`

Several processes may keep one job's cache. Each takes a lock to write, adds only entries that are not there yet, and
sees what the others added. A cursor moves forward only, and only when the entries before it are on the disk.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    DiagnosticsError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.storage import Storage, storage_for

from ml_goodput_measurement.copies import RebuiltFromArguments
from ml_goodput_measurement.metric_details import GoodputInfo, StepInfo
from ml_goodput_measurement.moments import in_utc
from ml_goodput_measurement.names import checked_name, shown
from ml_goodput_measurement.state_store import DEFAULT_CACHE_DIR, state_folder
from ml_goodput_measurement.timeline_file import TimelineFile, decode_line, locked, open_no_link, payload_digest

__all__ = ["GoodputCache"]

_log = job_logger("ml_diagnostics.goodput")

Payload = dict[str, Any]
Cursor = tuple[datetime.datetime, str]

_LONGEST_NAME = 200
_STORE_DEADLINE_SECONDS = 20.0
_MOST_WRITES = 6


class GoodputCache(RebuiltFromArguments):
    """The entries of one job that were read so far, and the last results; safe to share between processes.

    No method raises for a disk or a bucket that fails: it is logged, what can be answered is answered from the rest,
    and the cursor stays where it was, so that the entries are read again.
    """

    def __init__(self, job_name: str, cache_dir: str = DEFAULT_CACHE_DIR, gcs_path: str | None = None) -> None:
        """Touches neither disk nor network yet.

        Args:
            job_name: The job. Characters that a file's name should not have are percent-encoded in it.
            cache_dir: Folder of the files; the default means `state/goodput` in ML_DIAGNOSTICS_DIR.
            gcs_path: `gs://bucket/folder`, or a local folder, of a copy that other machines go on from; None for none.
                What is there is added to the files at the first use, and never replaces them.

        Raises:
            ConfigurationError: The job's name is empty, or `gcs_path` cannot be a folder.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self.job_name = checked_name("job_name", job_name)
        folder = state_folder(diagnostics_directory(), cache_dir)
        name = _file_name(self.job_name)
        self._folder = folder
        self._metadata_path = folder / f"{name}_metadata.json"
        self._lock_path = folder / f".{name}.lock"
        self._timeline = TimelineFile(folder / f"{name}_timeline.jsonl", self._notice, self._begin_again)
        self._copy = None if not gcs_path else _TimelineCopy(_checked_folder(gcs_path), name)
        self._must_restore = self._copy is not None
        self._lock = threading.RLock()
        self._cursor: Cursor | None = None
        self._first_start: float | None = None
        self._last_start: float | None = None
        self._last_end: float | None = None
        self._goodput_info: GoodputInfo | None = None
        self._step_info: StepInfo | None = None
        self._remember(GoodputCache, arguments, names_before)

    # --- Entries ------------------------------------------------------------------------------------------

    def update_cached_entries(self, entries: Iterable[Mapping[str, Any]], last_entry_info: Any) -> None:
        """Adds the entries that are not there yet, and then moves the cursor.

        Args:
            entries: Payloads. The same keys and values again are the same entry.
            last_entry_info: (timestamp, id) of the last of them, as `update_last_entry_info` takes it.
        """
        with self._lock, self._logged("entries could not be kept"), self._writing():
            self._timeline.add(entries)
            self._move_cursor(_cursor(last_entry_info))

    def update_last_entry_info(self, last_entry_info: Any) -> None:
        """Moves the cursor; a pair that is not later than the one that is there changes nothing.

        Args:
            last_entry_info: (timestamp, id) of the last entry that was read: a datetime (naive: local time), and
                anything, which is kept as text. None, or a timestamp of None, moves nothing.
        """
        with self._lock, self._logged("the cursor could not be kept"), self._writing():
            self._move_cursor(_cursor(last_entry_info))

    def get_cached_entries(self) -> list[Payload]:
        """Returns all entries, in the order in which they were added; a damaged line is passed over and counted."""
        entries: list[Payload] = []
        with self._lock, self._logged("entries could not be read"):
            self._restore()
            entries = self._timeline.payloads()
        return entries  # noqa: RET504  (what `_logged` kept from us is answered as an empty cache)

    def get_step_entries(self) -> list[Payload]:
        """Returns the entries that tell that a step began."""
        return [entry for entry in self.get_cached_entries() if "step_start_time" in entry]

    def get_last_entry_info(self) -> Cursor | None:
        """Returns the cursor: (timestamp in UTC, id) of the last entry that any process read and kept.

        None where there is none, and where the entries that it speaks for are gone.
        """
        stored: Cursor | None = None
        with self._lock, self._logged("the cursor could not be read"):
            self._restore()
            stored = None if self._timeline.is_empty() else self._stored_cursor()
        return max(filter(None, (stored, self._cursor)), default=None)

    def is_cache_empty(self) -> bool:
        """Returns whether there are no entries."""
        is_empty = True
        with self._lock, self._logged("entries could not be read"):
            self._restore()
            is_empty = self._timeline.is_empty()
        return is_empty  # noqa: RET504

    def get_job_start_time(self) -> datetime.datetime | None:
        """Returns when the job began first, in UTC; None where no entry says so."""
        self._catch_up()
        return None if self._first_start is None else in_utc(self._first_start)

    def get_job_end_time(self) -> datetime.datetime | None:
        """Returns when the job ended last, in UTC; None where no entry says so, or where it began again since."""
        self._catch_up()
        end, start = self._last_end, self._last_start
        return None if end is None or (start is not None and start > end) else in_utc(end)

    # --- Results, in this process's memory ----------------------------------------------------------------

    def update_goodput_info(self, goodput_info: GoodputInfo) -> None:
        """Keeps the last result of a query, in memory."""
        self._goodput_info = goodput_info

    def get_goodput_info(self) -> GoodputInfo | None:
        """Returns what `update_goodput_info` was given last."""
        return self._goodput_info

    def update_step_info(self, step_info: StepInfo) -> None:
        """Keeps the last step times and deviations, in memory."""
        self._step_info = step_info

    def get_step_info(self) -> StepInfo | None:
        """Returns what `update_step_info` was given last."""
        return self._step_info

    # --- All of it ----------------------------------------------------------------------------------------

    def clear_cache(self) -> None:
        """Forgets the results and deletes the files of this machine, for all processes; a copy elsewhere stays."""
        with self._lock:
            self._goodput_info, self._step_info, self._cursor, self._must_restore = None, None, None, False
            with self._logged("it could not be cleared"), self._writing():
                self._metadata_path.unlink(missing_ok=True)  # First: without it the entries are only read again.
                self._timeline.remove()

    def sync_to_gcs(self) -> None:
        """Makes the copy and the files equal: both have what one of them had. Without a `gcs_path` it does nothing.

        Waits up to about 20 s for a store that does not answer.
        """
        with self._lock, self._logged("the copy could not be brought up to date"):
            if self._copy is None:
                return
            for _ in range(_MOST_WRITES):
                self._merge_copy()
                with contextlib.suppress(PreconditionFailedError):  # Another machine was first: merge that, too.
                    self._copy.write(self._timeline.payloads(), self._stored_cursor())
                    return
            _log.warning("goodput cache of %s: the copy is written by others all the time", self.job_name)

    def _restore(self) -> None:
        """Adds what a copy has, at the first use of the cache."""
        if self._must_restore:
            self._must_restore = False  # Once: a store that fails is not waited for at every call.
            with self._logged("the copy could not be read"):
                self._merge_copy()

    def _merge_copy(self) -> None:
        assert self._copy is not None
        cursor, payloads = self._copy.read()
        self._must_restore = False
        with self._writing():
            self._timeline.add(payloads)
            self._move_cursor(cursor)

    # --- Under the lock -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._lock_path):
            yield

    def _move_cursor(self, cursor: Cursor | None) -> None:
        stored = self._stored_cursor()
        if cursor is None or (stored is not None and stored >= cursor):
            return
        new = self._metadata_path.with_name(f".{self._metadata_path.name}.new")  # One name, under the lock.
        new.unlink(missing_ok=True)
        with os.fdopen(open_no_link(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(_encode_cursor(cursor))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._metadata_path)
        self._cursor = cursor

    def _stored_cursor(self) -> Cursor | None:
        try:
            with os.fdopen(open_no_link(self._metadata_path, os.O_RDONLY), "rb") as file:
                return _decode_cursor(file.read())
        except FileNotFoundError:
            return None

    def _catch_up(self) -> None:
        with self._lock, self._logged("entries could not be read"):
            self._restore()
            self._timeline.read_new()

    def _notice(self, payload: Payload) -> None:
        start, end = _seconds(payload.get("job_start_time")), _seconds(payload.get("job_end_time"))
        if start is not None:
            self._first_start = start if self._first_start is None else min(self._first_start, start)
            self._last_start = start if self._last_start is None else max(self._last_start, start)
        if end is not None:
            self._last_end = end if self._last_end is None else max(self._last_end, end)

    def _begin_again(self) -> None:
        """Somebody deleted the entries: what was known of them is not so any more."""
        self._cursor = self._first_start = self._last_start = self._last_end = None

    @contextlib.contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        try:
            yield
        except (DiagnosticsError, OSError) as error:
            _log.warning("goodput cache of %s in %s: %s: %s", self.job_name, self._folder, what, error)


class _TimelineCopy:
    """The copy of a job's two files: objects of Cloud Storage, or files."""

    def __init__(self, folder: str, name: str) -> None:
        self._timeline_path = f"{folder}/goodput_cache/{name}_timeline.jsonl"
        self._metadata_path = f"{folder}/goodput_cache/{name}_metadata.json"
        self._timeline_generation = self._metadata_generation = 0
        self._known: set[bytes] = set()
        self._cursor: Cursor | None = None

    def read(self) -> tuple[Cursor | None, list[Payload]]:
        """Returns the cursor and the payloads, and remembers which generation they are."""
        # The cursor first: then the timeline is at least as new, and holds all that the cursor speaks for.
        metadata, self._metadata_generation = self._read(self._metadata_path)
        timeline, self._timeline_generation = self._read(self._timeline_path)
        payloads = [payload for payload in map(decode_line, timeline.split(b"\n")) if payload is not None]
        self._known, self._cursor = set(map(payload_digest, payloads)), _decode_cursor(metadata)
        return self._cursor, payloads

    def write(self, payloads: list[Payload], cursor: Cursor | None) -> None:
        """Replaces what was read by what knows more; raises PreconditionFailedError if it is not there any more."""
        if not self._known.issuperset(map(payload_digest, payloads)):
            timeline = "".join(json.dumps(payload) + "\n" for payload in payloads)
            self._store().write(self._timeline_path, timeline.encode(), if_generation=self._timeline_generation)
        if cursor is not None and (self._cursor is None or cursor > self._cursor):
            metadata = _encode_cursor(cursor).encode()
            self._store().write(self._metadata_path, metadata, if_generation=self._metadata_generation)

    def _store(self) -> Storage:
        return storage_for(self._timeline_path, deadline_seconds=_STORE_DEADLINE_SECONDS)

    def _read(self, path: str) -> tuple[bytes, int]:
        try:
            return self._store().read_with_generation(path)
        except ObjectNotFoundError:
            return b"", 0


def _file_name(job_name: str) -> str:
    """Returns the job's name as files have it: as it is, unless it has characters that a file's name should not."""
    encoded = quote(printable(job_name), safe=" +=@,:")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= _LONGEST_NAME:
        return encoded
    # "%-" occurs in no percent-encoded name, so a hashed name is never another job's plain one.
    return f"{encoded[:100]}%-{hashlib.sha256(encoded.encode()).hexdigest()[:32]}"


def _checked_folder(gcs_path: object) -> str:
    if not isinstance(gcs_path, (str, os.PathLike)):
        raise ConfigurationError(f"gcs_path is {shown(gcs_path)}; give gs://bucket/folder, a local folder, or None")
    folder = str(gcs_path).rstrip("/")
    storage_for(folder)
    return folder


def _cursor(last_entry_info: Any) -> Cursor | None:
    timestamp, identity = last_entry_info or (None, None)
    if timestamp is None:
        return None
    if not isinstance(timestamp, datetime.datetime):
        raise ConfigurationError(f"last_entry_info is {shown(last_entry_info)}; give (datetime, id)")
    return in_utc(timestamp), "" if identity is None else str(identity)


def _encode_cursor(cursor: Cursor) -> str:
    return json.dumps({"last_entry_timestamp": cursor[0].isoformat(), "last_entry_id": cursor[1]})


def _decode_cursor(data: bytes) -> Cursor | None:
    try:
        metadata = json.loads(data)
        timestamp = datetime.datetime.fromisoformat(metadata["last_entry_timestamp"].replace("Z", "+00:00"))
        return _cursor((timestamp, metadata.get("last_entry_id")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # Then all is read again, and nothing is added twice.


def _seconds(value: Any) -> float | None:
    """Returns what is a moment that a datetime can be, None for anything else."""
    try:
        in_utc(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return float(value)
