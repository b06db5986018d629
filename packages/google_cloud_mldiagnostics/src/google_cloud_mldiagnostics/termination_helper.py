"""The process that ends a job by SIGTERM if the job's Python cannot, because native code holds the GIL.

It has the standard library alone until the job has died of the signal. Then it records that in the run's folder.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

__all__ = ["SETTINGS", "main"]

SETTINGS: Final = "ML_DIAGNOSTICS_TERMINATION"
"""Environment variable: what the helper has to know, as JSON."""

_GIL_SECONDS: Final = 1.0
"""For so long a thread of the job may wait for the GIL before the GIL counts as held."""

_PAUSE_SECONDS: Final = 0.1
"""After each signal: a job with a fast timer must not keep the helper busy."""

_WATCHES: Final = b"\1"
_MOST_BYTES: Final = 65_536
_IGNORED: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE")


def main() -> NoReturn:
    """Watch a job until it ends; ends the process."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    settings = json.loads(os.environ[SETTINGS])
    try:
        os.chdir("/")
        if _watch(settings["pid"], _socket.socket(fileno=settings["signals"]), settings["job"], settings["control"]):
            _record(settings)
    finally:
        os._exit(0)


def _watch(pid: int, signals: _socket.socket, job: int, control: int) -> bool:
    """Return when the job has died, or its run has ended; True if it was sent SIGTERM.

    Args:
        pid: The job's.
        signals: Where the numbers of the job's signals are written. They are only peeked at: the job reads them.
        job: A descriptor that polls as readable once the job is dead.
        control: A socket that polls as readable once the run has ended; one byte is written to it when this watches.
    """
    end, run, anything = select.poll(), select.poll(), select.poll()
    end.register(job, select.POLLIN)
    run.register(control, select.POLLIN)
    for descriptor in (job, control, signals):
        anything.register(descriptor, select.POLLIN)
    os.write(control, _WATCHES)
    is_terminated = False
    while True:
        anything.poll()
        # The second starts when SIGTERM is seen, not with any other signal: Python may be about to handle it.
        numbers = _peek(signals)
        is_unread = signal.SIGTERM in (numbers or b"")
        is_terminated = is_terminated or is_unread
        if end.poll(0):
            return is_terminated
        if numbers == b"" or run.poll(0):
            return False
        if end.poll(1e3 * (_GIL_SECONDS if is_unread else _PAUSE_SECONDS)):
            return is_terminated
        if is_terminated and _is_caught(pid, signal.SIGTERM):
            is_terminated = False  # Python has handled it, or another library has.
        elif is_unread and signal.SIGTERM in (_peek(signals) or b""):
            signal.pidfd_send_signal(job, signal.SIGTERM)


def _peek(signals: _socket.socket) -> bytes | None:
    """Return what the job has not read; None if it has read all, empty if nothing follows any more."""
    try:
        return signals.recv(_MOST_BYTES, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


def _is_caught(pid: int, number: int) -> bool:
    """Return True if the job has a handler for a signal; it has one again if Python, or JAX, has installed one."""
    with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
        digits = file.read(_MOST_BYTES).partition(b"SigCgt:")[2].split(None, 1)
    return not digits or bool(int(digits[0], 16) >> (number - 1) & 1)


def _record(settings: Mapping[str, Any]) -> None:
    """Record that the job died of SIGTERM, unless it has recorded its end itself."""
    import time
    from pathlib import Path

    from ml_diagnostics_common.entry import format_timestamp

    from google_cloud_mldiagnostics import attempts
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

    member = attempts.Member(*settings["member"])
    end = attempts.end(member, "FAILED", "SIGTERM", now=format_timestamp(time.time_ns()))
    LocalControlPlane(Path(settings["root"])).update_run(
        settings["run"], lambda run: end(run) if attempts.is_active(run, member) else None
    )


if __name__ == "__main__":
    sys.exit("This module is started by machinelearning_run.")
