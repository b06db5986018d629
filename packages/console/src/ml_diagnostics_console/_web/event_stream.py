"""Server-sent events: what changed, at most once a second, to each open page, resumed by `Last-Event-ID`.

See https://html.spec.whatwg.org/multipage/server-sent-events.html for the format.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from ml_diagnostics_console._web.answers import json_answer
from ml_diagnostics_console._web.request_threads import in_daemon_thread

__all__ = ["MOST_TABS", "EventStream", "event_text"]

MOST_TABS: Final = 64
"""The most pages that are open at once; each holds a connection and is sent every change."""

_QUIET_SECONDS: Final = 15.0
_MOST_CURSOR_CHARACTERS: Final = 200
_EVENTS: Final = ("gone", "changed", "metrics", "log")


class Changing(Protocol):
    """A store that reports its changes."""

    @property
    def cursor(self) -> str:
        """The version."""
        ...

    def changes_since(self, cursor: str) -> Mapping[str, Any] | None:
        """Return the events after a version, by their name, and the new `cursor`; None if it is not known."""
        ...


class EventStream:
    """The open pages.

    Args:
        store: Has the changes.
        watch: Called with 1 when a page opens, with -1 when it closes.
        quiet_seconds: A comment is sent after this time without an event, so that a broken connection is noticed.
    """

    def __init__(self, store: Changing, watch: Callable[[int], None], *, quiet_seconds: float = _QUIET_SECONDS) -> None:
        self._store, self._watch, self._quiet_seconds = store, watch, quiet_seconds
        self._wakers: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last: tuple[str, str, str, bytes] | None = None
        self._is_closed = False

    @property
    def open_pages(self) -> int:
        """The number of open pages."""
        return len(self._wakers)

    def wake(self) -> None:
        """Send what changed; callable from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams, so that the server can end; callable from any thread and from a signal handler."""
        self._is_closed = True
        self.wake()

    def has_capacity(self) -> bool:
        """Return True if one more page may open."""
        return len(self._wakers) < MOST_TABS and not self._is_closed

    async def events(self, cursor: str) -> AsyncGenerator[bytes, None]:
        """Yield the events of a page until it closes.

        Args:
            cursor: The version that the page has: of `Last-Event-ID`, or of the answer that it shows.
        """
        if not self.has_capacity():  # Others opened since the request was checked.
            return
        waker = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._wakers.add(waker)
        self._watch(1)
        try:
            cursor, first = await in_daemon_thread(partial(self._hello, cursor[:_MOST_CURSOR_CHARACTERS]))
            yield first
            while not self._is_closed:
                try:
                    await asyncio.wait_for(waker.wait(), self._quiet_seconds)
                except asyncio.TimeoutError:
                    yield b": quiet\n\n"
                    continue
                waker.clear()
                cursor, text = await in_daemon_thread(partial(self._changes, cursor))
                if text:
                    yield text
        finally:
            self._wakers.discard(waker)
            self._watch(-1)

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    def _hello(self, cursor: str) -> tuple[str, bytes]:
        """Return the version that the page has after the first events, and their text."""
        now = self._store.cursor
        if not cursor:
            return now, event_text("hello", {"cursor": now, "now": time.time()}, now)
        reached, text = self._changes(cursor)
        return reached, event_text("hello", {"cursor": cursor, "now": time.time()}, "") + text

    def _changes(self, cursor: str) -> tuple[str, bytes]:
        """Return the version after all changes, and the text of the events; pages at one version share the work."""
        if cursor == self._store.cursor:
            return cursor, b""
        last = self._last
        if last is not None and last[:2] == (cursor, self._store.cursor):
            return last[2], last[3]
        changes = self._store.changes_since(cursor)
        if changes is None:
            reached = self._store.cursor
            return reached, event_text("reset", {}, reached)
        reached = str(changes["cursor"])
        named = [(name, changes[name]) for name in _EVENTS if changes.get(name)]
        # Only the last one has the id: a page that is cut off in between receives all of them again.
        texts = [
            event_text(name, data, reached if index == len(named) - 1 else "")
            for index, (name, data) in enumerate(named)
        ]
        self._last = (cursor, reached, reached, b"".join(texts))
        return reached, b"".join(texts)


def event_text(name: str, data: Any, cursor: str) -> bytes:
    """Return an event as it is sent.

    Args:
        name: Its name.
        data: A value of JSON; JSON has no line breaks outside of its strings, and escapes those within.
        cursor: Its id; empty for none.
    """
    identity = f"id: {cursor}\n".encode() if cursor else b""
    return identity + b"event: " + name.encode() + b"\ndata: " + json_answer(data).body + b"\n\n"
