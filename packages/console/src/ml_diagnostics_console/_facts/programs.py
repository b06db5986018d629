"""Programs of this machine that answer questions, such as kubectl: bounded in time and in the size of their answers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any, Final, NamedTuple

__all__ = ["Answer", "ProgramError", "ask"]

_MOST_ERRORS_BYTES: Final = 65_536
_CHUNK_BYTES: Final = 65_536
_PATIENCE_SECONDS: Final = 2.0


class Answer(NamedTuple):
    """The answer of a program that has ended.

    Attributes:
        exit_code: Its exit code; negative if a signal ended it.
        output: Its standard output.
        errors: The first lines of its standard error.
    """

    exit_code: int
    output: bytes
    errors: str


class ProgramError(Exception):
    """A program is missing, did not answer in time, or answered too much; the message is a sentence."""


def ask(argv: Sequence[str], *, timeout_seconds: float, most_bytes: int) -> Answer:
    """Run a program without input, to its end.

    It is ended, with its children, when it is too slow, writes too much, or this thread is interrupted.

    Args:
        argv: The program and its arguments; there is no shell.
        timeout_seconds: The most time.
        most_bytes: The most that it may write to its standard output.

    Raises:
        ProgramError: It is not installed, cannot be started, was too slow, or wrote too much.
    """
    name = argv[0]
    own_session: dict[str, Any] = {} if sys.platform == "win32" else {"start_new_session": True}
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **own_session
        )
    except FileNotFoundError as error:
        raise ProgramError(f"the program {name!r} is not installed on this machine") from error
    except (OSError, ValueError) as error:
        raise ProgramError(f"the program {name!r} cannot be started: {error}") from error
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_seconds
    output, errors = _Reader(process.stdout, most_bytes), _Reader(process.stderr, _MOST_ERRORS_BYTES)
    try:
        output.join(deadline)
        if output.is_running:
            raise ProgramError(f"{name!r} did not answer within {timeout_seconds:.3g} s")
        if output.is_cut:
            raise ProgramError(f"{name!r} answered with more than {most_bytes:,} bytes")
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise ProgramError(f"{name!r} did not end within {timeout_seconds:.3g} s") from error
        errors.join(time.monotonic() + _PATIENCE_SECONDS)
        return Answer(code, output.content, errors.content.decode("utf-8", "replace").strip())
    finally:
        _end(process)
        for reader in (output, errors):
            reader.join(time.monotonic() + _PATIENCE_SECONDS)


class _Reader:
    """Reads a stream in a thread, up to a limit; a stream without end is not waited for."""

    def __init__(self, stream: IO[bytes], most_bytes: int) -> None:
        self.is_cut = False
        self._stream = stream
        self._most_bytes = most_bytes
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._read, name="ml-diagnostics-program", daemon=True)
        self._thread.start()

    @property
    def content(self) -> bytes:
        """All that was read."""
        return b"".join(self._chunks)

    @property
    def is_running(self) -> bool:
        """True until the stream has ended, or the limit is reached."""
        return self._thread.is_alive()

    def join(self, deadline: float) -> None:
        """Wait until the stream has ended, at most until a moment of the monotonic clock."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _read(self) -> None:
        size = 0
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK_BYTES):
                if size + len(chunk) > self._most_bytes:
                    self.is_cut = True
                    return
                self._chunks.append(chunk)
                size += len(chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_SECONDS)
