"""The first events of a job, which are held back: its program may be about to record the job itself."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ml_diagnostics_common.guard import guarded_as

__all__ = ["HeldRecorder"]

_LONGEST_SECONDS: Final = 5.0
"""Then they are recorded, since a first compilation may take longer than anyone wants to wait for a report."""


class HeldRecorder:
    """A recorder that holds the calls of its methods until the program makes a step, or for some seconds.

    Attributes:
        recorder: Goodput's recorder.
    """

    def __init__(self, recorder: Any) -> None:
        """Hold all calls from now on.

        Args:
            recorder: Goodput's recorder of the job.
        """
        self.recorder = recorder
        self._calls: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque()
        self._is_released = self._is_dropped = False
        self._timer = threading.Timer(_LONGEST_SECONDS, guarded_as("record its first events")(self.release))
        self._timer.daemon = True
        self._timer.start()

    # No lock: the program would wait for a write of the thread that has it. Once calls are released, each thread that
    # adds one makes all that are held; the order of two calls does not matter, since each has its time.

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            self._calls.append((name, arguments, named))
            if self._is_released:
                self._make_calls()

        return call

    def release(self) -> Any:
        """Make the calls that were held; return the recorder itself, for all calls from now on."""
        self._timer.cancel()
        if not self._is_dropped:
            self._is_released = True
            self._make_calls()
        return self.recorder

    def drop(self) -> bool:
        """Forget the calls that are held; return False if they were released before."""
        self._timer.cancel()
        self._is_dropped = not self._is_released
        if self._is_dropped:
            self._calls.clear()
        return self._is_dropped

    def _make_calls(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                name, arguments, named = self._calls.popleft()
                getattr(self.recorder, name)(*arguments, **named)
