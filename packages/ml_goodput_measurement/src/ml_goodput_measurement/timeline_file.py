"""A file of payloads, one in a line, that several processes add to: each payload once, whatever ends in the middle.

Format: `json.dumps(payload)` and a newline. Only whole lines count. What is left of a line whose writer was killed is
cut off, under the lock and with a warning, before the next one is added.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_diagnostics_common.file_lock import open_lock_file, wait_for_lock
from ml_diagnostics_common.guard import job_logger, warn_once
from ml_diagnostics_common.payload import encode_payload

__all__ = ["TimelineFile", "decode_line", "locked", "open_no_link", "payload_digest"]

_log = job_logger("ml_diagnostics.goodput")

Payload = dict[str, Any]

_CHUNK_BYTES = 1 << 20
_WITNESS_BYTES = 256
_LOCK_PATIENCE_SECONDS = 10.0


class TimelineFile:
    """The file of one job, as one process knows it: how far it was read, and which payloads are in it."""

    def __init__(self, path: Path, on_payload: Callable[[Payload], None], on_restart: Callable[[], None]) -> None:
        """Opens nothing yet.

        Args:
            path: The file; it need not exist.
            on_payload: Given each payload of the file once.
            on_restart: Called when the file is not the one that was read before, but another or a shorter one.
        """
        self.path = path
        self._on_payload, self._on_restart = on_payload, on_restart
        self._begin()

    def _begin(self) -> None:
        self._offset, self._witness = 0, b""
        self._known: set[bytes] = set()

    def read_new(self) -> None:
        """Reads the lines that were added since, by whatever process."""
        with contextlib.suppress(FileNotFoundError), self._opened(os.O_RDONLY) as descriptor:
            self._read_new(descriptor)
            return
        self._restart()

    def payloads(self) -> list[Payload]:
        """Returns every payload of the file, in its order; a line that is none is passed over, with one warning."""
        found: list[Payload] = []
        damaged = 0
        with contextlib.suppress(FileNotFoundError), self._opened(os.O_RDONLY) as descriptor:
            for line in _lines(descriptor, 0):
                payload = decode_line(line)
                if payload is not None:
                    found.append(payload)
                else:
                    damaged += bool(line.strip())
        if damaged:
            warn_once(("damaged", str(self.path)), "%d lines of %s are damaged and passed over", damaged, self.path)
        return found

    def is_empty(self) -> bool:
        """Whether there is no payload in it."""
        self.read_new()
        return not self._known

    def add(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Adds the payloads that are not in it; the caller holds the lock. On return the disk itself has them.

        Raises:
            OSError: They could not be written; then none of them is in the file.
        """
        with self._opened(os.O_RDWR | os.O_CREAT | os.O_APPEND) as descriptor:
            self._mend(descriptor)
            self._read_new(descriptor)
            size = os.fstat(descriptor).st_size
            if size != self._offset:
                raise OSError(errno.EAGAIN, "a program that does not know of the lock writes into the file")
            new: dict[bytes, str] = {}
            for payload in payloads:
                plain = json.loads(encode_payload(payload))
                digest = payload_digest(plain)
                if digest not in self._known:
                    new.setdefault(digest, json.dumps(plain))
            if not new:
                return
            try:
                _write("".join(text + "\n" for text in new.values()).encode(), descriptor)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            self._read_new(descriptor)

    def remove(self) -> None:
        """Deletes the file; the caller holds the lock."""
        self.path.unlink(missing_ok=True)
        self._restart()

    def _restart(self) -> None:
        if self._offset:
            self._begin()
            self._on_restart()

    def _read_new(self, descriptor: int) -> None:
        # An inode number may be used again, so it is the last thing read that says whether the file is the same.
        begin = self._offset - len(self._witness)
        if self._witness != os.pread(descriptor, len(self._witness), begin):
            self._restart()
        for line in _lines(descriptor, self._offset):
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            self._witness = (self._witness + line)[-_WITNESS_BYTES:]
            payload = decode_line(line)
            if payload is None:
                continue
            digest = payload_digest(payload)
            if digest not in self._known:
                self._known.add(digest)
                self._on_payload(payload)

    def _mend(self, descriptor: int) -> None:
        """Ends the last line: by a newline if it is whole, else where it began."""
        size = os.fstat(descriptor).st_size
        if not size or os.pread(descriptor, 1, size - 1) == b"\n":
            return
        tail, begin = b"", size
        while begin and b"\n" not in tail:
            begin = max(0, begin - _CHUNK_BYTES)
            tail = os.pread(descriptor, size - begin, begin)
        rest = tail.rpartition(b"\n")[2]
        if decode_line(rest) is not None:
            _write(b"\n", descriptor)
            return
        _log.warning("%s ended in the middle of a line: its last %d bytes were cut off", self.path, len(rest))
        os.ftruncate(descriptor, size - len(rest))

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        descriptor = open_no_link(self.path, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def open_no_link(path: Path, flags: int) -> int:
    """Opens a file for this user, and no link: somebody else may have put it there. Raises OSError."""
    # Without O_NONBLOCK, to open a named pipe would wait for its other end.
    names = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
    return os.open(path, flags | sum(getattr(os, name, 0) for name in names), 0o600)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process at a time do what it does with the files beside `path`, which is made for that.

    Raises:
        OSError: Another process holds the lock for ten seconds and more.
    """
    descriptor = open_lock_file(path)
    try:
        try:
            wait_for_lock(descriptor, _LOCK_PATIENCE_SECONDS)
        except OSError as error:
            if error.errno != errno.ENOLCK:  # No locks here, as on Windows: then it goes without.
                raise OSError(error.errno, error.strerror, str(path)) from None
        yield
    finally:
        os.close(descriptor)


def _lines(descriptor: int, offset: int) -> Iterator[bytes]:
    """Yields the lines from an offset on with their newlines; the last may have none."""
    rest: list[bytes] = []
    while chunk := os.pread(descriptor, _CHUNK_BYTES, offset):
        offset += len(chunk)
        *whole, last = chunk.split(b"\n")  # Not splitlines: that splits at other characters, too.
        for line in whole:
            yield b"".join([*rest, line, b"\n"])
            rest = []
        rest.append(last)
    if any(rest):
        yield b"".join(rest)


def _write(data: bytes, descriptor: int) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def decode_line(line: bytes) -> Payload | None:
    """Returns the payload in a line, None where it is none."""
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def payload_digest(payload: Payload) -> bytes:
    """Returns what is the same for payloads with the same keys and values: in any order, 3 as good as 3.0."""
    plain = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in payload.items()
    }
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).digest()
