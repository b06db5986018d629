"""A file with the decision of fast-fail on a process, for `run`, which records its end and may hold its container.

The companion writes it when it has joined a star, and again once the first cause is known: before it ends its own job,
or after that has ended. It is private, and removed with those of other dead processes.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.files import read_state, write_state
from ml_diagnostics_common.processes import pid_namespace, start_mark

__all__ = [
    "ENDED_BY",
    "REFRESH_SECONDS",
    "FastFailStatus",
    "end_fields",
    "read_status",
    "remove_status",
    "wait_for_exit",
    "wait_for_status",
    "write_exit",
    "write_status",
]

ENDED_BY: Final = "fast_fail"
"""The value of `ended_by` in the entry of a process that fast-fail has ended."""
_POLL_SECONDS: Final = 0.05
REFRESH_SECONDS: Final = 3600.0
"""The interval in which a companion writes the file again, so that other containers can see that it is in use."""
_OLD_SECONDS: Final = 86_400.0


class FastFailStatus(NamedTuple):
    """The decision of fast-fail on a process.

    Attributes:
        first_cause: `FirstCause.to_json`; None while it is not known.
        is_first_cause: True if this process is, or is one of, the first cause.
        exit_code: The exit code with which fast-fail ends this process; None if it does not.
    """

    first_cause: dict[str, Any] | None = None
    is_first_cause: bool = False
    exit_code: int | None = None


def end_fields(status: FastFailStatus | None, exit_code: int | None, signal: str | None) -> dict[str, Any]:
    """Return the fields that the entry on the end of a process has of it.

    Args:
        status: The status of the process, if there is one.
        exit_code: The exit code of the process; None without one.
        signal: The signal that ended it; None without one.
    """
    if status is None or status.first_cause is None:
        return {}
    is_ours = status.exit_code is not None and (
        exit_code == status.exit_code or signal == "SIGKILL" or (exit_code is None and signal is None)
    )
    ended_by = ENDED_BY if is_ours and not status.is_first_cause else None
    return {"ended_by": ended_by, "first_cause": status.first_cause, "is_first_cause": status.is_first_cause}


def write_status(pid: int, start: str, status: FastFailStatus) -> None:
    """Write the status of a process.

    Args:
        pid: The process.
        start: Its `processes.start_mark`, taken while it ran.
        status: The status.

    Raises:
        OSError: It cannot be written.
    """
    path = _path(pid, start)
    if status.first_cause is None:
        _prune(path.parent)
    write_state(path, status._asdict())


def read_status(pid: int, start: str) -> FastFailStatus | None:
    """Return the status of a process; None if fast-fail is not on for it."""
    state = read_state(_path(pid, start))
    if state is None:
        return None
    return FastFailStatus(**{name: value for name, value in state.items() if name in FastFailStatus._fields})


def remove_status(pid: int, start: str) -> None:
    """Remove it: the star is gone, so there will be no decision."""
    with contextlib.suppress(OSError):
        _path(pid, start).unlink()


def wait_for_status(pid: int, start: str, timeout_seconds: float) -> FastFailStatus | None:
    """Return the status of a process that has ended, once the first cause is known.

    Returns at once if fast-fail is not on for it, and after the timeout in any case.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        status = read_status(pid, start)
        if status is None or status.first_cause is not None or time.monotonic() >= deadline:
            return status
        time.sleep(_POLL_SECONDS)


def write_exit(pid: int, start: str, wait_status: int) -> None:
    """Note the wait status of a process that has ended, for its companion; do nothing if fast-fail is not on for it."""
    if read_status(pid, start) is not None:
        with contextlib.suppress(OSError):
            write_state(_path(pid, start).with_suffix(".exit"), {"wait_status": wait_status})


def wait_for_exit(pid: int, start: str, timeout_seconds: float) -> int | None:
    """Return the wait status of a process that has ended, once it is noted; None after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    path = _path(pid, start).with_suffix(".exit")
    while (state := read_state(path)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    status = None if state is None else state.get("wait_status")
    return status if isinstance(status, int) else None


def _path(pid: int, start: str) -> Path:
    return diagnostics_directory() / "state" / "fast_fail" / f"{pid}-{start or '0'}-{pid_namespace()}.json"


def _prune(folder: Path) -> None:
    """Remove the old files of processes that have ended; of those in other containers, the ones not refreshed."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > _OLD_SECONDS and not _is_of_running_process(path):
                path.unlink()


def _is_of_running_process(path: Path) -> bool:
    pid, _, rest = path.stem.partition("-")
    start, _, namespace = rest.partition("-")
    return namespace == pid_namespace() and pid.isdigit() and start_mark(int(pid)) == start
