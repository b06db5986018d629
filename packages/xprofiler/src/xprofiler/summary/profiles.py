"""The profiles below a path, local or in Cloud Storage.

A profile is a folder `.../plugins/profile/<session>` with a file `<host>.xplane.pb` for each host. The path may be a
log directory (`xprofiler capture` writes to its `tensorboard`, programmatic capture directly below it), any folder
above or below `plugins/profile`, the folder of one profile, or one such file. Instead of a path, a run of this machine
may be named; its profiles are in the diagnostics directory. The storage is used with the credentials
of the other commands.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import NotFoundError, UsageError
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.payload import decoded
from ml_diagnostics_common.storage import Storage, storage_for

from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.settings import GcloudSettings
from xprofiler.log_directory import XPLANE_SUFFIX

__all__ = ["Profile", "find_profile", "find_profiles", "path_of_run", "profiles_among", "store_for"]

_KNOWN_FOLDERS: Final = ("plugins/profile/", "tensorboard/plugins/profile/")
_NOT_PRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and bytes that are not valid UTF-8."""
_RUN = re.compile(r"[^./\\:~][^/\\:]*")
_LAST: Final = "last"
_FOLDERS_OF_RUNS: Final = ("profiles/{run}", "runs/{run}/profiles")
"""In the diagnostics directory: those of `ml_diagnostics.instrument`, and of runs without a path for profiles."""
_TIME = re.compile(r"\d{4}(?:_\d\d){5}")


def store_for(path: str, deadline_seconds: float = 60.0) -> Storage:
    """Return the storage of a path. For `gs://`, use application default credentials, otherwise gcloud's login.

    Args:
        path: A local path, or one in Cloud Storage.
        deadline_seconds: The deadline of a call, including retries.

    Raises:
        ConfigurationError: The path has another scheme.
        NotPermittedError: There are no credentials.
    """
    if not in_bucket(path):
        return storage_for(path)
    return _cloud_store(deadline_seconds, frozenset(os.environ.items()))


@functools.lru_cache(maxsize=8)
def _cloud_store(deadline_seconds: float, environ: frozenset[tuple[str, str]]) -> Storage:
    return _api(environ).storage_within(deadline_seconds)


@functools.lru_cache(maxsize=2)
def _api(environ: frozenset[tuple[str, str]]) -> GoogleApi:
    """Return the API client that all storages share, since gcloud needs 0.5 to 0.8 s for a token."""
    return GoogleApi(GcloudSettings.load(dict(environ)), Console())


@dataclass(frozen=True)
class Profile:
    """The files of one capture.

    Attributes:
        name: XProf's name: the session, preceded by the folder of its `plugins` relative to the given path.
        folder: The folder of the files.
        xplanes: The path of each host's file, by host.
    """

    name: str
    folder: str
    xplanes: Mapping[str, str]

    @property
    def session(self) -> str:
        """The session without the folder."""
        return posixpath.basename(self.name)


def path_of_run(text: str) -> str:
    """Return the folder of a run's profiles if a text names a run of this machine, otherwise the text.

    Args:
        text: A path, which is returned if it exists; a run's id; or `last`, the run with the newest profile.
    """
    if not _RUN.fullmatch(text) or Path(text).exists():
        return text
    root = diagnostics_directory()
    for folder in (root / pattern.format(run=text) for pattern in _FOLDERS_OF_RUNS):
        if (folder / "plugins/profile").is_dir():
            return str(folder)
    if text == _LAST:
        every = [
            folder for pattern in _FOLDERS_OF_RUNS for folder in root.glob(f"{pattern}/plugins/profile".format(run="*"))
        ]
        if every:
            return str(max(every, key=lambda folder: folder.stat().st_mtime_ns).parent.parent)
    return text


