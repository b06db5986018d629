"""Serve the page over a source of runs: sockets, token, threads, and the end."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from ml_diagnostics_common.command.errors import CommandError, UsageError
from ml_diagnostics_common.environment import diagnostics_directory

from ml_diagnostics_console._web.allocator import keep_little
from ml_diagnostics_console._web.guard import Guard, Token

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading import RunSource

__all__ = ["Listener", "is_loopback", "listen", "serve"]

_LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_6: Final = "::1"
_LOOPBACK_HOSTS: Final = ("", "localhost", _LOOPBACK, _LOOPBACK_6)
_ALL: Final = ("0.0.0.0", "::")
_TRIES: Final = 20
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Listener:
    """Sockets that listen, with the rules for what they receive.

    Attributes:
        sockets: The sockets, of one port.
        port: The port.
        address: The host and port in the URL.
        guard: The rules for requests.
        token: The secret of clients; None on loopback, unless asked for.
    """

    sockets: list[socket.socket]
    port: int
    address: str
    guard: Guard
    token: Token | None = field(repr=False)

    def url(self, path: str = "/") -> str:
        """Return the URL of a page, with the token in its fragment."""
        fragment = f"#token={self.token.text}" if self.token is not None else ""
        return f"http://{self.address}{path}{fragment}"

    def close(self) -> None:
        """Close the sockets."""
        for each in self.sockets:
            each.close()


def is_loopback(host: str) -> bool:
    """Return True if an address of `--host` is reached from this machine alone."""
    return host in _LOOPBACK_HOSTS


def listen(host: str, port: int, *, has_token: bool) -> Listener:
    """Listen on both loopback addresses, or on one given address.

    Args:
        host: The address or name to listen on; empty for loopback.
        port: The port; 0 for any that is free.
        has_token: True to ask for a token on loopback, too; elsewhere one is always asked for.

    Raises:
        UsageError: The host is not an address of this machine.
        CommandError: The port is in use, may not be used, or no port is free.
    """
    if is_loopback(host):
        sockets = _listen_on_loopback(port)
        used = sockets[0].getsockname()[1]
        name = f"[{_LOOPBACK_6}]" if sockets[0].family == socket.AF_INET6 else _LOOPBACK
        return Listener(sockets, used, f"{name}:{used}", Guard(), Token(port=used) if has_token else None)
    sockets = [_bound(host, port)]
    used = sockets[0].getsockname()[1]
    is_everywhere = host in _ALL
    names = {_in_url(host), socket.gethostname().lower(), socket.getfqdn().lower()}
    shown = socket.gethostname() if is_everywhere else _in_url(host)
    return Listener(
        sockets, used, f"{shown}:{used}", Guard(frozenset(names), allows_addresses=is_everywhere), Token(port=used)
    )


def serve(
    source: RunSource,
    listener: Listener,
    report: Callable[[str], None],
    on_ready: Callable[[], None] = lambda: None,
    *,
    mirror: str = "",
) -> None:
    """Serve the page until SIGTERM, SIGINT or SIGHUP.

    Args:
        source: The runs.
        listener: The sockets; closed at the end.
        report: Prints a note for the user.
        on_ready: Called when requests are answered.
        mirror: The mirror of the page of the fleet, as an absolute path; empty for none.
    """
    from ml_diagnostics_console._web.app import make_app
    from ml_diagnostics_console._web.assets import Assets
    from ml_diagnostics_console._web.event_stream import EventStream
    from ml_diagnostics_console._web.fleet_reports import FleetReports
    from ml_diagnostics_console._web.page_server import PageServer
    from ml_diagnostics_console._web.refreshing import Refreshing
    from ml_diagnostics_console._web.store import Store

    keep_little()
    store = Store(source, cache=diagnostics_directory() / "cache" / "ui")
    refreshing = Refreshing(store, report)
    stream = EventStream(store, refreshing.watch)
    refreshing.on_change(stream.wake)
    fleet = FleetReports(mirror)
    app = make_app(store, refreshing, stream, Assets(), listener.guard, listener.token, fleet)

    def start() -> None:
        refreshing.start()
        on_ready()

    server = PageServer(app, start, stream.close)
    gc.enable()  # Commands run without collection; this one may run for weeks.
    try:
        server.install_signals()
        server.run_on(listener.sockets)
    finally:
        refreshing.stop()
        fleet.close()
        store.close()
        listener.close()


def _listen_on_loopback(port: int) -> list[socket.socket]:
    """Return listening sockets on 127.0.0.1 and ::1 with the same port; one of them where the other does not exist."""
    for _ in range(_TRIES if port == 0 else 1):
        try:
            first = _bound(_LOOPBACK, port)
        except CommandError:
            raise
        except OSError:  # This machine has no IPv4.
            return [_bound(_LOOPBACK_6, port)]
        try:
            return [first, _bound(_LOOPBACK_6, first.getsockname()[1])]
        except CommandError:
            if port:
                first.close()
                raise
            first.close()  # The port is in use there alone: try another.
        except OSError:
            return [first]
    raise CommandError("no free port was found on 127.0.0.1 and ::1; give one with --port")


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: The name is unknown.
        CommandError: The port is in use.
        OSError: This machine does not have the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host!r} is not an address or name that this machine knows") from None
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":  # There, it would let other programs take the port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        with contextlib.suppress(OSError):
            bound.close()
        _raise_clear(error, host, port)
    return bound


def _raise_clear(error: OSError, host: str, port: int) -> NoReturn:
    if error.errno == errno.EADDRINUSE:
        if not port:
            raise CommandError(f"no port of {host} is free; end another program, or give a port with --port") from None
        raise CommandError(f"port {port} of {host} is in use; give another --port, or 0 for any free one") from None
    if error.errno in (errno.EACCES, errno.EPERM):
        raise CommandError(f"port {port} of {host} may not be used by this user; give one from 1024 on") from None
    if error.errno == errno.EADDRNOTAVAIL and host not in (_LOOPBACK, _LOOPBACK_6):
        raise UsageError(f"--host {host} is not an address of this machine") from None
    raise error


def _in_url(host: str) -> str:
    return f"[{host.lower()}]" if ":" in host else host.lower()
