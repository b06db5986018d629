"""Storage in local files, also on a network filesystem: see `storage.Storage`.

A file's generation is its modification time in nanoseconds, which every write of ours increases. The lock on the
folder that makes "compare, then replace" one step is held for microseconds; data is written before it is taken.
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
from typing import BinaryIO

from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.files import make_private_folder, native_path, wait_for_lock

__all__ = ["LocalStorage"]

_TEMPORARY = re.compile(r"\.ml-diagnostics-[0-9a-f]{16}\.tmp")
# Filesystems keep times to the nanosecond, the microsecond, the second or, at worst, two seconds.
_CLOCK_STEPS_NS = (1, 1_000, 1_000_000_000, 2_000_000_000)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


class LocalStorage:
    """Files of this machine. Relative paths start at the working directory; `..` is resolved."""

    def __init__(self, *, lock_timeout_seconds: float = 10.0) -> None:
        """Create a storage that fails a write if another process holds the folder's lock for that long."""
        self._lock_timeout_seconds = lock_timeout_seconds

    def read(self, path: str) -> bytes:
        """Return the whole content."""
        return self.read_with_generation(path)[0]

    def read_with_generation(self, path: str, *, first_bytes: int | None = None) -> tuple[bytes, int]:
        """Return the content, or its first bytes, and its generation."""
        with _explained("read", path), _opened(path) as (file, found):
            return file.read(-1 if first_bytes is None else first_bytes), _generation_of(found)

    def read_part(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a range."""
        with _explained("read", path), _opened(path) as (file, _):
            file.seek(start)
            return file.read(max(0, end - start))

    def size(self, path: str) -> int:
        """Return the number of bytes."""
        with _explained("read", path), _opened(path) as (_, found):
            return found.st_size

    def write(
        self,
        path: str,
        data: bytes,
        *,
        if_generation: int | None = None,
        content_type: str = "application/octet-stream",
    ) -> int:
        """Replace the content as a whole."""
        target = _absolute(path)
        with _explained("write", path):
            make_private_folder(target.parent)
            with _temporary_file(target.parent, data) as temporary:
                if if_generation == 0 and (created := _link(temporary, target, path)):
                    return created
                with _lock(target.parent, self._lock_timeout_seconds, required=if_generation is not None):
                    generation = _generation(target)
                    if if_generation is not None and if_generation != generation:
                        raise PreconditionFailedError(
                            f"{path} has generation {generation}, not {if_generation}: another process wrote it first; "
                            "read it again and repeat the change"
                        )
                    written = _advance(temporary, target, generation)
                    temporary.replace(target)
                return written

    def exists(self, path: str) -> bool:
        """Return True if the file exists."""
        with _explained("read", path):
            return _generation(_absolute(path)) > 0

    def delete(self, path: str) -> None:
        """Delete the file."""
        target = _absolute(path)
        with _explained("delete", path), _lock(target.parent, self._lock_timeout_seconds, required=False):
            target.unlink()

    def list_prefix(self, path: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Return the files, at any depth, with absolute paths that start with this text. Skip symbolic links."""
        prefix = _as_prefix(path)
        with _explained("list", path):
            start = os.fsencode(_as_prefix(after)) if after else b""
            found = _files(os.path.dirname(prefix) or os.sep, prefix, start)  # noqa: PTH120
            return sorted(found, key=os.fsencode)[:limit]


def _absolute(path: str) -> Path:
    if not path or "\0" in path:
        raise ConfigurationError(f"{path!r} is not a valid path: give the name of a file, without NUL bytes")
    try:
        return Path(os.path.abspath(os.path.expanduser(native_path(path))))  # noqa: PTH100, PTH111
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path!r} is not a valid path: {error}") from error


def _as_prefix(path: str) -> str:
    """Return an absolute path that ends with a separator if the given one does."""
    return (str(_absolute(path)) + (os.sep if path.endswith(("/", os.sep)) else "")).replace(os.sep * 2, os.sep)


