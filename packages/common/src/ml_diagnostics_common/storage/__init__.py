"""Files and objects behind one interface: `gs://bucket/key` or a local path, wherever a path is taken.

    generation = storage.write("gs://bucket/state.json", data, if_generation=0)

A write is whole or not at all. Each state of an object has its own generation: if two processes read, change and write
it, the second write is refused instead of overwriting the first.
"""

from __future__ import annotations

import functools
import os
from typing import Protocol

from ml_diagnostics_common.files import check_scheme, in_bucket
from ml_diagnostics_common.storage._google import GoogleCloudStorage, split_path
from ml_diagnostics_common.storage._local import LocalStorage
from ml_diagnostics_common.storage._parts import Parts

__all__ = [
    "GoogleCloudStorage",
    "LocalStorage",
    "Parts",
    "Storage",
    "delete",
    "exists",
    "list_prefix",
    "read",
    "read_with_generation",
    "storage_for",
    "write",
]

_SETTINGS = (
    "STORAGE_EMULATOR_HOST",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
    "CLOUDSDK_AUTH_DISABLE_CREDENTIALS",
    "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE",
    "CLOUDSDK_CONFIG",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


class Storage(Protocol):
    """Bytes under paths. Every method may block, but not for ever.

    All raise `StorageError`, with the path and what to do, if the storage fails; `ConfigurationError` for an invalid
    path; and what is named below.
    """

    def read(self, path: str) -> bytes:
        """Return the whole content; raise `ObjectNotFoundError` if the object does not exist."""
        ...

    def read_with_generation(self, path: str, *, first_bytes: int | None = None) -> tuple[bytes, int]:
        """Return the content and its generation; raise `ObjectNotFoundError` if the object does not exist.

        Args:
            path: The object's path.
            first_bytes: The limit of bytes to read, from the start; None reads all.
        """
        ...

    def read_part(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, or to the end of the content; raise `ObjectNotFoundError`."""
        ...

    def size(self, path: str) -> int:
        """Return the number of bytes; raise `ObjectNotFoundError` if the object does not exist."""
        ...

    def write(
        self,
        path: str,
        data: bytes,
        *,
        if_generation: int | None = None,
        content_type: str = "application/octet-stream",
    ) -> int:
        """Replace the content as a whole; readers get the old one or the new one.

        Args:
            path: The object's path; missing folders are created.
            data: The whole content.
            if_generation: The generation that the object must have, 0 if it must not exist; None for any.
            content_type: The media type that a bucket serves the object with; local files have none.

        Returns:
            The new generation, greater than the one before.

        Raises:
            PreconditionFailedError: The object has another generation.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return True if the object exists; a folder is not an object."""
        ...

    def delete(self, path: str) -> None:
        """Delete the object; raise `ObjectNotFoundError` if it does not exist."""
        ...

    def list_prefix(self, path: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Return the paths of all objects, at any depth, that start with this text; sorted by their bytes.

        Args:
            path: The text.
            after: Only paths behind this one, which need not exist: a list of what is new costs what is new.
            limit: The most paths to return, the first ones; None for all.
        """
        ...


def storage_for(path: str | os.PathLike[str], *, deadline_seconds: float = 60.0) -> Storage:
    """Return the storage for a path.

    Args:
        path: `gs://bucket/key`, or a local path.
        deadline_seconds: The deadline of a call to Cloud Storage, with its retries: see `GoogleCloudStorage`.

    Returns:
        The storage. For Cloud Storage the same one for as long as the environment's settings are the same.

    Raises:
        ConfigurationError: The path has another scheme than gs://, lost a slash in a `pathlib.Path`, or names no
            bucket.
    """
    text = os.fspath(path)
    check_scheme(text)
    if not in_bucket(text):
        return LocalStorage()
    split_path(text, key_required=False)
    return _cloud_storage(os.getpid(), tuple(os.environ.get(name) for name in _SETTINGS), deadline_seconds)


@functools.lru_cache(maxsize=8)
def _cloud_storage(pid: int, settings: tuple[str | None, ...], deadline_seconds: float) -> GoogleCloudStorage:
    # A forked child gets its own: connections are not shared.
    return GoogleCloudStorage(deadline_seconds=deadline_seconds)


def read(path: str | os.PathLike[str]) -> bytes:
    """See `Storage.read`."""
    return storage_for(path).read(os.fspath(path))


def read_with_generation(path: str | os.PathLike[str], *, first_bytes: int | None = None) -> tuple[bytes, int]:
    """See `Storage.read_with_generation`."""
    return storage_for(path).read_with_generation(os.fspath(path), first_bytes=first_bytes)


def write(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    if_generation: int | None = None,
    content_type: str = "application/octet-stream",
) -> int:
    """See `Storage.write`."""
    return storage_for(path).write(os.fspath(path), data, if_generation=if_generation, content_type=content_type)


def exists(path: str | os.PathLike[str]) -> bool:
    """See `Storage.exists`."""
    return storage_for(path).exists(os.fspath(path))


def delete(path: str | os.PathLike[str]) -> None:
    """See `Storage.delete`."""
    storage_for(path).delete(os.fspath(path))


def list_prefix(path: str | os.PathLike[str], *, after: str = "", limit: int | None = None) -> list[str]:
    """See `Storage.list_prefix`."""
    return storage_for(path).list_prefix(os.fspath(path), after=after, limit=limit)
