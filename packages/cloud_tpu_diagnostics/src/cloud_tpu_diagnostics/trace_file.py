"""The file that a process's stack traces go to, in the folder where agents and sidecars look for them.

    /tmp/debugging/stack_trace_2026_11_21_15_04_05_host-17_4711.txt

One file a process, which grows by appending and is never rotated: `tail -f /tmp/debugging/*` expands its pattern once.
Nothing in the folder is trusted: it is below /tmp.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.descriptors import Descriptor
from ml_diagnostics_common.file_lock import try_lock
from ml_diagnostics_common.guard import warn_once

from cloud_tpu_diagnostics.console import with_high_number

__all__ = ["FOLDER", "MOST_FILE_BYTES", "TraceFile", "host_in_names", "open_trace_file", "prune"]

FOLDER = Path("/tmp/debugging")
"""Where agents and sidecars look. Tests put another in its place."""

MOST_FILE_BYTES: Final = 64 << 20
"""Above it a file gets no more periodic stack traces; /tmp may be memory."""
MOST_TOTAL_BYTES: Final = 512 << 20
"""Of all our files together; the oldest ones of dead processes go."""
MOST_AGE_SECONDS: Final = 7 * 24 * 3600.0
"""Of a dead process's file, since it was last written to."""

_SPARED_SECONDS = 600.0
"""How long a file is left alone in any case: what ships the last traces of a dead job may still read it."""

_PREFIX = "stack_trace_"
_NAME = r"stack_trace_\d{4}(?:_\d\d){5}_([A-Za-z0-9.-]+)_(\d{1,9})(?:-\d+)?\.txt"
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
_EXISTING = os.O_WRONLY | os.O_APPEND
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))
_A_FOLDER = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))


class TraceFile:
    """A trace file, open for appending.

    Args:
        path: Where it is.
        number: Its descriptor, which belongs to this object from now on.
    """

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self._descriptor = Descriptor(number)
        self.number = number
        """For faults and for the signal."""
        self.patient: int | None = number
        """For the timer: writing to a file of /tmp waits for nobody."""

    def is_open(self) -> bool:
        """Whether it is still ours: a program that makes itself a daemon closes all that it finds."""
        return self._descriptor.number() is not None

    def is_full(self) -> bool:
        """Whether it has as much as one file may have."""
        number = self._descriptor.number()
        return number is not None and os.fstat(number).st_size >= MOST_FILE_BYTES

    def close(self) -> None:
        """Closes it."""
        self._descriptor.close()


class _Made(NamedTuple):
    path: str
    pid: int
    identity: tuple[int, int]


# State of the process: the file that it made, to which a later block appends.
_file_of_this_process: _Made | None = None


def open_trace_file() -> TraceFile | None:
    """Opens this process's file, and makes it (0644) and the folder (0755) if they are not there.

    Returns:
        None if no file can be made. One WARNING has said why then.
    """
    global _file_of_this_process
    try:
        opened = _reopen(_file_of_this_process)
        if opened is None:
            opened = _make()
            _file_of_this_process = _Made(opened.path, os.getpid(), _identity(opened.number))
    except OSError as error:
        warn_once(
            ("no trace file", str(FOLDER)),
            "No stack traces can be written in %s (%s): they go to stderr. "
            "Make it a folder that this user owns and can write, and not a link.",
            FOLDER,
            error,
        )
        return None
    return opened


def _reopen(made: _Made | None) -> TraceFile | None:
    """Opens the file that this process made before; None if it did not, or if it is not there any more."""
    if made is None or made.pid != os.getpid() or FOLDER not in Path(made.path).parents:
        return None
    try:
        descriptor = with_high_number(os.open(made.path, _EXISTING | _SAFELY))
    except OSError:
        return None
    if _identity(descriptor) != made.identity:
        os.close(descriptor)
        return None
    _lock(descriptor)
    return TraceFile(made.path, descriptor)


def _make() -> TraceFile:
    """Makes a file that was not there, by a descriptor of its folder: a path could be led elsewhere meanwhile."""
    folder_path, folder = _open_folder()
    try:
        name, descriptor = _make_in(folder)
    finally:
        os.close(folder)
    _lock(descriptor)
    return TraceFile(str(folder_path / name), descriptor)


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
    raise FileExistsError(errno.EEXIST, f"{stem}.txt is there, and 98 more of that name")


def _open_folder() -> tuple[Path, int]:
    """Opens the folder, made if it is not there; one of our own in it, if it is another user's."""
    folder = _open_or_make(FOLDER)
    owner = os.fstat(folder).st_uid
    if owner in (0, os.geteuid()):  # Root may write to all files anyway; and a volume of Kubernetes is root's.
        return FOLDER, folder
    try:
        own = FOLDER / f"user_{os.geteuid()}"
        own_folder = _open_or_make(own, own.name, folder)
    finally:
        os.close(folder)
    if os.fstat(own_folder).st_uid != os.geteuid():
        os.close(own_folder)
        raise PermissionError(errno.EPERM, f"{own} belongs to another user")
    warn_once(
        ("folder of another user", str(FOLDER)),
        "%s belongs to another user (uid %d): stack traces are written in %s, where agents may not look for them.",
        FOLDER,
        owner,
        own,
    )
    return own, own_folder


def _open_or_make(path: Path, name: str | None = None, within: int | None = None) -> int:
    try:
        os.mkdir(name or path, 0o755, dir_fd=within)
    except FileExistsError:
        return os.open(name or path, _A_FOLDER, dir_fd=within)
    folder = os.open(name or path, _A_FOLDER, dir_fd=within)
    os.fchmod(folder, 0o755)  # Whatever the umask.
    return folder


def _lock(descriptor: int) -> None:
    """Marks the file as a living process's, for those in other containers too; a lock ends with its process."""
    try:
        try_lock(descriptor)
    except OSError:
        pass  # A file system without locks. Nobody prunes there.


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


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


def prune(folder: str | Path, now: float | None = None) -> None:
    """Deletes files of ours in a folder: those of dead processes that are too old, or too much together.

    Ours are regular files of this user with such a name as we give. Neither a file of a living process is deleted, nor
    one that was written to in the last minutes.

    Args:
        folder: Where our files are.
        now: Seconds since the epoch; None: the clock's.

    Raises:
        OSError: The folder cannot be read.
    """
    now = time.time() if now is None else now
    files = _files_of_ours(folder)
    total = sum(file.size for file in files)
    for file in sorted(files):
        age = now - file.modified
        if age > _SPARED_SECONDS and (age > MOST_AGE_SECONDS or total > MOST_TOTAL_BYTES) and _delete(folder, file):
            total -= file.size


def _files_of_ours(folder: str | Path) -> list[_OldFile]:
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
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


def _delete(folder: str | Path, file: _OldFile) -> bool:
    """Deletes a file unless its process lives; whether it did."""
    from ml_diagnostics_common.child_process import exists

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
