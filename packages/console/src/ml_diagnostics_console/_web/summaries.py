"""The summaries of profiles: read by `xprofiler summary` in a process of its own, and kept by their files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_console._facts.profile import run_xprofiler

__all__ = ["Key", "Summaries", "Summary"]

_MOST_KEPT: Final = 32

Summary = Mapping[str, Any] | str
Key = tuple[tuple[str, int, int], ...]
"""Path, size in bytes and time of change of each file."""


class Summaries:
    """The summaries that were read, by the files of their profiles.

    Args:
        summarise: Returns the summary of the session in a folder, or why there is none.
    """

    def __init__(self, summarise: Callable[[str], Summary] = run_xprofiler) -> None:
        self._summarise = summarise
        self._lock = threading.Condition()
        self._known: dict[Key, Summary] = {}
        self._waiting: dict[Key, str] = {}
        self._is_started = False

    def get(self, folder: str, files: Key) -> Summary | None:
        """Return a summary, or why there is none; None while it is being read.

        Args:
            folder: The folder of the session.
            files: Its files as they are now.
        """
        with self._lock:
            if files in self._known:
                return self._known[files]
            self._waiting.setdefault(files, folder)
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._work, name="profiles", daemon=True).start()
            self._lock.notify_all()
            return None

    def wait(self, folder: str, files: Key, seconds: float) -> Summary | None:
        """Return a summary, waiting for it so long at most; for exports and tests."""
        found = self.get(folder, files)
        with self._lock:
            self._lock.wait_for(lambda: files in self._known, seconds)
            return self._known.get(files, found)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._lock.wait()
                files, folder = next(iter(self._waiting.items()))
            try:
                found = self._summarise(folder)
            except Exception as error:  # The page must stand.
                found = f"{type(error).__name__}: {error}"
            with self._lock:
                self._known[files] = found
                while len(self._known) > _MOST_KEPT:
                    del self._known[next(iter(self._known))]
                del self._waiting[files]
                self._lock.notify_all()
