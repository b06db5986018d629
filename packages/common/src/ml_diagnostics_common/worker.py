"""Threads of these packages: single tasks, and workers that call functions one after the other.

All are daemon threads that `_thread` starts. `threading.Thread.start` takes a lock of the threading module, so a signal
handler that records an event could wait for ever for the code that it interrupted. For the same reason nothing here
waits for a lock that interrupted code may hold. A forked child starts clean.
"""

from __future__ import annotations

import _thread
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.process_hooks import LiveObjects, at_fork

__all__ = [
    "MOST_THREADS",
    "Interval",
    "NoAnswerError",
    "Task",
    "Worker",
    "call",
    "in_parallel",
    "results_in_parallel",
    "start",
    "thread_names",
    "wait_until",
]

_POLL_SECONDS = 0.005

MOST_THREADS = 32

_SIGNAL_SECONDS = 0.2
"""The longest wait of a caller in a lock: a signal that arrived in another thread, or just before, does not end it."""

_RETRY_SECONDS = 60.0
_SHORTEST_RETRY_SECONDS = 1.0  # A tick that is due at once and fails again and again must not use a whole core.

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def _bounded(timeout_seconds: float) -> float:
    return min(max(0.0, timeout_seconds), threading.TIMEOUT_MAX)


class Task:
    """A function that runs in a thread of its own.

    Attributes:
        error: The exception that it raised; None before its end, and if it succeeded.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._is_done = False
        self._running = _thread.allocate_lock()
        self._running.acquire()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end of the function; return False if that takes longer."""
        # The flag is read first, for a signal handler that interrupts another wait between its two calls.
        if not self._is_done and self._running.acquire(timeout=_bounded(timeout_seconds)):
            self._running.release()
        return self._is_done

    def _run(self, function: Callable[[], object], name: str) -> None:
        ident = _thread.get_ident()
        _thread_names[ident] = name
        try:
            function()
        except Exception as error:
            self.error = error
            LOSSES.add(f"{name}: {type(error).__name__}")
        finally:
            _thread_names.pop(ident, None)
            self._is_done = True
            self._running.release()


# State of the process: the names of our threads that run, by identifier.
_thread_names: dict[int, str] = {}
at_fork(_thread_names.clear)


def thread_names() -> dict[int, str]:
    """Return the names of our threads by identifier; `threading` does not know them."""
    return _thread_names.copy()


def start(function: Callable[[], object], name: str) -> Task | None:
    """Call a function in a thread.

    Args:
        function: Counted as a loss if it raises an Exception.
        name: The thread's name, in stack traces and in what is counted.

    Returns:
        The task; None if there can be no more threads: the interpreter exits, or the system has none left.
    """
    task = Task()
    try:
        _thread.start_new_thread(task._run, (function, name))
    except RuntimeError:
        return None
    return task


class NoAnswerError(TimeoutError):
    """A function did not return in time, or there could be no thread for it."""


def call(function: Callable[[], _Result], timeout_seconds: float, name: str) -> _Result:
    """Call a function that may never return, in a thread, and wait for it a bounded time.

    Raises:
        NoAnswerError: It did not return in time.
        Exception: The function raised it.
    """
    results: list[_Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    task = start(run, name)
    if task is None or not task.wait(timeout_seconds):
        raise NoAnswerError(f"no answer within {timeout_seconds:g} s")
    for error in errors:
        raise error
    return results[0]


def in_parallel(
    function: Callable[[_Item], _Result], items: Iterable[_Item], most_threads: int = MOST_THREADS
) -> list[_Result | Exception]:
    """Call a function with each item in daemon threads, so that Ctrl-C does not wait for them.

    Returns:
        The result of each call, or the Exception that it raised, in the order of the items.

    Raises:
        BaseException: A call raised it, such as SystemExit; the other calls are not waited for.
    """
    waiting: queue.SimpleQueue[tuple[int, _Item]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _Result | BaseException]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        waiting.put(numbered)
    count = waiting.qsize()

    def work(caught: type[BaseException]) -> None:
        while True:
            try:
                number, item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, function(item)))
            except caught as error:
                done.put((number, error))

    # Each call in a thread has a result, since the caller waits for it; in the caller itself Ctrl-C ends them all.
    tasks = [start(lambda: work(BaseException), "in-parallel") for _ in range(min(most_threads, count))]
    if not any(tasks):  # There can be no more threads.
        work(Exception)
    found: dict[int, _Result | Exception] = {}
    while len(found) < count:
        try:
            number, result = done.get(timeout=_SIGNAL_SECONDS)
        except queue.Empty:
            continue
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            raise result
        found[number] = result
    return [found[number] for number in range(count)]


def results_in_parallel(
    function: Callable[[_Item], _Result], items: Iterable[_Item], most_threads: int = MOST_THREADS
) -> list[_Result]:
    """Return what `in_parallel` does; raise the first exception in the order of the items."""
    results = []
    for result in in_parallel(function, items, most_threads):
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results


def wait_until(condition: Callable[[], bool], seconds_left: Callable[[], float]) -> bool:
    """Wait for a condition for which no lock can stand, or for a time that may become shorter meanwhile.

    Args:
        condition: Polled.
        seconds_left: Returns how long to wait from now on.

    Returns:
        True if the condition holds.
    """
    while not condition() and (seconds := seconds_left()) > 0:
        time.sleep(min(_POLL_SECONDS, seconds))
    return condition()


class Interval:
    """Moments at a fixed distance, so that delays do not add up; those that were missed are left out.

    Args:
        seconds: The distance.
        due: The first moment, of the clock that `advance` is given.
    """

    def __init__(self, seconds: float, due: float) -> None:
        self.seconds = seconds
        self.due = due

    def advance(self, now: float) -> float:
        """Set `due` to the next moment after now, and return it."""
        self.due += self.seconds * max(1, math.floor((now - self.due) / self.seconds) + 1)
        return self.due


class Worker:
    """Calls functions in a thread of its own, in the order in which it is given them, and one that recurs.

    The thread starts with the first call of `put` or `start`. A forked child inherits nothing of it: there the worker
    starts with an empty inbox. A child that is forked in the thread, by a function or the tick, ends when that returns.

    Args:
        name: The thread's name; errors are counted and logged under it.
        tick: Called in the thread at its start, after each function, and again after as many seconds as it returns;
            None: not before the next function. If it fails it is called again after the last such time, or a minute.
        limit: How many functions may wait.
        idle_seconds: The thread ends after so many seconds in which there was nothing to do; the next function starts
            another.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], float | None] = lambda: None,
        *,
        limit: float = math.inf,
        idle_seconds: float = math.inf,
    ) -> None:
        self._name = name
        self._tick = tick
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._reset()
        _workers_of_this_process.add(self)

    def _reset(self) -> None:
        """Set the state of a worker without a thread: at construction, and in a forked child."""
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()  # Its put may interrupt itself.
        self._pending: deque[None] = deque()  # One for each function that was put and has not returned.
        self._running = _thread.allocate_lock()  # Held as long as there is a thread.
        self._is_stopped = False
        self._task: Task | None = None
        self._thread_ident = 0

    def start(self) -> bool:
        """Start the thread, unless it runs; return False if it was stopped, or there can be no more threads."""
        if self._is_stopped:
            return False
        if self._running.acquire(blocking=False):
            self._task = start(self._run, self._name)
            if self._task is None:
                self._running.release()
                return False
        return True

    def put(self, function: Callable[[], object]) -> bool:
        """Call a function in the thread, after those before it; return False if too many wait, or `start` fails."""
        if len(self._pending) >= self._limit or not self.start():
            return False
        self._put(function)
        return True

    def _put(self, function: Callable[[], object]) -> None:
        self._pending.append(None)
        self._inbox.put(function)
        self.start()  # The thread may have ended for lack of work.

    def pending_count(self) -> int:
        """Return how many functions were put and have not returned."""
        return len(self._pending)

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until all functions that were put so far have returned; return False if that takes longer."""
        if not self._pending:
            return True
        if _thread.get_ident() == self._thread_ident or not self.start():
            return False  # In the thread, a function would wait for itself.
        is_drained = _thread.allocate_lock()
        is_drained.acquire()
        self._put(is_drained.release)
        return is_drained.acquire(timeout=_bounded(timeout_seconds))

    def stop(self) -> None:
        """End the thread after the function that runs; no other is called. May be called in the thread."""
        self._is_stopped = True
        self._inbox.put(_nothing)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the end of the thread; return False if that takes longer."""
        return self._task is None or self._task.wait(timeout_seconds)

    # --- The thread -----------------------------------------------------------------------------------

    def run_waiting(self) -> None:
        """Call the functions that wait: for one that runs in the thread and needs their effects."""
        while not self._inbox.empty():
            self._take(0.0)

    def _run(self) -> None:
        running = self._running  # A child that a function forks has another one: there this thread is no worker's.
        self._thread_ident = _thread.get_ident()
        retry_seconds = _RETRY_SECONDS
        try:
            while not self._is_stopped and self._running is running:
                seconds = self.attempt(self._tick, retry_seconds)
                if seconds is not None:
                    retry_seconds = max(_SHORTEST_RETRY_SECONDS, seconds)
                if not self._take(self._idle_seconds if seconds is None else max(0.0, seconds)) and seconds is None:
                    break
        finally:
            if self._running is running:
                self._thread_ident = 0
                running.release()
                if not self._inbox.empty():  # Put after the last check, or behind a function that raised SystemExit.
                    self.start()

    def _take(self, timeout_seconds: float) -> bool:
        """Wait for a function, and call it; return False if none was put in that time."""
        try:
            function = self._inbox.get(timeout=None if timeout_seconds == math.inf else timeout_seconds)
        except queue.Empty:
            return False
        pending = self._pending  # A child that the function forks has another one, which is empty.
        if not self._is_stopped:
            try:
                self.attempt(function)
            finally:
                del function  # While it is still pending: it may hold the memory of a device.
                pending.popleft()
        return True

    def attempt(self, function: Callable[[], _Result | None], if_failed: _Result | None = None) -> _Result | None:
        """Call a function in this thread; an Exception is counted, and logged once of each kind.

        Returns:
            The result of the function, or `if_failed`.
        """
        try:
            return function()
        except Exception as error:
            LOSSES.add(f"{self._name}: {type(error).__name__}")
            warn_once(
                ("worker", self._name, type(error)),
                "A part of %s failed (%s: %s). The job continues; further failures of this kind are counted, not "
                "logged.",
                self._name,
                type(error).__name__,
                error,
            )
            return if_failed


def _nothing() -> None:
    pass


# State of the process: its workers, for a fork.
_workers_of_this_process: LiveObjects[Worker] = LiveObjects()


def _start_clean_in_child() -> None:
    for worker in _workers_of_this_process:
        worker._reset()


at_fork(_start_clean_in_child)
