"""The profiles that lie below a path, local or in Cloud Storage.

A profile is a folder `.../plugins/profile/<session>` with a file `<host>.xplane.pb` for each host. The path may be a
log directory (`xprofiler capture` writes below its `tensorboard`, programmatic capture right below it), any folder
above or below `plugins/profile`, the folder of one profile, or one such file.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.payload import decoded

from xprofiler.exceptions import NotFoundError, UsageError
from xprofiler.summary.stores import store_for, translated

__all__ = ["Profile", "find_profile", "find_profiles", "profiles_among"]

_SUFFIX: Final = ".xplane.pb"
_KNOWN_PLACES: Final = ("plugins/profile/", "tensorboard/plugins/profile/")
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What rules a terminal, and bytes that are no UTF-8."""
_TIME = re.compile(r"\d{4}(?:_\d\d){5}")


@dataclass(frozen=True)
class Profile:
    """What was captured at one moment.

    Attributes:
        name: As XProf calls it: the session, after the folder (from the given path on) that its `plugins` is in.
        folder: Where it lies.
        xplanes: The path of each host's file, by the host.
    """

    name: str
    folder: str
    xplanes: Mapping[str, str]

    @property
    def session(self) -> str:
        """The session alone."""
        return posixpath.basename(self.name)


def find_profiles(path: str, *, answer_seconds: float = 10.0) -> list[Profile]:
    """Return the profiles below a path, the newest first.

    In Cloud Storage a log directory is looked at where captures are written; only when there are none, all below it is
    listed, which takes its time where a bucket holds a million objects.

    Args:
        path: What they lie below.
        answer_seconds: How long Cloud Storage may fail to answer well: somebody waits for it.

    Raises:
        NotFoundError: There is no such folder on this machine, or no such bucket.
        NotPermittedError: There are no credentials, or they may not list this.
        UsageError: It cannot be a path.
        TimedOutError: The store does not answer well.
        StorageError: The store failed.
    """
    root = _absolute(path)
    if root.endswith(_SUFFIX):
        return profiles_among([root], posixpath.dirname(root))
    with translated():
        places = _KNOWN_PLACES if "://" in root else ()
        store = store_for(root, answer_seconds)
        found = [each for place in places for each in store.list_prefix(f"{root}/{place}")]
        return profiles_among(map(_slashed, found or store.list_prefix(f"{root}/")), root)


def find_profile(path: str, session: str | None = None) -> Profile:
    """Return one profile below a path.

    Args:
        path: See `find_profiles`.
        session: Its session, or its whole name; None is the newest.

    Raises:
        NotFoundError: There is none.
        UsageError: More than one has this session.
    """
    profiles = find_profiles(path)
    if not profiles:
        raise NotFoundError(
            f"there is no profile below {path}: no plugins/profile/<session>/<host>{_SUFFIX}; capture one with "
            "`xprofiler capture`, or give the log directory that the profiler was given"
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
        raise UsageError(f"{session} could be any of {names}: give the whole name")
    return named[0]


def profiles_among(paths: Iterable[str], root: str) -> list[Profile]:
    """Return the profiles that files make, the newest first.

    Args:
        paths: Of files; with slashes, whatever the system.
        root: The path that was asked for.
    """
    hosts: dict[str, dict[str, str]] = {}
    for path in paths:
        folder, file = posixpath.split(path)
        is_profile = posixpath.dirname(folder).endswith("/plugins/profile") or folder == root
        host = file.removesuffix(_SUFFIX)
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
    # An object may be called a/../b, which would lead a copy of it out of its folder; and names are shown to people.
    scheme, _, rest = path.rpartition("://")
    parts = rest.split("/") if scheme else rest.split("/")[1:]
    return not any(part in ("", ".", "..") for part in parts) and not _NO_TEXT.search(decoded(path))


def _absolute(path: str) -> str:
    if "://" in path:
        return path.rstrip("/")
    local = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - a Path joins the slashes of gs://.
    if not os.path.exists(local):  # noqa: PTH110
        raise NotFoundError(f"there is no {path} on this machine: give a folder of profiles, or gs://bucket/path")
    return _slashed(local).rstrip("/")


def _slashed(path: str) -> str:
    return path.replace(os.sep, "/")
