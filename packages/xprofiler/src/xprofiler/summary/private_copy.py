"""A copy of a profile in a folder where XProf may write.

XProf caches results beside each file (about 18 MB for a profile of 20 MB). They should not cost space in a bucket, and
another user's folder may not be writable. XProf also cannot read Cloud Storage with the settings of this command. So it
gets a private folder with links to local files and copies of objects.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.worker import results_in_parallel
from ml_diagnostics_common.xplane import read_xplane

from xprofiler.log_directory import XPLANE_SUFFIX
from xprofiler.summary.profiles import Profile, store_for

__all__ = ["PrivateCopy", "xprof_name"]

_DAMAGED = ".damaged"
_LONGEST_NAME = 160
_DOWNLOADS = 4  # Downloads at once: each is completely in memory.
_CHECKS = 16  # Checks of existing files at once.


class PrivateCopy:
    """A folder with the layout of a log directory, filled with requested profiles. Thread-safe.

    Args:
        folder: The folder, which no other program uses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._copied: dict[str, _Copied] = {}

    def add(self, profile: Profile) -> dict[str, Path]:
        """Copy a profile, unless an up-to-date copy exists, and return its files by host.

        Empty and truncated files are moved to another folder, since XProf would fail for all hosts. Results that XProf
        cached for an earlier state are removed, since a host's file may be written later than the others.

        Raises:
            StorageError: A file does not exist or could not be read, or the credentials do not permit reading it.
            CommandError: The disk is full, or the copy failed.
        """
        run, _, session = xprof_name(profile.name).rpartition("/")
        target = self.folder / run / "plugins" / "profile" / session
        aside = self.folder / _DAMAGED / run / session
        with self._lock:
            copied = self._copied.get(profile.name)
            if copied is None or copied.states != _states(profile):
                self._copied.pop(profile.name, None)
                try:
                    copied = self._copied[profile.name] = _fill(target, aside, profile)
                except ObjectNotFoundError:  # An OSError, too.
                    raise
                except OSError as error:
                    raise CommandError(
                        f"cannot copy {profile.folder} to {self.folder}: {error.strerror or error}; free some space, "
                        "or set TMPDIR to another folder"
                    ) from error
        return copied.files


def xprof_name(name: str) -> str:
    """Return the name of a copy in XProf. XProf interprets some characters as patterns, and file names are limited."""
    return "/".join(_plain(part) for part in name.split("/"))


def _plain(part: str) -> str:
    quoted = quote(part, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else hashlib.sha256(part.encode()).hexdigest()


_State = tuple[int, int]
"""The state of a file, to detect changes: its size and modification time, or its generation and 0."""


class _Copied(NamedTuple):
    """A copied profile: the states of its files by path, and the copies by host."""

    states: dict[str, _State]
    files: dict[str, Path]


def _states(profile: Profile) -> dict[str, _State]:
    """Return the states of a profile's files by path. A capture that retries a host rewrites its file."""
    paths = list(profile.xplanes.values())
    return dict(zip(paths, results_in_parallel(_state, paths, _CHECKS), strict=True))


def _state(path: str) -> _State:
    if not in_bucket(path):
        found = Path(path).stat()
        return found.st_size, found.st_mtime_ns
    return store_for(path).read_with_generation(path, first_bytes=1)[1], 0


def _fill(target: Path, aside: Path, profile: Profile) -> _Copied:
    """Copy the files; move truncated ones to another folder."""
    for folder in (target, aside):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
    files = {host: target / f"{host}{XPLANE_SUFFIX}" for host in profile.xplanes}
    states = results_in_parallel(lambda host: _fetch(profile.xplanes[host], files[host]), files, _DOWNLOADS)
    copied = _Copied(dict(zip(profile.xplanes.values(), states, strict=True)), files)
    for host, file in files.items():
        if not read_xplane(file).is_whole:
            files[host] = file.rename(aside / file.name)
    return copied


def _fetch(path: str, file: Path) -> _State:
    if not in_bucket(path):
        state = _state(path)
        file.symlink_to(path)
        return state
    data, generation = store_for(path).read_with_generation(path)
    file.write_bytes(data)
    return generation, 0
