"""XProf's application and ours on one port of 127.0.0.1, in a process of their own.

XProf's own server listens on all interfaces, and opens a gRPC port, so only its application is used. The process reads
its order as a line of JSON from standard input, and writes its port as a line of JSON to standard output. It exits when
standard input is closed, so that it cannot outlive the command.
"""

from __future__ import annotations

import collections
import errno
import os
import shutil
import signal
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgspec
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.worker import start

from xprofiler.gcloud.processes import Programs

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from xprofiler.serve.application import Application, Wsgi

__all__ = ["Server", "has_display", "main"]

_LOOPBACK = "127.0.0.1"
_TRIED_PORTS = 50
_THREADS = 8
_REMEMBERED_LINES = 12


@dataclass(frozen=True)
class _Order:
    """The order of the command.

    Attributes:
        path: The log directory.
        folder: The folder for copies; removed at the end.
        port: The port; the next free one if it is in use; 0 selects any.
    """

    path: str
    folder: str
    port: int


@dataclass(frozen=True)
class _Started:
    """The result of the start.

    Attributes:
        port: The port it listens on; 0 after a failure.
        error: The reason of a failure.
    """

    port: int = 0
    error: str = ""


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
        from ml_diagnostics_common.sidecar import python_argv

        from xprofiler.summary.converters import require_xprof, temporary_folder

        require_xprof("xprofiler serve")
        with ExitStack() as undone:
            folder = undone.enter_context(temporary_folder("xprofiler-serve-"))
            programs = undone.enter_context(Programs(self._console))
            self._process = programs.start(python_argv(__name__), stdin=PIPE)
            self._log_reader = start(self._read_log, "xprofiler-serve-log")
            with suppress(BrokenPipeError):  # The process has exited: `wait_until_ready` raises the reason.
                order = _Order(self._path, str(folder), self._port)
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
        started = msgspec.json.decode(line, type=_Started)
        if started.error:
            raise CommandError(f"{started.error}; choose another with --port")
        self.port = started.port
        return f"http://{_LOOPBACK}:{started.port}"

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
        if self._log_reader is not None:
            self._log_reader.wait(2)
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


# --- In the process -----------------------------------------------------------------------------------


def main() -> None:
    """Serve until standard input is closed, in the process."""
    from ml_diagnostics_common.sidecar_parent import take_stdout

    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Order)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The command handles Ctrl-C, and ends this process.
    messages = take_stdout()
    folder = Path(order.folder)
    server = None
    try:
        server = _bound(_application(order.path, folder), order.port)
        started = _Started(server.bind_addr[1])
    except OSError as error:
        started = _Started(error=f"cannot listen on {_LOOPBACK}, ports {order.port} and above: {error}")
    with messages:
        messages.write(msgspec.json.encode(started) + b"\n")
    if server is not None:
        start(server.serve, "xprofiler-serve")
        sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # Threads may run XProf's C++, which Python cannot interrupt.


def _application(path: str, folder: Path) -> Application:
    from xprofiler.serve.application import Application, Catalog
    from xprofiler.summary.reading import summarize

    return Application(Catalog(path, folder, summarize), _xprof(folder))


def _xprof(folder: Path) -> Wsgi:
    """Return XProf's application for a folder, as `xprof.server` creates it, but without its gRPC server."""
    from xprof.profile_plugin_loader import ProfilePluginLoader
    from xprof.server import make_wsgi_app
    from xprof.standalone.base_plugin import TBContext
    from xprof.standalone.plugin_event_multiplexer import DataProvider

    context = TBContext(str(folder), DataProvider(str(folder)), TBContext.Flags(False))
    context.hide_capture_profile_button = True
    application: Wsgi = make_wsgi_app(ProfilePluginLoader().load(context))
    return application


def _bound(application: Application, port: int) -> Any:
    """Return a listening server on the first free port."""
    from cheroot import wsgi

    for candidate in [0] if port == 0 else range(port, min(port + _TRIED_PORTS, 65536)):
        server = wsgi.Server((_LOOPBACK, candidate), application, numthreads=_THREADS, server_name="xprofiler")
        try:
            server.prepare()
        except OSError:
            continue  # In use; cheroot does not set errno.
        return server
    raise OSError(errno.EADDRINUSE, "all are in use")
