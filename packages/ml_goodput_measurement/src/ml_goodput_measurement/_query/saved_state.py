"""The calculator's saved state, with which another process does not have to read a job's history again.

    goodput state of 1.1.0 little                            for this version only: the sums follow its rules
    {"job": ..., "facts": 123, "head_bytes": 456} 1a2b3c4d   enough to compare two states; its CRC-32
    a head in JSON, the columns as raw 64-bit numbers, and a CRC-32 of everything before it

A file is private and written whole. Of two states of one job, the one with more facts is newer, and never replaced by
the other. `state_store` keeps a copy for other machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ml_diagnostics_common.files import open_lock_file, try_lock
from ml_diagnostics_common.guard import job_logger

from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._version import __version__

__all__ = [
    "FRONT_BYTES",
    "SavedState",
    "UnusableStateError",
    "decode_state",
    "encode_state",
    "facts_in_front",
    "load_state",
    "save_state",
    "saved_facts",
]

_log = job_logger("ml_diagnostics.goodput")

_KIND = b"goodput state of "
_MAGIC = _KIND + f"{__version__} {sys.byteorder}\n".encode()

FRONT_BYTES = 512
"""The first bytes of a state, which `facts_in_front` needs."""

_CHECKSUM_BYTES = 4
_BLOCK_BYTES = 2**18


class UnusableStateError(Exception):
    """The data is not a state of this job that this version can use; the message has the reason."""


@dataclass
class SavedState:
    """The contents of a file."""

    recorders: Recorders
    position: dict[str, Any]
    """The position up to which the log was read."""


def encode_state(recorders: Recorders, position: dict[str, Any]) -> list[bytes | array[Any]]:
    """Return the consecutive parts of a state; columns are not copied, so write it before they change."""
    state, columns = recorders.to_state()
    head = json.dumps({"position": position, **state}).encode()
    parts = [_front(recorders.job_name, recorders.fact_count, len(head)), head, *columns]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [*parts, checksum.to_bytes(_CHECKSUM_BYTES, "little")]


def decode_state(file: BinaryIO, size: int, job_name: str) -> SavedState:
    """Return the state in a file of this size in bytes.

    Raises:
        OSError: The file cannot be read.
        UnusableStateError: It has no state, a damaged one, or one of another version or job.
    """
    front = _parse_front(file.read(FRONT_BYTES), job_name)
    file.seek(0)
    reader = _CheckedReader(file, size - _CHECKSUM_BYTES)
    reader.read(front.length)
    try:
        head = json.loads(reader.read(front.head_bytes))
        columns = [reader.read_column(*shape) for shape in Recorders.column_shapes(head)]
        reader.check(file.read(_CHECKSUM_BYTES + 1))
        recorders = Recorders.from_state(job_name, head, columns)
        return SavedState(recorders, dict(head["position"]))
    except (OSError, UnusableStateError):
        raise
    except Exception as error:  # It may hold anything.
        raise UnusableStateError(f"it is damaged ({type(error).__name__}: {error})") from error


def facts_in_front(front: bytes, job_name: str) -> int:
    """Return the number of facts in a state of a job, by its first `FRONT_BYTES`.

    Raises:
        UnusableStateError: It is not a state of this version and job.
    """
    return _parse_front(front, job_name).facts


def save_state(path: Path, recorders: Recorders, position: dict[str, Any]) -> bool:
    """Write the state to a file; return False, with one warning, if that fails or is not needed."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path) as is_free:
            if not is_free or saved_facts(path, recorders.job_name) > recorders.fact_count:
                return False
            _write(path, encode_state(recorders, position))
    except OSError as error:
        _log.warning("The state of goodput queries could not be saved in %s: %s", path, error)
        return False
    return True


