"""How often a job writes to its mirror: each request costs money, and a user who watches waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["OTHERS_SECONDS", "SLOW_SECONDS", "Pace", "is_of_first_process", "process_index"]

SLOW_SECONDS: Final = 120.0
OTHERS_SECONDS: Final = 600.0
"""The time between two objects of a process other than the job's first.

Goodput is that of the first process, while hundreds of others record their checkpoints or their state: an object each
two minutes of 256 hosts would be 184,000 a day, for the user to pay and each reader to list.
"""
_NEW_SECONDS: Final = 600.0
_WATCHED_SECONDS: Final = 300.0


class Pace:
    """The time between two objects: short in the first ten minutes, and while a command watches.

    Args:
        seconds: The short time.
        clock: Return monotonic seconds.

    Attributes:
        is_of_first_process: False for the long time of the job's other processes, unless a command watches.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.is_of_first_process = True
        self._seconds = seconds
        self._clock = clock
        self._started = clock()
        self._watched_until = -1.0
        self._generations: dict[str, int] = {}

    def seconds(self) -> float:
        """Return the time between two objects, from now on."""
        if self._clock() < self._watched_until or not self.is_old():
            return self._seconds
        return max(self._seconds, SLOW_SECONDS if self.is_of_first_process else OTHERS_SECONDS)

    def is_old(self) -> bool:
        """Return True if it matters whether a command watches: after ten minutes, and in other processes."""
        return not self.is_of_first_process or self._clock() - self._started >= _NEW_SECONDS

    def note_watch(self, path: str, generation: int) -> None:
        """Note an object by which a command watches. The command renews it: clocks of two machines may differ.

        Args:
            path: The object's path.
            generation: Its generation, which a new write changes.
        """
        if self._generations.get(path) != generation:
            self._generations[path] = generation
            self._watched_until = self._clock() + _WATCHED_SECONDS


def process_index(labels: Mapping[str, str]) -> int:
    """Return the index of a process in its job from the labels of its entries; 0 if it is not known."""
    text = labels.get("process_index", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def is_of_first_process(labels: Mapping[str, str]) -> bool:
    """Return True for the labels of a job's process 0, or of one whose index is not known."""
    return process_index(labels) == 0
