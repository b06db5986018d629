"""What each process has one of: a forked child makes its own, instead of its parent's copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerProcess"]

_Kind = TypeVar("_Kind")


class PerProcess(Generic[_Kind]):
    """One object of a kind for each process, made when it is first asked for.

    Args:
        make: Makes one, without beginning anything: of threads that ask at once each may make one, and one is kept.
    """

    def __init__(self, make: Callable[[], _Kind]) -> None:
        self._make = make
        self._made: dict[int, _Kind] = {}

    def get(self) -> _Kind:
        """Returns this process's; takes no lock, which a fork could leave taken."""
        pid = os.getpid()
        made = self._made.get(pid)
        return self._made.setdefault(pid, self._make()) if made is None else made

    def forget(self) -> None:
        """Has the next who asks get a new one: for tests."""
        self._made.clear()
