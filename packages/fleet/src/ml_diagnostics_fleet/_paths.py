"""The paths of a fleet's objects below a mirror, and their storage."""

from __future__ import annotations

import calendar
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from ml_diagnostics_common.exceptions import ConfigurationError, StorageError
from ml_diagnostics_common.files import check_scheme, in_bucket
from ml_diagnostics_common.storage import Storage, storage_for

__all__ = ["LAYOUT", "FleetPaths", "age_ns", "new_run"]

LAYOUT: Final = "v1"
_RUN = re.compile(r"(\d{8}T\d{6})-[0-9a-f]{8}", re.ASCII)


class FleetPaths:
    """The paths of a fleet.

    Args:
        mirror: The mirror: `gs://bucket/prefix`, or a local folder.

    Raises:
        ConfigurationError: It is neither of both.
    """

    def __init__(self, mirror: str | os.PathLike[str]) -> None:
        text = os.fspath(mirror).strip()
        check_scheme(text)
        if not text:
            raise ConfigurationError("the mirror is empty: give gs://bucket/prefix, or a folder")
        self.mirror = text.rstrip("/") if in_bucket(text) else str(Path(text).expanduser().absolute())
        self.storage: Storage = storage_for(self.mirror)

    def listed(self, prefix: str, *, limit: int | None = None) -> list[str]:
        """Return the paths of objects: see `Storage.list_prefix`. A local list is tried twice, for NFS.

        Raises:
            StorageError: The mirror cannot be listed.
        """
        try:
            return self.storage.list_prefix(prefix, limit=limit)
        except StorageError:
            if in_bucket(self.mirror):
                raise
        return self.storage.list_prefix(prefix, limit=limit)

    def full(self, path: str) -> str:
        """Return the path of an object of a manifest, which is relative to the layout."""
        return f"{self.mirror}/{LAYOUT}/{path}"

    def relative(self, path: str) -> str:
        """Return the path of an object as manifests have it."""
        return path.replace(os.sep, "/").removeprefix(f"{self.mirror}/{LAYOUT}/".replace(os.sep, "/"))


def new_run(now_ns: int) -> str:
    """Return a name that no other run has; files of one run start with it."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now_ns // 10**9))}-{secrets.token_hex(4)}"


def age_ns(path: str, now_ns: int) -> int | None:
    """Return the age of a file by the name of its run; None for a file of others."""
    found = _RUN.search(path.rpartition("/")[2])
    if found is None:
        return None
    try:
        started = time.strptime(f"{found[1]}+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None
    return now_ns - calendar.timegm(started) * 10**9
