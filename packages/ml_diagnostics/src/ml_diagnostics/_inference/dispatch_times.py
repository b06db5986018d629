"""The time that the dispatch of a step takes: it seems to be a pause of the program, and is not.

A dispatch is noticed when it returns. What the program did before, after it had read a result, is the load of a batch,
and then the dispatch, which may take a millisecond in a library that is written in Python. In a few steps Python's
profile function distinguishes both: the dispatch starts where the program's own code last did something.

A library that is written in Python may make thousands of calls for a dispatch, so the measurement stops at the first of
them. If the library has returned from it before the dispatch, the next measurements include all calls.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from ml_diagnostics_common.clock import now_ns

__all__ = ["DispatchTimes"]

_LIBRARIES: Final = frozenset({"equinox", "flax", "haiku", "jax", "jaxlib", "optax"})
"""Packages with functions that dispatch; a call of theirs right before a dispatch is a part of it."""
_OURS: Final = frozenset({"ml_diagnostics", "ml_diagnostics_common", "ml_goodput_measurement"})
_SAMPLES: Final = 17
_LEFT_OUT: Final = 2
"""The longest samples, as of a thread that was interrupted."""
_WARM_UP: Final = 8
"""The first dispatches take longer than the others."""
_EVERY: Final = 4
_EVERY_LATER: Final = 64
"""Once there are enough samples, one dispatch of so many is measured: a program may change."""
_MOST_EVENTS: Final = 2_000
"""A profile function costs about 0.2 us an event, so a load that is written in Python gives no sample."""
_MOST_FAILURES: Final = 9


class DispatchTimes:
    """Measures some dispatches of the main thread.

    Attributes:
        usual_seconds: The mean without the longest ones, since sums depend on it; 0.0 while nothing is known.
        is_measuring: True from the result that starts a measurement until the dispatch that ends it.
    """

    def __init__(self, clock_ns: Callable[[], int] = now_ns) -> None:
        """Measure nothing yet.

        Args:
            clock_ns: The time in nanoseconds.
        """
        self._clock_ns = clock_ns
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self.usual_seconds = 0.0
        self.is_measuring = False
        self._results_read = 0
        self._failures = 0
        self._events = 0
        self._start_ns = 0
        self._is_in_library = False
        self._stops_in_library = True
        self._library_call: tuple[int, CodeType] | None = None
        """The frame in which the measurement has stopped: its id, since a frame would keep arrays alive."""

    def result_read(self) -> None:
        """Note that the program has read a result; measure the next dispatch, if it is the turn of that.

        Call it in the main thread.
        """
        self._results_read += 1
        every = _EVERY if len(self._samples) < _SAMPLES else _EVERY_LATER
        is_due = self._results_read >= _WARM_UP and self._results_read % every == 0
        if not is_due or self._failures >= _MOST_FAILURES or sys.getprofile() is not None:
            return  # A profile function of the program's own is left alone.
        self._events, self._is_in_library, self._start_ns = 0, False, self._clock_ns()
        self._library_call = None
        self.is_measuring = True
        sys.setprofile(self._on_event)

    def dispatched(self) -> None:
        """Note that a dispatch has returned, which ends the measurement."""
        call, self._library_call, self.is_measuring = self._library_call, None, False
        if call is not None and not _is_on_stack(*call):
            self._stops_in_library = False
        elif self._stop() or call is not None:
            self._samples.append((self._clock_ns() - self._start_ns) / 1e9)
            self._failures = 0
            if len(self._samples) > _LEFT_OUT:
                samples = sorted(self._samples)[:-_LEFT_OUT]
                self.usual_seconds = sum(samples) / len(samples)

    def close(self) -> None:
        """Measure no longer."""
        self._stop()
        self._library_call = None
        self._failures = _MOST_FAILURES

    def _stop(self) -> bool:
        """Remove the profile function; return True if it was there."""
        if sys.getprofile() != self._on_event:
            return False
        sys.setprofile(None)
        return True

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        self._events += 1
        if self._events > _MOST_EVENTS:
            self._stop()
            self._failures += 1
            return
        package = _package_of(frame)
        if package in _OURS:
            return
        is_in_library = package in _LIBRARIES
        # Of several calls of a library, the first one starts the dispatch.
        if not (is_in_library and self._is_in_library):
            self._start_ns = self._clock_ns()
        self._is_in_library = is_in_library
        is_call_of_library = is_in_library and event == "call" and _package_of(frame.f_back) not in _LIBRARIES
        if is_call_of_library and self._stops_in_library:
            self._stop()
            self._library_call = id(frame), frame.f_code


def _package_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_on_stack(frame_id: int, code: CodeType) -> bool:
    """Return True if a frame has not returned yet."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame) == frame_id and frame.f_code is code:
            return True
        frame = frame.f_back
    return False
