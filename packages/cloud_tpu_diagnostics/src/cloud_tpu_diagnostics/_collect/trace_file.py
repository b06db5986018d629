"""The trace file of a process, in the folder that agents and sidecars read.

    /tmp/debugging/stack_trace_2026_11_21_15_04_05_host-17_4711.txt

One file a process, which grows by appending and is never rotated: `tail -f /tmp/debugging/*` expands its pattern once.
Nothing in the folder is trusted: it is below /tmp.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.descriptors import Descriptor, identity, with_high_number
from ml_diagnostics_common.files import try_lock

from cloud_tpu_diagnostics._collect.log_queue import warn_once

__all__ = ["FOLDER", "MOST_FILE_BYTES", "TraceFile", "folders", "host_in_names", "open_trace_file", "prune"]

FOLDER = Path("/tmp/debugging")
"""The folder that agents and sidecars read. Tests replace it."""

MOST_FILE_BYTES: Final = 64 << 20
"""The size at which a file gets no more periodic stack traces; /tmp may be memory."""
_MOST_TOTAL_BYTES: Final = 512 << 20
"""The limit of all files together; above it, the oldest ones of dead processes are deleted."""
MOST_AGE_SECONDS: Final = 7 * 24 * 3600.0
"""The age at which a dead process's file is deleted, since its last write."""

_SPARED_SECONDS = 600.0
"""The time after its last write in which no file is deleted: the companion of a dead job may still ship it."""

_SHARED_MODE = 0o1777  # Users of a shared host write here, and none deletes what another has written.
_PRIVATE_MODE = 0o755
_REMEDY = "Make it a folder with mode 1777, and not a link."
_PREFIX = "stack_trace_"
_NAME = r"stack_trace_\d{4}(?:_\d\d){5}_([A-Za-z0-9.-]+)_(\d{1,9})(?:-\d+)?\.txt"
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
_EXISTING = os.O_WRONLY | os.O_APPEND
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))
_A_FOLDER = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))


class TraceFile:
    """A trace file, open for appending.

    Args:
        path: Its path.
        number: Its descriptor, which this object owns from now on.
    """

    def __init__(self, path: str, number: int) -> None:
        self.path: Final = path
        self._descriptor = Descriptor(number)
        self.number = number
        """The descriptor for faults and signals."""
        self.nonblocking: int | None = number
        """The descriptor for the timer: writes to a file in /tmp never wait for a reader."""

    def is_open(self) -> bool:
        """Return True while its descriptor is ours: a program that makes itself a daemon closes all descriptors."""
        return self._descriptor.number() is not None

    def is_full(self) -> bool:
        """Return True if the file has reached its limit."""
        number = self._descriptor.number()
        return number is not None and os.fstat(number).st_size >= MOST_FILE_BYTES

    def prune(self) -> None:
        """Delete old files beside it: see the function `prune`."""
        prune(Path(self.path).parent)

    def close(self) -> None:
        """Close it."""
        self._descriptor.close()


class _Made(NamedTuple):
    path: str
    pid: int
    identity: tuple[int, int]


# State of the process: the file that it made, to which a later block appends.
_file_of_this_process: _Made | None = None


def open_trace_file(chosen: str = "") -> TraceFile | None:
    """Open this process's file; make it (0644) and the folder if they do not exist.

    Args:
        chosen: The folder that the user has chosen, made with the user's umask; empty for the shared one (1777, as
            /tmp).

    Returns:
        None if no file can be created. One WARNING has the reason.
    """
    global _file_of_this_process
    directory = Path(chosen) if chosen else None
    try:
        opened = _reopen(_file_of_this_process, [FOLDER, _own_folder()] if directory is None else [directory])
        if opened is None:
            opened = _make(directory)
            _file_of_this_process = _Made(opened.path, os.getpid(), identity(opened.number))
    except OSError as error:
        warn_once(
            ("no trace file", str(directory or FOLDER)),
            "No stack traces can be written in %s (%s): they go to stderr. %s",
            directory or FOLDER,
            error,
            "Give a folder that this user can write." if directory else _REMEDY,
        )
        return None
    return opened


def _reopen(made: _Made | None, folders: Sequence[Path]) -> TraceFile | None:
    """Open the file that this process has created before; return None if there is none, or if it was deleted."""
    if made is None or made.pid != os.getpid() or Path(made.path).parent not in folders:
        return None
    try:
        descriptor = with_high_number(os.open(made.path, _EXISTING | _SAFELY))
    except OSError:
        return None
    if identity(descriptor) != made.identity:
        os.close(descriptor)
        return None
    _lock(descriptor)
    return TraceFile(made.path, descriptor)


def _make(directory: Path | None) -> TraceFile:
    """Create a new file through a descriptor of its folder, since a path could be redirected meanwhile."""
    path, descriptor = _make_here() if directory is None else _make_there(directory)
    _lock(descriptor)
    return TraceFile(path, descriptor)


def _make_in(folder: int) -> tuple[str, int]:
    stem = f"{time.strftime(f'{_PREFIX}%Y_%m_%d_%H_%M_%S')}_{host_in_names()}_{os.getpid()}"
    for number in range(1, 100):  # Another container may have the same host name and pid.
        name = f"{stem}.txt" if number == 1 else f"{stem}-{number}.txt"
        try:
            descriptor = with_high_number(os.open(name, _NEW | _SAFELY, 0o644, dir_fd=folder))
        except FileExistsError:
            continue
        os.fchmod(descriptor, 0o644)  # Whatever the umask: a sidecar of another user reads it.
        return name, descriptor
    raise FileExistsError(errno.EEXIST, f"{stem}.txt exists, and 98 more of that name")