def _generation(target: Path) -> int:
    """Return the generation of a file; 0 if it does not exist."""
    try:
        found = target.stat()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return _generation_of(found) if stat.S_ISREG(found.st_mode) else 0


def _generation_of(found: os.stat_result) -> int:
    return max(found.st_mtime_ns, 1)  # 0 means that it does not exist, and some archives are unpacked with that time.


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(_absolute(path), flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a regular file")
        yield file, found


@contextlib.contextmanager
def _temporary_file(folder: Path, data: bytes) -> Iterator[Path]:
    """Yield a file beside the target, with all of the data on the disk; delete it at the end if it was not moved."""
    temporary = folder / f".ml-diagnostics-{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # Without it, a power failure may leave the new name without content.
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _link(temporary: Path, target: Path, path: str) -> int:
    """Create the file by a link, which needs no lock, also on NFS; return its generation, 0 if there are no links.

    Raises:
        PreconditionFailedError: The file exists.
    """
    try:
        os.link(temporary, target, follow_symlinks=False)
    except FileExistsError:
        # On NFS a link may be made, and its answer be lost: the second attempt of the system finds the first one's.
        if not (generation := _generation(target)):
            return 0  # It is a folder, or a link to nothing.
        if temporary.stat().st_nlink < 2:
            raise PreconditionFailedError(
                f"{path} has generation {generation}, not 0: another process wrote it first; read it again and repeat "
                "the change"
            ) from None
    except (OSError, NotImplementedError) as error:
        if getattr(error, "errno", errno.ENOTSUP) in _NO_LINKS:
            return 0
        raise
    return _generation(target)


def _advance(temporary: Path, target: Path, generation: int) -> int:
    """Set the new file's time after the old one's, and the old one's permissions; return the time."""
    if generation:
        temporary.chmod(stat.S_IMODE(target.stat().st_mode))
    for step in _CLOCK_STEPS_NS:
        wanted = max(time.time_ns(), generation + step)
        os.utime(temporary, ns=(wanted, wanted))
        written = temporary.stat().st_mtime_ns
        if written > generation:
            return written
    raise OSError(errno.EINVAL, "the filesystem does not keep the time of a file")


@contextlib.contextmanager
def _lock(folder: Path, timeout_seconds: float, *, required: bool) -> Iterator[None]:
    """Exclude other writers from a folder, in all processes.

    Raises:
        OSError: The lock is required but not supported, or another process holds it for too long.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        if required or os.name != "nt":  # Windows cannot open folders.
            raise
        yield
        return
    try:
        try:
            wait_for_lock(descriptor, timeout_seconds)
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise
            if required:
                raise OSError(
                    error.errno, "the filesystem has no file locks, so a conditional write is unsafe"
                ) from error
        yield
    finally:
        os.close(descriptor)


def _files(folder: str, prefix: str, after: bytes) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            inside = entry.path + os.sep
            encoded = os.fsencode(inside)
            is_before = encoded < after and not after.startswith(encoded)
            if not is_before and (inside.startswith(prefix) or prefix.startswith(inside)):
                yield from _files(entry.path, prefix, after)
            continue
        is_ours = entry.path.startswith(prefix) and not _TEMPORARY.fullmatch(entry.name)
        if is_ours and os.fsencode(entry.path) > after and entry.is_file(follow_symlinks=False):
            yield entry.path


@contextlib.contextmanager
def _explained(verb: str, path: str) -> Iterator[None]:
    """Raise the system's errors as ours, with the path and what to do."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"cannot {verb} {path}: there is no such file") from error
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the path and its folder, or choose another one")
        raise StorageError(f"cannot {verb} {path}: {error.strerror or error}; {remedy}") from error


_REMEDIES = {
    errno.EACCES: "give this user the permission, or choose another folder",
    errno.EPERM: "give this user the permission, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some of the quota, or choose another folder",
    errno.EISDIR: "give the path of a file",
    errno.EEXIST: "a part of the path is a file where a folder should be",
    errno.ENOTDIR: "a part of the path is a file where a folder should be",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ETIMEDOUT: "try again, or end that process",
}
