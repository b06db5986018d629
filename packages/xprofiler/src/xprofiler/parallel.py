"""A map over daemon threads, so that Ctrl-C does not wait for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["in_parallel"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_MOST_THREADS = 32


def in_parallel(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result | Exception]:
    """Call a function with each item in parallel.

    Args:
        function: The function; it may raise.
        items: Its arguments.

    Returns:
        The result of each call, or the exception that it raised, in the same order.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _Result | Exception]] = queue.SimpleQueue()
    for index in range(len(items)):
        waiting.put(index)

    def work() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, function(items[index])))
            except Exception as error:
                done.put((index, error))

    for _ in range(min(_MOST_THREADS, len(items))):
        threading.Thread(target=work, daemon=True).start()
    found = dict(done.get() for _ in items)
    return [found[index] for index in range(len(items))]
