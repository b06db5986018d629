"""Which hosts could write to a bucket in earlier captures, so that a capture need not try it in vain each time.

A job whose account may not write to the bucket profiles itself, and fails when it writes: then it is asked again, with
a folder of its own machine, which costs the duration of the profile twice. What was found is kept for a week in the
state folder of this machine. Without that folder a capture works as the first one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["BucketAccess"]

_KEPT_SECONDS: Final = 7 * 86_400.0
_MOST_BYTES: Final = 1 << 20


class BucketAccess:
    """What is known about a bucket.

    Args:
        bucket: The bucket, `gs://` in front.
        file: Where it is kept, of all buckets; None is the state folder's.
        now: Returns the time in seconds since the epoch.
    """

    def __init__(self, bucket: str, file: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._file = file
        self._now = now
        self._known = {host: can_write for host, (can_write, _) in self._read().get(bucket, {}).items()}

    def can_write(self, host: str) -> bool:
        """Return whether a host may be able to write; of one that is not known, whether any other could.

        Pods get new names, so what is known about others counts.
        """
        known = self._known.get(host)
        return (not self._known or any(self._known.values())) if known is None else known

    def remember(self, hosts: Mapping[str, bool]) -> None:
        """Keep which hosts could write."""
        if not hosts:
            return
        self._known.update(hosts)
        now = self._now()
        with contextlib.suppress(OSError):
            every = self._read()
            every.setdefault(self._bucket, {}).update({host: (can_write, now) for host, can_write in hosts.items()})
            file = self._path()
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = file.with_name(f"{file.name}.{os.getpid()}.new")
            new.write_text(json.dumps(every), encoding="utf-8")
            new.replace(file)

    def _path(self) -> Path:
        from ml_diagnostics_common.environment import diagnostics_directory

        return self._file or diagnostics_directory() / "state" / "xprofiler" / "bucket_access.json"

    def _read(self) -> dict[str, dict[str, tuple[bool, float]]]:
        """What is kept and not too old; nothing where it cannot be read."""
        oldest = self._now() - _KEPT_SECONDS
        try:
            with self._path().open("rb") as file:
                every = json.loads(file.read(_MOST_BYTES))
            return {
                str(bucket): {
                    str(host): (bool(can_write), float(at))
                    for host, (can_write, at) in hosts.items()
                    if float(at) > oldest
                }
                for bucket, hosts in every.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}
