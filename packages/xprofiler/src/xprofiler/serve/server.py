"""The parent of the serving process: start it, wait until it is ready, and end it."""

from __future__ import annotations

import collections
import os
import sys
import threading
from contextlib import ExitStack, suppress
from subprocess import PIPE
from typing import IO, TYPE_CHECKING, NoReturn

import msgspec
from ml_diagnostics_common.command.errors import CommandError

from xprofiler.programs.processes import Programs
from xprofiler.serve.serving_process import LOOPBACK, Order, Started

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["Server", "has_display"]

_REMEMBERED_LINES = 12


class Server:
    """Serves XProf and the summary page for one log directory, within a block.

    Args:
        path: The log directory, local or in Cloud Storage.
        port: The port; the next free one if it is in use; 0 selects any.
        console: Receives the server's log, with `--verbose`.
    """

    def __init__(self, path: str, port: int, console: Console) -> None:
        self._path = path
        self._port = port
        self._console = console
        self._lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)

    def __enter__(self) -> Server:
        """Start the process, which needs some tenths of a second to listen: see `wait_until_ready`.

        Raises:
            MissingExtraError: XProf is not installed.
        """
        from ml_diagnostics_common.processes import module_folders, program_of, python_command

        from xprofiler.summary.converters import require_xprof
        from xprofiler.summary.disk_space import temporary_folder

        require_xprof("xprofiler serve")
        with ExitStack() as undone:
            folder = undone.enter_context(temporary_folder("xprofiler-serve-"))
            programs = undone.enter_context(Programs(self._console))
            argv = [*python_command(), "-c", program_of("xprofiler.serve.serving_process"), *module_folders()]
            self._process = programs.start(argv, stdin=PIPE)
            self._log_reader = threading.Thread(target=self._read_log, daemon=True)
            self._log_reader.start()
            with suppress(BrokenPipeError):  # The process has exited: `wait_until_ready` raises the reason.
                order = Order(self._path, str(folder), self._port)
                _piped(self._process.stdin).write(msgspec.json.encode(order) + b"\n")
                _piped(self._process.stdin).flush()
            self._undo = undone.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the process immediately."""
        self._undo.close()

    def wait_until_ready(self) -> str:
        """Wait until the process listens, and return its URL.

        Raises:
            CommandError: It did not start; the message contains its log.
        """
        line = _piped(self._process.stdout).readline()
        if not line:
            self._fail("did not start")
        started = msgspec.json.decode(line, type=Started)
        if started.error:
            raise CommandError(f"{started.error}; choose another with --port")
        self.port = started.port
        return f"http://{LOOPBACK}:{started.port}"

    def wait(self) -> NoReturn:
        """Wait until an interrupt.

        Raises:
            CommandError: The process ended by itself.
        """
        self._process.wait()
        self._fail("ended by itself")

    def _read_log(self) -> None:
        """Read the process's log, so that a full pipe never blocks it."""
        with suppress(ValueError):  # The process was ended, and its pipe closed.
            for line in _piped(self._process.stderr):
                text = line.decode("utf-8", "replace").rstrip()
                self._lines.append(text)
                self._console.detail(text)

    def _fail(self, how: str) -> NoReturn:
        code = self._process.wait()
        self._log_reader.join(2)
        log = "\n".join(self._lines) or "no output"
        raise CommandError(f"the server {how} (exit code {code}):\n{log}")


def has_display() -> bool:
    """Return whether a browser can be opened."""
    if sys.platform in ("darwin", "win32") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _piped(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "the process was started with pipes"
    return pipe
