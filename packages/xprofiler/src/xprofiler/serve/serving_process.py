"""The process that serves: XProf's own application beside ours, on one listener of 127.0.0.1.

XProf's server would listen on all interfaces, and open a gRPC port there; so its application is taken without it. The
process is told what to do by a line of JSON on standard input, says its port in a line of JSON on standard output, and
ends when standard input does: it cannot outlive the command.
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
    """What to serve.

    Attributes:
        place: The log directory.
        folder: For copies; removed at the end.
        port: The port, or, where that is taken, one of the next; 0 for any.
    """

    place: str
    folder: str
    port: int


@dataclass(frozen=True)
class Started:
    """How it began.

    Attributes:
        port: Where it listens; 0 if it does not.
        error: Why not.
    """

    port: int = 0
    error: str = ""


def main() -> None:
    """Serve until standard input ends."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's, which then ends this process.
    output = os.dup(1)
    os.dup2(2, 1)  # What XProf prints is no answer.
    folder = Path(order.folder)
    server = None
    try:
        server = _bound(_application(order.place, folder), order.port)
        started = Started(server.bind_addr[1])
    except OSError as error:
        started = Started(error=f"cannot listen on {LOOPBACK}, ports {order.port} and above: {error}")
    with os.fdopen(output, "wb") as file:
        file.write(msgspec.json.encode(started) + b"\n")
    if server is not None:
        threading.Thread(target=server.serve, daemon=True).start()
        sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # Threads may be deep in XProf's C++, which no Python can interrupt.


def _application(place: str, folder: Path) -> Application:
    from xprofiler.summary.reading import summarize

    return Application(Catalog(place, folder, summarize), _xprof(folder))


def _xprof(folder: Path) -> Wsgi:
    """XProf's application over a folder, as `xprof.server` makes it, without starting its gRPC server."""
    from xprof.profile_plugin_loader import ProfilePluginLoader
    from xprof.server import make_wsgi_app
    from xprof.standalone.base_plugin import TBContext
    from xprof.standalone.plugin_event_multiplexer import DataProvider

    context = TBContext(str(folder), DataProvider(str(folder)), TBContext.Flags(False))
    context.hide_capture_profile_button = True
    application: Wsgi = make_wsgi_app(ProfilePluginLoader().load(context))
    return application


def _bound(application: Application, port: int) -> Any:
    """A server that listens, on the first port that is free."""
    from cheroot import wsgi

    for candidate in [0] if port == 0 else range(port, min(port + _TRIED_PORTS, 65536)):
        server = wsgi.Server((LOOPBACK, candidate), application, numthreads=_THREADS, server_name="xprofiler")
        try:
            server.prepare()
        except OSError:
            continue  # Taken; cheroot does not say so by errno.
        return server
    raise OSError(errno.EADDRINUSE, "all are taken")
