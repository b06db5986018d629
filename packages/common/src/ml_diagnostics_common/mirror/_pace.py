"""How often a job writes to its mirror: each request costs money, and a user who watches waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["SLOW_SECONDS", "Pace"]

SLOW_SECONDS: Final = 120.0
_NEW_SECONDS: Final = 600.0
_WATCHED_SECONDS: Final = 300.0


class Pace:
    """The time between two objects: short in the first ten minutes, and while a command watches.

    Args:
        seconds: The short time.
        clock: Return monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._started = clock()
        self._watched_until = -1.0
        self._generations: dict[str, int] = {}

    def seconds(self) -> float:
        """Return the time between two objects, from now on."""
        is_watched = self._clock() < self._watched_until
        return max(self._seconds, SLOW_SECONDS) if self.is_old() and not is_watched else self._seconds

    def is_old(self) -> bool:
        """Return True after the first ten minutes: from then on it matters whether a command watches."""
        return self._clock() - self._started >= _NEW_SECONDS

    def note_watch(self, path: str, generation: int) -> None:
        """Note an object by which a command watches. The command renews it: clocks of two machines may differ.

        Args:
            path: The object's path.
            generation: Its generation, which a new write changes.
        """
        if self._generations.get(path) != generation:
            self._generations[path] = generation
            self._watched_until = self._clock() + _WATCHED_SECONDS
