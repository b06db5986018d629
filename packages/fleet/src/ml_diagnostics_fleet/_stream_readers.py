"""Streams that are read in parallel by threads, a few at a time."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["StreamReaders"]

_READERS: Final = 4
"""Streams that are read at a time: conversion of their rows to events takes longer than their transfer."""
_WAITING: Final = 8
"""Parts that wait until they are used; a response of BigQuery has a few megabytes at most."""
_POLL_SECONDS: Final = 0.2


class StreamReaders:
    """Threads that read streams; what they read waits in a queue of bounded length.

    Args:
        read: Yields the parts of one stream.
        names: The streams.
    """

    def __init__(self, read: Callable[[str], Iterator[bytes]], names: deque[str]) -> None:
        self._read, self._names = read, names
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_WAITING)
        self._is_closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="bigquery-stream", daemon=True)
            for _ in range(min(_READERS, len(names)))
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[bytes]:
        """Yield the parts of all streams; raise the first error of a stream."""
        running = len(self._threads)
        while running:
            item = self._queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def close(self) -> None:
        """Let the threads end; a thread that waits for a response ends when the client is closed."""
        self._is_closed.set()

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                try:
                    name = self._names.popleft()
                except IndexError:
                    break
                for part in self._read(name):
                    if not self._put(part):
                        return
        except BaseException as error:
            self._put(error)
        finally:
            self._put(None)

    def _put(self, item: bytes | BaseException | None) -> bool:
        """Wait for a free place in the queue; return False if the results are no longer read."""
        while not self._is_closed.is_set():
            try:
                self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False
