"""The profiles of a log directory while it is served: new ones appear, and files change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from ml_diagnostics_common.command.errors import NotFoundError

from xprofiler.summary.private_copy import PrivateCopy, xprof_name
from xprofiler.summary.profiles import Profile, find_profiles
from xprofiler.summary.summary import Summary

__all__ = ["Catalog"]

_FRESH_SECONDS = 2.0  # A page requests the list about ten times in a second.
_KEPT_SUMMARIES = 16


class Catalog:
    """The profiles to show. Thread-safe.

    Args:
        path: The log directory.
        folder: The folder for XProf's copies of profiles.
        summarize: Read a profile: `reading.summarize`.
        clock: Return monotonic seconds.
    """

    def __init__(
        self,
        path: str,
        folder: Path,
        summarize: Callable[[str, dict[str, Path]], Summary],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._copy = PrivateCopy(folder)
        self._summarize = summarize
        self._clock = clock
        self._lock = threading.Lock()
        self._listed: list[Profile] = []
        self._listed_at = float("-inf")
        self._summaries: dict[str, tuple[dict[str, float], Summary]] = {}

    def profiles(self) -> list[Profile]:
        """Return all profiles, the newest first. The list is at most two seconds old."""
        with self._lock:
            if self._clock() - self._listed_at > _FRESH_SECONDS:
                self._listed = find_profiles(self.path)
                self._listed_at = self._clock()
            return self._listed

    def profile(self, name: str) -> Profile:
        """Return the profile of a name.

        Raises:
            NotFoundError: The profile does not exist.
        """
        for profile in self.profiles():
            if profile.name == name:
                return profile
        raise NotFoundError(f"there is no session {name} below {self.path}")

    def files(self, profile: Profile) -> dict[str, Path]:
        """Return a profile's files by host, in a folder where XProf may write."""
        return self._copy.add(profile)

    def xprof_name(self, profile: Profile) -> str:
        """Copy a profile for XProf, and return its name there."""
        self.files(profile)
        return xprof_name(profile.name)

    def xprof_name_of_host(self, profile: Profile, host: str) -> str:
        """Copy one host of a profile for XProf, and return its name there.

        XProf 2.24 caches the results of one host under the name that it also uses for all hosts and for other hosts, so
        its first answer would be repeated for all of them.
        """
        name = f".hosts/{host}/{profile.name}"
        self._copy.add(Profile(name, profile.folder, {host: str(self.files(profile)[host])}))
        return xprof_name(name)

    def summary(self, profile: Profile) -> Summary:
        """Return the summary of a profile; read it again only if a file has changed."""
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
