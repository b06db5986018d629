"""A mirror's objects: listed, read, created and deleted, through `storage`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.files import check_scheme, in_bucket, native_path
from ml_diagnostics_common.mirror.names import CONTENT_TYPE, LAYOUT, LogPaths, newer_layout, segments_path
from ml_diagnostics_common.mirror.segments import NewerFormatError
from ml_diagnostics_common.storage import Storage, storage_for
from ml_diagnostics_common.worker import in_parallel

__all__ = ["Bucket", "mirror_path"]

_MOST_BYTES = 64 * 2**20
_MOST_FOLDERS = 32
"""Folders of others with names that start with "v", such as validation, that a search for newer layouts skips."""


def mirror_path(mirror: str | os.PathLike[str]) -> str:
    """Return a mirror as its objects' paths start: absolute, without a slash at the end.

    Raises:
        ConfigurationError: It is neither `gs://bucket/prefix` nor a local folder.
    """
    text = os.fspath(mirror).strip()
    check_scheme(text)
    if not text or "\0" in text:
        raise ConfigurationError(f"{text!r} is not a mirror: give gs://bucket/prefix, or a folder")
    if in_bucket(text):
        storage_for(text)  # Checks the bucket's name.
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(native_path(text))).rstrip(os.sep)  # noqa: PTH100, PTH111


class Bucket:
    """A mirror in a bucket or a folder.

    Args:
        mirror: `gs://bucket/prefix`, or a local folder.
        deadline_seconds: The deadline of one call to Cloud Storage, with its retries.
        storage: The storage; None for that of the path.

    Raises:
        ConfigurationError: See `mirror_path`.
    """

    def __init__(
        self, mirror: str | os.PathLike[str], *, deadline_seconds: float = 60.0, storage: Storage | None = None
    ) -> None:
        self.path = mirror_path(mirror)
        self.is_local = not in_bucket(self.path)
        self.storage = storage or storage_for(self.path, deadline_seconds=deadline_seconds)

    def log(self, log_id: str) -> LogPaths:
        """Return the paths of a log."""
        return LogPaths.of(self.path, log_id)

    def list_paths(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Return the paths of objects: see `Storage.list_prefix`. A local list is tried twice, for NFS."""
        try:
            return self.storage.list_prefix(prefix, after=after, limit=limit)
        except StorageError:
            if not self.is_local:
                raise
        return self.storage.list_prefix(prefix, after=after, limit=limit)

    def read(self, path: str) -> bytes:
        """Return the content of an object, or the first 64 MiB, which none of ours has.

        Raises:
            ObjectNotFoundError: There is no such object.
            StorageError: It cannot be read.
        """
        return self.storage.read_with_generation(path, first_bytes=_MOST_BYTES)[0]

    def read_each(self, paths: Sequence[str], most_threads: int) -> list[bytes | Exception]:
        """Return the content of each object, or the Exception of its read, in the order of the paths."""
        if len(paths) > 1:
            return in_parallel(self.read, paths, most_threads)
        results: list[bytes | Exception] = []
        for path in paths:
            try:
                results.append(self.read(path))
            except Exception as error:
                results.append(error)
        return results

    def create(self, path: str, data: bytes, *, content_type: str = CONTENT_TYPE) -> bool:
        """Create an object; return False if there is one of that name."""
        try:
            self.storage.write(path, data, if_generation=0, content_type=content_type)
        except PreconditionFailedError:
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete an object, unless another process did."""
        try:
            self.storage.delete(path)
        except ObjectNotFoundError:
            pass

    def check_layout(self) -> None:
        """Check that no newer version wrote to this mirror.

        Raises:
            NewerFormatError: A newer version did.
            StorageError: The mirror cannot be listed.
        """
        prefix = f"{self.path}/v"
        after = f"{prefix}{LAYOUT}0"  # "0" follows "/".
        for _ in range(_MOST_FOLDERS):
            found = self.list_paths(prefix, after=after, limit=1)
            if not found:
                return
            version = newer_layout(found[0], self.path)
            if version is not None:
                raise NewerFormatError(
                    f"{self.path} was written by a newer version of ml-diagnostics-common: it has objects of layout "
                    f"v{version}, and this version reads v{LAYOUT}; upgrade ml-diagnostics-common"
                )
            after = f"{prefix}{found[0].removeprefix(prefix).replace(os.sep, '/').partition('/')[0]}0"

    def log_folders(self) -> list[str]:
        """Return the names of the folders of all logs in the mirror, with one request for each."""
        prefix = f"{segments_path(self.path)}log="
        folders: list[str] = []
        after = ""
        while found := self.list_paths(prefix, after=after, limit=1):
            folder = found[0].removeprefix(prefix).replace(os.sep, "/").partition("/")[0]
            folders.append(folder)
            after = f"{prefix}{folder}0"  # "0" follows "/".
        return folders
