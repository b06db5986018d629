"""Files and objects behind one interface: `gs://bucket/key` or a local path, wherever a path is taken.

    generation = storage.write("gs://bucket/state.json", data, if_generation=0)

A write is whole or not at all. A generation tells one state of an object from the next, so that of two who read,
change and write back, the second is refused instead of overwriting the first.
"""

from __future__ import annotations

import functools
import os
from typing import Protocol

from ml_diagnostics_common.locations import in_bucket
from ml_diagnostics_common.storage.google_storage import GoogleCloudStorage, split_path
from ml_diagnostics_common.storage.local_storage import LocalStorage

__all__ = [
    "GoogleCloudStorage",
    "LocalStorage",
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
    """Where bytes are kept under a path. Every method may block; none waits for ever.

    All raise `StorageError`, with the path and what to do, when the store fails; `ConfigurationError` for a path
    that cannot be one; and what is named below.
    """

    def read(self, path: str) -> bytes:
        """The whole content; `ObjectNotFoundError` if there is none."""
        ...

    def read_with_generation(self, path: str, *, first_bytes: int | None = None) -> tuple[bytes, int]:
        """The content and its generation; `ObjectNotFoundError` if there is none.

        Args:
            path: Where.
            first_bytes: No more than so many, from the beginning; None is all of it.
        """
        ...

    def read_part(self, path: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, or to where the content ends; `ObjectNotFoundError` if there is none."""
        ...

    def size(self, path: str) -> int:
        """How many bytes the content has; `ObjectNotFoundError` if there is none."""
        ...

    def write(self, path: str, data: bytes, *, if_generation: int | None = None) -> int:
        """Puts the content in place, whole; readers see the old one or the new.

        Args:
            path: Where; folders are made as needed.
            data: All of the content.
            if_generation: The generation that the object must have, 0 if it must not exist; None writes anyway.

        Returns:
            The new generation, greater than the one before.

        Raises:
            PreconditionFailedError: The object has another generation.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such an object; a folder is none."""
        ...

    def delete(self, path: str) -> None:
        """Removes the object; `ObjectNotFoundError` if there is none."""
        ...

    def list_prefix(self, path: str) -> list[str]:
        """The paths of all objects, at any depth, whose path begins with this text; sorted by their bytes."""
        ...


def storage_for(path: str | os.PathLike[str], *, deadline_seconds: float = 60.0) -> Storage:
    """The store that a path lies in.

    Args:
        path: `gs://bucket/key`, or a local path.
        deadline_seconds: When a call to Cloud Storage that gets no good answer is given up: see `GoogleCloudStorage`.

    Returns:
        The store. For Cloud Storage the same one for as long as the environment's settings are the same.

    Raises:
        ConfigurationError: The path has another scheme than gs://, lost a slash in a `pathlib.Path`, or names no
            bucket.
    """
    text = os.fspath(path)
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


def write(path: str | os.PathLike[str], data: bytes, *, if_generation: int | None = None) -> int:
    """See `Storage.write`."""
    return storage_for(path).write(os.fspath(path), data, if_generation=if_generation)


def exists(path: str | os.PathLike[str]) -> bool:
    """See `Storage.exists`."""
    return storage_for(path).exists(os.fspath(path))


def delete(path: str | os.PathLike[str]) -> None:
    """See `Storage.delete`."""
    storage_for(path).delete(os.fspath(path))


def list_prefix(path: str | os.PathLike[str]) -> list[str]:
    """See `Storage.list_prefix`."""
    return storage_for(path).list_prefix(os.fspath(path))
