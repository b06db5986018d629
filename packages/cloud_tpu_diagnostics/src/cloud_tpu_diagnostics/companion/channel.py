"""What the companion and the job say to each other: JSON lines."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

__all__ = ["ERROR", "WARNING", "Channel"]

WARNING, ERROR = 30, 40
"""As in `logging`, which is loaded at the first entry only."""

_READ_BYTES = 2**16
_MOST_LINE_BYTES = 2**23
_MESSAGE_CHARACTERS = 900
"""A line of so many is written at once."""
_KINDS_OF_MESSAGES = 100


class Channel:
    """The companion's end: reads from stdin, and writes to what was stdout. Writing never blocks.

    What does not fit, because the job does not listen, is dropped.
    """

    def __init__(self) -> None:
        self.stdin = 0
        self.is_open = True
        """False once the job can say no more."""
        self._rest = b""
        self._out = os.dup(1)
        os.set_blocking(self._out, False)
        # What libraries print is of no use; what a dying interpreter says still goes to the job.
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        self._said: set[str] = set()

    def first_message(self, timeout_seconds: float) -> Mapping[str, Any] | None:
        """Waits for the settings; None if they do not come."""
        deadline = time.monotonic() + timeout_seconds
        poller = select.poll()
        poller.register(self.stdin, select.POLLIN)
        while self.is_open and poller.poll(1e3 * max(0.0, deadline - time.monotonic())):
            for message in self.read(most=1):
                return message
        return None

    def read(self, most: int | None = None) -> list[dict[str, Any]]:
        """Reads what there is, once; lines that make no sense are passed over.

        Args:
            most: How many messages to return; the others come with the next call.
        """
        try:
            data = os.read(self.stdin, _READ_BYTES)
        except BlockingIOError:
            data, is_open = b"", True
        except OSError:
            data, is_open = b"", False
        else:
            is_open = bool(data)
        self.is_open = is_open
        self._rest += data
        return self.held(most)

    def held(self, most: int | None = None) -> list[dict[str, Any]]:
        """Returns messages that were read already."""
        messages: list[dict[str, Any]] = []
        while most is None or len(messages) < most:
            line, newline, rest = self._rest.partition(b"\n")
            if not newline:
                break
            self._rest = rest
            messages += _decoded(line)
        if len(self._rest) > _MOST_LINE_BYTES:
            self._rest = b""
        return messages

    def say(self, message: Mapping[str, Any]) -> None:
        """Tells the job something."""
        try:
            line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
            os.write(self._out, b"\n" + line + b"\n")
        except OSError:
            pass

    def log(self, level: int, message: str) -> None:
        """Has the job log a message; each once, as it may concern every second of a long run."""
        if message in self._said or len(self._said) >= _KINDS_OF_MESSAGES:
            return
        self._said.add(message)
        self.say({"kind": "log", "level": level, "message": message[:_MESSAGE_CHARACTERS]})

    def listen_to_libraries(self) -> None:
        """Has the job log what the libraries warn of here, and what ours say at INFO."""
        import logging

        class ToJob(logging.Handler):
            emit = staticmethod(self._pass_on)

        logging.basicConfig(level=logging.INFO, handlers=[ToJob()], force=True)

    def _pass_on(self, record: logging.LogRecord) -> None:
        is_ours = record.name.startswith("ml_diagnostics")
        if record.levelno < WARNING and not is_ours:
            return
        message = record.getMessage() if is_ours else f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            message += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self.log(record.levelno, message)


def _decoded(line: bytes) -> list[dict[str, Any]]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [message] if isinstance(message, dict) else []
