"""The serving process: XProf's application beside ours, on one port of 127.0.0.1.

XProf's own server listens on all interfaces, and opens a gRPC port, so only its application is used. The process reads
its order as a line of JSON from standard input, and writes its port as a line of JSON to standard output. It exits when
standard input is closed, so that it cannot outlive the command.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from xprofiler.serve.application import Application, Wsgi
from xprofiler.serve.catalog import Catalog

__all__ = ["LOOPBACK", "Order", "Started", "main"]

LOOPBACK = "127.0.0.1"
_TRIED_PORTS = 50
_THREADS = 8


@dataclass(frozen=True)
class Order:
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
class Started:
    """The result of the start.

    Attributes:
        port: The port it listens on; 0 after a failure.
        error: The reason of a failure.
    """

    port: int = 0
    error: str = ""


def main() -> None:
    """Serve until standard input is closed."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The command handles Ctrl-C, and ends this process.
    output = os.dup(1)
    os.dup2(2, 1)  # XProf's prints must not mix with the answer.
    folder = Path(order.folder)
    server = None
    try:
        server = _bound(_application(order.path, folder), order.port)
        started = Started(server.bind_addr[1])
    except OSError as error:
        started = Started(error=f"cannot listen on {LOOPBACK}, ports {order.port} and above: {error}")
    with os.fdopen(output, "wb") as file:
        file.write(msgspec.json.encode(started) + b"\n")
    if server is not None:
        threading.Thread(target=server.serve, daemon=True).start()
        sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # Threads may run XProf's C++, which Python cannot interrupt.


def _application(path: str, folder: Path) -> Application:
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
        server = wsgi.Server((LOOPBACK, candidate), application, numthreads=_THREADS, server_name="xprofiler")
        try:
            server.prepare()
        except OSError:
            continue  # In use; cheroot does not set errno.
        return server
    raise OSError(errno.EADDRINUSE, "all are in use")
