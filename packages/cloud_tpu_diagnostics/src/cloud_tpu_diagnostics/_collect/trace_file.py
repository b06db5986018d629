"""The file that a process's stack traces go to, in the folder where agents and sidecars look for them.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ml_diagnostics_common.descriptors import Descriptor, identity, with_high_number
from ml_diagnostics_common.files import try_lock

from cloud_tpu_diagnostics._collect.log_queue import warn_once

__all__ = ["FOLDER", "MOST_FILE_BYTES", "TraceFile", "folders", "host_in_names", "open_trace_file", "prune"]

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

_SHARED_MODE = 0o1777  # Users of a shared host write here, and none deletes what another has written.
_PRIVATE_MODE = 0o755
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
        self.path: Final = path
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
    """Open this process's file; make it (0644) and the folder (1777, as /tmp) if they do not exist.

    Returns:
        None if no file can be made. One WARNING has said why then.
    """
    global _file_of_this_process
    try:
        opened = _reopen(_file_of_this_process)
        if opened is None:
            opened = _make()
            _file_of_this_process = _Made(opened.path, os.getpid(), identity(opened.number))
    except OSError as error:
        warn_once(
            ("no trace file", str(FOLDER)),
            "No stack traces can be written in %s (%s): they go to stderr. "
            "Make it a folder with mode 1777, and not a link.",
            FOLDER,
            error,
        )
        return None
    return opened


def _reopen(made: _Made | None) -> TraceFile | None:
    """Opens the file that this process made before; None if it did not, or if it is not there any more."""
    if made is None or made.pid != os.getpid() or Path(made.path).parent not in (FOLDER, _own_folder()):
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


def _make() -> TraceFile:
    """Make a file that did not exist, by a descriptor of its folder: a path could be led elsewhere meanwhile."""
    path, descriptor = _make_here()
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
    raise FileExistsError(errno.EEXIST, f"{stem}.txt is there, and 98 more of that name")


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


def _own_folder() -> Path:
    return FOLDER.with_name(f"{FOLDER.name}_user_{os.geteuid()}")


def folders() -> list[Path]:
    """Return the folders in which processes of this machine may have trace files, whoever's they are."""
    return [FOLDER, *sorted(FOLDER.parent.glob(f"{FOLDER.name}_user_*"))]


def _is_for_us(status: os.stat_result) -> bool:
    """Return True for a folder of ours, of root's, or one that is shared like /tmp.

    In any other its owner could put something else in the place of our files.
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
    """Marks the file as a living process's, for those in other containers too; a lock ends with its process."""
    try:
        try_lock(descriptor)
    except OSError:
        pass  # A file system without locks. Nobody prunes there.


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
