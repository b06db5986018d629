"""`serve` from outside: starts the process that serves, waits for it, and ends it."""

from __future__ import annotations

import collections
import os
import sys
import threading
from contextlib import ExitStack, suppress
from subprocess import PIPE
from typing import IO, TYPE_CHECKING, NoReturn

import msgspec

from xprofiler.exceptions import XprofilerError
from xprofiler.programs.processes import Programs
from xprofiler.serve.serving_process import LOOPBACK, Order, Started

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["Server", "has_display"]

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
        """Start it; it listens some tenths of a second later: see `wait_until_ready`.

        Raises:
            MissingExtraError: XProf is not installed.
        """
        from ml_diagnostics_common.child_process import module_folders, program_of, python_command

        from xprofiler.summary.converters import require_xprof
        from xprofiler.summary.room import temporary_folder

        require_xprof("xprofiler serve")
        with ExitStack() as undone:
            folder = undone.enter_context(temporary_folder("xprofiler-serve-"))
            programs = undone.enter_context(Programs(self._console))
            argv = [*python_command(), "-c", program_of("xprofiler.serve.serving_process"), *module_folders()]
            self._process = programs.start(argv, stdin=PIPE)
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
            with suppress(BrokenPipeError):  # It is dead: `wait_until_ready` says why.
                order = Order(self._place, str(folder), self._port)
                _piped(self._process.stdin).write(msgspec.json.encode(order) + b"\n")
                _piped(self._process.stdin).flush()
            self._undo = undone.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End it, at once."""
        self._undo.close()

    def wait_until_ready(self) -> str:
        """Return the URL once it answers.

        Raises:
            XprofilerError: It does not start; with what it said.
        """
        line = _piped(self._process.stdout).readline()
        if not line:
            self._fail("did not start")
        started = msgspec.json.decode(line, type=Started)
        if started.error:
            raise XprofilerError(f"{started.error}; choose another with --port")
        self.port = started.port
        return f"http://{LOOPBACK}:{started.port}"

    def wait(self) -> NoReturn:
        """Wait until it is interrupted.

        Raises:
            XprofilerError: The server ended by itself.
        """
        self._process.wait()
        self._fail("ended by itself")

    def _listen(self) -> None:
        """Read what the server says, so that it never waits for a reader."""
        with suppress(ValueError):  # It was ended, and the pipe closed.
            for line in _piped(self._process.stderr):
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


def _piped(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "`start` was asked for a pipe"
    return pipe
