"""One thread that keeps the store up to date: each second while a page is open, rarely when none is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from ml_diagnostics_console._web.allocator import give_back

__all__ = ["Refreshable", "Refreshing"]

_INTERVAL_SECONDS: Final = 1.0
_IDLE_INTERVAL_SECONDS: Final = 15.0
_IDLE_AFTER_SECONDS: Final = 20.0
_MOST_WAIT_SECONDS: Final = 2.0
_FIRST_WAIT_SECONDS: Final = 0.7
_GIVE_BACK_SECONDS: Final = 20.0
"""Answers of large runs leave up to 40 MB free in the process. Giving it back takes some milliseconds."""


class Refreshable(Protocol):
    """A store that is kept up to date."""

    @property
    def cursor(self) -> str:
        """The version; another text after each change."""
        ...

    def refresh(self) -> None:
        """Read what is new."""
        ...


class Refreshing:
    """Refreshes a store in a thread of its own.

    Args:
        store: The store.
        report: Prints a note for the user; a failure is reported once.
        interval_seconds: The time between two reads while a page is open.
        idle_seconds: The time between two reads while none is.
    """

    def __init__(
        self,
        store: Refreshable,
        report: Callable[[str], None],
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
        idle_seconds: float = _IDLE_INTERVAL_SECONDS,
    ) -> None:
        self._store, self._report = store, report
        self._interval_seconds, self._idle_seconds = interval_seconds, idle_seconds
        self._changed = threading.Condition()
        self._watchers = 0
        self._seen_at = self._given_back_at = time.monotonic()
        self._read_at = float("-inf")
        self._is_wanted = False
        self._is_stopping = False
        self._last_failure = ""
        self._listeners: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="ml-diagnostics-ui-refresh", daemon=True)

    def start(self) -> None:
        """Start the thread; it reads at once."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Stop the thread; a read in progress is not waited for longer than this."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function, in the thread, after each read that changed the store."""
        self._listeners.append(listener)

    def watch(self, difference: int) -> None:
        """Count an open page: 1 when it opens, -1 when it closes."""
        with self._changed:
            self._watchers += difference
            self._seen_at = time.monotonic()
            self._changed.notify_all()

    def freshen(self) -> None:
        """Wait, two seconds at most, until the store is as new as an open page expects; called for each request.

        The first read of a large journal takes longer: until then, answers have the runs that were read so far.
        """
        with self._changed:
            now = self._seen_at = time.monotonic()
            deadline = now + (_FIRST_WAIT_SECONDS if self._read_at == float("-inf") else _MOST_WAIT_SECONDS)
            if now - self._read_at <= 2 * self._interval_seconds or self._is_stopping:
                return
            self._is_wanted = True
            self._changed.notify_all()
            while self._is_wanted and not self._is_stopping and time.monotonic() < deadline:
                self._changed.wait(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            before = self._store.cursor
            self._refresh()
            with self._changed:
                self._read_at = time.monotonic()
                self._is_wanted = False
                self._changed.notify_all()
            if self._store.cursor != before:
                for listener in self._listeners:
                    listener()
            now = time.monotonic()
            if self._seen_at > self._given_back_at and now - self._given_back_at >= _GIVE_BACK_SECONDS:
                self._given_back_at = now
                give_back()
            with self._changed:
                if self._waits_in_vain():
                    return

    def _waits_in_vain(self) -> bool:
        """Wait for the next read; return True if the thread is to end. The lock is held."""
        while not self._is_stopping and not self._is_wanted:
            is_idle = not self._watchers and time.monotonic() - self._seen_at > _IDLE_AFTER_SECONDS
            interval = self._idle_seconds if is_idle else self._interval_seconds
            left = self._read_at + interval - time.monotonic()
            if left <= 0:
                break
            self._changed.wait(left)
        return self._is_stopping

    def _refresh(self) -> None:
        try:
            self._store.refresh()
        except Exception as error:  # Whatever is damaged, the page shows what was read before, and the next read tries.
            failure = f"the runs could not be read: {type(error).__name__}: {error}"
            if failure != self._last_failure:
                self._report(failure)
            self._last_failure = failure
        else:
            self._last_failure = ""
