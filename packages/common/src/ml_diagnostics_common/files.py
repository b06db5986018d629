"""Files and paths: locks between processes, safe reads and writes, network file systems, and buckets.

A lock is a flock on an open file: the kernel releases it whatever ends the process. A forked child has it, too, until
both have closed the file, or one has released it by `unlock`.

Files that other processes may have replaced are read as regular files only, of a limited size: an open of a named pipe
would wait for its writer, and a read of a device or of a huge file would fill the memory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = [
    "check_scheme",
    "in_bucket",
    "is_held",
    "is_network_filesystem",
    "make_private_folder",
    "native_path",
    "open_lock_file",
    "open_regular",
    "read_at",
    "read_regular",
    "read_state",
    "share_lock",
    "try_lock",
    "unlock",
    "wait_for_lock",
    "write_state",
]

_LOCK_POLL_SECONDS = 0.005
_LONGEST_STATE_BYTES = 2**26
_WRITTEN_SECONDS = 60.0
_DAY_SECONDS = 86_400.0

_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"}
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""One slash: a `pathlib.Path` has joined the two. One letter is a drive of Windows."""


def open_lock_file(path: Path) -> int:
    """Open a file to lock, never a link; a missing file is created for this user alone. Raises OSError."""
    # Without O_NONBLOCK, to open a named pipe would wait for its other end.
    names = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
    return os.open(path, os.O_RDWR | os.O_CREAT | sum(getattr(os, name, 0) for name in names), 0o600)


def try_lock(descriptor: int) -> bool:
    """Take the lock on an open file or folder; return False while another process has it.

    Raises:
        OSError: The system, or the file system, has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows.
        raise OSError(errno.ENOLCK, "this system has no file locks") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share_lock(descriptor: int) -> None:
    """Hold an open file's lock together with others, for as long as it is open: see `is_held`. Never raises."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (ImportError, OSError):
        pass  # There are no locks, or another process calls `is_held` at this moment.


def is_held(descriptor: int) -> bool:
    """Return True if a process, in whatever container, holds the lock on an open file; False where there are none."""
    try:
        if not try_lock(descriptor):
            return True
    except OSError:
        return False
    unlock(descriptor)
    return False


def wait_for_lock(descriptor: int, timeout_seconds: float) -> None:
    """Take the lock on an open file or folder, once it is free.

    Raises:
        OSError: Another process has it for longer (ETIMEDOUT), or there are no locks.
    """
    deadline = time.monotonic() + timeout_seconds
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"another process holds the lock, for more than {timeout_seconds:g} s")
        time.sleep(_LOCK_POLL_SECONDS)


def unlock(descriptor: int) -> None:
    """Release the lock on an open file, also for children that were forked meanwhile; the file stays open."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except (ImportError, OSError):
        pass  # There are no locks.


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


read_at: Final[Callable[[int, int, int], bytes]] = getattr(os, "pread", _read_at)
"""Read bytes of a file from an offset on, as `os.pread`; on Windows, which has none, for one thread at a time."""


def open_regular(path: str | Path, *, follow_links: bool = True) -> int:
    """Return a descriptor to read a regular file.

    Raises:
        OSError: It cannot be opened, or is not a regular file (EINVAL).
    """
    names = ["O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", *([] if follow_links else ["O_NOFOLLOW"])]
    descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in names))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: It cannot be read, is not a regular file (EINVAL), or has more than `most_bytes` (EFBIG).
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data


def make_private_folder(folder: Path) -> None:
    """Create a folder, and missing folders above it, for this user only; it may exist already."""
    if not folder.parent.is_dir():
        make_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_state(path: Path, state: Mapping[str, Any], *, survives_power_cut: bool = True) -> None:
    """Replace a small JSON file: another process or thread sees the old state or the new one, never a part.

    Args:
        path: The file.
        state: Its new content.
        survives_power_cut: False if a power cut may leave the old state, or an empty file, which `read_state` takes for
            a missing one: then no call waits for the disk.
    """
    folder = path.parent
    new = folder / f".{path.name}.{os.getpid()}-{get_ident()}.new"
    text = json.dumps(state).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(new, flags, 0o600)
    except FileNotFoundError:
        make_private_folder(folder)
        descriptor = os.open(new, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            if survives_power_cut:
                os.fsync(descriptor)  # Else it may leave the new name with no content.
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if folder not in _cleaned_in_this_process:
        _cleaned_in_this_process.add(folder)
        _remove_unfinished(folder)


# State of the process: folders in which files of killed processes were searched for.
_cleaned_in_this_process: set[Path] = set()


def _remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of `write_state` in processes that were killed."""
    for left in folder.glob(".*.new"):
        pid = left.name.split(".")[-2].partition("-")[0]
        with contextlib.suppress(OSError):
            seconds = time.time() - left.stat().st_mtime
            # On a shared folder the process may run on another host; none needs a minute for a small file.
            if pid.isdecimal() and seconds > _WRITTEN_SECONDS and (seconds > _DAY_SECONDS or not _runs(int(pid))):
                left.unlink()


def _runs(pid: int) -> bool:
    if pid == os.getpid():
        return False  # Of a process before this one: in containers pids are reused.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def read_state(path: Path) -> dict[str, Any] | None:
    """Return what `write_state` wrote; None if there is no readable file."""
    try:
        state = json.loads(read_regular(path, _LONGEST_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def is_network_filesystem(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return True if a path, which need not exist yet, is on NFS, a FUSE mount of a bucket, or the like.

    Writes to it may wait for a network. False where the system does not report mounts: only Linux does.
    """
    try:
        mounts = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        target = os.path.realpath(path)
    except (OSError, ValueError):
        return False
    longest, filesystem = "", ""
    for mount in mounts:
        fields, _, kind = mount.partition(" - ")
        words = fields.split(" ")
        if len(words) < 5 or not kind:
            continue
        point = _unescape(words[4])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later hides the earlier.
        if inside and len(point) >= len(longest):
            longest, filesystem = point, kind.split(" ")[0]
    return filesystem in _NETWORK_TYPES or filesystem.startswith("fuse")


def _unescape(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


def in_bucket(path: str) -> bool:
    """Return True for gs://..., False for any other path, also one that `check_scheme` refuses."""
    return path.startswith("gs://")


def check_scheme(path: str) -> None:
    """Refuse a path that is neither in a bucket nor local.

    Raises:
        ConfigurationError: The path has another scheme, or lost a slash in a `pathlib.Path`. As a local path it would
            be a folder called `s3:` in the working directory.
    """
    if in_bucket(path):
        return
    if path.startswith("gs:/"):
        raise ConfigurationError(f"{path!r} has one slash: give gs://bucket/key as text, since a Path joins slashes")
    scheme = _SCHEME.match(path)
    if scheme:
        raise ConfigurationError(
            f"{path!r}: {scheme[1]}:// is not supported; give gs://bucket/folder or a path on this machine"
        )


def native_path(path: str) -> str:
    """Return a local path as this process can open it: with a C locale it takes no letters beyond ASCII as they are.

    Such a letter becomes its bytes in UTF-8, one surrogate each, as in the arguments of the process (PEP 383).
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return os.fsdecode(path.encode("utf-8", "surrogateescape"))
    return path
