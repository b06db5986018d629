"""A port of this machine whose connections go through a program: the way to a port that nothing can forward."""

from __future__ import annotations

import contextlib
import io
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, cast

from xprofiler.exceptions import XprofilerError
from xprofiler.programs.processes import Process, Programs

__all__ = ["NOTHING_THERE", "Relay", "last_lines", "remote_program"]

NOTHING_THERE: Final = "nothing answers at port"
"""How the remote program says that there is no server."""
_PIECE_BYTES: Final = 1 << 16
_LOOK_SECONDS: Final = 0.1
_SHOWN_LINES: Final = 4
_ADVICE: Final = "\nRecommendation:"


def last_lines(said: bytes) -> str:
    """Returns the end of what a program said, which is what it failed with; without the advice that gcloud adds."""
    text = said.decode("utf-8", "replace").strip().partition(_ADVICE)[0]
    return "\n".join([line.strip() for line in text.splitlines() if line.strip()][-_SHOWN_LINES:])


def remote_program(port: int) -> list[str]:
    """Returns what runs on the target: its only argument is a number."""
    program = Path(__file__).with_name("remote_relay.py").read_text(encoding="utf-8")
    return ["python3", "-c", program, str(int(port))]


class Relay:
    """Listens at a port of 127.0.0.1; each connection is a run of the program, whose input and output are its bytes.

    Args:
        programs: Where the programs run; they end with it.
        argv: The program.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, programs: Programs, argv: Sequence[str]) -> None:
        self._programs = programs
        self._argv = list(argv)
        self._errors: IO[bytes] = TemporaryFile("a+b")  # noqa: SIM115 (appending, since programs and we share its place)
        self._is_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_LOOK_SECONDS)  # Not every system wakes up who accepts when another thread closes.
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> str:
        """Takes no more connections; those that are there end with their programs.

        Returns:
            What the last program said on standard error at its end.
        """
        self._is_closed.set()
        self._thread.join()
        with self._errors:
            self._errors.seek(0)
            return last_lines(self._errors.read())

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError, XprofilerError):
            while not self._is_closed.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                process = self._programs.start(
                    self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
                )
                for pump in (_up, _down):
                    threading.Thread(target=pump, args=(connection, process), name="relay", daemon=True).start()


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
