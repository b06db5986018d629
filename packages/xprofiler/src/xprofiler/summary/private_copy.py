"""A profile where XProf may write beside it.

XProf keeps what it has computed next to each xplane (for 20 MB of profile about 18 MB more), which a bucket should not
pay for and a folder of somebody else's does not allow. Nor can it read Cloud Storage with the settings that the rest of
this command honours. So it is given a folder of ours: links to local files, copies of objects.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ml_diagnostics_common.xplane import read_xplane

from xprofiler.exceptions import XprofilerError
from xprofiler.summary.profiles import Profile
from xprofiler.summary.stores import store_for, translated

__all__ = ["PrivateCopy", "xprof_name"]

_DAMAGED = ".damaged"
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
        self._placed: dict[str, _Placed] = {}

    def place(self, profile: Profile) -> dict[str, Path]:
        """Put a profile there, unless it is there as it is now, and return its files by host.

        A file that is empty or cut short is put where XProf does not find it: it would fail for all hosts. What XProf
        has computed of an earlier state is removed: a host's file may have been written later than the others'.

        Raises:
            NotPermittedError: A file may not be read.
            StorageError: It could not.
            XprofilerError: There is no room for it here.
        """
        run, _, session = xprof_name(profile.name).rpartition("/")
        target = self.folder / run / "plugins" / "profile" / session
        aside = self.folder / _DAMAGED / run / session
        with self._lock:
            placed = self._placed.get(profile.name)
            if placed is None or placed.states != _states(profile):
                self._placed.pop(profile.name, None)
                try:
                    placed = self._placed[profile.name] = _fill(target, aside, profile)
                except OSError as error:
                    raise XprofilerError(
                        f"cannot copy {profile.folder} to {self.folder}: {error.strerror or error}; make room there, "
                        "or set TMPDIR to a folder that has it"
                    ) from error
        return placed.files


def xprof_name(name: str) -> str:
    """Return what XProf calls the copy of a profile: it takes some letters for patterns, and folders have a limit."""
    return "/".join(_plain(part) for part in name.split("/"))


def _plain(part: str) -> str:
    quoted = quote(part, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else hashlib.sha256(part.encode()).hexdigest()


_State = tuple[int, int]
"""What is different when a file is: its size and time of change, or its generation and 0."""


class _Placed(NamedTuple):
    """A profile that was put there: the states of its files, by their paths, and its files by host."""

    states: dict[str, _State]
    files: dict[str, Path]


def _states(profile: Profile) -> dict[str, _State]:
    """The states of a profile's files, by their paths: a capture that asks a host again writes its file again."""
    with ThreadPoolExecutor(_LOOKS) as threads:
        return dict(zip(profile.xplanes.values(), threads.map(_state, profile.xplanes.values()), strict=True))


def _state(path: str) -> _State:
    if "://" not in path:
        found = Path(path).stat()
        return found.st_size, found.st_mtime_ns
    with translated():
        return store_for(path).read_with_generation(path, first_bytes=1)[1], 0


def _fill(target: Path, aside: Path, profile: Profile) -> _Placed:
    """Bring the files; those that are not whole into another folder."""
    for folder in (target, aside):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
    files = {host: target / f"{host}.xplane.pb" for host in profile.xplanes}
    with ThreadPoolExecutor(_DOWNLOADS) as threads:
        states = threads.map(_fetch, profile.xplanes.values(), (files[host] for host in profile.xplanes))
        placed = _Placed(dict(zip(profile.xplanes.values(), states, strict=True)), files)
    for host, file in files.items():
        if not read_xplane(file).is_whole:
            files[host] = file.rename(aside / file.name)
    return placed


def _fetch(path: str, file: Path) -> _State:
    if "://" not in path:
        state = _state(path)
        file.symlink_to(path)
        return state
    with translated():
        data, generation = store_for(path).read_with_generation(path)
    file.write_bytes(data)
    return generation, 0
