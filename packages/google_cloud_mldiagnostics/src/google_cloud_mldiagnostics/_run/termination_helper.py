"""The process that ends a job by SIGTERM if the job's Python cannot, because native code holds the GIL.

It imports only the standard library until the job has died of the signal. Then it records that in the run's folder.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from ml_diagnostics_common.processes import handled_signals, wait_readable
from ml_diagnostics_common.sidecar_parent import Parent, ignore_signals

__all__ = ["main"]

_GIL_SECONDS: Final = 1.0
"""How long a thread of the job may wait for the GIL before the GIL counts as held."""

_PAUSE_SECONDS: Final = 0.1
"""After each signal: a job with a fast timer must not keep the helper busy."""

_MOST_BYTES: Final = 65_536


def main() -> NoReturn:
    """Watch a job until it ends; ends the process."""
    ignore_signals()
    job = Parent()
    if job.job is None:
        job.send({"kind": "output", "text": "this kernel has no pidfd_open(2), or the limit of open files is reached"})
        os._exit(1)
    try:
        os.chdir("/")
        if _watch(job, job.job, [_socket.socket(fileno=job.descriptors[name]) for name in ("signals", "handling")]):
            _record(job.settings)
    finally:
        os._exit(0)


def _watch(job: Parent, death: int, signals: Sequence[_socket.socket]) -> bool:
    """Return when the job has died, or its run has ended; True if it was sent SIGTERM.

    Args:
        job: It sends no messages; their end is the end of the run.
        death: A descriptor that is readable once the job is dead.
        signals: The numbers of the job's signals arrive at the first, and are at the second while Python handles them,
            in which native code may take the GIL. They are only peeked at: the job reads them.
    """
    job.send({"kind": "watching"})
    is_terminated = False
    while True:
        wait_readable([death, job.descriptor, *(each.fileno() for each in signals)], None)
        # The second starts when SIGTERM is seen, not with any other signal: Python may be about to handle it.
        numbers = _peek(signals)
        is_unread = signal.SIGTERM in (numbers or b"")
        is_terminated = is_terminated or is_unread
        if wait_readable([death], 0):
            return is_terminated
        if numbers == b"" or wait_readable([job.descriptor], 0):
            return False
        if wait_readable([death], _GIL_SECONDS if is_unread else _PAUSE_SECONDS):
            return is_terminated
        try:
            if is_terminated and signal.SIGTERM in handled_signals(job.pid):
                is_terminated = False  # Python has handled it and has its handler again, or another library has.
            elif is_unread and signal.SIGTERM in (_peek(signals) or b""):
                signal.pidfd_send_signal(death, signal.SIGTERM)
        except OSError:
            pass  # It has just ended.


def _peek(signals: Sequence[_socket.socket]) -> bytes | None:
    """Return the signals that the job has not handled; None if it has handled all, empty at the end of a stream."""
    unhandled = None
    for each in signals:
        try:
            numbers = each.recv(_MOST_BYTES, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        if not numbers:
            return b""
        unhandled = (unhandled or b"") + numbers
    return unhandled


def _record(settings: Mapping[str, Any]) -> None:
    """Record that the job died of SIGTERM, unless it has recorded its end itself."""
    import time
    from pathlib import Path

    from ml_diagnostics_common.entry import format_timestamp

    from google_cloud_mldiagnostics._run_state import attempts
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

    member = attempts.Member(*settings["member"])
    end = attempts.end(member, "FAILED", "SIGTERM", now=format_timestamp(time.time_ns()))
    LocalControlPlane(Path(settings["root"])).update_run(
        settings["run"], lambda run: end(run) if attempts.is_active(run, member) else None
    )


if __name__ == "__main__":
    sys.exit("This module is started by machinelearning_run.")
