"""The connection of a companion to the hub of its star. Nothing here waits: `step` does what is due.

A connection that breaks is made again for a while, with all events that the hub has not acknowledged. If that fails
the star goes on without this companion: its job is not touched.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import errno
import os
import time
from collections.abc import Callable
from typing import Any, Final

from cloud_tpu_diagnostics._fast_fail.messages import MEMBER, NONCE_BYTES, Channel, Lines, RefusedError, nonce_in
from cloud_tpu_diagnostics._fast_fail.reports import Event, Hello, JobState
from cloud_tpu_diagnostics.configuration.first_cause import FirstCause

__all__ = ["PING_SECONDS", "Member"]

PING_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
_LOST_SECONDS: Final = 60.0
"""The time of attempts to connect, after which this companion gives up."""
_SILENT_SECONDS: Final = 20.0
"""A hub that acknowledges nothing for this time is gone: its machine may be, which closes no connection."""
_CONNECT_SECONDS: Final = 5.0
_CONNECTING_STEP_SECONDS: Final = 0.05
_READ_BYTES: Final = 2**16
_CONNECTING: Final = (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN)
_CONNECTED: Final = (0, errno.EISCONN)


class Member:
    """One companion's connection.

    Args:
        address: The hub's address, a number.
        port: The hub's port.
        token: The job's token.
        hello: This companion.
        clock: Monotonic seconds.
    """

    def __init__(
        self, address: str, port: int, token: bytes, hello: Hello, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target, self._token, self._hello, self._clock = (address, port), token, hello, clock
        self._family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
        self._end: _socket.socket | None = None
        self._is_connected = False
        self._channel: Channel | None = None
        self._lines = Lines()
        self._unsent = bytearray()
        self._events: list[Event] = []
        self._acknowledged = 0
        self._state = JobState()
        self._next_ping = self._next_attempt = 0.0
        self._since = self._received_at = clock()
        """The times of the last star, and of the hub's last message."""
        self._needs_stack = False
        self._is_refused = False
        self.is_joined = False
        """True while the hub has this companion in its star."""
        self.was_joined = False
        self.is_over = False
        """True once the hub has left, as its job has ended and no other needs it."""
        self.lost: str | None = None
        """Why this companion has given up; None while it has not."""
        self.first_cause: FirstCause | None = None
        """The decision of the hub."""
        self.is_first = False
        """True if this process is the first cause."""

    @property
    def descriptor(self) -> int | None:
        """Readable when `step` has something to do; None without a connection."""
        return self._end.fileno() if self._end is not None and self._is_connected else None

    def report(self, state: JobState) -> None:
        """Send the state of the job with the next ping; at once if it was taken for stuck, or was asked for."""
        is_urgent = state.is_suspected != self._state.is_suspected or (
            self._needs_stack and state.is_compiling is not None
        )
        self._state = state
        if is_urgent:
            self._needs_stack = False
            self._next_ping = 0.0

    def add(self, event: Event) -> None:
        """Send an event of the job."""
        self._events.append(event)
        if self.is_joined:
            self._send_event(len(self._events))
            self._flush()

    def needs_stack(self) -> bool:
        """Return True if the hub needs the stack of the job."""
        return self._needs_stack

    def has_sent_all(self) -> bool:
        """Return True once the hub has acknowledged all events."""
        return self._acknowledged >= len(self._events)

    def step(self) -> float:
        """Do what is due; return the seconds until the next call if nothing is received."""
        now = self._clock()
        if self.is_over or self.lost is not None or self.first_cause is not None:
            return _LOST_SECONDS
        if self._end is None:
            if now - self._since >= _LOST_SECONDS:
                self.lost = self._why_lost()
                return _LOST_SECONDS
            if now < self._next_attempt:
                return self._next_attempt - now
            self._connect(now)
        if self._end is not None and not self._is_connected:
            self._is_connected = self._try_connect(now)
            if not self._is_connected:
                return _CONNECTING_STEP_SECONDS
        self._receive(now)
        if self.is_joined and now - self._received_at >= _SILENT_SECONDS:
            self._disconnect(now)
        if self.is_joined and now >= self._next_ping:
            self._next_ping = now + PING_SECONDS
            self._send("ping", **self._state.to_message())
        self._flush()
        return max(0.0, min(self._next_ping - now, 0.05 if self._unsent else PING_SECONDS)) if self.is_joined else 0.25

    def close(self) -> None:
        """Leave the star."""
        if self._end is not None:
            self._end.close()
            self._end = None
        self.is_joined = False

    def _why_lost(self) -> str:
        if self._is_refused:
            return "the hub refuses it: it has another token, launch or process count, or another process has its index"
        what = "is gone" if self.was_joined else "cannot be reached"
        return f"its hub, the companion of process 0 at {self._target[0]} port {self._target[1]}, {what}"

    def _connect(self, now: float) -> None:
        self._next_attempt = now + _RETRY_SECONDS
        try:
            self._end = _socket.socket(self._family, _socket.SOCK_STREAM)
            self._end.setblocking(False)
        except OSError:
            return
        self._is_connected, self._channel = False, None
        self._lines, self._unsent = Lines(), bytearray()
        self._received_at = now

    def _try_connect(self, now: float) -> bool:
        """Return True once the connection is made; without one there is another attempt."""
        assert self._end is not None
        try:
            code = self._end.connect_ex(self._target)
        except OSError as error:  # Not an address.
            code = error.errno or errno.EINVAL
        if code in _CONNECTED:
            return True
        if code not in _CONNECTING or now - self._received_at >= _CONNECT_SECONDS:
            self._disconnect(now)
        return False

    def _receive(self, now: float) -> None:
        while self._end is not None:
            try:
                data = self._end.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._disconnect(now)
                return
            try:
                for line in self._lines.feed(data):
                    self._take(line, now)
            except RefusedError:
                self._disconnect(now)
                return

    def _take(self, line: bytes, now: float) -> None:
        if self._channel is None:
            self._channel = Channel(self._token, nonce_in(line), MEMBER)
            nonce = os.urandom(NONCE_BYTES).hex()
            self._send("hello", nonce=nonce, **self._hello._asdict())
            self._channel.add_nonce(nonce)
            return
        message = self._channel.open(line)
        self._received_at = now
        if message["kind"] == "ack":
            self._acknowledge(message)
        elif message["kind"] == "end" and isinstance(message.get("first_cause"), dict):
            try:
                self.first_cause = FirstCause.from_json(message["first_cause"])
            except TypeError:
                raise RefusedError("garbage") from None
            self.is_first = message.get("is_first") is True
            self.close()

    def _acknowledge(self, message: dict[str, Any]) -> None:
        number = message.get("number")
        if type(number) is int:
            self._acknowledged = max(self._acknowledged, min(number, len(self._events)))
        self._needs_stack = message.get("needs_stack") is True
        if message.get("is_over") is True:
            self.is_over = True
            self.close()
        elif not self.is_joined:
            self.is_joined = self.was_joined = True
            self._next_ping = 0.0
            for each in range(self._acknowledged + 1, len(self._events) + 1):
                self._send_event(each)

    def _send_event(self, number: int) -> None:
        self._send("event", number=number, **self._events[number - 1].to_message())

    def _send(self, kind: str, **fields: Any) -> None:
        if self._channel is not None:
            self._unsent += self._channel.seal(kind, sent_ns=time.time_ns(), **fields)

    def _flush(self) -> None:
        if self._end is None or not self._unsent:
            return
        try:
            sent = self._end.send(self._unsent, _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            return  # Its end is read next.
        del self._unsent[:sent]

    def _disconnect(self, now: float) -> None:
        if self.is_joined:
            self._since = now
        self._is_refused = self._channel is not None and not self.is_joined
        self.close()
        self._next_attempt = now + _RETRY_SECONDS
