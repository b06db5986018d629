"""The job, as its sidecar sees it: messages from and to it, and its death. See `sidecar`.

A sidecar must start fast and stay small, so this imports nothing but parts of the standard library that Python has
loaded anyway, and `json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ml_diagnostics_common.processes import exists, wait_readable

if TYPE_CHECKING:
    import logging

__all__ = ["ERROR", "WARNING", "Parent", "ignore_signals", "lower_priority", "take_stdout"]

WARNING: Final = 30
ERROR: Final = 40
"""The levels of `logging`, which sidecars load only if they need it."""

_LONGEST_START_SECONDS = 60.0
_READ_BYTES = 2**16
_MOST_READ_BYTES = 2**23
_MESSAGE_CHARACTERS = 900
_KINDS_OF_MESSAGES = 200
_NICENESS = 10
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE")


class Parent:
    """The process that started this one. Sending never blocks: what the job does not read is dropped.

    Waits for the settings, and exits the process if none arrive.

    Args:
        poll_seconds: The interval of checks that the job lives, if the system has no process descriptors.
    """

    descriptor: Final = 0
    """Readable while there are messages to receive, or once there will be no more."""

    def __init__(self, *, poll_seconds: float = 1.0) -> None:
        self._poll_seconds = poll_seconds
        os.set_blocking(self.descriptor, False)
        self.is_open = True
        """False once the job has ended or sends nothing more."""
        self._data = b""
        self._messages: list[dict[str, Any]] = []
        self._logged: set[object] = set()
        self.pid = os.getpid()  # Until the job's is known, which exists as long as we wait for it.
        self.job: int | None = None
        """A descriptor that becomes readable when the job ends; None where the system has none."""
        self._was_child = False
        hello = self.next_message(time.monotonic() + _LONGEST_START_SECONDS)
        if hello is None:
            sys.exit("the settings of this sidecar did not arrive")
        self.settings: Mapping[str, Any] = hello["settings"]
        self.descriptors: Mapping[str, int] = hello["descriptors"]
        self.pid, self.job = hello["pid"], self.descriptors.get("job")
        self._was_child = os.getppid() == self.pid
        # Prints of libraries must not mix with messages. What C code prints still goes to the job, as `output`.
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        self.send({"kind": "hello", "pid": os.getpid()})

    # --- Messages -------------------------------------------------------------------------------------

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived."""
        self._read()
        messages, self._messages = self._messages, []
        return messages

    def next_message(self, deadline: float | None) -> dict[str, Any] | None:
        """Wait for the next message.

        Args:
            deadline: Monotonic seconds; None waits without a limit.

        Returns:
            None after the deadline, or once there will be no more messages: then `is_open` is False.
        """
        while not self._messages and self.is_open:
            waits = [] if deadline is None else [deadline - time.monotonic()]
            if waits and waits[0] <= 0:
                return None
            if self.job is None:
                waits.append(self._poll_seconds)
            if self.descriptor in wait_readable([self.descriptor, self.job], min(waits, default=None)):
                self._read()
            elif self.is_dead():  # What it sent last was read.
                self.is_open = False
        return self._messages.pop(0) if self._messages else None

    def _read(self) -> None:
        while len(self._data) < _MOST_READ_BYTES:
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_open = False
                break
            self._data += data
        *lines, rest = self._data.split(b"\n")
        self._data = rest if len(rest) < _MOST_READ_BYTES else b""
        self._messages += [message for line in lines if (message := _decoded(line)) is not None]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send the job a message, in one write: several threads may send."""
        try:
            os.write(
                self.descriptor, b"\n" + json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            )
        except OSError:
            pass  # Nothing reads it, or the job has ended.

    def log(self, level: int, message: str) -> None:
        """Let the job log a message; the same text once, as its cause may recur each second of a long run."""
        if message not in self._logged:
            self._log(level, message, kind=message)

    def _log(self, level: int, message: str, kind: object) -> None:
        if len(self._logged) < _KINDS_OF_MESSAGES:
            self._logged.add(kind)
            self.send({"kind": "log", "level": level, "message": message[:_MESSAGE_CHARACTERS]})

    def forward_logs(self) -> None:
        """Let the job log each kind of warning of libraries once, and what this project logs from INFO up."""
        import logging

        class ToJob(logging.Handler):
            emit = staticmethod(self._forward)

        logging.basicConfig(level=logging.INFO, handlers=[ToJob()], force=True)

    def _forward(self, record: logging.LogRecord) -> None:
        is_ours = record.name.startswith("ml_diagnostics")
        kind = (record.name, str(record.msg) if record.args else record.getMessage())
        if not is_ours and (record.levelno < WARNING or kind in self._logged):
            return
        message = record.getMessage() if is_ours else f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            message += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self._log(record.levelno, message, kind)

    # --- Its death ------------------------------------------------------------------------------------

    def is_dead(self) -> bool:
        """Return True if the job has ended; it may wait to be reaped."""
        if self.job is not None:
            return bool(wait_readable([self.job], 0))
        # An ended job that waits to be reaped still exists; its child has another parent, though.
        return (self._was_child and os.getppid() != self.pid) or not exists(self.pid)


def _decoded(line: bytes) -> dict[str, Any] | None:
    """Return the message of a line; None if it is empty, or a part of one."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def ignore_signals() -> None:
    """Ignore the signals that are meant for the job, and unblock all: the starting thread may have blocked them."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def take_stdout() -> BinaryIO:
    """Return stdout for the messages of a process that was started with pipes; prints of libraries go to stderr."""
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return messages


def lower_priority() -> None:
    """Lower this process's CPU priority, since the job's steps have precedence."""
    try:
        os.nice(_NICENESS)
    except OSError:
        pass