def find_profiles(path: str, *, answer_seconds: float = 10.0) -> list[Profile]:
    """Return the profiles below a path, the newest first.

    In Cloud Storage, only the known folders of captures are listed first. If they are empty, all objects below the path
    are listed, which is slow for a million objects.

    Args:
        path: The path to search.
        answer_seconds: The deadline for Cloud Storage, including retries; short, since a user waits.

    Raises:
        NotFoundError: The local folder does not exist.
        NotPermittedError: There are no credentials.
        ConfigurationError: The path has another scheme.
        StorageError: The bucket does not exist, access is denied, or the storage failed or did not answer in time.
    """
    root = _absolute(path)
    if root.endswith(XPLANE_SUFFIX):
        return profiles_among([root], posixpath.dirname(root))
    folders = _KNOWN_FOLDERS if "://" in root else ()
    store = store_for(root, answer_seconds)
    found = [each for folder in folders for each in store.list_prefix(f"{root}/{folder}")]
    return profiles_among(map(_slashed, found or store.list_prefix(f"{root}/")), root)


def find_profile(path: str, session: str | None = None) -> Profile:
    """Return one profile below a path.

    Args:
        path: See `find_profiles`.
        session: The session, or the full name; None selects the newest.

    Raises:
        NotFoundError: The profile does not exist.
        UsageError: Several profiles have this session.
    """
    profiles = find_profiles(path)
    if not profiles:
        raise NotFoundError(
            f"there is no profile below {path}: no plugins/profile/<session>/<host>{XPLANE_SUFFIX}; capture one with "
            "`xprofiler capture`, or use the log directory of the profiler"
        )
    if session is None:
        return profiles[0]
    session = decoded(session)
    named = [profile for profile in profiles if session == profile.name]
    named = named or [profile for profile in profiles if session == profile.session]
    if not named:
        newest = ", ".join(profile.name for profile in profiles[:5])
        raise NotFoundError(f"there is no session {session} below {path}; the newest are {newest}")
    if len(named) > 1:
        names = ", ".join(profile.name for profile in named)
        raise UsageError(f"{session} is ambiguous: use one of the full names {names}")
    return named[0]


def profiles_among(paths: Iterable[str], root: str) -> list[Profile]:
    """Group files into profiles, the newest first.

    Args:
        paths: The paths of files, with slashes on every system.
        root: The path to search.
    """
    hosts: dict[str, dict[str, str]] = {}
    for path in paths:
        folder, file = posixpath.split(path)
        is_profile = posixpath.dirname(folder).endswith("/plugins/profile") or folder == root
        host = file.removesuffix(XPLANE_SUFFIX)
        if is_profile and host != file and host not in ("", ".", "..") and _is_plain(path):
            hosts.setdefault(folder, {})[host] = path
    profiles = [Profile(_name(folder, root), folder, xplanes) for folder, xplanes in hosts.items()]
    return sorted(profiles, key=_age, reverse=True)


def _name(folder: str, root: str) -> str:
    run = folder.rpartition("/plugins/profile/")[0] if "/plugins/profile/" in folder else root
    below = run[len(root) + 1 :] if run.startswith(f"{root}/") else ""
    return decoded(posixpath.join(below, posixpath.basename(folder)))


def _age(profile: Profile) -> tuple[str, str]:
    # Both session_2026_11_21_10_00_00 and JAX's own 2026_11_21_10_00_00 carry their time.
    time = _TIME.search(profile.session)
    return (time[0] if time else "", profile.name)


def _is_plain(path: str) -> bool:
    # A copy of an object named a/../b would be outside its folder; and names are printed to terminals.
    scheme, _, rest = path.rpartition("://")
    parts = rest.split("/") if scheme else rest.split("/")[1:]
    return not any(part in ("", ".", "..") for part in parts) and not _NOT_PRINTABLE.search(decoded(path))


def _absolute(path: str) -> str:
    if "://" in path:
        return path.rstrip("/")
    local = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - a Path joins the slashes of gs://.
    if not os.path.exists(local):  # noqa: PTH110
        raise NotFoundError(
            f"{path} does not exist on this machine: use a folder of profiles, gs://bucket/path, or a run that has "
            f"profiles in {diagnostics_directory()}"
        )
    return _slashed(local).rstrip("/")


def _slashed(path: str) -> str:
    return path.replace(os.sep, "/")