def _make_here() -> tuple[str, int]:
    """Make a file in the shared folder; where this user may not write there, in one of this user's own beside it."""
    try:
        with _opened_folder(FOLDER, _SHARED_MODE) as folder:
            if _is_for_us(os.fstat(folder)):
                name, descriptor = _make_in(folder)
                return str(FOLDER / name), descriptor
            refusal = "belongs to another user, and does not have mode 1777"
    except PermissionError as error:
        refusal = f"cannot be written ({error.strerror})"
    own = _own_folder()
    with _opened_folder(own, _PRIVATE_MODE) as folder:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{FOLDER} {refusal}; {own} belongs to another user")
        name, descriptor = _make_in(folder)
    warn_once(
        ("own folder", str(FOLDER)),
        "%s %s: stack traces are written in %s, which agents do not read. Have its owner run: chmod 1777 %s",
        FOLDER,
        refusal,
        own,
        FOLDER,
    )
    return str(own / name), descriptor


def _make_there(directory: Path) -> tuple[str, int]:
    """Make a file in a folder that the user has chosen; its mode stays as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    folder = os.open(directory, _A_FOLDER)
    try:
        name, descriptor = _make_in(folder)
    finally:
        os.close(folder)
    return str(directory / name), descriptor


def _own_folder() -> Path:
    return FOLDER.with_name(f"{FOLDER.name}_user_{os.geteuid()}")


def folders() -> list[Path]:
    """Return the folders in which processes of this machine may have trace files, of any user."""
    return [FOLDER, *sorted(FOLDER.parent.glob(f"{FOLDER.name}_user_*"))]


def _is_for_us(status: os.stat_result) -> bool:
    """Return True for a folder of ours, of root's, or one that is shared like /tmp.

    In any other folder, its owner could replace our files.
    """
    is_shared = status.st_mode & _SHARED_MODE == _SHARED_MODE
    return is_shared or status.st_uid in (0, os.geteuid())


@contextlib.contextmanager
def _opened_folder(path: Path, mode: int) -> Iterator[int]:
    """Open a folder, never through a link; make it with that mode, whatever the umask, if it does not exist."""
    try:
        os.mkdir(path, mode)  # noqa: PTH102
        is_new = True
    except FileExistsError:
        is_new = False
    folder = os.open(path, _A_FOLDER)
    try:
        status = os.fstat(folder)
        # As earlier versions, and the public package, have made it: for their first user alone.
        was_made_for_one = stat.S_IMODE(status.st_mode) == _PRIVATE_MODE and status.st_uid == os.geteuid()
        if is_new or was_made_for_one:
            with contextlib.suppress(OSError):  # A file system without modes.
                os.fchmod(folder, mode)
        yield folder
    finally:
        os.close(folder)


def _lock(descriptor: int) -> None:
    """Mark the file as one of a living process, also for other containers; a lock ends with its process."""
    try:
        try_lock(descriptor)
    except OSError:
        pass  # A file system without locks: no process prunes there.


def host_in_names() -> str:
    """Return this host's name as names of files have it."""
    name = os.uname().nodename[:64]
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in name) or "host"


# --- Files of dead processes --------------------------------------------------------------------------


class _OldFile(NamedTuple):
    modified: float
    size: int
    name: str
    host: str
    pid: int


def prune(folder: str | Path, now: float | None = None, most_total_bytes: int = _MOST_TOTAL_BYTES) -> None:
    """Delete trace files of dead processes that are too old, or too large together.

    Only regular files of this user with names of trace files are deleted, never one of a living process, and none that
    was written to in the last minutes.

    Args:
        folder: The folder with the files.
        now: Seconds since the epoch; None reads the clock.
        most_total_bytes: The most bytes that all files may have together.

    Raises:
        OSError: The folder cannot be read.
    """
    now = time.time() if now is None else now
    files = _files_of_ours(folder)
    total = sum(file.size for file in files)
    for file in sorted(files):
        age = now - file.modified
        is_due = age > MOST_AGE_SECONDS or total > most_total_bytes
        if is_due and age > _SPARED_SECONDS and _delete(folder, file):
            total -= file.size


def _files_of_ours(folder: str | Path) -> list[_OldFile]:
    files = []
    with os.scandir(folder) as entries:
        for entry in _until_closed(entries):
            named = re.fullmatch(_NAME, entry.name)
            if named is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                files.append(_OldFile(status.st_mtime, status.st_size, entry.name, named[1], int(named[2])))
    return files


def _until_closed(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, until the program closes all descriptors, and so that of the folder."""
    try:
        yield from entries
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOTDIR):  # ENOTDIR: the number is that of a file by now.
            raise


def _delete(folder: str | Path, file: _OldFile) -> bool:
    """Delete a file unless its process lives; return True if it was deleted."""
    from ml_diagnostics_common.processes import exists

    path = Path(folder, file.name)
    if file.host == host_in_names() and exists(file.pid):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | _SAFELY)
        try:
            if not try_lock(descriptor):
                return False
            path.unlink()
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
