"""Files and objects: `gs://bucket/...` and local paths alike."""

from __future__ import annotations

from ml_diagnostics_common.storage.storage import (
    GoogleCloudStorage,
    LocalStorage,
    Storage,
    delete,
    exists,
    list_prefix,
    read,
    read_with_generation,
    storage_for,
    write,
)

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
