"""Jobs that `python -m cloud_tpu_diagnostics run --hold-on-failure` keeps for debugging, as files.

    <diagnostics folder>/holds/<host>-<pid>.json    private (0600); <pid> is that of the job

A hold lasts while its file exists: to remove the file releases it, on the same machine and, where the diagnostics
folder is shared, from another one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Hold", "holds_directory", "read_holds"]

_SUFFIX: Final = ".json"
_MOST_BYTES: Final = 64 * 2**10
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Hold(NamedTuple):
    """A failed job that is kept, with its container and files.

    Attributes:
        path: The file.
        host: The host's name; on Kubernetes the pod's.
        pid: The job's process, which has ended.
        wrapper_pid: The process that remains: SIGTERM releases it. 0 if it is not known.
        job: The job's name; empty if it is not known.
        run: The run's name or id; empty if it is not known.
        started_ns: When the job started, in ns since 1970; 0 if it is not known.
        ended_ns: When it failed.
        until_ns: When the hold ends by itself.
        pid_namespace: That of the wrapper's pid.
    """

    path: Path
    host: str
    pid: int
    wrapper_pid: int = 0
    job: str = ""
    run: str = ""
    started_ns: int = 0
    ended_ns: int = 0
    until_ns: int = 0
    pid_namespace: str = ""

    def write(self) -> None:
        """Create the file. On a full disk it is empty, which is enough to release the hold.

        Raises:
            OSError: It cannot be created.
        """
        from ml_diagnostics_common.files import make_private_folder, write_state

        make_private_folder(self.path.parent)
        fields = {name: value for name, value in self._asdict().items() if name != "path"}
        try:
            write_state(self.path, fields)
        except OSError:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0)
            os.close(os.open(self.path, flags, 0o600))

    def exists(self) -> bool:
        """Return False once the file, or its folder, is gone. May wait for the folder's disk.

        A disk that fails for now does not release anything.
        """
        try:
            # Opened, not only asked for: NFS then asks its server, where it would answer from memory for a minute.
            os.close(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)))
        except OSError as error:
            return error.errno not in _GONE
        return True

    def release(self) -> bool:
        """Remove the file; return False if it is gone already.

        Raises:
            OSError: It cannot be removed.
        """
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True


def holds_directory(root: Path | None = None) -> Path:
    """Return the folder of the files.

    Args:
        root: The diagnostics folder; None for that of this process.
    """
    from ml_diagnostics_common.environment import diagnostics_directory

    return (diagnostics_directory() if root is None else root) / "holds"


def read_holds(root: Path | None = None) -> list[Hold]:
    """Return the holds in a diagnostics folder, the oldest first; files that are not valid have only host and pid.

    Args:
        root: The diagnostics folder; None for that of this process.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in holds_directory(root).iterdir():
            host, _, pid = path.name.removesuffix(_SUFFIX).rpartition("-")
            if path.name.endswith(_SUFFIX) and host and pid.isascii() and pid.isdigit() and len(pid) < 12:
                found.append(_with_fields(Hold(path, host, int(pid)), _read(path)))
    return sorted(found, key=lambda hold: (hold.ended_ns, hold.path.name))


def file_of(root: Path, host: str, pid: int) -> Path:
    """Return the path of a hold's file."""
    return holds_directory(root) / f"{host}-{pid}{_SUFFIX}"


def _read(path: Path) -> Mapping[str, Any]:
    from ml_diagnostics_common.files import read_regular

    try:
        fields = json.loads(read_regular(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _with_fields(hold: Hold, fields: Mapping[str, Any]) -> Hold:
    """Return a hold with the fields of its file that have the expected types."""
    expected = {name: type(getattr(hold, name)) for name in Hold._fields if name not in ("path", "host", "pid")}
    return hold._replace(**{name: fields[name] for name, kind in expected.items() if type(fields.get(name)) is kind})
