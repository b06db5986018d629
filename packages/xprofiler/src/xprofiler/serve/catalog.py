"""The profiles of a log directory while it is served: they come and grow meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from xprofiler.exceptions import NotFoundError
from xprofiler.summary.private_copy import PrivateCopy, xprof_name
from xprofiler.summary.profiles import Profile, find_profiles
from xprofiler.summary.summary import Summary

__all__ = ["Catalog"]

_FRESH_SECONDS = 2.0  # A page asks for the list some ten times in a second.
_KEPT_SUMMARIES = 16


class Catalog:
    """What can be shown. Threads may share it.

    Args:
        place: The log directory.
        folder: Where XProf gets its own copies of what is looked at.
        summarize: Reads a profile: `reading.summarize`.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        place: str,
        folder: Path,
        summarize: Callable[[str, dict[str, Path]], Summary],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self._copy = PrivateCopy(folder)
        self._summarize = summarize
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: list[Profile] = []
        self._listed_at = float("-inf")
        self._summaries: dict[str, tuple[dict[str, float], Summary]] = {}

    def profiles(self) -> list[Profile]:
        """Return all, the newest first, as of at most two seconds ago."""
        with self._lock:
            if self._clock() - self._listed_at > _FRESH_SECONDS:
                self._listed = find_profiles(self.place)
                self._listed_at = self._clock()
            return self._listed

    def profile(self, name: str) -> Profile:
        """Return the one of this name.

        Raises:
            NotFoundError: There is none.
        """
        for profile in self.profiles():
            if profile.name == name:
                return profile
        raise NotFoundError(f"there is no session {name} below {self.place}")

    def files(self, profile: Profile) -> dict[str, Path]:
        """Return its xplanes by host, where XProf may read them and write beside them."""
        return self._copy.place(profile)

    def xprof_name(self, profile: Profile) -> str:
        """Put it where XProf finds it, and return what XProf calls it."""
        self.files(profile)
        return xprof_name(profile.name)

    def xprof_name_of_host(self, profile: Profile, host: str) -> str:
        """The same with one of its hosts, where XProf finds no other.

        XProf 2.24 keeps what it has computed of one host under the name that it also looks for when it is asked for
        all, or for another: its first answer would be its answer to every question.
        """
        name = f".hosts/{host}/{profile.name}"
        self._copy.place(Profile(name, profile.folder, {host: str(self.files(profile)[host])}))
        return xprof_name(name)

    def summary(self, profile: Profile) -> Summary:
        """Return what it says; read again only when a file has changed."""
        files = self.files(profile)
        times = {host: file.stat().st_mtime for host, file in files.items()}
        with self._lock:
            known = self._summaries.get(profile.name)
        if known is not None and known[0] == times:
            return known[1]
        summary = self._summarize(profile.name, files)
        with self._lock:
            self._summaries[profile.name] = (times, summary)
            while len(self._summaries) > _KEPT_SUMMARIES:
                del self._summaries[next(iter(self._summaries))]
        return summary
