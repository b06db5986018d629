"""The calculator's saved state: so that another process need not read a job's history again.

A file holds a JSON head and, behind it, the columns as raw 64-bit numbers. It is private, versioned, and written
whole; a state that knows less never replaces one that knows more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_goodput_measurement._version import __version__
from ml_goodput_measurement.ledger import Ledger
from ml_goodput_measurement.recorders import Recorders

__all__ = ["SavedState", "load_state", "save_state"]

_log = logging.getLogger("ml_diagnostics.goodput")

# Of this version alone: the sums that it holds were made by its rules.
_MAGIC = f"goodput state of {__version__} {sys.byteorder}\n".encode()


@dataclass
class SavedState:
    """What a file holds."""

    recorders: Recorders
    position: dict[str, Any]
    """How far the log was read."""


def save_state(path: Path, recorders: Recorders, position: dict[str, Any]) -> bool:
    """Writes the state to a file; returns False, and says so once a try, when that cannot be done or is not needed."""
    ledgers = {str(index): ledger.to_state() for index, ledger in recorders.ledgers.items()}
    head = {
        "job": recorders.job_name,
        "facts": sum(len(ledger.facts) for ledger in recorders.ledgers.values()),
        "position": position,
        "skipped": recorders.skipped,
        "lost": recorders.lost,
        "ledgers": {index: state for index, (state, _) in ledgers.items()},
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path) as is_free:
            if not is_free:
                return False
            known = _read_head(path)
            if known is not None and known.get("job") == recorders.job_name and _knows_more(known, head):
                return False
            _write(path, json.dumps(head).encode(), [column for _, columns in ledgers.values() for column in columns])
    except OSError as error:
        _log.warning("The state of goodput queries could not be saved in %s: %s", path, error)
        return False
    return True


def load_state(path: Path, job_name: str) -> SavedState | None:
    """Returns what a file holds; None when there is none, or one that another version or a crash left behind."""
    try:
        with path.open("rb") as file:
            head = _parse_head(file.readline(len(_MAGIC)), file.read(8), file)
            if head is None or head["job"] != job_name:
                return None
            recorders = Recorders(job_name)
            recorders.skipped, recorders.lost = Counter(head["skipped"]), dict(head["lost"])
            recorders.ledgers = {
                int(index): Ledger.from_state(state, _columns(file, state["columns"]))
                for index, state in head["ledgers"].items()
            }
            return SavedState(recorders, head["position"])
    except FileNotFoundError:
        return None
    except Exception as error:  # A file may hold anything.
        _log.warning("The saved state %s cannot be used and is made anew: %s", path, error)
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Yields whether the lock was free: a process that saves now, or hangs there, is not waited for."""
    try:
        import fcntl
    except ImportError:  # Not on Windows: there the last save wins.
        yield True
        return
    descriptor = os.open(
        path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _write(path: Path, head: bytes, columns: list[array[Any]]) -> None:
    new = path.with_name(f".{path.name}.new")  # One name, under the lock: what a killed process left is used again.
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + len(head).to_bytes(8, "little") + head)
            for column in columns:
                column.tofile(file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _read_head(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            return _parse_head(file.readline(len(_MAGIC)), file.read(8), file)
    except (OSError, EOFError, ValueError, RecursionError):
        return None


def _parse_head(magic: bytes, length: bytes, file: Any) -> dict[str, Any] | None:
    if magic != _MAGIC:
        return None
    head = json.loads(file.read(_within(file, int.from_bytes(length, "little"))))
    return head if isinstance(head, dict) else None


def _knows_more(known: dict[str, Any], head: dict[str, Any]) -> bool:
    return isinstance(known.get("facts"), int) and known["facts"] > head["facts"]


def _within(file: Any, length: int) -> int:
    """Returns a number of bytes that a file may hold, so that a damaged one takes no memory."""
    if not 0 <= length <= os.fstat(file.fileno()).st_size:
        raise EOFError(f"it has no {length} bytes")
    return length


def _columns(file: Any, kinds: list[tuple[str, int]]) -> list[array[Any]]:
    columns = []
    for kind, length in kinds:
        column = array(kind, (0,)) * (_within(file, 8 * length) // 8)
        if file.readinto(column) != 8 * length:
            raise EOFError(f"it ends in a column of {length} values")
        columns.append(column)
    return columns
