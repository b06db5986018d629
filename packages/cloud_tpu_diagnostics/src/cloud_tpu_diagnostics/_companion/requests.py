"""Requests for stack traces that Python does not answer because the GIL is held: faulthandler answers these.

The companion checks for them; a block without a companion has a small helper process, which does nothing else.
"""

from __future__ import annotations

import _socket
import os
import signal
import time
from collections.abc import Mapping
from typing import NoReturn

from ml_diagnostics_common.processes import wait_readable
from ml_diagnostics_common.sidecar_parent import Parent, ignore_signals, lower_priority

from cloud_tpu_diagnostics._companion.job import Job, StuckCheck
from cloud_tpu_diagnostics._signals import FAULTHANDLER_DUMP

__all__ = ["UnansweredRequests", "main"]

_CHECK_SECONDS = 0.05
_RECHECK_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 60.0
"""The helper's interval between checks if the job lives; needed if it has no process descriptor of the job."""
_MOST_BYTES = 65_536


class UnansweredRequests:
    """Watches the bytes that signals have written to the job's wake-up descriptor, until its Python has handled them.

    Args:
        descriptors: `wakeups` and, with the bytes that are being handled, `handling`, which are read without consuming
            anything; and `answers`, with a byte whenever Python ran.
        job: The job.
        dump_signal: The signal on which faulthandler dumps all threads.
    """

    def __init__(self, descriptors: Mapping[str, int], job: Job, dump_signal: int | None) -> None:
        self._sockets = [_socket.socket(fileno=descriptors[name]) for name in ("wakeups", "handling")]
        self._answers = descriptors["answers"]
        self._job, self._dump_signal = job, dump_signal
        self._silence = StuckCheck(job.pid)
        self._waiting = 0
        """The number of requests that were unread, or being handled, in the last step."""
        self._dumped = 0
        """The number of these for which faulthandler has already been signalled."""
        self._has_unread = False
        """True if any bytes were unread in the last step, such as those of SIGTERM."""
        self._is_closed = False
        """True once the job has closed the other end, or has replaced itself by another program (execve)."""

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of which the next request makes one readable.

        Empty while `step` must be called again anyway, and once there will be no more requests: unread bytes and the
        end of the stream stay readable, so a wait for them would return at once each time.
        """
        return [] if self._has_unread or self._is_closed else [each.fileno() for each in self._sockets]

    def step(self, now: float) -> float | None:
        """Check for unanswered requests, and signal faulthandler if it is time.

        Args:
            now: Monotonic seconds.

        Returns:
            The seconds until the next call; None to wait for `descriptors`.
        """
        has_answered = self._has_answered()
        self._has_unread = False
        before, self._waiting = self._waiting, sum(map(self._unread, self._sockets))
        if has_answered or not self._waiting:
            self._dumped = 0
        if self._waiting <= self._dumped:
            return _RECHECK_SECONDS if self._has_unread else None
        if has_answered or before <= self._dumped:
            self._silence.start(now)
        if self._silence.is_stuck(now):
            self._dumped = self._waiting
            self._job.ask(self._dump_signal)
            return _RECHECK_SECONDS
        return _CHECK_SECONDS

    def _has_answered(self) -> bool:
        try:
            return bool(os.read(self._answers, _MOST_BYTES))
        except OSError:
            return False

    def _unread(self, end: _socket.socket) -> int:
        try:
            data = end.recv(_MOST_BYTES, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        except OSError:
            return 0
        if data:
            self._has_unread = True
        else:
            self._is_closed = True
        requests = data.count(FAULTHANDLER_DUMP)
        if not requests:
            first_real_time = getattr(signal, "SIGRTMIN", signal.NSIG)
            requests = sum(each in (signal.SIGUSR1, signal.SIGUSR2) or each >= first_real_time for each in data)
        return requests


def main() -> NoReturn:
    """Watch a job until it ends or leaves its block; then end the process."""
    ignore_signals()
    lower_priority()
    parent = Parent()
    job = Job(parent.pid, parent.job)
    requests = UnansweredRequests(parent.descriptors, job, parent.settings["dump_signal"])
    while not parent.is_dead():
        seconds = requests.step(time.monotonic())
        ready = wait_readable(
            [parent.descriptor, parent.job, *requests.descriptors],
            _LONGEST_WAIT_SECONDS if seconds is None else seconds,
        )
        if parent.descriptor in ready:  # Nothing is sent after the settings: the block was left.
            break
    os._exit(0)
