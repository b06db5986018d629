"""`serve` from outside: starts the process that serves, waits for it, and ends it."""

from __future__ import annotations

import collections
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NoReturn

import msgspec

from xprofiler.exceptions import XprofilerError
from xprofiler.processes import Process, Programs
from xprofiler.serve.serving_process import LOOPBACK, Order, Started

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["Server", "ends_with_sigterm", "has_display"]

_REMEMBERED_LINES = 12


class Server:
    """XProf and the summary page over one log directory, for the length of a block.

    Args:
        place: The log directory, local or in Cloud Storage.
        port: The port, or, where that is taken, one of the next; 0 for any.
        console: Is told what the server says, with `--verbose`.
    """

    def __init__(self, place: str, port: int, console: Console) -> None:
        self._place = place
        self._port = port
        self._console = console
        self._said: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)

    def __enter__(self) -> Server:
        """Starts it; it listens some tenths of a second later: see `wait_until_ready`.

        Raises:
            MissingExtraError: XProf is not installed.
        """
        from ml_diagnostics_common.child_process import module_folders, program_of, python_command

        from xprofiler.summary.converters import require_xprof

        require_xprof("xprofiler serve")
        self._folder = tempfile.TemporaryDirectory(prefix="xprofiler-serve-", ignore_cleanup_errors=True)
        self._programs = Programs(self._console)
        argv = [*python_command(), "-c", program_of("xprofiler.serve.serving_process"), *module_folders()]
        pipe = -1  # subprocess.PIPE
        self._process = self._programs.start(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        order = Order(self._place, self._folder.name, self._port)
        _written(self._process).write(msgspec.json.encode(order) + b"\n")
        _written(self._process).flush()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, at once."""
        self._programs.end_all()
        self._listener.join(2)
        self._folder.cleanup()

    def wait_until_ready(self) -> str:
        """Returns the URL once it answers.

        Raises:
            XprofilerError: It does not start; with what it said.
        """
        line = _read(self._process).readline()
        if not line:
            self._fail("did not start")
        started = msgspec.json.decode(line, type=Started)
        if started.error:
            raise XprofilerError(f"{started.error}; choose another with --port")
        self.port = started.port
        return f"http://{LOOPBACK}:{started.port}"

    def wait(self) -> NoReturn:
        """Waits until it is interrupted.

        Raises:
            XprofilerError: The server ended by itself.
        """
        self._process.wait()
        self._fail("ended by itself")

    def _listen(self) -> None:
        """Reads what the server says, so that it never waits for a reader."""
        errors = self._process.stderr
        for line in errors or ():
            text = line.decode("utf-8", "replace").rstrip()
            self._said.append(text)
            self._console.detail(text)

    def _fail(self, how: str) -> NoReturn:
        code = self._process.wait()
        self._listener.join(2)
        said = "\n".join(self._said) or "without a word"
        raise XprofilerError(f"the server {how} (exit code {code}):\n{said}")


def has_display() -> bool:
    """Whether a browser can be opened here."""
    if sys.platform in ("darwin", "win32") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def ends_with_sigterm() -> Iterator[None]:
    """SIGTERM is Ctrl-C within the block, where the block is in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _written(process: Process) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _read(process: Process) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout
