"""A recorder whose calls are made in a thread, so that the program's own thread computes meanwhile.

The first events of a job are held back: its program may be about to record the job itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ml_diagnostics_common.worker import Worker

__all__ = ["DeferredRecorder"]

_LONGEST_HOLD_SECONDS: Final = 5.0
"""Then the first calls are made, since a first compilation may take longer than anyone wants to wait for a report."""
_DELAY_SECONDS: Final = 0.05
"""The thread wakes up once for all calls of this time: to wake it for each would cost a short step more than to record
it."""
_LONGEST_WAIT_SECONDS: Final = 5.0


class DeferredRecorder:
    """A recorder that makes the calls of its methods later: until `release` none, but for some seconds at most.

    Attributes:
        recorder: Goodput's recorder.
    """

    def __init__(self, recorder: Any, longest_hold_seconds: float = _LONGEST_HOLD_SECONDS) -> None:
        """Hold all calls from now on.

        Args:
            recorder: Goodput's recorder of the job.
            longest_hold_seconds: The time after which calls are released anyway.
        """
        self.recorder = recorder
        self._calls: deque[partial[None]] = deque()
        self._hold: deque[None] = deque([None])
        """Empty once calls are held no longer: of a release, a drop and the thread, one empties it."""
        self._longest_hold_seconds = longest_hold_seconds
        self._is_dropped = False
        self._is_released = threading.Event()
        self._is_finished = threading.Event()
        self._is_awaited = True
        """True while the thread is going to make the calls anyway."""
        self._worker = Worker("record-inferred-events")
        self._worker.put(self._wait_for_release)

    # No lock: the program would wait for a write of the thread that has it. Two threads may make calls at the same
    # time; the order of two calls does not matter, since each has its time.

    def __getattr__(self, name: str) -> Callable[..., None]:
        call = partial(self._defer, getattr(self.recorder, name))
        setattr(self, name, call)
        return call

    def _defer(self, method: Callable[..., None], /, *arguments: Any, **named: Any) -> None:
        if self._is_dropped:
            return
        self._calls.append(partial(method, *arguments, **named))
        if not self._is_awaited:
            self._is_awaited = True
            if self._is_finished.is_set() or not self._worker.put(self._make_calls_soon):
                self._make_calls()

    def release(self) -> None:
        """Hold calls no longer."""
        self._end_hold()

    def drop(self) -> bool:
        """Forget the calls that are held; return False if they are held no longer."""
        self._is_dropped = self._end_hold(forgets=True)
        return self._is_dropped

    def finish(self) -> None:
        """Make all calls now, and from now on each at once."""
        self._end_hold()
        self._is_finished.set()
        self._worker.drain(_LONGEST_WAIT_SECONDS)
        self._make_calls()

    def _end_hold(self, *, forgets: bool = False) -> bool:
        """Return False if the hold has ended before."""
        try:
            self._hold.pop()
        except IndexError:
            return False
        if forgets:
            self._calls.clear()
        self._is_released.set()
        return True

    def _wait_for_release(self) -> None:
        self._is_released.wait(self._longest_hold_seconds)
        self._end_hold()
        self._make_calls()

    def _make_calls_soon(self) -> None:
        self._is_finished.wait(_DELAY_SECONDS)
        self._make_calls()

    def _make_calls(self) -> None:
        self._is_awaited = False
        with contextlib.suppress(IndexError):
            while True:
                self._calls.popleft()()
