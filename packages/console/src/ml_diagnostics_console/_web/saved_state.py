"""The state of the store in a file, so that after a restart only what is new in the journal is read.

It is `"MLDUI"` and the number of the format, the length of the header (u64, little-endian), the header as JSON, the
arrays of all columns one after the other, and a CRC of all that. What is damaged, of another version or another folder,
or does not fit the journal, is thrown away: the journal is read from its start.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
from google_cloud_mldiagnostics.reading import LOG_ID, RunHistory
from ml_diagnostics_common.files import make_private_folder
from ml_diagnostics_common.journal import list_segments, log_directory

from ml_diagnostics_console._version import __version__
from ml_diagnostics_console._web.columns import Column
from ml_diagnostics_console._web.run_data import RunData

__all__ = ["SavedState"]

_MAGIC: Final = b"MLDUI1\0\0"
_LENGTH: Final = struct.Struct("<Q")
_CHECK: Final = struct.Struct("<I")
_STEP_TYPES: Final = ("<i4", "<f8")
_MOST_BYTES: Final = 2**30
_UNFINISHED_SECONDS: Final = 3600.0
_LONGEST_HEADER_BYTES: Final = 2**30
_SAVED_AT: Final = 300_000
"""To read fewer entries again takes less than a second."""
_SAVE_SECONDS: Final = 900.0
_DOUBTS: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error)


class SavedState:
    """The file of a store's state, which is replaced when much was read since.

    Args:
        path: The file.
        root: The diagnostics folder that is read.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._root = path, root
        self._count, self._rests_until = 0, 0.0

    def load(self, run_of: Callable[[str], RunData]) -> dict[str, Any] | None:
        """Restore the runs of the state, and return the position that it ends at; None if there is none that holds.

        Args:
            run_of: Returns the data of a run by its id, a new one if there is none.
        """
        return _load(self._path, self._root, run_of)

    def is_due(self, count: int) -> bool:
        """Return True if it is time to save.

        Args:
            count: The number of entries that were read.
        """
        if count - self._count < _SAVED_AT or time.monotonic() < self._rests_until:
            return False
        self._count, self._rests_until = count, time.monotonic() + _SAVE_SECONDS
        return True

    def save(self, position: Mapping[str, Any], runs: Iterable[RunData]) -> bool:
        """Replace the file; return False if the state cannot be saved.

        Args:
            position: The position behind what was read of the folder.
            runs: All runs that have entries.
        """
        return _save(self._path, self._root, position, runs)


def _save(path: Path, root: Path, position: Mapping[str, Any], runs: Iterable[RunData]) -> bool:
    columns: list[Column] = []
    described = []
    for run in runs:
        own = list(run.columns)
        columns += own
        described.append({"id": run.id, "history": run.history.to_json(), "columns": [_describe(one) for one in own]})
    if sum(array.nbytes for column in columns for array in column.arrays) > _MOST_BYTES:
        return False
    header = {"version": __version__, "root": str(root), "position": position, "runs": described}
    new = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.new")
    try:
        text = msgspec.json.encode(header)
        make_private_folder(path.parent)
        _remove_unfinished(path)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            check = _write(file, text, columns)
            file.write(_CHECK.pack(check))
        new.replace(path)
    except _DOUBTS:  # A full disk, or a name that is not valid Unicode.
        with contextlib.suppress(OSError):
            new.unlink()
        return False
    return True


def _remove_unfinished(path: Path) -> None:
    """Remove what processes left that were killed while they saved."""
    for unfinished in path.parent.glob(f".{path.name}.*.new"):
        with contextlib.suppress(OSError):
            if time.time() - unfinished.stat().st_mtime > _UNFINISHED_SECONDS:
                unfinished.unlink()


def _describe(column: Column) -> list[Any]:
    steps = column.arrays[0]
    names = [column.metric, column.process, column.host, column.unit]
    return [*names, column.sorted_rows, len(steps), steps.dtype.newbyteorder("<").str]


def _write(file: BinaryIO, text: bytes, columns: Iterable[Column]) -> int:
    check = 0
    for part in (_MAGIC, _LENGTH.pack(len(text)), text):
        file.write(part)
        check = zlib.crc32(part, check)
    for column in columns:
        for array in column.arrays:
            data = np.ascontiguousarray(array).data.cast("B") if len(array) else b""
            file.write(data)
            check = zlib.crc32(data, check)
    return check


def _load(path: Path, root: Path, run_of: Callable[[str], RunData]) -> dict[str, Any] | None:
    if sys.byteorder != "little":
        return None
    try:
        with path.open("rb") as file:
            header, arrays = _read(file)
        position: dict[str, Any] = header["position"]
        if header["version"] != __version__ or header["root"] != str(root) or not _fits(root, position):
            raise ValueError("the state is of another version, or another journal")
        restored = [
            (
                run["id"],
                run["history"],
                [Column.restored(tuple(described[:4]), next(arrays), described[4]) for described in run["columns"]],
            )
            for run in header["runs"]
        ]
        for _, history, _ in restored:
            RunHistory.from_json(history)  # Raises, before anything is taken.
    except FileNotFoundError:
        return None
    except _DOUBTS:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    for run_id, history, columns in restored:
        run = run_of(run_id)
        run.restore(history)
        for column in columns:
            run.columns.put(column)
    return position


def _read(file: BinaryIO) -> tuple[dict[str, Any], Any]:
    start = file.read(len(_MAGIC) + _LENGTH.size)
    if start[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not a saved state of this format")
    (length,) = _LENGTH.unpack_from(start, len(_MAGIC))
    if length > _LONGEST_HEADER_BYTES:
        raise ValueError("the header is too long")
    text = file.read(length)
    check = zlib.crc32(text, zlib.crc32(start))
    header: dict[str, Any] = msgspec.json.decode(text)
    arrays = []
    for run in header["runs"]:
        for *_, rows, step_type in run["columns"]:
            if step_type not in _STEP_TYPES:
                raise ValueError("steps of another type")
            column = []
            for kind in (step_type, "<f8", "<f8"):
                array = np.fromfile(file, np.dtype(kind), rows)
                if len(array) != rows:
                    raise ValueError("the file ends too early")
                if rows:
                    check = zlib.crc32(array.data.cast("B"), check)
                column.append(array)
            arrays.append(tuple(column))
    if _CHECK.unpack(file.read(_CHECK.size))[0] != check:
        raise ValueError("the file is damaged")
    return header, iter(arrays)


def _fits(root: Path, position: Mapping[str, Any]) -> bool:
    """Return True if the journal has what was read of it up to the position, but for files that were dropped."""
    sizes = {
        (segment.writer, str(segment.number)): segment.size for segment in list_segments(log_directory(root, LOG_ID))
    }
    offsets = {
        (writer, number): offset
        for writer, numbers in position["journal"]["writers"].items()
        for number, offset in numbers.items()
    }
    present = [key for key in offsets if key in sizes]
    return bool(present or not offsets) and all(sizes[key] >= offsets[key] for key in present)
