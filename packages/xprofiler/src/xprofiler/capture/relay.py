"""A local port that forwards each connection through a program, for targets where no port can be forwarded."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, cast

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.worker import start

from xprofiler.programs.processes import Process, Programs

__all__ = ["NOTHING_THERE", "Relay", "last_lines", "remote_program"]

NOTHING_THERE: Final = "nothing answers at port"
"""The remote program's message if no server listens at its port."""
_PIECE_BYTES: Final = 1 << 16
_POLL_SECONDS: Final = 0.1
_SHOWN_LINES: Final = 4
_ADVICE: Final = "\nRecommendation:"


def last_lines(stderr: bytes) -> str:
    """Return the last lines of a program's standard error, without the advice that gcloud appends."""
    text = stderr.decode("utf-8", "replace").strip().partition(_ADVICE)[0]
    return "\n".join([line.strip() for line in text.splitlines() if line.strip()][-_SHOWN_LINES:])


def remote_program(port: int) -> list[str]:
    """Return the argv to run on the target. It has no argument but a number, so it needs no quoting."""
    program = Path(__file__).with_name("remote_relay.py").read_text(encoding="utf-8")
    return ["python3", "-c", program, str(int(port))]


class Relay:
    """Listens at a port of 127.0.0.1, and connects each client to standard input and output of a new run of a program.

    Args:
        programs: Runs the programs, and ends them when it is closed.
        argv: The program and its arguments.

    Attributes:
        port: The local port.
    """

    def __init__(self, programs: Programs, argv: Sequence[str]) -> None:
        self._programs = programs
        self._argv = list(argv)
        self._errors: IO[bytes] = TemporaryFile("a+b")  # noqa: SIM115 (append mode, since all programs and this one share its offset)
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_POLL_SECONDS)  # Closing a socket does not wake a blocked accept() on every system.
        self.port: int = self._listener.getsockname()[1]
        self._task = start(self._accept, "xprofiler-relay")

    def close(self) -> str:
        """Stop accepting connections; open ones end with their programs.

        Returns:
            The last lines that the programs wrote to standard error.
        """
        self._is_closed.set()
        if self._task is not None:
            self._task.wait(math.inf)
        with self._errors:
            self._errors.seek(0)
            return last_lines(self._errors.read())

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError, CommandError):
            while not self._is_closed.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                process = self._programs.start(
                    self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
                )
                for pump in (_up, _down):
                    start(functools.partial(pump, connection, process), "xprofiler-relay")


def _up(connection: socket.socket, process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # Either side has ended.
        while piece := connection.recv(_PIECE_BYTES):
            process.stdin.write(piece)
            process.stdin.flush()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _down(connection: socket.socket, process: Process) -> None:
    output = cast("io.BufferedReader", process.stdout)
    with connection, contextlib.suppress(OSError, ValueError):
        while piece := output.read1(_PIECE_BYTES):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_RDWR)
