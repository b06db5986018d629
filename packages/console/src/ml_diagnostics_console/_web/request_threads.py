"""Threads that answer requests: the server ends at a signal, whatever one of them still waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

__all__ = ["RequestThreads", "in_daemon_thread"]

_T = TypeVar("_T")
_MOST_THREADS: Final = 32


class RequestThreads:
    """Calls functions in threads, a limited number at a time; others wait.

    Args:
        most: The most functions that are called at the same time.
    """

    def __init__(self, most: int = _MOST_THREADS) -> None:
        self._free = asyncio.Semaphore(most)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Return the result of a function, called in a thread."""
        async with self._free:
            return await in_daemon_thread(function)


async def in_daemon_thread(function: Callable[[], _T]) -> _T:
    """Return the result of a function, called in a thread that neither its caller's end nor the process waits for.

    The threads of asyncio and of Starlette are joined at exit: a read of a hanging disk, or an export that waits for
    the doctor, would keep the process alive after SIGTERM.

    Args:
        function: The function; it takes no arguments.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def deliver(result: _T | None, error: BaseException | None) -> None:
        if future.done():  # The request was cancelled.
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # The loop is closed: the server has ended.
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=work, name="ml-diagnostics-ui-request", daemon=True).start()
    return await future