def load_state(path: Path, job_name: str) -> SavedState | None:
    """Return the state in a file; None if there is no file, or one of another version or a crashed process."""
    try:
        with _opened(path) as file:
            return decode_state(file, os.fstat(file.fileno()).st_size, job_name)
    except FileNotFoundError:
        return None
    except (OSError, UnusableStateError) as error:
        _log.warning("The saved state %s cannot be used and is replaced: %s", path, error)
        return None


def saved_facts(path: Path, job_name: str) -> int:
    """Return the number of facts about a job in a file, -1 if it cannot be used; read only its first bytes."""
    try:
        with _opened(path) as file:
            return facts_in_front(file.read(FRONT_BYTES), job_name)
    except (OSError, UnusableStateError):
        return -1


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Yield True if the lock was free; do not wait for a process that saves now, or hangs in it."""
    descriptor = open_lock_file(path.with_name(f".{path.name}.lock"))
    try:
        try:
            is_free = try_lock(descriptor)
        except OSError:  # No locks on this system, such as Windows: the last save wins.
            is_free = True
        yield is_free
    finally:
        os.close(descriptor)


def _write(path: Path, parts: list[bytes | array[Any]]) -> None:
    new = path.with_name(
        f".{path.name}.new"
    )  # One name, under the lock: a file that a killed process left is replaced.
    try:
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
            for part in parts:
                file.write(part)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnusableStateError("it is not a regular file")
        yield file


class _Front(NamedTuple):
    length: int
    facts: int
    head_bytes: int


def _front(job_name: str, facts: int, head_bytes: int) -> bytes:
    line = json.dumps({"job": _digest(job_name), "facts": facts, "head_bytes": head_bytes}).encode()
    return _MAGIC + line + b" %08x\n" % zlib.crc32(line)


def _parse_front(data: bytes, job_name: str) -> _Front:
    if not data.startswith(_MAGIC):
        writer = "another version of this library" if data.startswith(_KIND) else "something else"
        raise UnusableStateError(f"{writer} wrote it")
    end = data.find(b"\n", len(_MAGIC)) + 1
    line, _, checksum = data[len(_MAGIC) : end].rpartition(b" ")
    if checksum != b"%08x\n" % zlib.crc32(line):
        raise UnusableStateError("it is damaged: its second line")
    front = json.loads(line)
    if front["job"] != _digest(job_name):
        raise UnusableStateError("it is of another job")
    return _Front(end, front["facts"], front["head_bytes"])


def _digest(job_name: str) -> str:
    """Return a short hash of a name."""
    return hashlib.sha256(job_name.encode(errors="surrogatepass")).hexdigest()[:16]


class _CheckedReader:
    """Read no more than the file's size, so that a damaged length takes no memory, and compute the checksum."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left, self._checksum = file, size, 0
        self._block = memoryview(bytearray(_BLOCK_BYTES))

    def read(self, length: int) -> bytes:
        self._take(length)
        data = self._file.read(length)
        self._sum_up(data, length)
        return data

    def read_column(self, kind: str, count: int) -> array[Any]:
        self._take(8 * count)
        column = array(kind)
        # In blocks that stay in the processor's cache, so that memory is read once for checksum and copy.
        for offset in range(0, 8 * count, _BLOCK_BYTES):
            block = self._block[: 8 * count - offset]
            found = self._file.readinto(block)  # type: ignore[attr-defined]  # All real ones have it.
            self._sum_up(block[:found], len(block))
            column.frombytes(block)
        return column

    def check(self, ending: bytes) -> None:
        if ending != self._checksum.to_bytes(_CHECKSUM_BYTES, "little"):
            raise UnusableStateError("it is damaged: its checksum is another")

    def _take(self, length: int) -> None:
        if not 0 <= length <= self._left:
            raise UnusableStateError("it is damaged: it ends too early")
        self._left -= length

    def _sum_up(self, data: bytes | memoryview, length: int) -> None:
        if len(data) != length:
            raise UnusableStateError("it is damaged: it ends too early")
        self._checksum = zlib.crc32(data, self._checksum)
