"""The hub of a star: the companion of process 0, to which all other companions connect.

Nothing here waits: every socket is non-blocking, and `step` does what is due. A connection that sends anything but this
job's messages is closed and counted; it changes nothing else.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import os
import select
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from cloud_tpu_diagnostics._fast_fail.decision import Decision
from cloud_tpu_diagnostics._fast_fail.messages import (
    HUB,
    NONCE_BYTES,
    Channel,
    Lines,
    RefusedError,
    nonce_in,
    nonce_line,
)
from cloud_tpu_diagnostics._fast_fail.reports import Event, Hello, JobState

__all__ = ["AUTHENTICATION_SECONDS", "Hub"]

AUTHENTICATION_SECONDS: Final = 5.0
_MOST_STRANGERS: Final = 16
"""Connections above two for each process."""
_READ_BYTES: Final = 2**16
_MOST_UNSENT_BYTES: Final = 2**16
_MOST_AT_ONCE: Final = 256
_BACKLOG: Final = 1024
_PAUSE_SECONDS: Final = 1.0
_OTHER_FILES: Final = 64
"""The open files of a companion besides connections."""


class Hub:
    """Listens for the companions of a job, and decides.

    Args:
        address: The address of this machine to listen on.
        token: The job's token.
        processes: How many processes the job has.
        hello: The hub's own companion.
        hang: True to decide on hangs, too.
        clock: Monotonic seconds.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        processes: int,
        hello: Hello,
        *,
        hang: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self._processes, self._own, self._clock = token, processes, hello.process_index, clock
        self._job = (hello.processes, hello.launch)
        self._most = 2 * processes + _MOST_STRANGERS
        _allow_open_files(self._most + _OTHER_FILES)
        self._connections: dict[int, _Connection] = {}
        self._by_index: dict[int, _Connection] = {}
        self._is_sent = False
        self._accepts_from = 0.0
        """When to accept again, if there were too many open files."""
        self.refused: Counter[str] = Counter()
        """The number of connections that were closed, by reason."""
        self.decision = Decision(processes, hang=hang)
        self.decision.join(hello, clock())
        self.decision.compare_clocks(self._own, 0, 0, is_exact=True)
        family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
        self._listener = _socket.socket(family, _socket.SOCK_STREAM)
        self._listener.setblocking(False)
        try:
            self._listener.bind((address, 0))
            self._listener.listen(_BACKLOG)
            self._poller = select.epoll()
        except OSError:
            self._listener.close()
            raise
        self._poller.register(self._listener.fileno(), select.EPOLLIN)
        self.address: str = address
        self.port: int = self._listener.getsockname()[1]

    @property
    def descriptor(self) -> int:
        """Readable when `step` has something to do."""
        return self._poller.fileno()

    # --- Its own job ----------------------------------------------------------------------------------

    def report(self, state: JobState) -> None:
        """Take the state of its own job."""
        self.decision.report(self._own, state, self._clock())

    def add(self, event: Event) -> None:
        """Take an event of its own job."""
        self.decision.add(self._own, event, self._clock())

    def needs_stack(self) -> bool:
        """Return True if the stack of its own job is needed."""
        return self.decision.needs_stack(self._own)

    # --- The star -------------------------------------------------------------------------------------

    def step(self) -> float:
        """Do what is due; return the seconds until the next call if nothing is received."""
        for number, events in self._poller.poll(0, _MOST_AT_ONCE):
            if number == self._listener.fileno():
                self._accept()
            elif number in self._connections:
                self._serve(self._connections[number], events)
        now = self._clock()
        if 0.0 < self._accepts_from <= now:
            self._accepts_from = 0.0
            self._poller.modify(self._listener.fileno(), select.EPOLLIN)
        for connection in list(self._connections.values()):
            if connection.index is None and now - connection.accepted_at >= AUTHENTICATION_SECONDS:
                self._close(connection, "late")
        if self.decision.decide(now) and not self._is_sent:
            self._is_sent = True
            for connection in list(self._by_index.values()):
                self._send_end(connection)
        return self.decision.seconds_to_next(now)

    def is_idle(self) -> bool:
        """Return True once all other companions have closed their connections."""
        return not self._by_index

    def close(self) -> None:
        """Leave the star; the others go on without."""
        for connection in list(self._by_index.values()):
            self._send(connection, "ack", is_over=True)
        for connection in list(self._connections.values()):
            self._close(connection, None)
        self._poller.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                number, _address = self._listener._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return
            except OSError:  # There are too many open files: the listener stays readable.
                self.refused["files"] += 1
                self._accepts_from = self._clock() + _PAUSE_SECONDS
                self._poller.modify(self._listener.fileno(), 0)
                return
            end = _socket.socket(fileno=number)
            end.setblocking(False)
            strangers = len(self._connections) - len(self._by_index)
            if len(self._connections) >= self._most or strangers >= self._most - self._processes:
                self.refused["full"] += 1
                end.close()
                continue
            connection = _Connection(end, self._token, self._clock())
            self._connections[number] = connection
            self._poller.register(number, select.EPOLLIN)
            self._write(connection, nonce_line(connection.nonce))

    def _serve(self, connection: _Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(connection, b"")
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = connection.end.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection, None if connection.index is not None else "silent")
            return
        try:
            for line in connection.lines.feed(data):
                self._take(connection, connection.channel.open(line))
        except RefusedError as error:
            self._close(connection, error.reason)

    def _take(self, connection: _Connection, message: dict[str, Any]) -> None:
        now, kind = self._clock(), message["kind"]
        if connection.index is None:
            if kind != "hello":
                raise RefusedError("garbage")
            self._welcome(connection, message, now)
            return
        index = connection.index
        sent_ns = message.get("sent_ns")
        if type(sent_ns) is int:
            self.decision.compare_clocks(index, sent_ns, time.time_ns())
        if kind == "ping":
            self.decision.report(index, JobState.from_message(message), now)
        elif kind == "event":
            self.decision.add(index, Event.from_message(message), now)
        else:
            raise RefusedError("garbage")
        number = message.get("number")
        self._send(
            connection,
            "ack",
            number=number if type(number) is int else 0,
            needs_stack=self.decision.needs_stack(index),
        )

    def _welcome(self, connection: _Connection, message: dict[str, Any], now: float) -> None:
        nonce, hello = nonce_in(message), Hello.from_message(message)
        if (hello.processes, hello.launch) != self._job:
            raise RefusedError("job")
        self.decision.join(hello, now)
        before = self._by_index.get(hello.process_index)
        if before is not None:  # It has connected again before the end of its last connection was seen.
            self._close(before, None)
            self.decision.join(hello, now)
        connection.index = hello.process_index
        connection.channel.add_nonce(nonce)
        self._by_index[hello.process_index] = connection
        self._send(connection, "ack", number=0)
        if self._is_sent:
            self._send_end(connection)

    def _send_end(self, connection: _Connection) -> None:
        cause = self.decision.first_cause
        if cause is not None and connection.index is not None:
            is_first = connection.index in self.decision.first
            self._send(connection, "end", first_cause=cause.to_json(), is_first=is_first)

    def _send(self, connection: _Connection, kind: str, **fields: Any) -> None:
        try:
            self._write(connection, connection.channel.seal(kind, **fields))
        except ValueError:
            self.refused["unsendable"] += 1

    def _write(self, connection: _Connection, data: bytes) -> None:
        connection.unsent += data
        try:
            sent = connection.end.send(connection.unsent, _socket.MSG_NOSIGNAL) if connection.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # Its end is read next.
        del connection.unsent[:sent]
        if len(connection.unsent) > _MOST_UNSENT_BYTES:
            self._close(connection, "stalled")
        elif connection.end.fileno() in self._connections:
            waits = select.EPOLLOUT if connection.unsent else 0
            self._poller.modify(connection.end.fileno(), select.EPOLLIN | waits)

    def _close(self, connection: _Connection, reason: str | None) -> None:
        """Close a connection, and count it if there is a reason."""
        number = connection.end.fileno()
        if self._connections.pop(number, None) is None:
            return
        if reason is not None:
            self.refused[reason] += 1
        self._poller.unregister(number)
        connection.end.close()
        if connection.index is not None and self._by_index.get(connection.index) is connection:
            del self._by_index[connection.index]
            self.decision.lose(connection.index)


def _allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, as far as its user may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass


class _Connection:
    """One connection, a stranger's until its hello."""

    def __init__(self, end: _socket.socket, token: bytes, now: float) -> None:
        self.end, self.accepted_at = end, now
        self.nonce = os.urandom(NONCE_BYTES).hex()
        self.channel = Channel(token, self.nonce, HUB)
        self.lines = Lines()
        self.unsent = bytearray()
        self.index: int | None = None
        """The process's index, once it is known."""
