"""Memory of which hosts could write to a bucket, so that later captures skip an attempt that would fail.

A job without write permission fails only when its profile is complete; the capture is then repeated into a folder of
the job's own machine and takes twice as long. Results are kept for a week in this machine's state folder. If that
folder is not usable, each capture tries the bucket first.
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
    """Results of earlier captures for one bucket.

    Args:
        bucket: The bucket, with `gs://`.
        file: The file for all buckets; None selects the one in the state folder.
        now: Return the time in seconds since the epoch.
    """

    def __init__(self, bucket: str, file: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._file = file
        self._now = now
        self._known = {host: can_write for host, (can_write, _) in self._read().get(bucket, {}).items()}

    def can_write(self, host: str) -> bool:
        """Return whether a host may be able to write.

        Pods get new names, so the results of other hosts decide for an unknown one.
        """
        known = self._known.get(host)
        return (not self._known or any(self._known.values())) if known is None else known

    def remember(self, hosts: Mapping[str, bool]) -> None:
        """Record which hosts could write."""
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
        """Return the results of the last week; none if the file cannot be read."""
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
