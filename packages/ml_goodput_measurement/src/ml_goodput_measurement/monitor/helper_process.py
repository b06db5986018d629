"""One life of the helper process, as the trainer sees it."""

from __future__ import annotations

import json
import os
import select
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.child_process import child_environment, module_folders, program_of, python_command
from ml_diagnostics_common.descriptors import channels, send
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.process_hooks import PROCESS_START_LOCK

from ml_goodput_measurement.monitor.settings import MonitorSettings

__all__ = ["IN_HELPER", "HelperProcess"]

_log = job_logger("ml_diagnostics.goodput")

IN_HELPER = "ML_DIAGNOSTICS_GOODPUT_HELPER"
"""Environment variable that tells a helper process that it is one."""

_LINES_KEPT = 20
_READ_BYTES = 1 << 16
_LOOK_SECONDS = 1.0
"""How often a process that says nothing is looked for, and our descriptors."""
_MARGIN_SECONDS = 1.0
"""How much longer than for its final flush a process may live that cannot be reached any more."""


class HelperProcess:
    """Starts a helper process and speaks with it: commands as JSON lines to its stdin, answers from its stdout."""

    def __init__(self, settings: MonitorSettings) -> None:
        """Starts it; returns when it runs, before it has done anything.

        Args:
            settings: Of the monitor.

        Raises:
            Exception: No process can be started. Mostly an OSError, but an interpreter that ends raises others.
        """
        self._flush_seconds = settings.flush_seconds
        with (
            PROCESS_START_LOCK.held(),
            channels() as (self._to_helper, its_stdin, self._from_helper, its_stdout),
        ):
            import subprocess  # Not by every trainer that imports the monitor.

            self._process = subprocess.Popen(
                [*python_command(), "-c", program_of("ml_goodput_measurement.monitor.helper"), *module_folders()],
                stdin=its_stdin,
                stdout=its_stdout,
                stderr=subprocess.STDOUT,
                env=child_environment(**{IN_HELPER: "1"}),
                # Out of reach of Ctrl-C, and of who kills the trainer's group: it has the last point to write.
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._writing = threading.RLock()  # A closed descriptor's number may soon be a file of the trainer's.
        self.end: str | None = None
        """How it ended, once it has."""
        self._ended = threading.Event()
        self._awaited: dict[int, threading.Event] = {}
        self._last_done = 0
        self._last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._commands = 0
        self._write({"settings": settings.to_json(), "trainer": os.getpid()})

    def send(self, uploads: Mapping[str, list[int]], *, flush: bool, flush_seconds: float) -> int:
        """Tells it which uploads shall be on; none: flush and end. Never waits.

        Returns:
            The number of the command, for `wait_done` and `has_done`.
        """
        self._commands += 1
        number = self._commands
        if flush:  # Nobody waits for anything else.
            self._awaited[number] = threading.Event()
            if self._ended.is_set():
                self._awaited[number].set()
        self._write({"number": number, "uploads": dict(uploads), "flush": flush, "flush_seconds": flush_seconds})
        return number

    def wait_done(self, number: int, timeout_seconds: float) -> None:
        """Waits until it has done a command that flushes, or has ended, within that time."""
        event = self._awaited.get(number)
        if event is not None:
            event.wait(timeout_seconds)
            self._awaited.pop(number, None)

    def has_done(self, number: int) -> bool:
        """Whether it said that it has done a command."""
        return number <= self._last_done

    def wait_ended(self, timeout_seconds: float) -> bool:
        """True if it has ended, within that time."""
        return self._ended.wait(timeout_seconds)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def follow(self) -> str:
        """Listens to it until it ends; for a thread of its own.

        Returns:
            How it ended, and what it said last that was no answer.
        """
        try:
            self._listen()
        finally:
            code = self._wait()
            self.end = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self.end += "".join(f"\n    {line}" for line in self._last_lines)
            self._ended.set()
            for event in list(self._awaited.values()):
                event.set()
            self._hang_up()
        return self.end

    def _listen(self) -> None:
        """Reads until the process is dead, or cannot be heard any more.

        A fork of the trainer may hold its end of the pipe for longer than it lives.
        """
        rest, is_dead = b"", False
        while (descriptor := self._from_helper.number()) is not None:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            is_ready = bool(poller.poll(0 if is_dead else 1e3 * _LOOK_SECONDS))
            if self._to_helper.number() is None or self._from_helper.number() is None:
                return  # The trainer has closed all descriptors that it found.
            if not is_ready:
                if is_dead:
                    return
                is_dead = self._process.poll() is not None  # What it said last may still be in the pipe.
                continue
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_READ_BYTES:]
            for line in lines:
                self._hear(line)

    def _wait(self) -> int:
        """Waits for its end; not for ever if it was not told that nobody hears it, as a fork holds our ends too."""
        import subprocess

        if self._to_helper.number() is None or self._from_helper.number() is None:
            self._hang_up()
            try:
                return self._process.wait(self._flush_seconds + _MARGIN_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def _hang_up(self) -> None:
        with self._writing:
            self._to_helper.close()
        self._from_helper.close()

    def _hear(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
            if "done" not in answer:
                _log.log(answer["level"], "%s", answer["message"])
            elif answer["done"] is not None:  # It did something without being told if it takes this process for dead.
                self._last_done = answer["done"]
                event = self._awaited.get(answer["done"])
                if event is not None:
                    event.set()
        except Exception:  # Not ours: what some library printed. It is shown only if the process dies.
            if line.strip():
                self._last_lines.append(line[:500].decode("utf-8", "replace"))

    def _write(self, message: Mapping[str, Any]) -> None:
        """Writes one line; if the process is dead or does not read, whoever follows it will see."""
        line = memoryview(json.dumps(message).encode() + b"\n")
        with self._writing:
            try:
                while line and (descriptor := self._to_helper.number()) is not None:
                    line = line[send(descriptor, line) :]
            except OSError:
                pass
