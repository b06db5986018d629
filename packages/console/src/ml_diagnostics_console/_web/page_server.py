"""The server of the page: its settings, its signals and its end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ml_diagnostics_console._web.connections import Connection, report_too_many_files_once

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["PageServer"]


class PageServer(uvicorn.Server):
    """Uvicorn, ended by SIGTERM, SIGINT and SIGHUP alike: the normal end of this command.

    Args:
        app: The application.
        on_start: Called once, when requests are answered.
        on_end: Called once, when the end is requested.
    """

    def __init__(self, app: ASGIApp, on_start: Callable[[], None], on_end: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            loop="asyncio",
            http=Connection,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=30,
        )
        super().__init__(config)
        self._on_start, self._on_end = on_start, on_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then start what may keep the processor busy."""
        report_too_many_files_once(asyncio.get_running_loop())
        await super().startup(sockets=sockets)
        self._on_start()

    def run_on(self, sockets: list[socket.socket]) -> None:
        """Serve until a signal."""
        self.run(sockets=sockets)

    def end(self) -> None:
        """End soon; callable from any thread."""
        if not self.should_exit:
            self.should_exit = True
            self._on_end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at a signal; a second Ctrl-C does not wait for open connections."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.end()

    def install_signals(self) -> None:
        """Handle SIGHUP, too: the terminal was closed. Signals that are ignored, as under nohup, stay so."""
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
            signal.signal(hangup, self.handle_exit)
