"""A profile where XProf may write beside it.

XProf keeps what it has computed next to each xplane (for 20 MB of profile about 18 MB more), which a bucket should not
pay for and a folder of somebody else's does not allow. Nor can it read Cloud Storage with the settings that the rest of
this command honours. So it is given a folder of ours: links to local files, copies of objects.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from ml_diagnostics_common import storage

from xprofiler.exceptions import XprofilerError
from xprofiler.summary.profiles import Profile
from xprofiler.summary.storage_errors import translated

__all__ = ["PrivateCopy", "xprof_name"]

_LONGEST_NAME = 160
_DOWNLOADS = 4  # At once: each is in memory as a whole.
_LOOKS = 16  # At once, at what is there already.


class PrivateCopy:
    """A folder laid out as a log directory, filled with the profiles that are asked for. Threads may share it.

    Args:
        folder: Where; nobody else's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._placed: dict[str, dict[str, _State]] = {}

    def place(self, profile: Profile) -> dict[str, Path]:
        """Puts a profile there, unless it is there as it is now, and returns its files by host.

        What XProf has computed of an earlier state goes: a host's file may have come later than the others'.

        Raises:
            NotPermittedError: A file may not be read.
            StorageError: It could not.
            XprofilerError: There is no room for it here.
        """
        run, _, session = xprof_name(profile.name).rpartition("/")
        target = self.folder / run / "plugins" / "profile" / session
        files = {host: target / f"{host}.xplane.pb" for host in profile.xplanes}
        with self._lock:
            placed = self._placed.get(profile.name)
            if placed is None or placed != _states(profile):
                self._placed.pop(profile.name, None)
                try:
                    self._placed[profile.name] = _fill(target, profile, files)
                except OSError as error:
                    raise XprofilerError(
                        f"cannot copy {profile.folder} to {self.folder}: {error.strerror or error}; make room there, "
                        "or set TMPDIR to a folder that has it"
                    ) from error
        return files


def xprof_name(name: str) -> str:
    """Returns what XProf calls the copy of a profile: it takes some letters for patterns, and folders have a limit."""
    return "/".join(_plain(part) for part in name.split("/"))


def _plain(part: str) -> str:
    quoted = quote(part, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else hashlib.sha256(part.encode()).hexdigest()


_State = tuple[int, int]
"""What is different when a file is: its size and time of change, or its generation and 0."""


def _states(profile: Profile) -> dict[str, _State]:
    """The states of a profile's files, by their paths: a capture that asks a host again writes its file again."""
    with ThreadPoolExecutor(_LOOKS) as threads:
        return dict(zip(profile.xplanes.values(), threads.map(_state, profile.xplanes.values()), strict=True))


def _state(path: str) -> _State:
    if "://" not in path:
        found = Path(path).stat()
        return found.st_size, found.st_mtime_ns
    with translated():
        return storage.storage_for(path).read_with_generation(path, first_bytes=1)[1], 0


def _fill(target: Path, profile: Profile, files: Mapping[str, Path]) -> dict[str, _State]:
    """Brings the files, and returns the states that they were in."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True, mode=0o700)
    with ThreadPoolExecutor(_DOWNLOADS) as threads:
        states = threads.map(_fetch, profile.xplanes.values(), (files[host] for host in profile.xplanes))
        return dict(zip(profile.xplanes.values(), states, strict=True))


def _fetch(path: str, file: Path) -> _State:
    if "://" not in path:
        state = _state(path)
        file.symlink_to(path)
        return state
    with translated():
        data, generation = storage.read_with_generation(path)
    file.write_bytes(data)
    return generation, 0
