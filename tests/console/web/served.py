"""The page, served by the real command in a process of its own, and requests to it as no browser would send them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

COMMAND = [sys.executable, "-m", "google_cloud_mldiagnostics"]
_SECONDS = 30.0
_REPORT_SECONDS = 110.0
"""A report of the fleet is made at low priority, so beside other tests it takes long."""


class Reply(NamedTuple):
    """An answer of the server.

    Attributes:
        status: Its status.
        headers: Its headers, with names in lower case.
        body: Its body.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class Served:
    """A running server.

    Attributes:
        process: The process.
        url: The URL that it printed.
        host: The host and port in it.
    """

    def __init__(self, root: Path, *arguments: str, prefix: Sequence[str] = ()) -> None:
        environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(root), "ML_DIAGNOSTICS_BACKEND": "local"}
        environ["DISPLAY"] = environ["WAYLAND_DISPLAY"] = environ["BROWSER"] = ""
        argv = [*prefix, *COMMAND, "ui", *arguments]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environ
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise AssertionError(self.process.communicate(timeout=_SECONDS)[1])
        self.host = urlsplit(self.url).netloc

    def get(self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request, with the path and the headers as they are; without a Host header only if it is empty."""
        is_report = path.startswith(("/fleet", "/api/fleet"))
        connection = http.client.HTTPConnection(self.host, timeout=_REPORT_SECONDS if is_report else _SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": self.host, **(headers or {})}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return the JSON of a path that is answered."""
        reply = self.get(path)
        assert reply.status == 200, reply.body[:500]
        return reply.json()

    def children(self) -> list[int]:
        """Return the ids of its child processes, by Linux's /proc."""
        found: list[int] = []
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):  # The thread has ended.
                found += map(int, (thread / "children").read_text().split())
        return found

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, float]:
        """Send a signal, and return the exit code, standard error, and how long it took, in seconds."""
        started = time.monotonic()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=_SECONDS)
        return self.process.returncode, errors, time.monotonic() - started


class Stream:
    """A connection to the server's events."""

    def __init__(self, server: Served, path: str = "/api/events", headers: Mapping[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection(server.host, timeout=_SECONDS)
        self._connection.request("GET", path, headers=dict(headers or {}))
        self._socket = self._connection.sock
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self._rest = b""

    def close(self) -> None:
        """Close the connection."""
        self.answer.close()
        self._connection.close()

    def next(self, seconds: float = _SECONDS) -> tuple[str, Any, str]:
        """Return the name, the data and the id of the next event."""
        deadline = time.monotonic() + seconds
        while True:
            text, separator, rest = self._rest.partition(b"\n\n")
            if separator:
                self._rest = rest
                fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if not line.startswith(b":"))
                if fields:
                    return fields[b"event"].decode(), json.loads(fields[b"data"]), fields.get(b"id", b"").decode()
                continue
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self.answer.read1(65536)
            if not chunk:
                raise EOFError("the stream has ended")
            self._rest += chunk


@contextmanager
def served(root: Path, *arguments: str) -> Iterator[Served]:
    """Serve a folder on any free port, and end the server afterwards."""
    server = Served(root, "--no-browser", *arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate(timeout=_SECONDS)
