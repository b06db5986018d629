"""GoodputCache: the entries of a job in a file, for programs that read them themselves.

`GoodputCalculator` does not use it: it saves what it computed from the entries, not the entries.

    {cache_dir}/{job}_timeline.jsonl       one payload per line
    {cache_dir}/{job}_metadata.json        {"last_entry_timestamp": ISO 8601, "last_entry_id": text}
    {gcs_path}/goodput_cache/...           copies of both, written by `sync_to_gcs`

Entries are only appended, and deduplicated when they are read, so processes that share the files need no lock.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.files import make_private_folder, open_regular, read_at, read_state, write_state
from ml_diagnostics_common.guard import job_logger, warn_once
from ml_diagnostics_common.payload import encode_payload, printable
from ml_diagnostics_common.storage import storage_for

from ml_goodput_measurement._query.state_store import DEFAULT_CACHE_DIR, checked_gcs_path, state_folder
from ml_goodput_measurement._record.arguments import RebuiltFromArguments, checked_name, in_utc, shown
from ml_goodput_measurement.metric_details import GoodputInfo, StepInfo

__all__ = ["GoodputCache", "GoodputInfo", "StepInfo"]

_log = job_logger("ml_diagnostics.goodput")

Payload = dict[str, Any]
Cursor = tuple[datetime.datetime, str]

_MAX_NAME_CHARACTERS = 200
_STORAGE_TIMEOUT_SECONDS = 20.0


class GoodputCache(RebuiltFromArguments):
    """Keep the entries of one job that were read so far, and the last results.

    No method raises when a disk or a bucket fails: the failure is logged, and the cursor stays where it was, so that
    the entries are read again.
    """

    def __init__(self, job_name: str, cache_dir: str = DEFAULT_CACHE_DIR, gcs_path: str | None = None) -> None:
        """Access neither disk nor network yet.

        Args:
            job_name: The job. Characters that do not belong in a file name are percent-encoded.
            cache_dir: Folder of the files; the default means `state/goodput` in ML_DIAGNOSTICS_DIR.
            gcs_path: `gs://bucket/folder`, or a local folder, for a copy that other machines continue from; None for
                no copy. The copy's entries are added to the files at first use, and never replace them.

        Raises:
            ConfigurationError: The job's name is empty, or `gcs_path` cannot be a folder.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self.job_name = checked_name("job_name", job_name)
        self._folder = state_folder(diagnostics_directory(), cache_dir)
        name = _file_name(self.job_name)
        self._timeline = self._folder / f"{name}_timeline.jsonl"
        self._metadata = self._folder / f"{name}_metadata.json"
        copy = checked_gcs_path(gcs_path)
        self._copy = None if copy is None else f"{copy.rstrip('/')}/goodput_cache/"
        self._must_restore = self._copy is not None
        self._goodput_info: GoodputInfo | None = None
        self._step_info: StepInfo | None = None
        self._remember(GoodputCache, arguments, names_before)

    # --- Entries ------------------------------------------------------------------------------------------

    def update_cached_entries(self, entries: Iterable[Mapping[str, Any]], last_entry_info: Any) -> None:
        """Append entries, then move the cursor.

        Args:
            entries: Payloads. Entries with equal keys and values count once.
            last_entry_info: (timestamp, id) of the last of them, as `update_last_entry_info` takes it.
        """
        cursor = _cursor(last_entry_info)
        with self._log_failures("cannot save entries"):
            self._append(entries)
            self._move_cursor(cursor)

    def update_last_entry_info(self, last_entry_info: Any) -> None:
        """Move the cursor forward; a pair that is not later than the current one changes nothing.

        Args:
            last_entry_info: (timestamp, id) of the last entry that was read: a datetime (naive: local time), and
                any value, which is kept as text. None, or a timestamp of None, moves nothing.
        """
        cursor = _cursor(last_entry_info)
        with self._log_failures("cannot save the cursor"):
            self._move_cursor(cursor)

    def get_cached_entries(self) -> list[Payload]:
        """Return all entries in the order in which they were added; damaged lines are skipped with one warning."""
        self._restore()
        data = b""
        with self._log_failures("cannot read entries"):
            try:
                with os.fdopen(open_regular(self._timeline, follow_links=False), "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                pass
        return _decode_lines(data, str(self._timeline))

    def get_step_entries(self) -> list[Payload]:
        """Return the entries of step starts."""
        return [entry for entry in self.get_cached_entries() if "step_start_time" in entry]

    def get_last_entry_info(self) -> Cursor | None:
        """Return the cursor: (timestamp in UTC, id) of the last entry that was read and saved; None without entries."""
        return None if self.is_cache_empty() else self._stored_cursor()

    def is_cache_empty(self) -> bool:
        """Return True if there are no entries."""
        return not self.get_cached_entries()

    def get_job_start_time(self) -> datetime.datetime | None:
        """Return the job's first start, in UTC; None if no entry has it."""
        return min(_times(self.get_cached_entries(), "job_start_time"), default=None)

    def get_job_end_time(self) -> datetime.datetime | None:
        """Return the job's last end, in UTC; None if no entry has it, or if the job started again since."""
        entries = self.get_cached_entries()
        end = max(_times(entries, "job_end_time"), default=None)
        start = max(_times(entries, "job_start_time"), default=None)
        return None if end is None or (start is not None and start > end) else end

    # --- Results, in this process's memory ----------------------------------------------------------------

    def update_goodput_info(self, goodput_info: GoodputInfo) -> None:
        """Keep the last result of a query, in memory."""
        self._goodput_info = goodput_info

    def get_goodput_info(self) -> GoodputInfo | None:
        """Return the last argument of `update_goodput_info`."""
        return self._goodput_info

    def update_step_info(self, step_info: StepInfo) -> None:
        """Keep the last step times and deviations, in memory."""
        self._step_info = step_info

    def get_step_info(self) -> StepInfo | None:
        """Return the last argument of `update_step_info`."""
        return self._step_info

    # --- Files and their copy -----------------------------------------------------------------------------

    def clear_cache(self) -> None:
        """Forget the results and delete the files of this machine, for all processes; a copy elsewhere stays."""
        self._goodput_info, self._step_info, self._must_restore = None, None, False
        with self._log_failures("cannot delete the files"):
            self._metadata.unlink(missing_ok=True)  # First: without the cursor, entries are only read again.
            self._timeline.unlink(missing_ok=True)

    def sync_to_gcs(self) -> None:
        """Add the copy's entries to the files, then replace the copy by the files. No-op without a `gcs_path`.

        Waits up to about 20 s for storage that does not answer.
        """
        if self._copy is None:
            return
        with self._log_failures("cannot update the copy"):
            self._merge_copy()
            lines = "".join(json.dumps(entry) + "\n" for entry in self.get_cached_entries())
            self._write_copy(self._timeline.name, lines)
            cursor = self._stored_cursor()
            if cursor is not None:
                self._write_copy(self._metadata.name, json.dumps(_cursor_state(cursor)))

    def _restore(self) -> None:
        if self._must_restore:
            self._must_restore = False  # Once: do not wait at each call for storage that fails.
            with self._log_failures("cannot read the copy"):
                self._merge_copy()

    def _merge_copy(self) -> None:
        self._must_restore = False
        # Read the cursor first: the timeline is then at least as new, and contains all entries up to the cursor.
        try:
            metadata = json.loads(self._read_copy(self._metadata.name) or b"null")
        except (ValueError, RecursionError):
            metadata = None
        copied = _decode_lines(self._read_copy(self._timeline.name), f"{self._copy}{self._timeline.name}")
        known = set(map(_identity, self.get_cached_entries()))
        self._append(entry for entry in copied if _identity(entry) not in known)
        self._move_cursor(_saved_cursor(metadata))

    def _read_copy(self, name: str) -> bytes:
        path = f"{self._copy}{name}"
        try:
            return storage_for(path, deadline_seconds=_STORAGE_TIMEOUT_SECONDS).read(path)
        except ObjectNotFoundError:
            return b""

    def _write_copy(self, name: str, text: str) -> None:
        path = f"{self._copy}{name}"
        storage_for(path, deadline_seconds=_STORAGE_TIMEOUT_SECONDS).write(path, text.encode())

    def _append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(json.loads(encode_payload(entry))) + "\n" for entry in entries).encode()
        if not lines:
            return
        make_private_folder(self._folder)
        # O_NONBLOCK: opening a named pipe would otherwise wait for its reader.
        names = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | sum(getattr(os, name, 0) for name in names)
        with os.fdopen(os.open(self._timeline, flags, 0o600), "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and read_at(file.fileno(), 1, size - 1) != b"\n":
                lines = b"\n" + lines  # The previous writer was killed in the middle of a line.
            if file.write(lines) != len(lines):
                raise OSError(f"only a part of the entries fits into {self._timeline}")
            os.fsync(file.fileno())

    def _move_cursor(self, cursor: Cursor | None) -> None:
        stored = self._stored_cursor()
        if cursor is not None and (stored is None or stored < cursor):
            write_state(self._metadata, _cursor_state(cursor))

    def _stored_cursor(self) -> Cursor | None:
        return _saved_cursor(read_state(self._metadata))

    @contextlib.contextmanager
    def _log_failures(self, failure: str) -> Iterator[None]:
        try:
            yield
        except (DiagnosticsError, OSError) as error:
            _log.warning("goodput cache of %s in %s: %s: %s", self.job_name, self._folder, failure, error)


def _file_name(job_name: str) -> str:
    """Return the job's name, with characters that do not belong in a file name percent-encoded."""
    encoded = quote(printable(job_name), safe=" +=@,:")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= _MAX_NAME_CHARACTERS:
        return encoded
    # No percent-encoded name contains "%-", so a hashed name never equals another job's plain name.
    return f"{encoded[:100]}%-{hashlib.sha256(encoded.encode()).hexdigest()[:32]}"


def _decode_lines(data: bytes, path: str) -> list[Payload]:
    """Return the payload of each line, each once."""
    found: dict[str, Payload] = {}
    damaged = 0
    for line in data.split(b"\n"):  # Not splitlines: it splits at other characters, too.
        try:
            payload = json.loads(line)
        except (ValueError, RecursionError):
            payload = None
        if isinstance(payload, dict):
            found.setdefault(_identity(payload), payload)
        else:
            damaged += bool(line.strip())
    if damaged:
        warn_once(("damaged", path), "%d lines of %s are damaged; they are skipped", damaged, path)
    return list(found.values())


def _identity(payload: Payload) -> str:
    """Return a text that equal payloads share: in any order of keys, and with 3 equal to 3.0."""
    return json.dumps(
        {
            key: int(value) if isinstance(value, float) and value.is_integer() else value
            for key, value in payload.items()
        },
        sort_keys=True,
    )


def _cursor(last_entry_info: Any) -> Cursor | None:
    timestamp, entry_id = last_entry_info or (None, None)
    if timestamp is None:
        return None
    if not isinstance(timestamp, datetime.datetime):
        raise ConfigurationError(f"expected last_entry_info to be (datetime, id), got {shown(last_entry_info)}")
    return in_utc(timestamp), "" if entry_id is None else str(entry_id)


def _cursor_state(cursor: Cursor) -> dict[str, str]:
    return {"last_entry_timestamp": cursor[0].isoformat(), "last_entry_id": cursor[1]}


def _saved_cursor(metadata: Any) -> Cursor | None:
    try:
        timestamp = datetime.datetime.fromisoformat(metadata["last_entry_timestamp"].replace("Z", "+00:00"))
        return _cursor((timestamp, metadata.get("last_entry_id")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # All entries are then read again, and none is counted twice.


def _times(entries: Iterable[Payload], key: str) -> Iterator[datetime.datetime]:
    """Yield the values of a key that are valid times."""
    for entry in entries:
        with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
            if key in entry:
                yield in_utc(entry[key])
