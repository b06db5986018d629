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


class PrivateCopy:
    """A folder laid out as a log directory, filled with the profiles that are asked for. Threads may share it.

    Args:
        folder: Where; nobody else's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._placed: dict[str, _State] = {}

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
            state = _state(profile)
            if self._placed.get(profile.name) != state:
                self._placed.pop(profile.name, None)
                try:
                    _fill(target, profile, files)
                except OSError as error:
                    raise XprofilerError(
                        f"cannot copy {profile.folder} to {self.folder}: {error.strerror or error}; make room there, "
                        "or set TMPDIR to a folder that has it"
                    ) from error
                self._placed[profile.name] = state
        return files


def xprof_name(name: str) -> str:
    """Returns what XProf calls the copy of a profile: it takes some letters for patterns, and folders have a limit."""
    return "/".join(_plain(part) for part in name.split("/"))


def _plain(part: str) -> str:
    quoted = quote(part, safe="")
    return quoted if len(quoted) <= _LONGEST_NAME else hashlib.sha256(part.encode()).hexdigest()


_State = tuple[tuple[str, int, int], ...]


def _state(profile: Profile) -> _State:
    """What is different when a profile is; objects are written once, so for them their names are enough."""
    return tuple(
        (path, *((0, 0) if "://" in path else (Path(path).stat().st_size, Path(path).stat().st_mtime_ns)))
        for path in sorted(profile.xplanes.values())
    )


def _fill(target: Path, profile: Profile, files: Mapping[str, Path]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True, mode=0o700)
    with ThreadPoolExecutor(_DOWNLOADS) as threads:
        for _ in threads.map(_fetch, profile.xplanes.values(), (files[host] for host in profile.xplanes)):
            pass


def _fetch(path: str, file: Path) -> None:
    if "://" in path:
        with translated():
            data = storage.read(path)
        file.write_bytes(data)
    else:
        file.symlink_to(path)
